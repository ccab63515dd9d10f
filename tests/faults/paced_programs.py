"""The programs that fault tests train, one for each runtime, with their values and the results of a run."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.releases import merge_values
from local import launcher_image
from local.paths import POD_UID
from testkit.local_cluster import ROOT, Training

PACED = Path(__file__).parent / "paced"
QUICK_START = ROOT / "launcher" / "programs" / "quick_start"
PROGRAM_FILES = {
    "trainer_config.py": PACED / "trainer_config.py",
    "plain.py": QUICK_START / "trainer_config.py",
    "train.py": PACED / "train.py",
    "rows.py": PACED / "rows.py",
    "texts.py": QUICK_START / "texts.py",
}
PS_PAGE = ROOT / "docs" / "how-to" / "parameter-server-script.md"
PS_STEP = "            (value,) = exe.run(feed=feed, fetch_list=[loss])\n"
COMMON = {"keepCheckpoints": 100, "terminationGracePeriodSeconds": 15}
VALUES: dict[str, dict[str, Any]] = {
    # 434 batches a pass: 4.4 s of training at least, and a save after each pass.
    "fleet": {
        "training": {**COMMON, "config": f"{PACED.name}/trainer_config.py", "batchSize": 16, "passes": 4}
    },
    # 216 steps a pass: also 4.4 s. The launcher counts those of all processes, which are 648.
    "collective": {
        "runtime": "collective",
        "training": {
            **COMMON,
            "config": f"{PACED.name}/train.py",
            "batchSize": 32,
            "passes": 3,
            "logPeriod": 50,
        },
        "portsNum": 2,  # this, portsNumSparse and logPeriod: the chart's values, not those of the example
        "portsNumSparse": 2,
    },
    # 10 steps a pass: 3 s, and a save after each pass.
    "ps": {
        "runtime": "ps",
        "image": launcher_image.image_name("fleet"),
        "data": {"enabled": False, "source": ""},
        "training": {**COMMON, "config": f"{PACED.name}/train_ps.py", "passes": 24, "logPeriod": 50},
        "portsNum": 2,
        "portsNumSparse": 2,
    },
}
"""Runtime → values on top of the example quick_start."""
BOTH_RUNTIMES = pytest.mark.parametrize("runtime", ["fleet", "collective"], indirect=True)
ONLY_COLLECTIVE = pytest.mark.parametrize("runtime", ["collective"], indirect=True)
ONLY_PS = pytest.mark.parametrize("runtime", ["ps"], indirect=True)


def pace_first_attempt(seconds: float) -> dict[str, Any]:
    """Return the values with which a step of the script takes so many seconds until the first restart."""
    return {"extraEnv": [{"name": "PACED_SECONDS", "value": str(seconds)}]}


LONGER: dict[str, dict[str, Any]] = {
    "fleet": {"training": {"passes": 8}},
    "collective": pace_first_attempt(0.04),
}
"""Runtime → values that make the run longer, for faults that are detected only after ten seconds."""


def paced_values(runtime: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a paced run of a runtime, with its own image and `changes`."""
    return merge_values({"image": launcher_image.image_name(runtime), **VALUES[runtime]}, changes)


def read_ps_script(step_seconds: float = 0.3) -> str:
    """Return the script of the page about runtime ps, each of whose steps takes so many seconds longer."""
    [script] = re.findall(r"```python\n(.*?)```", PS_PAGE.read_text("utf-8"), re.DOTALL)
    assert script.count(PS_STEP) == 1
    return str(script).replace(PS_STEP, f"{PS_STEP}            __import__('time').sleep({step_seconds})\n")


def install_paced(training: Training) -> Training:
    """Copy the paced programs to the job's folder, as `push` would, install the release and return the training."""
    folder = training.job / PACED.name
    folder.mkdir(parents=True)
    for name, source in PROGRAM_FILES.items():
        shutil.copy(source, folder / name)
    (folder / "train_ps.py").write_text(read_ps_script())
    for path in (training.job, folder, *folder.iterdir()):
        os.chown(path, POD_UID, POD_UID)
    os.sync()  # a volume that rejects writes a moment later would give back empty files
    training.upgrade()
    return training


@dataclass(frozen=True)
class Result:
    """What a complete run has learned."""

    error: float
    """Share of wrongly classified texts of the test set."""
    parameters: tuple[str, ...]
    """sha256 of the final parameters of each process; empty with runtime fleet."""

    @classmethod
    def of(cls, output: Path) -> Result:
        """Read the result of a complete run from its output folder."""
        found = sorted(output.glob("parameters-*.txt"))
        record = json.loads((output / "run.json").read_text())
        return cls(float(record["score"]["error"]), tuple(path.read_text() for path in found))
