"""Sweeps on the local cluster: a killed command, a killed worker, a full quota, and pruned trials."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testkit.local_cluster import CHART, Training
from testkit.waiting import until
from tests.e2e.test_own_model_guide import install_stopped_release

pytestmark = pytest.mark.e2e

Make = Callable[..., Training]
SECONDS = 400


class Sweep:
    """A sweep of quick_start with one trainer, in the namespace of a release that trains nothing."""

    def __init__(self, base: Training, folder: Path, *options: str) -> None:
        self.cluster, self.namespace, self.name = base.cluster, base.namespace, f"{base.namespace[-24:]}-s"
        values = yaml.safe_load((CHART / "examples" / "quick_start.yaml").read_text())
        self.values = folder / "values.yaml"
        self.values.write_text(yaml.safe_dump({**values, "jobName": self.name, "trainers": 1}))
        self.options = options

    def argv(self, *more: str) -> list[str]:
        """Return the command."""
        words = ["python", "-m", "launcher", "sweep", "quick_start", "--no-check", "-n", self.namespace]
        return [*words, "-f", str(self.values), "-o", "json", *self.options, *more]

    def start(self, folder: Path, *more: str) -> subprocess.Popen[str]:
        """Start the command in a folder."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(self.argv(*more), cwd=folder, env=self.cluster.env, **pipes)

    def finish(self, folder: Path, *more: str) -> dict[str, Any]:
        """Run the command to its end; return what it printed as JSON."""
        done = subprocess.run(
            self.argv(*more),
            cwd=folder,
            env=self.cluster.env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        return {**json.loads(done.stdout), "log": done.stderr}

    def output(self, number: int) -> Path:
        """Return the output folder of a trial."""
        return self.cluster.shared / f"{self.name}-{number}" / "output"

    def is_training(self, number: int) -> bool:
        """Return whether a trial trains its first pass or a later one."""
        status = self.output(number) / "status.json"
        return status.exists() and json.loads(status.read_text())["state"] == "training"

    def remove(self) -> None:
        """Remove the folders of the trials and the copy of the journal."""
        for folder in self.cluster.shared.glob(f"{self.name}-*"):
            shutil.rmtree(folder)
        (self.cluster.shared / ".sweeps" / f"{self.name}.journal").unlink(missing_ok=True)


@pytest.fixture
def sweep(train: Make, tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    """Return a function that makes the test's sweep with these options."""
    made: list[Sweep] = []

    def make(*options: str) -> Sweep:
        made.append(Sweep(install_stopped_release(train), tmp_path, *options))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.mark.seconds(150)
def test_a_killed_command_and_a_killed_worker_lose_nothing(
    sweep: Callable[..., Sweep], tmp_path: Path
) -> None:
    """The command is killed while a trial trains, and resumed on another machine: in a folder without its journal."""
    space = ("--search", "learning_rate=0.01,0.03,0.1", "--sampler", "grid", "--parallel", "2")
    one = sweep(*space, "--passes", "4", "--by", "error")
    first, other = tmp_path / "first", tmp_path / "other"
    first.mkdir()
    other.mkdir()
    with one.start(first) as command:
        until(lambda: one.is_training(1) or command.poll() is not None, "the first trial trains", 120, 0.2)
        assert command.poll() is None, command.stdout and command.stdout.read()[-4000:]
        command.send_signal(signal.SIGKILL)
    pods = one.cluster.get("pods", one.namespace, f"app.kubernetes.io/instance={one.name}-1")
    worker = next(pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running")
    one.cluster.kubectl("delete", "pod", worker, "-n", one.namespace, "--grace-period=0", "--force")
    result = one.finish(other, "--resume")
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 3, result
    values = [trial["value"] for trial in result["trials"]]
    best = result["trials"][values.index(min(values))]
    assert (result["best"], result["by"]) == (best["release"], "lowest error")
    for number in (1, 2, 3):
        job = one.output(number).parent
        assert not (job / "runs").exists(), "nothing was trained twice"
        rows = (job / "output" / "metrics.csv").read_text().splitlines()[1:]
        # The pass in which the worker was killed may have been recorded before its checkpoint was complete.
        assert sorted({row.split(",")[0] for row in rows}) == ["0", "1", "2", "3"], rows
    manifests = [json.loads((one.output(n).parent / "manifest.json").read_text()) for n in (1, 2, 3)]
    maker = (
        manifests[0].get("reusedFrom") or manifests[0]["madeBy"]["job"]
    )  # the storage may have it from before
    assert [made.get("reusedFrom") for made in manifests[1:]] == [maker] * 2, (
        "the others do not prepare it again"
    )
    releases = one.cluster.get("configmaps", one.namespace, "app.kubernetes.io/name=paddle-training")
    assert sorted(entry["metadata"]["name"] for entry in releases) == sorted(
        ["paddle-training-run", f"{result['best']}-run"]
    )
    assert (one.cluster.shared / ".sweeps" / f"{one.name}.journal").read_bytes() == Path(
        result["journal"]
    ).read_bytes()


@pytest.mark.seconds(200)
def test_a_full_quota_makes_trials_wait_and_a_pruned_one_makes_room(
    sweep: Callable[..., Sweep], tmp_path: Path
) -> None:
    """The quota admits one training pod and one data pod, so two trials never train at the same time."""
    one = sweep(
        *("--search", "learning_rate=0.03,1e-7", "--sampler", "grid", "--parallel", "2"),
        # Long enough for the second trial to meet the quota while the first one trains.
        *("--passes", "15", "--by", "error", "--pruner", "hyperband"),
        *("--set", "data.resources.requests.cpu=100m"),
    )
    hard = "--hard=requests.cpu=350m"  # a training pod requests 200m
    one.cluster.kubectl("create", "quota", "small", hard, "-n", one.namespace)
    result = one.finish(tmp_path)
    states = [trial["state"] for trial in result["trials"]]
    assert states[0] == "complete", result["log"][-3000:]
    assert states[1] in ("complete", "pruned"), result["log"][-3000:]
    assert "exceeded quota" in result["log"]
