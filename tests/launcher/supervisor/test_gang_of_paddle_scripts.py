"""Gangs on loopback that run scripts with PaddlePaddle and gloo: that of docs/how-to/own-script.md, and program `text`.

They run with PaddlePaddle 2.6.2 of the project's environment, and with the version of runtime collective's image.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.io.files import sha256_file
from launcher.metrics import parse_metrics
from local.launcher_image import ensure_collective_python
from testkit.written_data import write_data
from tests.launcher.supervisor.loopback_gang import REPO, WITH_PADDLE, LoopbackGang
from tests.launcher.trainer.conftest import texts

pytestmark = [pytest.mark.slow, pytest.mark.paddle]

PAGE = REPO / "docs" / "how-to" / "own-script.md"
PROGRAM = REPO / "launcher" / "programs" / "text"
PASSES, BATCH = 3, 16
DIGEST = """
import hashlib
state = sorted((name, value.numpy().tobytes()) for name, value in network.state_dict().items())
digest = hashlib.sha256(repr(state).encode()).hexdigest()
(run.output / f"parameters-{run.rank}.txt").write_text(digest)
(run.output / f"version-{run.rank}.txt").write_text(paddle.__version__)
"""
"""Added to the script: writes the sha256 of the final parameters of each process."""


def make_rows(count: int, seed: int) -> list[str]:
    """Return lines of four numbers and a class, which a plane through them decides."""
    numbers = random.Random(seed)  # noqa: S311 - data of a test
    rows = [[numbers.uniform(-1, 1) for _ in range(4)] for _ in range(count)]
    return [
        f"{' '.join(f'{value:.4f}' for value in row)} {int(row[0] + 2 * row[1] > row[2])}" for row in rows
    ]


@pytest.fixture(params=["3.3.1", pytest.param("2.6.2", marks=pytest.mark.long)])
def version(request: pytest.FixtureRequest) -> str:
    """Return each version of PaddlePaddle."""
    return str(request.param)


def build_gang(root: Path, version: str, rows: list[list[str]], test: list[str], **env: Any) -> LoopbackGang:
    """Return a gang of a pod for each shard in `rows` that trains with this version of PaddlePaddle."""
    settings = {**WITH_PADDLE, "runtime": "collective", "config_file": "mine/train.py", **env}
    python = ensure_collective_python() if version == "3.3.1" else Path(sys.executable)
    gang = LoopbackGang(root, trainers=len(rows), python=python, **settings)
    write_data(gang.job, rows, test, env.get("data_digest", "d1"))
    return gang


def read_script() -> str:
    """Return the script of the page with a pause after each step (or a kill would come too late) and with DIGEST."""
    [script] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    step = "        optimizer.step()\n"
    assert script.count(step) == 1
    return script.replace(step, f"{step}        __import__('time').sleep(0.03)\n") + DIGEST


def test_all_processes_train_the_same_model(tmp_path: Path, version: str) -> None:
    """With two processes in one pod; or, with the older version, in two pods and after a kill."""
    is_killed = version == "2.6.2"
    pods, processes = (2, 1) if is_killed else (1, 2)
    rows = [make_rows(1200 + shard * 40, shard) for shard in range(pods)]
    settings = {"processes_per_pod": processes, "passes": 6, "batch_size": 32, "restarts": 3}
    with build_gang(tmp_path, version, rows, make_rows(300, 9), **settings) as gang:
        (gang.job / "mine" / "train.py").write_text(read_script())
        gang.start().wait_until(lambda: list(gang.output.glob("pass-*/done")), 90)
        if is_killed:
            os.kill(gang.find_pids(1, "train.py")[0], signal.SIGKILL)
        assert gang.wait_for_exit(120) == [0] * pods, gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"]) == ("complete", is_killed)
        if is_killed:
            assert run["resume"]["pass"] >= 1
            assert "SIGKILL" in run["restarts"][0]["cause"]
        digests = [path.read_text() for path in sorted(gang.output.glob("parameters-*.txt"))]
        assert len(digests) == 2
        assert len(set(digests)) == 1
        passes = parse_metrics((gang.output / "metrics.csv").read_text())
        assert [row.number for row in passes] == list(range(6))
        assert passes[-1].tests["accuracy"] > 0.9
        assert passes[-1].train_loss < passes[0].train_loss
        assert (gang.output / "model" / "model.pdiparams").is_file()
        assert {path.read_text() for path in gang.output.glob("version-*.txt")} == {version}


@pytest.mark.long  # test_gang_of_scripts.py continues with other numbers of processes, without Paddle
def test_the_example_learns_and_continues_with_another_number_of_processes(
    tmp_path: Path, version: str
) -> None:
    lines, test = texts(700, 1), texts(200, 2)
    settings = {"TRAIN_CONFIG_DIR": "text", "passes": PASSES, "batch_size": BATCH, "source_digest": "texts"}
    two = {**settings, "run": "text-1", "data_digest": "d2", "checkpoint_every_batches": 5}
    with build_gang(tmp_path, version, [lines[::2], lines[1::2]], test, **two) as gang:
        gang.start().wait_until(lambda: list(gang.output.glob("pass-00001*/done")), 90)
        os.kill(gang.find_pids(1, "train.py")[0], signal.SIGKILL)
        assert gang.wait_for_exit(120) == [70, 70], gang.pod_log(0)
    with build_gang(tmp_path, version, [lines], test, **settings, run="text-2") as gang:
        assert gang.start().wait_for_exit(120) == [0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert run["state"] == "complete"
        assert run["resume"]["pass"] >= 1, "the checkpoint of two processes was continued"
        rows = parse_metrics((gang.output / "metrics.csv").read_text())
        assert [row.number for row in rows] == list(range(PASSES))
        assert rows[-1].samples > 580, "neutral texts are skipped, all others are trained"
        assert rows[-1].tests["error"] < 0.05, "chance is 0.44"
    predict = [gang.python, PROGRAM / "predict.py", gang.output / "model", "a happy day", "it was AWFUL"]
    said = subprocess.run(predict, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [line.split()[0] for line in said] == ["positive", "negative"]


def train_alone(folder: Path, passes: int, batch: int = BATCH) -> subprocess.CompletedProcess[str]:
    """Run the script without the launcher, in one process with its output in `folder`; return how it ended."""
    folder.mkdir(exist_ok=True)
    for name, seed in (("train", 1), ("test", 2)):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in texts(200, seed)))
    env = {
        "PYTHONPATH": str(REPO),
        "PADDLE_LAUNCHER_TRAIN_FILE": "train.txt",
        "PADDLE_LAUNCHER_TEST_FILE": "test.txt",
        "PADDLE_LAUNCHER_PASSES": str(passes),
        "PADDLE_LAUNCHER_BATCH_SIZE": str(batch),
    }
    argv = [sys.executable, PROGRAM / "train.py"]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_the_example_ends_with_equal_parameters_with_and_without_a_resume(tmp_path: Path) -> None:
    runs = {"at-once": [2], "resumed": [1, 2]}
    for name, parts in runs.items():
        for passes in parts:
            done = train_alone(tmp_path / name, passes)
            assert done.returncode == 0, done.stderr
    assert "epoch 1:" not in done.stdout, "the second part starts after the first epoch"
    at_once, resumed = (sha256_file(tmp_path / name / "output/model/model.pdiparams") for name in runs)
    assert at_once == resumed


def test_the_example_learns_in_one_process_unless_there_are_too_few_texts(tmp_path: Path) -> None:
    done = train_alone(tmp_path, 1, batch=1000)
    assert done.returncode == 1
    assert "fewer than training.batchSize (1000). Fix: reduce it" in done.stderr
    assert not (tmp_path / "output").exists(), "no untrained model was saved"
    done = train_alone(tmp_path, 1, batch=4)
    assert done.returncode == 0, done.stderr
    assert parse_metrics((tmp_path / "output" / "metrics.csv").read_text())[-1].tests["error"] < 0.2, (
        "chance is 0.44"
    )
    assert (tmp_path / "output" / "model" / "model.pdiparams").is_file()
