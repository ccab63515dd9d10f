"""Test of a gang on loopback that runs the script of docs/how-to/own-script.md with PaddlePaddle and gloo.

It runs with PaddlePaddle 2.6.2 of the project's environment, and with the version of runtime collective's image.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
from pathlib import Path

import pytest

from launcher.metrics import parse_metrics
from local.launcher_image import ensure_collective_python
from testkit.written_data import write_data
from tests.launcher.supervisor.loopback_gang import REPO, LoopbackGang, paddle_scripts

pytestmark = [pytest.mark.slow, pytest.mark.paddle]

PAGE = REPO / "docs" / "how-to" / "own-script.md"
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


def build_gang(root: Path, processes: int, epochs: int, python: str | Path = sys.executable) -> LoopbackGang:
    """Return a gang of two pods that runs the page's script."""
    [script] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    step = "        optimizer.step()\n"
    assert script.count(step) == 1
    script = script.replace(
        step, f"{step}        __import__('time').sleep(0.03)\n"
    )  # or a kill would come too late
    settings = {
        "processes_per_pod": processes,
        "passes": epochs,
        "batch_size": 32,
        "restarts": 3,
    }
    gang = LoopbackGang(root, trainers=2, python=python, **paddle_scripts(**settings))
    write_data(gang.job, [make_rows(1200 + shard * 40, shard) for shard in range(2)], make_rows(300, 9))
    (gang.job / "mine" / "train.py").write_text(script + DIGEST)
    return gang


@pytest.mark.parametrize(
    ("processes", "version"), [(2, "3.3.1"), pytest.param(1, "2.6.2", marks=pytest.mark.long)]
)
def test_all_processes_train_the_same_model_also_after_a_kill(
    tmp_path: Path, processes: int, version: str
) -> None:
    python = ensure_collective_python() if version == "3.3.1" else sys.executable
    with build_gang(tmp_path, processes, 6, python) as gang:
        gang.start().wait_until(lambda: list(gang.output.glob("pass-*/done")), 90)
        os.kill(gang.find_pid(1, "train.py"), signal.SIGKILL)
        assert gang.wait_for_exit(120) == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"]) == ("complete", 1)
        assert run["resume"]["pass"] >= 1
        assert "SIGKILL" in run["restarts"][0]["cause"]
        digests = [path.read_text() for path in sorted(gang.output.glob("parameters-*.txt"))]
        assert len(digests) == 2 * processes
        assert len(set(digests)) == 1
        rows = parse_metrics((gang.output / "metrics.csv").read_text())
        assert [row.number for row in rows] == list(range(6))
        assert rows[-1].tests["accuracy"] > 0.9
        assert rows[-1].train_loss < rows[0].train_loss
        assert (gang.output / "model" / "model.pdiparams").is_file()
        assert {path.read_text() for path in gang.output.glob("version-*.txt")} == {version}
