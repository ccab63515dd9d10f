"""The emulator with the real engine and a small program: previews, updates, drift, two stacks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.aws_emulator import inventory, pulumi_engine
from testkit.aws_emulator.account import Account
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
