"""The preview without the cluster, with the real engine and the emulated account."""

from __future__ import annotations

import pytest

from aws import preview_comment as comments
from tests.aws_emulator.conftest import account, moto
from tests.infra_emulated.conftest import dev_stack

__all__ = ["account", "dev_stack", "moto"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_preview_unreachable_cluster_excludes_only_namespace_and_release(dev_stack) -> None:
    engine = dev_stack("dev", "image=example.com/launcher@sha256:" + "0" * 64)
    whole = engine.preview()
    part = engine.preview(*comments.WITHOUT_CLUSTER)
    assert part.code == 0, part.text

    def kinds(found) -> set[str]:
        return {step.type for step in found.steps if step.op == "create"}

    gone = kinds(whole) - kinds(part)
    assert "kubernetes:helm.sh/v3:Release" in gone
    assert {kind for kind in gone if "kubernetes" not in kind} == set()
    # The provider stays in the preview; without resources, it does not contact the cluster.
    assert {kind for kind in kinds(part) if kind.startswith("kubernetes:")} == set()
