"""Tests of file names that are not valid UTF-8, links without a target, and numbers beyond all limits."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.io import files
from launcher.io.retry import backoff_seconds
from launcher.reporting.failure_messages import write_termination_message
from tests.launcher.io.test_script_run import build_run, find_newest

LATIN_1 = os.fsdecode(b"caf\xe9")
"""The file name `café` in latin-1, as Python shows it on a system with UTF-8."""


def test_a_folder_with_a_name_in_latin_1_has_a_checksum_that_depends_on_it(tmp_path: Path) -> None:
    (tmp_path / LATIN_1).write_text("x")
    first = files.folder_sha256(tmp_path)
    (tmp_path / LATIN_1).rename(tmp_path / "cafe")
    assert files.folder_sha256(tmp_path) != first


def test_a_json_file_can_contain_a_name_in_latin_1(tmp_path: Path) -> None:
    files.write_json(tmp_path / "x.json", {LATIN_1: "é"})
    assert files.read_json(tmp_path / "x.json") == {LATIN_1: "é"}
    assert "é" in (tmp_path / "x.json").read_text("utf-8")


def test_a_termination_message_can_contain_a_name_in_latin_1(tmp_path: Path) -> None:
    write_termination_message(tmp_path / "log", f"cannot read {LATIN_1}")
    assert (tmp_path / "log").read_text() == "cannot read caf\\udce9\n"


def test_a_script_may_save_a_link_without_a_target(tmp_path: Path) -> None:
    run = build_run(tmp_path)
    with run.save(1, 0) as folder:
        (folder / "weights").write_text("1")
        (folder / "latest").symlink_to("absent")
    assert find_newest(tmp_path / "output") is not None


def test_the_backoff_stays_at_its_cap_after_any_number_of_failures() -> None:
    """An API server may be unavailable for the hours that a run waits for a rank."""
    assert [backoff_seconds(failures, 2, 16) for failures in (1, 2, 4, 5, 2_000)] == [2, 4, 16, 16, 16]
