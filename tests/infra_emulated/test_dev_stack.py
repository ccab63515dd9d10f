"""The stack `dev` with the real engine and the emulated AWS: from the first preview to an empty account."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from infra import iam_policies
from infra.settings import IamSettings
from testkit.aws_emulator import inventory
from testkit.aws_emulator.account import Account, AwsError
from testkit.aws_emulator.handler import MotoCloud
from testkit.aws_emulator.pulumi_engine import REGION, Engine
from testkit.aws_emulator.resource_model import Model

CLUSTER, NODES, ADDON = "aws:eks/cluster:Cluster", "aws:eks/nodeGroup:NodeGroup", "aws:eks/addon:Addon"
VPC, FILES, BUCKET = "aws:ec2/vpc:Vpc", "aws:efs/fileSystem:FileSystem", "aws:s3/bucket:Bucket"
KEY, REGISTRY, NAT = "aws:kms/key:Key", "aws:ecr/repository:Repository", "aws:ec2/natGateway:NatGateway"
RULE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
LOGS = "aws:cloudwatch/logGroup:LogGroup"
KEPT_WITHOUT_COMPUTE = (VPC, FILES, BUCKET, KEY, REGISTRY, LOGS)
# The engine alone takes a few seconds for each run, and several times that on a busy machine.
pytestmark = pytest.mark.timeout(2700)

Make = Callable[..., Engine]
FIXED = ("nodes.auto=false", "nodes.min=1")  # a number of nodes that only the owner changes


def _deny_other_stack(account: Account) -> None:
    """Check that a deployer with the rights for another stack can change and remove nothing of the stack `dev`."""
    before = (account.folder / "granted.json").read_text(encoding="utf-8")
    account.grant(iam_policies.deployer("paddle-training-other", IamSettings()))
    model, allowed = Model(account, REGION, {}), set()
    kinds = {record.type: record for record in account.all()}
    for kind, record in kinds.items():
        try:
            account.enter(kind, "delete", model.targets(kind, record.inputs, record.inputs))
            allowed.add(kind)
        except AwsError as error:
            assert "AccessDenied" in str(error)
    (account.folder / "granted.json").write_text(before, encoding="utf-8")
    # IAM's handlers compare the names of roles; Route 53 evaluates no tags, and its records have the same names.
    assert {kind for kind in allowed if not kind.startswith(("aws:iam/", "aws:route53/"))} == set()
    assert len(kinds) - len(allowed) > 25


def _ids(account: Account, *kinds: str) -> set[str]:
    return {record.id for record in account.all() if record.type in kinds}


@pytest.mark.seconds(40)
def test_dev_stack_full_lifecycle(dev_stack: Make, account: Account, tmp_path: Path) -> None:
    engine = dev_stack("dev", "storage.protect=false", *FIXED, "nodes.desired=1", "cluster.podLogs=true")

    planned = engine.preview()
    assert {step.op for step in planned.steps} == {"create"}
    assert account.all() == []

    account.fail(NODES, "create", message="NodeCreationFailure: injected")
    broken = engine.up(fails=True)
    assert "NodeCreationFailure: injected" in broken.text
    made = _ids(account, VPC, CLUSTER, FILES)
    engine.up()
    assert _ids(account, VPC, CLUSTER, FILES) == made, "the second up must continue, not start from scratch"
    _add_and_remove_second_stack(dev_stack("two", "storage.protect=false", *FIXED), account)
    _deny_other_stack(account)
    # The second clone of the same commit, with the same backend, has nothing to do.
    shutil.copytree(engine.project, tmp_path / "elsewhere" / "clone")
    second = dataclasses.replace(engine, project=tmp_path / "elsewhere" / "clone")
    second.up("--refresh", "--expect-no-changes")

    engine.config("paddle-training:nodes.desired=3")
    _cut_off(account)
    _rename(account)
    drifted = engine.preview("--refresh")
    assert {(s.op, s.type) for s in drifted.steps if s.op in ("update", "create")} == {
        ("update", NODES),
        ("update", VPC),
        ("create", RULE),
    }, drifted.text
    assert [s.diff for s in drifted.of(NODES) if s.op == "update"] == [
        {"scalingConfig.desiredSize": "update"}
    ], drifted.text
    engine.up("--refresh")
    assert [record.inputs["scalingConfig"]["desiredSize"] for record in account.all(NODES)] == [3]

    kept = _ids(account, *KEPT_WITHOUT_COMPUTE)
    engine.config("paddle-training:compute=off")
    engine.up()
    assert _ids(account, CLUSTER, NODES, NAT, ADDON) == set()
    assert _ids(account, *KEPT_WITHOUT_COMPUTE) == kept
    engine.config("paddle-training:compute=on")
    engine.up()
    assert _ids(account, *KEPT_WITHOUT_COMPUTE) == kept, "the same file system must be used again"
    assert _ids(account, CLUSTER, NODES)

    account.fail(CLUSTER, "delete", message="ResourceInUseException: injected")
    assert "ResourceInUseException: injected" in engine.destroy(fails=True).text
    engine.destroy()
    assert inventory.list_leftovers(account, REGION) == []


def _add_and_remove_second_stack(other: Engine, account: Account) -> None:
    """Create another stack in the account, check that the clusters have different names, and destroy it."""
    before = {record.urn for record in account.all()}
    other.up()
    names = [record.id for record in account.all(CLUSTER)]
    assert len(names) == len(set(names)) == 2
    other.destroy()
    assert {record.urn for record in account.all()} == before


def _cut_off(account: Account) -> None:
    """Remove the rule that lets the nodes reach the file system."""
    rule = next(record for record in account.all(RULE) if "efs" in record.urn)
    group = rule.inputs["securityGroupId"]
    ec2 = MotoCloud(account, REGION).client("ec2")
    found = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=found)


def _rename(account: Account) -> None:
    """Change the tag Name of the VPC by hand, so that a preview finds drift."""
    ec2, vpc = MotoCloud(account, REGION).client("ec2"), account.all(VPC)[0].id
    ec2.create_tags(Resources=[vpc], Tags=[{"Key": "Name", "Value": "by hand"}])
