"""Test of the example program `text` with runtime collective, on loopback with PaddlePaddle and gloo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.io.files import sha256_file
from launcher.metrics import parse_metrics
from local.launcher_image import ensure_collective_python
from testkit.written_data import write_data
from tests.launcher.supervisor.loopback_gang import REPO, LoopbackGang, paddle_scripts
from tests.launcher.trainer.conftest import texts

pytestmark = [pytest.mark.slow, pytest.mark.paddle]

PROGRAM = REPO / "launcher" / "programs" / "text"
PASSES, BATCH = 3, 16


def build_gang(root: Path, trainers: int, run: str, python: Path, **env: str) -> LoopbackGang:
    """Return a gang of so many pods that trains `text` on 1200 generated texts."""
    digest, lines = f"d{trainers}", texts(1200, 1)
    settings = {
        "TRAIN_CONFIG_DIR": "text",
        "passes": PASSES,
        "batch_size": BATCH,
        "data_digest": digest,
        "source_digest": "texts",
    }
    gang = LoopbackGang(root, trainers=trainers, run=run, python=python, **paddle_scripts(**settings, **env))
    write_data(gang.job, [lines[n::trainers] for n in range(trainers)], texts(200, 2), digest)
    return gang


@pytest.mark.parametrize("version", ["3.3.1", pytest.param("2.6.2", marks=pytest.mark.long)])
def test_the_example_learns_and_continues_with_another_number_of_processes(
    tmp_path: Path, version: str
) -> None:
    python = ensure_collective_python() if version == "3.3.1" else Path(sys.executable)
    with build_gang(tmp_path, 2, "text-1", python, checkpoint_every_batches=5) as gang:
        gang.start().wait_until(lambda: list(gang.output.glob("pass-00001*/done")), 90)
        os.kill(gang.find_pid(1, "train.py"), signal.SIGKILL)
        assert gang.wait_for_exit(120) == [70, 70], gang.pod_log(0)
    with build_gang(tmp_path, 1, "text-2", python) as gang:
        assert gang.start().wait_for_exit(120) == [0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert run["state"] == "complete"
        assert run["resume"]["pass"] >= 1, "the checkpoint of two processes was continued"
        rows = parse_metrics((gang.output / "metrics.csv").read_text())
        assert [row.number for row in rows] == list(range(PASSES))
        assert rows[-1].samples > 1000, "neutral texts are skipped, all others are trained"
        assert rows[-1].tests["error"] < 0.05, "chance is 0.44"
    predict = [python, PROGRAM / "predict.py", gang.output / "model", "a happy day", "it was AWFUL"]
    said = subprocess.run(predict, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [line.split()[0] for line in said] == ["positive", "negative"]


def train_alone(folder: Path, passes: int, batch: int = BATCH) -> subprocess.CompletedProcess[str]:
    """Run the script without the launcher, in one process with its output in `folder`; return how it ended."""
    folder.mkdir(exist_ok=True)
    (folder / "train.txt").write_text("".join(f"{line}\n" for line in texts(200, 1)))
    env = {
        "PYTHONPATH": str(REPO),
        "PADDLE_LAUNCHER_TRAIN_FILE": "train.txt",
        "PADDLE_LAUNCHER_PASSES": str(passes),
        "PADDLE_LAUNCHER_BATCH_SIZE": str(batch),
    }
    argv = [sys.executable, PROGRAM / "train.py"]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_example_ends_with_equal_parameters_with_and_without_a_resume(tmp_path: Path) -> None:
    runs = {"at-once": [2], "resumed": [1, 2]}
    for name, parts in runs.items():
        for passes in parts:
            done = train_alone(tmp_path / name, passes)
            assert done.returncode == 0, done.stderr
    assert "epoch 1:" not in done.stdout, "the second part starts after the first epoch"
    at_once, resumed = (sha256_file(tmp_path / name / "output/model/model.pdiparams") for name in runs)
    assert at_once == resumed


def test_the_example_says_that_there_are_too_few_texts(tmp_path: Path) -> None:
    done = train_alone(tmp_path, 1, batch=1000)
    assert done.returncode == 1
    assert "fewer than training.batchSize (1000). Fix: reduce it" in done.stderr
    assert not (tmp_path / "output").exists(), "no untrained model was saved"
