"""The real engine on the sample program: previews, updates, refusals, drift, two stacks, an empty account."""

from __future__ import annotations

import shutil
from pathlib import Path

import boto3
import pytest

from tests.aws_emulator import inventory, workbench
from tests.aws_emulator.account import Account
from tests.aws_emulator.workbench import Engine

NODES, VPC = "aws:eks/nodeGroup:NodeGroup", "aws:ec2/vpc:Vpc"


@pytest.fixture
def engine(account: Account, tmp_path: Path) -> Engine:
    """The sample program's first stack."""
    shutil.copytree(workbench.HERE / "sample", tmp_path / "program")
    return Engine(tmp_path / "program", "one", tmp_path / "home", account.folder).init()


def _vpc(account: Account) -> str:
    return account.all(VPC)[0].id


def test_a_stack_lives_in_the_emulator_as_it_would_in_aws(engine: Engine, account: Account) -> None:
    planned = engine.preview()
    assert planned.code == 0, planned.text
    assert set(planned.ops) == {"create"}
    assert "vpcId     : [unknown]" in planned.text, "a preview must not invent what only the cloud decides"
    assert account.all() == [], "a preview must make nothing"

    # A failure in the middle leaves what is made; the second run makes the rest and nothing twice.
    account.fail(NODES, "create", message="NodeCreationFailure: injected")
    broken = engine.up()
    assert broken.code != 0
    assert "NodeCreationFailure: injected" in broken.text
    mended = engine.up()
    assert mended.code == 0, mended.text
    assert {step.type for step in mended.steps} >= {NODES}
    assert VPC not in {step.type for step in mended.steps}
    assert engine.outputs()["endpoint"] == "https://127.0.0.1:6443"
    again = engine.up("--expect-no-changes")
    assert again.code == 0, again.text

    engine.config("nodes=3")
    scaled = engine.preview()
    assert [(step.op, step.type, step.diff) for step in scaled.steps] == [
        ("update", NODES, {"scalingConfig.desiredSize": "update"})
    ]
    engine.config("nodes=1", "vpcCidr=10.9.0.0/16")
    moved = engine.preview()
    assert {"replace"} <= {step.op for step in moved.of(VPC)}
    assert '~ cidrBlock: "10.0.0.0/16" => "10.9.0.0/16"' in moved.text
    engine.config("vpcCidr=10.0.0.0/16")

    ec2 = boto3.client(
        "ec2",
        region_name=workbench.REGION,
        endpoint_url=account.moto,
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    ec2.create_tags(Resources=[_vpc(account)], Tags=[{"Key": "Name", "Value": "by hand"}])
    drifted = engine.preview("--refresh")
    assert [(s.op, s.type) for s in drifted.steps if s.op == "update"] == [("update", VPC)], drifted.text
    assert '"by hand" => "sample-one"' in drifted.text
    assert engine.up("--refresh").code == 0
    assert ec2.describe_vpcs(VpcIds=[_vpc(account)])["Vpcs"][0]["Tags"] == [
        {"Key": "Name", "Value": "sample-one"}
    ]

    account.fail("aws:efs/fileSystem:FileSystem", "delete", message="FileSystemInUse: injected")
    assert "FileSystemInUse: injected" in engine.destroy().text
    gone = engine.destroy()
    assert gone.code == 0, gone.text
    assert inventory.left(account, workbench.REGION) == []


def test_two_stacks_share_one_account_and_each_removes_only_its_own(account: Account, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.mkdir()
    (program / "Pulumi.yaml").write_text("name: small\nruntime: python\n", encoding="utf-8")
    (program / "__main__.py").write_text(_SMALL, encoding="utf-8")
    first, second = (
        Engine(program, name, tmp_path / "home", account.folder).init() for name in ("first", "second")
    )
    for engine in (first, second):
        engine.config("aws:defaultTags.tags.Owner=me")
        made = engine.up()
        assert made.code == 0, made.text
    assert [record.outputs["tagsAll"] for record in account.all(VPC)] == [{"Owner": "me"}] * 2
    assert first.destroy().code == 0
    assert len(account.all(VPC)) == 1
    assert second.up("--refresh", "--expect-no-changes").code == 0
    assert second.destroy().code == 0
    assert inventory.left(account, workbench.REGION) == []


_SMALL = """
import pulumi_aws as aws
vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16")
aws.ec2.Subnet("subnet", vpc_id=vpc.id, cidr_block="10.0.0.0/24")
"""


def test_what_the_sdk_would_let_pass_the_engine_reports_as_the_program_s_mistake(
    account: Account, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.mkdir()
    (program / "Pulumi.yaml").write_text("name: wrong\nruntime: python\n", encoding="utf-8")
    wrong = 'import pulumi\npulumi.CustomResource("aws:ec2/subnet:Subnet", "s", {"cidr": "10.0.0.0/24"})\n'
    (program / "__main__.py").write_text(wrong, encoding="utf-8")
    found = Engine(program, "one", tmp_path / "home", account.folder).init().preview()
    assert found.code != 0
    assert "unknown property 'cidr'" in found.text
    assert "needs 'vpcId'" in found.text
