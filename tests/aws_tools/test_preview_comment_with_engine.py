"""The preview without the cluster, with the real engine and the emulated account."""

from __future__ import annotations

import pytest

from aws import preview_comment as comments
from tests.aws_emulator.conftest import account, moto
from tests.infra.recording_mocks import aws_stack
from tests.infra_emulated.conftest import dev_stack

__all__ = ["account", "dev_stack", "moto"]

IMAGE = "example.com/launcher@sha256:" + "0" * 64


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_preview_unreachable_cluster_excludes_only_namespace_and_release(dev_stack) -> None:
    engine = dev_stack("dev", f"image={IMAGE}")
    part = engine.preview(*comments.WITHOUT_CLUSTER)
    assert part.code == 0, part.text
    created = {step.type for step in part.steps if step.op == "create"}
    registered = {args.typ for args in aws_stack(image=IMAGE).resources}
    assert "kubernetes:helm.sh/v3:Release" in registered
    assert {kind for kind in registered - created if not kind.startswith("kubernetes:")} == set()
    # The provider stays in the preview; without resources, it does not contact the cluster.
    assert {kind for kind in created if kind.startswith("kubernetes:")} == set()
