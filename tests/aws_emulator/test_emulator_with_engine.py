"""The emulator with the real engine and small programs: its plugin, and how the engine shows invalid inputs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from testkit.aws_emulator import inventory, pulumi_engine
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.pulumi_engine import Engine

# The engine alone takes a few seconds for each run, and several times that on a busy machine.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

_SMALL = """
import pulumi
import pulumi_aws as aws
vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16")
inner = vpc.cidr_block.apply(lambda cidr: cidr.replace("/16", "/24"))
aws.ec2.Subnet("subnet", vpc_id=vpc.id, cidr_block=inner)
pulumi.export("vpcId", vpc.id)
"""


def _stack(program: str, account: Account, folder: Path) -> Engine:
    """Return a stack of a program in Python."""
    (folder / "program").mkdir()
    (folder / "program" / "Pulumi.yaml").write_text("name: small\nruntime: python\n", encoding="utf-8")
    (folder / "program" / "__main__.py").write_text(program, encoding="utf-8")
    return Engine(folder / "program", "one", folder / "home", account.folder).init()


def test_plugin_that_engine_starts_previews_creates_and_destroys(account: Account, tmp_path: Path) -> None:
    # Other tests run the plugin in their own process.
    engine = dataclasses.replace(_stack(_SMALL, account, tmp_path), starts_plugin=True)
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
    wrong = 'import pulumi\npulumi.CustomResource("aws:ec2/subnet:Subnet", "s", {"cidr": "10.0.0.0/24"})\n'
    found = _stack(wrong, account, tmp_path).preview()
    assert found.code != 0
    assert "unknown property 'cidr'" in found.text
    assert "needs 'vpcId'" in found.text
