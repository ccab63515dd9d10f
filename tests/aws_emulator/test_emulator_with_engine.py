"""The emulator with the real engine and a small program: previews, updates, drift, two stacks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.aws_emulator import inventory, pulumi_engine
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.handler import MotoCloud
from testkit.aws_emulator.pulumi_engine import Engine

VPC, SUBNET = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet"


# The engine alone takes a few seconds for each run, and several times that on a busy machine.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

_SMALL = """
import pulumi
import pulumi_aws as aws
config = pulumi.Config()
names = config.get_bool("names") or False
vpc = aws.ec2.Vpc("vpc", cidr_block=config.get("cidr") or "10.0.0.0/16", enable_dns_hostnames=names)
inner = vpc.cidr_block.apply(lambda cidr: cidr.replace("/16", "/24"))
aws.ec2.Subnet("subnet", vpc_id=vpc.id, cidr_block=inner)
pulumi.export("vpcId", vpc.id)
"""


@pytest.fixture
def small(account: Account, tmp_path: Path) -> Callable[[str], Engine]:
    """Return stacks of a program with a VPC and a subnet."""
    program = tmp_path / "small"
    program.mkdir()
    (program / "Pulumi.yaml").write_text("name: small\nruntime: python\n", encoding="utf-8")
    (program / "__main__.py").write_text(_SMALL, encoding="utf-8")
    return lambda stack: Engine(program, stack, tmp_path / "home", account.folder).init()


def test_plugin_that_engine_starts_previews_creates_and_destroys(
    small: Callable[[str], Engine], account: Account
) -> None:
    # Other tests run the plugin in their own process.
    engine = dataclasses.replace(small("one"), starts_plugin=True)
    planned = engine.preview()
    assert planned.code == 0, planned.text
    assert set(planned.ops) == {"create"}
    assert re.search(r"vpcId *: \[unknown\]", planned.text), "the cloud decides this output"
    assert account.all() == [], "a preview must create nothing"
    made = engine.up()
    assert made.code == 0, made.text
    again = engine.up("--refresh", "--expect-no-changes")
    assert again.code == 0, again.text
    gone = engine.destroy()
    assert gone.code == 0, gone.text
    assert inventory.list_leftovers(account, pulumi_engine.REGION) == []


def test_up_after_failed_up_completes(small: Callable[[str], Engine], account: Account) -> None:
    engine = small("one")
    account.fail(SUBNET, "create", message="InsufficientFreeAddresses: injected")
    broken = engine.up()
    assert broken.code != 0
    assert "InsufficientFreeAddresses: injected" in broken.text
    vpc = account.all(VPC)[0].id
    repaired = engine.up()
    assert repaired.code == 0, repaired.text
    assert [(step.op, step.type) for step in repaired.steps] == [("create", SUBNET)]
    assert [record.id for record in account.all(VPC)] == [vpc]
    account.fail(VPC, "delete", message="RequestLimitExceeded: injected")
    assert "RequestLimitExceeded: injected" in engine.destroy().text
    assert engine.destroy().code == 0
    assert inventory.list_leftovers(account, pulumi_engine.REGION) == []


def test_preview_shows_update_replacement_and_drift(small: Callable[[str], Engine], account: Account) -> None:
    engine = small("one")
    assert engine.up().code == 0
    engine.config("names=true")
    changed = engine.preview()
    assert [(s.op, s.type, s.diff) for s in changed.steps] == [
        ("update", VPC, {"enableDnsHostnames": "update"})
    ]
    engine.config("names=false", "cidr=10.9.0.0/16")
    moved = engine.preview()
    assert "replace" in {step.op for step in moved.of(VPC)}
    assert "replace" in {step.op for step in moved.of(SUBNET)}
    assert '~ cidrBlock: "10.0.0.0/16" => "10.9.0.0/16"' in moved.text
    engine.config("cidr=10.0.0.0/16")

    ec2 = MotoCloud(account, pulumi_engine.REGION).client("ec2")
    vpc = account.all(VPC)[0].id
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    drifted = engine.preview("--refresh")
    assert [(s.op, s.type) for s in drifted.steps if s.op == "update"] == [("update", VPC)], drifted.text
    assert engine.up("--refresh").code == 0
    seen = ec2.describe_vpc_attribute(VpcId=vpc, Attribute="enableDnsHostnames")
    assert seen["EnableDnsHostnames"]["Value"] is False


def test_destroy_of_one_stack_keeps_the_other_stack(small: Callable[[str], Engine], account: Account) -> None:
    first, second = small("first"), small("second")
    for engine in (first, second):
        engine.config("aws:defaultTags.tags.Owner=me")
        made = engine.up()
        assert made.code == 0, made.text
    assert [record.outputs["tagsAll"] for record in account.all(VPC)] == [{"Owner": "me"}] * 2
    assert first.destroy().code == 0
    assert len(account.all(VPC)) == 1
    assert second.up("--refresh", "--expect-no-changes").code == 0
    assert second.destroy().code == 0
    assert inventory.list_leftovers(account, pulumi_engine.REGION) == []


def test_up_invalid_input_engine_reports_it(account: Account, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.mkdir()
    (program / "Pulumi.yaml").write_text("name: wrong\nruntime: python\n", encoding="utf-8")
    wrong = 'import pulumi\npulumi.CustomResource("aws:ec2/subnet:Subnet", "s", {"cidr": "10.0.0.0/24"})\n'
    (program / "__main__.py").write_text(wrong, encoding="utf-8")
    found = Engine(program, "one", tmp_path / "home", account.folder).init().preview()
    assert found.code != 0
    assert "unknown property 'cidr'" in found.text
    assert "needs 'vpcId'" in found.text
