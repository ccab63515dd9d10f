"""Target aws with mocks: the file system and its access rules."""

from __future__ import annotations

import pytest

from .recording_mocks import aws_stack, default


def test_nfs_is_open_only_to_nodes() -> None:
    made = default()
    rules = [a for a in made.of("SecurityGroupIngressRule") if "efs" in a.name]
    assert len(rules) == 1
    rule = rules[0].inputs
    assert (rule["fromPort"], rule["toPort"], rule["ipProtocol"]) == (2049, 2049, "tcp")
    assert rule["referencedSecurityGroupId"] == "sg-cluster"
    assert "cidrIpv4" not in rule
    group = made.one("aws:ec2/securityGroup:SecurityGroup", "efs")
    assert rule["securityGroupId"] == f"{group.name}-id"
    assert all(a.inputs["securityGroups"] == [f"{group.name}-id"] for a in made.of("MountTarget"))


def test_each_zone_has_one_mount_target() -> None:
    subnets = [args.inputs["subnetId"] for args in default().of("MountTarget")]
    assert len(subnets) == len(set(subnets)) == 2
    assert all("private" in subnet for subnet in subnets)


def test_access_point_sets_user_of_pods() -> None:
    point = default().one("AccessPoint").inputs
    assert point["posixUser"] == {"uid": 10001, "gid": 10001}
    assert point["rootDirectory"]["creationInfo"]["ownerUid"] == 10001


def test_file_system_is_elastic_and_has_backups_only_on_request() -> None:
    assert default().one("FileSystem").inputs["throughputMode"] == "elastic"
    assert default().one("BackupPolicy").inputs["backupPolicy"] == {"status": "DISABLED"}
    made = aws_stack(storage={"backup": True, "protect": False})
    assert made.one("BackupPolicy").inputs["backupPolicy"] == {"status": "ENABLED"}
    assert "stay in AWS Backup for 35 days" in made.outputs["destroyLoses"]
    assert "AWS Backup" not in default().outputs["destroyLoses"]
    assert (
        aws_stack(storage={"archiveAfterDays": 0}).one("FileSystem").inputs.get("lifecyclePolicies", []) == []
    )


@pytest.mark.parametrize("protect", [True, False])
def test_unprotected_bucket_and_registry_are_emptied(protect: bool) -> None:
    made = aws_stack(storage={"protect": protect})
    assert made.one("aws:s3/bucket:Bucket").inputs["forceDestroy"] is not protect
    assert made.one("Repository").inputs["forceDelete"] is not protect
