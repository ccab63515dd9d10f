"""What the AWS documents say exists, exists."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.aws_emulator.model import HANDLERS
from tests.aws_tools.conftest import ROOT

EMULATOR = ROOT / "tests/aws_emulator"


def test_every_test_that_parity_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/parity.md").read_text())
    assert len(named) > 40
    missing = [f"{f}::{t}" for f, t in named if f"def {t}(" not in (ROOT / f).read_text()]
    assert missing == []


def test_the_guide_tells_which_resource_types_have_no_handler_of_their_own_in_the_emulator() -> None:
    used = {
        row for row in yaml.safe_load((EMULATOR / "permissions.yaml").read_text()) if row.startswith("aws:")
    }
    told = re.search(r"the generic model for ([^)]*)\)", (ROOT / "docs/aws.md").read_text())
    assert used
    assert told
    assert sorted(used - set(HANDLERS)) == re.findall("`(.*?)`", told[1])


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name
)
def test_a_workflow_runs_actions_by_their_commit(path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    assert used
    assert [
        name for name, tag in used if not re.search("@[0-9a-f]{40}$", name) or not re.match(" # v", tag)
    ] == []


def test_every_target_that_the_guide_names_is_in_a_makefile() -> None:
    made = (ROOT / "aws.mk").read_text() + (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "docs/aws.md").read_text()))
    assert {"push", "doctor", "cost", "state", "iam-policy", "aws-smoke"} <= named
    assert sorted(name for name in named if f"\n{name}:" not in made) == []
