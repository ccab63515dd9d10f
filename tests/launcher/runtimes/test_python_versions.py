"""Runtime collective works with each Python version that a user's image may have, without any other package."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from local.launcher_gang import LauncherGang, job_environment

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
from launcher.program import ScriptRun

run = ScriptRun()
assert not {"numpy", "boto3", "kubernetes", "matplotlib"} & set(sys.modules), "the interface must stay light"
for epoch in range(run.start[0], run.epochs):
    for step in range(4):
        run.report(epoch, step + 1, 4, loss=1 / (step + 1), samples=8)
        if run.should_save():
            with run.save(epoch, step + 1) as folder:
                (folder / "state").write_text("x")
    run.end_epoch(epoch, accuracy=0.5)
if run.rank == 0:
    with run.save_model() as folder:
        (folder / "python.json").write_text(json.dumps(sys.version_info[:2]))
"""


def find_python(version: str) -> str | None:
    """Return an interpreter of this version: from pyenv, or `pythonX.Y` on PATH; None if there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(one) for one in versions.glob(f"{version}.*/bin/python")]
    return found[0] if found else shutil.which(f"python{version}")


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_a_script_trains_with_a_bare_python(tmp_path: Path, version: str) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    shared = tmp_path / "shared"
    (shared / "job" / "mine").mkdir(parents=True)
    (shared / "job" / "mine" / "train.py").write_text(SCRIPT)
    values = {
        "jobName": "job",
        "trainers": 2,
        "runtime": "collective",
        "training": {"config": "mine/train.py", "passes": 2, "checkpointEvery": {"batches": 3}},
    }
    env = {
        **job_environment(shared, values, data_digest="none"),
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with LauncherGang(tmp_path / "gang", env, python).start() as gang:
        assert gang.wait(60) == [0, 0], gang.pod_log(0) + gang.termination(0)
    output = shared / "job" / "output"
    assert json.loads((output / "run.json").read_text())["state"] == "complete"
    assert json.loads((output / "model" / "python.json").read_text()) == [int(n) for n in version.split(".")]
    assert "accuracy" in (output / "metrics.csv").read_text()
    assert [one.name for one in output.glob("pass-*")]
