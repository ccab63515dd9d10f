"""Target aws with mocks: the bastion."""

from __future__ import annotations

from .recording_mocks import default, everything


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
    mount = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
    entry = f"fs-1.efs.us-west-2.amazonaws.com:/ /efs nfs4 {mount},_netdev 0 0"
    assert f"echo '{entry}' >> /etc/fstab" in instance["userData"], "mounted again after a restart"
    ways = {name for name in made.before(made.one("Instance")) if "vpcEndpoint" in name}
    assert len(ways) == len(made.of("VpcEndpoint")), "Session Manager works until the instance is gone"
    assert not default().of("Instance"), "created only with bastion.enabled"
