"""Saves and loads of real pservers and trainers: what is broken is seen, and what is killed goes on."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import files
from launcher.errors import DataError
from launcher.layout import Position
from launcher.worker import outputs

from .conftest import needs_paddle
from .loopback import PROGRAMS, Loopback

pytestmark = needs_paddle
Staged = Callable[..., list[Path]]
QUICK, RECOMMENDATION = PROGRAMS / "quick_start", PROGRAMS / "recommendation"
NAME = "tables/000/part-000-00001"


def started(tmp_path: Path, data: list[Path], port: int, program: Path = QUICK, **values: str) -> Loopback:
    few = {
        "PADDLE_LAUNCHER_PASSES": "1",
        "PADDLE_LAUNCHER_BATCH_SIZE": "32",
        "PADDLE_LAUNCHER_LOG_PERIOD": "1",
        "PADDLE_LAUNCHER_EXTRA_ARGS": '["--learning_rate=0.05"]',
        "CONF_PADDLE_PORT": str(port),
    }
    names = {f"PADDLE_LAUNCHER_{name}": value for name, value in values.items()}
    return Loopback(tmp_path, data, program, values=few | names)


def run(gang: Loopback) -> Loopback:
    codes = gang.run()
    assert set(codes.values()) == {0}, f"{codes}\n{gang.log()[-3000:]}\n{gang.server_log()[-2000:]}"
    return gang


def again(gang: Loopback, resume: Position | None, **values: str) -> Loopback:
    names = {f"PADDLE_LAUNCHER_{name}": value for name, value in values.items()}
    return replace(gang, resume=resume, attempt=gang.attempt + 1, values=gang.values | names)


def losses(log: str) -> list[str]:
    """`Batch=7 samples=… AvgCost=… CurrentCost=…` of each batch."""
    return [line.split("Pass=1 ", 1)[1] for line in log.splitlines() if "Pass=1 Batch=" in line]


def costs(lines: list[str]) -> list[float]:
    return [float(line.rsplit("=", 1)[1]) for line in lines]


def progress(gang: Loopback, rank: int = 0) -> dict[str, Any]:
    return dict(json.loads((gang.root / f"work{rank}" / "progress.json").read_text()))


def test_a_run_killed_at_four_fifths_of_its_pass_goes_on_with_the_same_losses(
    tmp_path: Path, staged: Staged, port: int
) -> None:
    """sync with one trainer: nothing could come in another order."""
    data = staged(rows=640)
    values = {"MODE": "sync", "SAVE_EVERY_BATCHES": "3", "BATCH_SIZE": "32"}
    whole = run(started(tmp_path / "whole", data, port, **values))
    expected = losses(whole.log())
    steps = len(expected)

    gang = started(tmp_path / "killed", data, port, **values)

    def kill(running: dict[str, subprocess.Popen[bytes]]) -> None:
        if len(losses(gang.log())) >= 0.8 * steps and running["0/trainer"].poll() is None:
            os.killpg(running["0/trainer"].pid, signal.SIGKILL)

    assert gang.run(watch=kill)["0/trainer"] == -signal.SIGKILL
    killed = len(losses(gang.log()))
    newest = outputs.newest_save(gang.output.root)
    assert newest is not None
    assert newest.passes == 0
    assert killed - 3 <= newest.batches <= killed, "at most one interval is lost"

    resumed = run(again(gang, newest))
    after = losses(resumed.log())
    assert [line.split()[:2] for line in after] == [
        line.split()[:2] for line in expected[newest.batches :]
    ], "the same batches, with the samples of before in the count"
    # What comes back has six digits of what was saved.
    assert np.allclose(costs(after), costs(expected[newest.batches :]), rtol=1e-3)
    rows = [list(csv.DictReader(io.StringIO(g.output.metrics_csv.read_text()))) for g in (whole, resumed)]
    assert [r["samples"] for r in rows[1]] == [r["samples"] for r in rows[0]], (
        "the row tells of the whole pass"
    )
    assert float(rows[1][0]["train_loss"]) == pytest.approx(float(rows[0][0]["train_loss"]), rel=1e-3)
    assert progress(resumed)["saved"] == {"pass": 1, "batch": 0}
    assert set(progress(resumed)["marks"]) == {"imported", "met", "loaded", "first_batch"}


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_two_ranks_go_on_inside_a_pass(tmp_path: Path, staged: Staged, port: int, mode: str) -> None:
    values = {"MODE": mode, "SAVE_EVERY_BATCHES": "4", "KEEP_SAVES": "2", "EXTRA_ARGS": "[]"}
    gang = run(started(tmp_path, staged("ratings", 2), port, RECOMMENDATION, **values))
    steps = int(progress(gang)["batches"])
    kept = sorted(p.name for p in gang.output.root.glob("pass-*"))
    last = Position(0, (steps - 1) // 4 * 4)
    assert kept == ["pass-00000", last.folder], "the newest two"
    size = outputs.save_bytes(gang.output.root / "pass-00000")
    assert [progress(gang, rank)["bytes"] for rank in (0, 1)] == [size, size], "each next save's deadline"
    contents = outputs.contents(gang.output.save(last))
    assert len(contents["ranks"]) == 2
    if mode == "async":
        assert len(contents["rows"]["feature"]["ids"]) >= 8, "each of eight files has a row in it"
    shutil.rmtree(gang.output.model)
    resumed = run(again(gang, last))
    assert f"resumed from {last.folder}" in resumed.log(1)
    assert len(losses(resumed.log(1))) == steps - last.batches


def flip(part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 0xFF
    part.write_bytes(bytes(data))


def other_row(part: Path) -> None:
    """A file that is right in itself, with its sum in the list, but not what was saved."""
    lines = gzip.decompress(part.read_bytes()).replace(b" 0 0.", b" 0 0.9", 1)
    part.write_bytes(gzip.compress(lines))
    entry = {"bytes": part.stat().st_size, "sha256": files.sha256_file(part)}
    path = part.parents[2] / "contents.json"
    contents = files.read_json(path)
    assert contents is not None
    contents["files"][NAME] = entry
    files.write_json(path, files.sealed(contents))


def no_rows(part: Path) -> None:
    part.write_bytes(gzip.compress(b""))
    other_row(part)


@pytest.fixture
def two_saves(tmp_path: Path, staged: Staged, port: int) -> Loopback:
    return run(started(tmp_path, staged(), port, SAVE_EVERY_BATCHES="8", BATCH_SIZE="50"))


def test_a_save_that_does_not_load_is_refused_and_the_one_before_it_is_taken(two_saves: Loopback) -> None:
    """In turn: a file cut short, bytes flipped, rows that others replaced, an absent file of parameters."""
    gang = two_saves
    root = gang.output.root
    older, newest = Position(0, 8), Position(1)
    shutil.rmtree(gang.output.model)
    backup = root.parent / "backup"
    shutil.copytree(root, backup)
    for broken, says in (
        (flip, f"{NAME} has other bytes than were saved"),
        (other_row, "rows of word_weight are others"),
        (no_rows, "rows of word_weight are others"),
    ):
        broken(gang.output.save(newest) / NAME)
        assert outputs.newest_save(root) == newest, "the lengths are right"
        gang = again(gang, newest, PASSES="2")
        assert gang.run()["0/trainer"] == 71, gang.log()[-2000:]
        assert says in gang.log()
        refused = json.loads((gang.output.save(newest) / "refused.json").read_text())
        assert says in refused["reason"]
        assert outputs.newest_save(root) == older
        shutil.rmtree(root)
        shutil.copytree(backup, root)
    part = gang.output.save(newest) / NAME
    part.write_bytes(part.read_bytes()[:-1])
    assert outputs.newest_save(root) == older
    (gang.output.save(older) / "params.npz").unlink()
    with pytest.raises(DataError, match=r"params.npz is missing(.|\n)*remove these folders"):
        outputs.newest_save(root)
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    gang.output.unfinished(newest, 0).mkdir()
    resumed = run(again(gang, older))
    assert "resumed from pass-00000-batch-0000008" in resumed.log()
    assert not gang.output.unfinished(newest, 0).exists(), "what an earlier attempt left is gone"


def test_a_flipped_byte_in_a_record_file_ends_the_trainer_and_its_next_start_parses_the_rows_again(
    tmp_path: Path, staged: Staged, port: int
) -> None:
    gang = run(started(tmp_path, staged(), port))
    record = gang.root / "work0" / "records" / "train" / "00000.rec"
    whole = record.read_bytes()
    flip(record)
    damaged = again(gang, Position(1), PASSES="2")
    assert damaged.run()["0/trainer"] == 71, damaged.log()[-2000:]
    assert "00000.rec does not read back as it was written" in damaged.log()
    run(again(damaged, Position(1)))
    assert record.read_bytes() == whole


def test_a_diverged_loss_is_final_and_tells_its_place(tmp_path: Path, staged: Staged, port: int) -> None:
    own = tmp_path / "mine"
    shutil.copytree(QUICK, own)
    config = own / "trainer_config.py"
    config.write_text(
        config.read_text().replace("loss = paddle.mean(", "loss = paddle.log(-1.0) + paddle.mean(")
    )
    config.write_text(config.read_text().replace("paddle.log(-1.0)", "paddle.log(0 * bias - 1)"))
    gang = started(tmp_path, staged(), port, own)
    assert gang.run()["0/trainer"] == 65, gang.log()[-2000:]
    assert (
        "error: the loss is nan at pass 1, batch 1: nothing was learned yet. Fix: see network()" in gang.log()
    )
    assert (progress(gang)["pass"], progress(gang)["batch"]) == (0, 1)


def test_a_dead_server_shows_in_the_trainers_log_by_one_of_the_runtimes_words(
    tmp_path: Path, staged: Staged, port: int
) -> None:
    from launcher.runtimes.fleet import FleetRuntime

    gang = started(tmp_path, staged(ranks=2), port, PASSES="2000", SAVING_PERIOD="5000")
    seen = []

    def watch(running: dict[str, subprocess.Popen[bytes]]) -> None:
        if "Pass=1 samples" in gang.log() and running["1/pserver 0"].poll() is None:
            assert not [text for text in FleetRuntime().fatal_lines if text in gang.log()]
            os.killpg(running["1/pserver 0"].pid, signal.SIGKILL)
            time.sleep(3)
            seen.extend(text for text in FleetRuntime().fatal_lines if text in gang.log())

    gang.run(60, watch=watch)
    assert seen


@pytest.mark.parametrize("mode", ["async", "sync", "geo"])
def test_a_checkpoint_is_saved_when_somebody_asks_and_the_run_goes_on(
    tmp_path: Path, staged: Staged, port: int, mode: str
) -> None:
    """Three ranks, each of its own speed, without training.saveEvery."""
    gang = started(
        tmp_path, staged("ratings", 3), port, RECOMMENDATION, MODE=mode, BATCH_SIZE="2", EXTRA_ARGS="[]"
    )
    gang.output.root.mkdir(parents=True)
    gang.output.checkpoint_request.write_text("one")
    run(gang)
    saved = [line.split("pass-")[1].split(" ")[0] for line in gang.log().splitlines() if "saved /" in line]
    assert len(saved) == 2, f"one that was asked for, one at the end: {saved}"
    assert "-batch-" in saved[0]
    assert not gang.output.checkpoint_request.exists(), "it is answered once"
    assert len(outputs.contents(gang.output.root / f"pass-{saved[0]}")["ranks"]) == 3
