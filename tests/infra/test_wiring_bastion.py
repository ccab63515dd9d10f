"""Target aws with mocks: the bastion."""

from __future__ import annotations

import json

from .recording_mocks import aws_stack, default, everything

SEEDS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"


def test_bastion_of_storage_efs_csi_mounts_access_point_with_tls_and_iam() -> None:
    made = aws_stack(bastion={"enabled": True})
    script = made.one("Instance").inputs["userData"]
    files, point = (f"{made.one(token).name}-id" for token in ("FileSystem", "AccessPoint"))
    entry = f"{files}:/ /efs efs {SEEDS},_netdev,tls,iam,accesspoint={point} 0 0"
    assert f"echo '{entry}' >> /etc/fstab" in script, "mounted again after a restart"
    assert "dnf install -y amazon-efs-utils" in script
    rights = json.loads(made.one("RolePolicy", "bastion").inputs["policy"])["Statement"]
    assert rights == json.loads(made.one("RolePolicy", "efs-node").inputs["policy"])["Statement"]
    ready = made.before(made.one("Instance"))
    assert [name for name in ready if name.endswith("rolePolicy:RolePolicy::paddle-training-dev-bastion")]


def test_bastion_has_no_open_port_and_mounts_file_system() -> None:
    made = everything()
    instance = made.one("Instance").inputs
    group = instance["vpcSecurityGroupIds"][0]
    assert not [a for a in made.of("SecurityGroupIngressRule") if a.inputs["securityGroupId"] == group]
    mounts = [
        a for a in made.of("SecurityGroupIngressRule") if a.inputs.get("referencedSecurityGroupId") == group
    ]
    assert [a.inputs["fromPort"] for a in mounts] == [2049]
    assert instance["metadataOptions"]["httpTokens"] == "required"
    assert instance["associatePublicIpAddress"] is False
    assert "keyName" not in instance
    ways = {name for name in made.before(made.one("Instance")) if "vpcEndpoint" in name}
    assert len(ways) == len(made.of("VpcEndpoint")), "Session Manager works until the instance is gone"
    assert not default().of("Instance"), "created only with bastion.enabled"


def test_bastion_of_storage_nfs_mounts_root_of_file_system_by_nfs() -> None:
    made = aws_stack(storage={"type": "nfs"}, bastion={"enabled": True})
    entry = f"fs-1.efs.us-west-2.amazonaws.com:/ /efs nfs4 {SEEDS},_netdev 0 0"
    assert f"echo '{entry}' >> /etc/fstab" in made.one("Instance").inputs["userData"]
    assert not [policy for policy in made.of("RolePolicy") if policy.name.endswith("bastion")]
