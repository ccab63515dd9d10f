"""Tests, make targets and resource types that the AWS documents mention must exist."""

from __future__ import annotations

import re

import pytest
import yaml

from testkit.aws_emulator.resource_model import HANDLERS
from tests.aws_tools.conftest import ROOT

EMULATOR = ROOT / "testkit/aws_emulator"


def test_parity_page_tests_exist() -> None:
    page = (ROOT / "docs/explanation/tested.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) > 40
    missing = [f"{f}::{t}" for f, t in named if f"def {t}(" not in (ROOT / f).read_text()]
    missing += [f for f in re.findall(r"`(tests/[\w/]+\.yaml)`", page) if not (ROOT / f).is_file()]
    assert missing == []


def test_aws_guide_lists_types_without_emulator_handler() -> None:
    used = {
        row for row in yaml.safe_load((EMULATOR / "permissions.yaml").read_text()) if row.startswith("aws:")
    }
    found = re.search(r"only general rules [^(`]*for ([^)]*)\)", (ROOT / "docs/how-to/aws.md").read_text())
    assert used
    assert found
    assert sorted(used - set(HANDLERS)) == re.findall("`(.*?)`", found[1])


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name
)
def test_workflows_pin_actions_by_commit(path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    assert used
    assert [
        name for name, tag in used if not re.search("@[0-9a-f]{40}$", name) or not re.match(" # v", tag)
    ] == []


def test_aws_guide_make_targets_exist() -> None:
    made = (ROOT / "aws.mk").read_text() + (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "docs/how-to/aws.md").read_text()))
    assert {"push", "doctor", "cost", "state", "iam-policy", "aws-smoke"} <= named
    assert sorted(name for name in named if f"\n{name}:" not in made) == []
