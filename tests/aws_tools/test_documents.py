"""What the AWS documents say exists, exists."""

from __future__ import annotations

import re

from aws import proofs
from tests.aws_tools.conftest import ROOT


def test_every_test_that_parity_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/parity.md").read_text())
    assert len(named) > 40
    missing = [f"{f}::{t}" for f, t in named if f"def {t}(" not in (ROOT / f).read_text()]
    assert missing == []


def test_the_table_of_proofs_is_current() -> None:
    text = (ROOT / "docs/aws.md").read_text()
    assert proofs.generate(text) == text, "run `python -m aws.proofs`"


def test_every_target_that_the_guide_names_is_in_a_makefile() -> None:
    made = (ROOT / "aws.mk").read_text() + (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "docs/aws.md").read_text()))
    assert {"push", "doctor", "cost", "state", "iam-policy", "aws-smoke"} <= named
    assert sorted(name for name in named if f"\n{name}:" not in made) == []
