"""Tests of runs with real pservers and trainers on loopback; each runs Paddle for a few seconds."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.io import checkpoints
from launcher.paths import Position

from .loopback_training import PROGRAMS, SHARDS, LoopbackTraining, prepare_training

pytestmark = pytest.mark.paddle
QUICK = PROGRAMS / "quick_start"
TWO_PASSES = {"PASSES": "2", "BATCH_SIZE": "64", "ARGS": '["--learning_rate=0.05"]'}
Staged = Callable[..., list[Path]]


def losses(gang: LoopbackTraining, rank: int = 0) -> list[float]:
    return [float(row["train_loss"]) for row in gang.read_metrics() if row["rank"] == str(rank)]


@pytest.mark.parametrize(  # one run of Paddle each
    ("ranks", "program", "config", "resumes"),
    [
        (2, "quick_start", "trainer_config.emb.py", True),
        (1, "recommendation", "trainer_config.py", False),
    ],
)
def test_mode_sync_trains_every_program_and_resumes(  # noqa: PLR0917
    tmp_path: Path, staged: Staged, ranks: int, program: str, config: str, resumes: bool
) -> None:
    """Mode async: the run of the fixture `quick_start`."""
    data = staged("ratings" if program == "recommendation" else "texts", ranks)
    folder = PROGRAMS / program
    gang = prepare_training(tmp_path, data, folder, config, MODE="sync", **TWO_PASSES).finish()
    first = losses(gang)
    assert len(first) == 2
    # In two short passes the pooled embeddings barely leave ln 2: there only a loss that grows is wrong.
    assert first[1] < first[0] * (1.01 if config == "trainer_config.emb.py" else 1.0)
    assert checkpoints.newest_checkpoint(gang.output.root) == Position(2)
    assert {int(row["rank"]) for row in gang.read_metrics()} == set(range(ranks))
    live = float([row for row in gang.read_metrics() if row["rank"] == "0"][-1][f"test_{metric(program)}"])
    assert gang.read_score()[metric(program)] == pytest.approx(live, abs=1e-4), (
        "the exported model has the score that the trainers had"
    )
    if not resumes:
        return
    resumed = gang.next_attempt(Position(2), PASSES="3").finish()
    assert "resumed from pass-00001" in resumed.log()
    after = losses(resumed)
    assert len(after) == 3
    assert after[2] < (first[0] + first[1]) / 2, f"training continues from the checkpoint's loss: {after}"


def metric(program: str) -> str:
    return {"quick_start": "error", "recommendation": "rmse"}[program]


def test_a_run_writes_the_expected_files_and_log_lines(
    quick_start: tuple[LoopbackTraining, set[int]],
) -> None:
    """Also: port, portsNum and portsNumSparse determine the ports."""
    gang, ports = quick_start
    first, second = losses(gang)
    assert second < 1.3 * first, "delayed gradients of a busy machine vary"
    assert gang.read_score()["error"] == pytest.approx(float(gang.read_metrics()[-1]["test_error"]), abs=1e-4)
    assert ports == {0, 1, 4}, "two pservers from `port` on, no process on the sparse ports, then peerPort"
    folder = gang.output.checkpoint(Position(2))
    names = {path.name for path in folder.iterdir()}
    assert {"done", "path.txt", "trainer_config.py", "params.npz", "tables", "dense"} <= names
    shards = {f"tables/word_weight/shard-{shard:05d}.rows" for shard in range(SHARDS)}
    shares = {"dense/part-000.npz", "dense/part-001.npz"}
    tables = {path.relative_to(folder).as_posix() for path in folder.rglob("*-0*.*")}
    assert tables == shards | shares, "both servers hold a share"
    assert (folder / "path.txt").read_text() == f"{folder}\n"
    assert "Pass=1 Batch=5 samples=" in gang.log()
    assert ".." in gang.log()
    assert gang.read_progress()["state"] == "done"
    assert f"pserver 2 of 2 serves on 127.0.0.1:{gang.settings(0).port + 1}\n" in gang.server_log(server=1)


def test_a_synchronous_step_waits_for_gradient_num_trainers(tmp_path: Path, staged: Staged) -> None:
    """A job of two trainers waits for the second one; then both take the same number of steps."""
    data = staged(ranks=2, rows=200)
    (data[1] / "train.txt").write_text(
        "".join((data[1] / "train.txt").read_text().splitlines(keepends=True)[:50])
    )
    gang = prepare_training(tmp_path, data, MODE="sync", CONF_PADDLE_GRADIENT_NUM="2")
    assert gang.run(4, without=("1/trainer",))["0/trainer"] == -999, "still waiting"
    assert "training starts" not in gang.log()
    gang.finish()
    start_lines = [
        line for rank in (0, 1) for line in gang.log(rank).splitlines() if "training starts" in line
    ]
    assert len({line.partition("training")[2] for line in start_lines}) == 1


@pytest.mark.parametrize("kilobytes", [600, 2600])
def test_a_checkpoint_without_enough_space_has_no_done_file(
    tmp_path: Path, staged: Staged, kilobytes: int
) -> None:
    """With 600 kB the run is rejected; with 2,600 kB the first checkpoint fits and a later one does not."""
    output = tmp_path / "job" / "output"
    output.mkdir(parents=True)
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(output)],
        capture_output=True,
        check=False,
    )
    if mount.returncode:
        pytest.skip(f"cannot mount a small volume here: {mount.stderr.decode().strip()}")
    try:
        many = {"PASSES": "40", "KEEP_CHECKPOINTS": "40", "ARGS": '["--width=128"]'}
        gang = prepare_training(tmp_path, staged(rows=200), QUICK, "trainer_config.emb.py", **many)
        assert gang.run()["0/trainer"] == 75, gang.log()[-2000:]
        assert "no space left" in gang.log()
        newest = checkpoints.newest_checkpoint(output)
        assert (newest is None) == (kilobytes == 600)
        done = {path.parent.name for path in output.glob("pass-*/done")}
        assert max(done, default=None) == (None if newest is None else newest.folder)
    finally:
        subprocess.run(["umount", "-l", str(output)], check=True)
