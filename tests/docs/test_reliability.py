"""The fault table equals its results, and each of its rows has a test."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from docs import reliability

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "faults"


RUNTIMES_BY_MARK = {
    "BOTH_RUNTIMES": {"fleet", "collective"},
    "ONLY_COLLECTIVE": {"collective"},
    "ONLY_PS": {"ps"},
}
"""Decorators of tests/faults/paced_programs.py; a test without one runs with runtime fleet."""


def fault_tests() -> dict[str, set[str]]:
    """Return all fault tests as `file::test`, with the runtimes that each runs with."""
    found = {}
    for path in FAULTS.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)]
                runtimes = [RUNTIMES_BY_MARK[mark] for mark in marks if mark in RUNTIMES_BY_MARK]
                found[f"{path.name}::{node.name}"] = runtimes[0] if runtimes else {"fleet"}
    return found


def test_each_fault_test_has_exactly_one_row() -> None:
    named = [row.test for row in reliability.ROWS]
    assert sorted(named) == sorted(fault_tests())


def test_results_are_those_of_the_existing_tests_and_their_runtimes() -> None:
    results = json.loads(reliability.RESULTS.read_text())
    assert {test: set(found) for test, found in results.items()} == {
        f"tests/faults/{name}": runtimes for name, runtimes in fault_tests().items()
    }


def test_a_row_says_why_it_has_no_result_exactly_for_the_runtimes_that_were_not_run() -> None:
    without = {
        row.test: {name for name in reliability.RUNTIMES if getattr(row, name)} for row in reliability.ROWS
    }
    assert without == {name: {*reliability.RUNTIMES} - runtimes for name, runtimes in fault_tests().items()}


def test_fault_table_equals_the_results() -> None:
    results = json.loads(reliability.RESULTS.read_text())
    text = reliability.PAGE.read_text()
    assert reliability.generate(text, results) == text, "run python docs/reliability.py"


def test_changed_result_changes_the_table() -> None:
    results = json.loads(reliability.RESULTS.read_text())
    first = f"tests/faults/{reliability.ROWS[0].test}"
    changed = {"seconds": 1.25, "restarts": 99, "outcome": "a | b"}
    other = {**results, first: {**results[first], "fleet": changed}}
    assert "| 1.2 s; 99 restarts; a \\| b |" in reliability.table(other)


def test_every_source_of_the_comparison_is_listed_on_the_page() -> None:
    text = reliability.PAGE.read_text()
    found = re.findall(r"\[([a-z](?:, [a-z])*)\]", text.partition("### What other systems do")[2])
    named = {letter for group in found for letter in group.split(", ")}
    assert named == set(re.findall(r"^- \*\*([a-z])\*\* ", text, re.MULTILINE))
