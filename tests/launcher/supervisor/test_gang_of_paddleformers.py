"""The callback for `Trainer` with the real PaddleFormers, in a gang on loopback with two data-parallel processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from launcher.metrics import parse_metrics
from tests.launcher.supervisor.loopback_gang import HERE, WITH_PADDLE, LoopbackGang

pytestmark = [pytest.mark.long, pytest.mark.paddle]

PACKAGES = """paddleformers==1.2.0 paddlepaddle==3.3.1 pip pyarrow<20 pandas<3 datasets<4 scipy<1.14 scikit-learn<1.6
numba<0.62 contourpy<1.3.3 matplotlib<3.10 ml-dtypes<0.5.4 soxr<1"""
"""PaddleFormers imports pip, and fast_dataindex, which it requires, works with numpy 1 only: so do the other ones."""
EPOCHS = 6


def build_environment(folder: Path) -> Path:
    """Return the Python of a new environment with PACKAGES. Skips if the package index cannot be reached."""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--python", sys.executable, folder], check=True)
    command = [*uv, "pip", "install", "--python", str(folder / "bin" / "python"), *PACKAGES.split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    if "error sending request" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "python"


def test_a_killed_training_ends_with_exactly_the_parameters_of_one_without_a_failure(tmp_path: Path) -> None:
    python = build_environment(tmp_path / "python")
    ends = []
    for name in ("whole", "killed"):
        (tmp_path / name / "shared").mkdir(parents=True)
        gang = LoopbackGang(
            tmp_path / name,
            python=python,
            trainers=2,
            runtime="collective",
            config_file="mine/train.py",
            data_digest="none",
            passes=EPOCHS,
            restarts=2,
            checkpoint_every_batches=5,
            **WITH_PADDLE,
        )
        with gang:
            (gang.job / "mine" / "train.py").write_text((HERE / "formers_script.py").read_text())
            gang.start()
            if name == "killed":
                gang.wait_until(lambda: "saved pass-00002" in gang.read_log(0), 100)  # noqa: B023 - called here
                os.kill(gang.find_pids(1, "train.py")[0], signal.SIGKILL)
            assert gang.wait_for_exit(200) == [0, 0], gang.pod_log(0) + gang.read_log(0)
            assert gang.read_json("run.json")["attempt"] == (name == "killed")
            rows = parse_metrics((gang.output / "metrics.csv").read_text())
            assert [(row.number, set(row.tests)) for row in rows] == [
                (number, {"loss", "accuracy"}) for number in range(EPOCHS)
            ]
            ends.append(dict(np.load(gang.output / "model" / "end.npz")))
    assert all(np.array_equal(ends[0][key], ends[1][key]) for key in ends[0]), "and all have the same shapes"
