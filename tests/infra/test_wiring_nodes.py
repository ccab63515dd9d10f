"""Target aws with mocks: the node group and its launch template."""

from __future__ import annotations

import pulumi
import pytest

from infra import constants

from .recording_mocks import aws_stack, default, everything


def test_startup_taint_only_with_efs_csi() -> None:
    taints = default().one("NodeGroup").inputs["taints"]
    assert [taint["key"] for taint in taints] == ["efs.csi.aws.com/agent-not-ready"]
    made = aws_stack(storage={"type": "hostPath", "path": "/shared"})
    assert "taints" not in made.one("NodeGroup").inputs
    assert not made.of("Addon") or not [
        a for a in made.of("Addon") if a.name.endswith(constants.ADDON_EFS_CSI)
    ]


def test_nodes_use_imdsv2_and_own_launch_template() -> None:
    made = default()
    template = made.one("LaunchTemplate")
    metadata = template.inputs["metadataOptions"]
    assert metadata["httpTokens"] == "required"
    assert metadata["httpPutResponseHopLimit"] == 1
    group = made.one("NodeGroup").inputs
    assert group["launchTemplate"]["id"] == f"{template.name}-id"
    assert group["amiType"] == "AL2023_x86_64_STANDARD"
    assert "diskSize" not in group, "EKS rejects it together with a launch template"
    assert "remoteAccess" not in group, "EKS rejects it together with a launch template"
    assert "vpcSecurityGroupIds" not in template.inputs, (
        "security groups in the template would replace the cluster's group"
    )


def test_nodes_are_in_one_zone_unless_single_zone_is_false() -> None:
    """The control plane keeps all zones; traffic between trainers in two zones would be charged."""
    ids = default().one("aws:eks/cluster:Cluster").inputs["vpcConfig"]["subnetIds"]
    assert len(ids) == 2
    assert default().one("NodeGroup").inputs["subnetIds"] == ids[:1]
    assert aws_stack(nodes={"singleZone": False}).one("NodeGroup").inputs["subnetIds"] == ids


def test_node_count_change_updates_only_scaling() -> None:
    one = aws_stack(nodes={"desired": 1}, values={"trainers": 1}).one("NodeGroup").inputs
    three = default().one("NodeGroup").inputs
    assert {key for key in three if one.get(key) != three[key]} == {"scalingConfig"}


def test_graviton_nodes_use_arm_image() -> None:
    group = aws_stack(nodes={"instanceTypes": ["m7g.large"]}).one("NodeGroup").inputs
    assert group["amiType"] == "AL2023_ARM_64_STANDARD"


def test_key_pair_and_placement_group_are_in_launch_template() -> None:
    template = everything().one("LaunchTemplate").inputs
    assert template["keyName"] == "mine"
    assert template["placement"]["groupName"] == everything().one("PlacementGroup").name
    assert len(everything().one("NodeGroup").inputs["subnetIds"]) == 1
    assert "keyName" not in default().one("LaunchTemplate").inputs


def test_spot_nodes_with_one_type_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    aws_stack(nodes={"capacity": "SPOT"})
    assert not [text for text in said if "nodes.instanceTypes" in text]
    aws_stack(nodes={"capacity": "SPOT", "instanceTypes": ["m6i.large"]})
    assert [text for text in said if "has only m6i.large" in text]
