"""The fault table equals its results, and each of its rows has a test."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "faults"


@pytest.fixture
def reliability(monkeypatch):
    spec = importlib.util.spec_from_file_location("reliability", ROOT / "docs" / "reliability.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reliability", module)  # its dataclasses need it in sys.modules
    spec.loader.exec_module(module)
    return module


def fault_tests() -> set[str]:
    """Return all fault tests as `file::test`."""
    return {
        f"{path.name}::{node.name}"
        for path in FAULTS.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_each_fault_test_has_exactly_one_row(reliability) -> None:
    named = [row.test for row in reliability.ROWS]
    assert sorted(named) == sorted(fault_tests())


def test_results_are_those_of_the_existing_tests(reliability) -> None:
    results = json.loads(reliability.RESULTS.read_text())
    assert set(results) == {f"tests/faults/{name}" for name in fault_tests()}


def test_fault_table_equals_the_results(reliability) -> None:
    results = json.loads(reliability.RESULTS.read_text())
    text = reliability.PAGE.read_text()
    assert reliability.generate(text, results) == text, "run python docs/reliability.py"


def test_changed_result_changes_the_table(reliability) -> None:
    results = json.loads(reliability.RESULTS.read_text())
    first = f"tests/faults/{reliability.ROWS[0].test}"
    other = {**results, first: {**results[first], "restarts": 99, "outcome": "a | b"}}
    assert "| 99 | a \\| b |" in reliability.table(other)


def test_every_source_of_a_row_is_listed_on_the_page(reliability) -> None:
    results = json.loads(reliability.RESULTS.read_text())
    found = re.findall(r"\[([a-z](?:, [a-z])*)\]", reliability.table(results))
    named = {letter for group in found for letter in group.split(", ")}
    listed = set(re.findall(r"^- \*\*([a-z])\*\* ", reliability.PAGE.read_text(), re.MULTILINE))
    assert named == listed
