"""The preview without the cluster, by the real engine against the emulated account."""

from __future__ import annotations

import pytest

from aws import preview_comment as comments
from tests.aws_emulator.conftest import account, moto
from tests.infra_emulated.conftest import dev_stack

__all__ = ["account", "dev_stack", "moto"]


@pytest.mark.timeout(1800)
def test_an_unreachable_cluster_leaves_namespace_and_release_out_and_nothing_else(dev_stack) -> None:
    engine = dev_stack("dev", "image=example.com/launcher@sha256:" + "0" * 64)
    whole = engine.preview()
    part = engine.preview(*comments.WITHOUT_CLUSTER)
    assert part.code == 0, part.text

    def kinds(found) -> set[str]:
        return {step.type for step in found.steps if step.op == "create"}

    gone = kinds(whole) - kinds(part)
    assert "kubernetes:helm.sh/v3:Release" in gone
    assert {kind for kind in gone if "kubernetes" not in kind} == set()
    # The provider itself stays in the plan; it asks nothing of the cluster without a resource.
    assert {kind for kind in kinds(part) if kind.startswith("kubernetes:")} == set()
