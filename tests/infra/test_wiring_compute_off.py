"""Target aws with mocks: compute off and on."""

from __future__ import annotations

import pytest

from .recording_mocks import aws_stack, default

PAID_BY_THE_HOUR = (
    "natGateway:NatGateway",
    "eip:Eip",
    "cluster:Cluster",
    "nodeGroup:NodeGroup",
    "instance:Instance",
)
KEPT = (
    *("FileSystem", "AccessPoint", "MountTarget", "Repository", "LogGroup"),
    *("aws:s3/bucket:Bucket", "aws:kms/key:Key"),
)


@pytest.mark.parametrize("nat", ["single", "per-az", "none"])
def test_compute_off_keeps_data_and_removes_hourly_cost(nat: str) -> None:
    values = {"data": {"source": "s3://b/k"}}
    made = aws_stack(compute="off", network={"nat": nat}, bastion={"enabled": True}, values=values)
    for kind in PAID_BY_THE_HOUR:
        assert not made.of(kind), kind
    assert not [a for a in made.of("VpcEndpoint") if a.inputs["vpcEndpointType"] == "Interface"]
    assert not made.of("Release")
    for kind in KEPT:
        assert made.of(kind), kind


def test_compute_on_again_uses_same_file_system() -> None:
    for kind in KEPT:
        on = {a.name: a.inputs for a in default().of(kind)}
        off = {a.name: a.inputs for a in aws_stack(compute="off").of(kind)}
        assert on
        assert on == off, kind
