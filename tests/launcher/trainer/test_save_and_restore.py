"""Tests of saving and restoring with real pservers and trainers: damaged checkpoints, killed processes."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from launcher.io import checkpoints, files
from launcher.paths import Position
from launcher.runtimes.fleet import FleetRuntime
from testkit.waiting import until

from .loopback_training import PROGRAMS, LoopbackTraining, Process, prepare_training

pytestmark = pytest.mark.paddle
Staged = Callable[..., list[Path]]
RECOMMENDATION = PROGRAMS / "recommendation"
NAME = "tables/000/part-000-00001"


def losses(log: str) -> list[str]:
    """Return the text `Batch=7 samples=… AvgCost=… CurrentCost=…` of each batch of the second pass in a log."""
    return [line.split("Pass=1 ", 1)[1] for line in log.splitlines() if "Pass=1 Batch=" in line]


def costs(lines: list[str]) -> list[float]:
    return [float(line.rsplit("=", 1)[1]) for line in lines]


def test_a_run_killed_inside_a_pass_resumes_with_the_same_losses(tmp_path: Path, staged: Staged) -> None:
    """Uses sync with one trainer, so that the order of steps is deterministic."""
    data = staged(rows=640)
    values = {"MODE": "sync", "CHECKPOINT_EVERY_BATCHES": "3", "ARGS": '["--learning_rate=0.05"]'}
    complete = prepare_training(tmp_path / "complete", data, **values).finish()
    expected = losses(complete.log())
    steps = len(expected)

    gang = prepare_training(tmp_path / "killed", data, **values)

    def kill(running: dict[str, subprocess.Popen[bytes]]) -> None:
        if len(losses(gang.log())) >= 0.8 * steps and running["0/trainer"].poll() is None:
            os.killpg(running["0/trainer"].pid, signal.SIGKILL)

    assert gang.run(watch=kill)["0/trainer"] == -signal.SIGKILL
    before = losses(gang.log())
    killed = len(before)
    newest = checkpoints.newest_checkpoint(gang.output.root)
    assert newest is not None
    assert newest.passes == 0
    assert killed - 3 <= newest.batches <= killed, "at most one interval is lost"

    resumed = gang.next_attempt(newest).finish()
    after = losses(resumed.log())
    assert [line.split()[:2] for line in after] == [
        line.split()[:2] for line in expected[newest.batches :]
    ], "the same batches, and samples include those before the restart"
    # Restored values have six significant digits. Two runs from scratch differ more, from the second batch on.
    repeated = costs(before[newest.batches :])
    assert np.allclose(costs(after)[:1], repeated[:1], rtol=1e-5)
    assert np.allclose(costs(after), costs(expected[newest.batches :]), rtol=3e-3)
    rows = [each.read_metrics() for each in (complete, resumed)]
    assert [r["samples"] for r in rows[1]] == [r["samples"] for r in rows[0]], (
        "the row covers the complete pass"
    )
    assert float(rows[1][0]["train_loss"]) == pytest.approx(float(rows[0][0]["train_loss"]), rel=3e-3)
    assert resumed.read_progress()["saved"] == {"pass": 1, "batch": 0}
    assert set(resumed.read_progress()["marks"]) == {"imported", "joined", "loaded", "first_batch"}


def test_two_ranks_of_three_threads_resume_inside_a_pass(tmp_path: Path, staged: Staged) -> None:
    values = {
        "MODE": "async",
        "TRAINER_COUNT": "3",
        "CHECKPOINT_EVERY_BATCHES": "8",
        "KEEP_CHECKPOINTS": "2",
    }
    gang = prepare_training(tmp_path, staged("ratings", 2), RECOMMENDATION, **values).finish()
    steps = int(gang.read_progress()["batches"])
    kept = sorted(p.name for p in gang.output.root.glob("pass-*"))
    last = Position(0, (steps - 1) // 8 * 8)
    assert kept == ["pass-00000", last.folder], "the newest two"
    size = checkpoints.total_bytes(checkpoints.read_contents(gang.output.root / "pass-00000"))
    assert [gang.read_progress(rank)["bytes"] for rank in (0, 1)] == [size, size], (
        "the size bounds the deadline of the next save"
    )
    contents = checkpoints.read_contents(gang.output.checkpoint(last))
    assert "3 thread(s) per trainer" in gang.log(1)
    even, more = divmod(600, steps)
    assert [rank[0] for rank in contents.ranks] == [last.batches * even + min(more, last.batches)] * 2, (
        "the samples of the batches before the checkpoint"
    )
    assert [row["samples"] for row in gang.read_metrics()] == ["600", "600"], "each batch counts once"
    assert len(contents.rows["feature"].ids) >= 8, "each of eight files contributes a row"
    shutil.rmtree(gang.output.model)
    resumed = gang.next_attempt(last).finish()
    assert f"resumed from {last.folder}" in resumed.log(1)
    assert len(losses(resumed.log(1))) == steps - last.batches


def flip(part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 0xFF
    part.write_bytes(bytes(data))


def other_row(part: Path) -> None:
    """Change a row so that the file is valid and its sha256 is listed, but the row is not what was saved."""
    lines = gzip.decompress(part.read_bytes()).replace(b" 0 0.", b" 0 0.9", 1)
    part.write_bytes(gzip.compress(lines))
    entry = {"bytes": part.stat().st_size, "sha256": files.sha256_file(part)}
    path = part.parents[2] / "contents.json"
    contents = files.read_json(path)
    assert contents is not None
    contents["files"][NAME] = entry
    files.write_json(path, files.with_checksum(contents))


def no_rows(part: Path) -> None:
    part.write_bytes(gzip.compress(b""))
    other_row(part)


def test_a_checkpoint_that_does_not_load_is_rejected_and_the_one_before_is_used(
    quick_start: tuple[LoopbackTraining, set[int]], tmp_path: Path
) -> None:
    """In turn: flipped bytes, changed rows, no rows, a truncated file, a missing file of parameters."""
    older, newest = Position(1, 8), Position(2)
    gang = quick_start[0].copied(tmp_path / "run", older)
    root = gang.output.root
    shutil.rmtree(gang.output.model)
    backup = root.parent / "backup"
    shutil.copytree(root, backup)
    for damage, reason in (
        (flip, f"the content of {NAME} has changed since it was saved"),
        (other_row, "rows of table word_weight have other values"),
        (no_rows, "rows of table word_weight have other values"),
    ):
        damage(gang.output.checkpoint(newest) / NAME)
        assert checkpoints.newest_checkpoint(root) == newest, "the sizes are unchanged"
        gang = gang.next_attempt(newest, PASSES="3")
        assert gang.run()["0/trainer"] == 71, gang.log()[-2000:]
        assert reason in gang.log()
        rejection = json.loads((gang.output.checkpoint(newest) / "rejected.json").read_text())
        assert reason in rejection["reason"]
        assert checkpoints.newest_checkpoint(root) == older
        shutil.rmtree(root)
        shutil.copytree(backup, root)
    part = gang.output.checkpoint(newest) / NAME
    part.write_bytes(part.read_bytes()[:-1])
    assert checkpoints.newest_checkpoint(root) == older
    (gang.output.checkpoint(older) / "params.npz").unlink()
    assert checkpoints.newest_checkpoint(root) == Position(1), "the one before both"
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    gang.output.unfinished(newest, 0).mkdir()
    resumed = gang.next_attempt(older).finish()
    assert "resumed from pass-00001-batch-0000008" in resumed.log()
    assert not gang.output.unfinished(newest, 0).exists(), (
        "unfinished folders of earlier attempts are removed"
    )


def test_a_killed_server_leaves_a_fatal_line_of_the_runtime_in_the_trainers_log(
    tmp_path: Path, staged: Staged
) -> None:
    """Paddle was seen to wait without such a line in one of six runs, so up to four runs are started.

    A launcher also ends the attempt when its own pserver exits.
    """
    data = staged(ranks=2)
    seen: list[str] = []
    for number in range(4):
        gang = prepare_training(tmp_path / str(number), data, PASSES="2000", SAVING_PERIOD="5000")

        def fatal_lines(gang: LoopbackTraining = gang) -> list[str]:
            return [each.pattern for each in FleetRuntime().log_meanings if each.search(gang.log())]

        def watch(running: dict[str, Process], gang: LoopbackTraining = gang) -> None:
            if "Pass=1 samples" in gang.log():
                assert not fatal_lines(gang)
                os.killpg(running["1/pserver 0"].pid, signal.SIGKILL)
                with contextlib.suppress(AssertionError):
                    seen.extend(until(partial(fatal_lines, gang), "a fatal line", 2))
                raise TimeoutError

        with pytest.raises(TimeoutError):
            gang.run(60, watch=watch)
        if seen:
            return
    pytest.fail(gang.log()[-3000:])


def test_a_requested_checkpoint_is_saved_and_training_continues(tmp_path: Path, staged: Staged) -> None:
    """Uses three ranks of different speeds in mode async, without training.checkpointEvery."""
    gang = prepare_training(tmp_path, staged("ratings", 3, 200), RECOMMENDATION, BATCH_SIZE="2")
    gang.output.root.mkdir(parents=True)
    gang.output.checkpoint_request.write_text("one")
    gang.finish()
    saved = [line.split("pass-")[1].split(" ")[0] for line in gang.log().splitlines() if "saved /" in line]
    assert len(saved) == 2, f"one requested checkpoint, one at the end: {saved}"
    assert "-batch-" in saved[0]
    assert not gang.output.checkpoint_request.exists(), "the request is removed once it is fulfilled"
    assert len(checkpoints.read_contents(gang.output.root / f"pass-{saved[0]}").ranks) == 3
