"""Tests of metrics.csv and progress.json, which trainers write."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.io.metrics_file import write_metrics
from launcher.io.progress_file import ProgressFile
from launcher.metrics import parse_metrics
from tests.launcher.io.test_checkpoints import flips

RANKS = [(100, 2.0, 0.5), (90, 1.0, 0.6)]


@pytest.mark.slow
def test_a_flipped_bit_in_metrics_csv_keeps_the_other_rows_and_a_copy_of_the_damaged_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.csv"
    for number in range(3):
        write_metrics(tmp_path, number, 0, RANKS, {"error": 0.25})
    intact = path.read_text().splitlines()
    set_aside = 0
    for content in flips(path):
        path.write_bytes(content)
        write_metrics(tmp_path, 3, 0, RANKS, {"error": 0.2})
        lines = path.read_text().splitlines()
        assert lines[0] == intact[0]
        assert lines[-2:] == ["3,0,0,100,2.000,50.0,0.5,0.2", "3,1,0,90,1.000,90.0,0.6,"]
        assert len(set(intact[1:]) - set(lines)) <= 2, "one row, or two that became one"
        for damaged in tmp_path.glob("metrics.csv.damaged-*"):
            assert damaged.read_bytes() == content
            damaged.unlink()
            set_aside += 1
        assert {p.name for p in tmp_path.iterdir()} == {"metrics.csv"}
    assert set_aside > len(intact[0]), "not a digit that became another one"


def test_each_damaged_metrics_csv_is_copied_under_its_own_name_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.csv"
    for content in (b"\xff\xfe\0", b"pars,rank\n0,0\n"):
        path.write_bytes(content)
        write_metrics(tmp_path, 0, 0, RANKS, {})
    assert (tmp_path / "metrics.csv.damaged-1").read_bytes() == b"\xff\xfe\0"
    assert (tmp_path / "metrics.csv.damaged-2").read_bytes() == b"pars,rank\n0,0\n"
    assert "metrics.csv.damaged-2" in caplog.text


def test_parse_metrics_returns_the_intact_rows_of_a_damaged_file(tmp_path: Path) -> None:
    for number in range(3):
        write_metrics(tmp_path, number, 0, RANKS, {"error": 0.25})
    for content in flips(tmp_path / "metrics.csv"):
        assert 4 <= len(parse_metrics(content.decode(errors="replace"))) <= 6


def test_write_metrics_adds_a_row_per_rank_and_replaces_rows_of_the_same_attempt(tmp_path: Path) -> None:
    ranks = [(100, 2.0, 0.5), (90, 1.0, 0.6)]
    write_metrics(tmp_path, 0, 0, ranks, {"error": 0.25})
    write_metrics(tmp_path, 1, 0, ranks, {"error": 0.2})
    write_metrics(tmp_path, 1, 0, ranks, {"error": 0.1})
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "pass,rank,attempt,samples,seconds,samples_per_second,train_loss,test_error"
    assert lines[1:3] == ["0,0,0,100,2.000,50.0,0.5,0.25", "0,1,0,90,1.000,90.0,0.6,"]
    assert len(lines) == 5
    assert lines[3].endswith(",0.1")


def test_progress_is_written_at_most_twice_a_second_but_every_new_state_immediately(tmp_path: Path) -> None:
    now = [0.0]
    progress = ProgressFile(tmp_path / "progress.json", clock=lambda: now[0])

    def seen() -> dict[str, object]:
        return json.loads((tmp_path / "progress.json").read_text())

    progress.set(batch=1, state="testing")
    now[0] = 0.1
    progress.set(batch=2)
    assert seen()["batch"] == 1
    now[0] = 0.6
    progress.set(batch=3, loss=float("nan"))
    assert (seen()["batch"], seen()["loss"]) == (3, None)
    progress.set(state="saving")
    assert seen()["state"] == "saving"
    progress.set(saved={"pass": 1, "batch": 0})
    assert seen()["saved"] == {"pass": 1, "batch": 0}


def test_state_is_training_from_the_first_batch_and_progress_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("a sync in the training thread"))
    progress = ProgressFile(tmp_path / "progress.json")

    def seen() -> dict[str, object]:
        return json.loads((tmp_path / "progress.json").read_text())

    progress.mark("joined", state="loading")
    progress.resume_training()
    assert seen()["state"] == "loading", "no batch yet: nothing can stall"
    progress.stepped(loss=0.5)
    assert seen()["state"] == "training"
    progress.set(state="testing")
    progress.resume_training()
    assert seen()["state"] == "training"
    assert list(seen()["marks"]) == ["joined", "first_batch"]
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
