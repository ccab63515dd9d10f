"""Fixtures of the fault tests: long runs to inject faults into, the score of an undisturbed run, results."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from local.paths import POD_UID
from testkit.local_cluster import ROOT, Cluster, Training, merge_values
from testkit.shared_fixtures import create_once
from tests.e2e.conftest import cluster, create_trainings, train
from tests.faults import cluster_faults
from tests.faults.faulty_run import FaultyRun

__all__ = ["cluster", "train"]

PACED = Path(__file__).parent / "paced"
VALUES: dict[str, Any] = {
    # 434 batches a pass: 4.4 s of training at least, and a save after each pass.
    "training": {
        "config": f"{PACED.name}/trainer_config.py",
        "passes": 4,
        "batchSize": 16,
        "keepCheckpoints": 100,
        "terminationGracePeriodSeconds": 15,
    },
}
"""On top of the example quick_start."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that would start after FAULTS_UNTIL: CI stops a run after 90 minutes and loses its results."""
    late = time.time() - float(os.environ.get("FAULTS_UNTIL", "inf"))
    if late > 0:
        pytest.skip(f"{item.name} would start {late:.0f} s after FAULTS_UNTIL; `make test-faults` runs it")


def install_paced(training: Training) -> Training:
    """Copy the paced program to the job's folder, as `push` would, install the release and return the training."""
    folder = training.job / PACED.name
    folder.mkdir(parents=True)
    plain = ROOT / "launcher" / "programs" / "quick_start"
    sources = {
        "trainer_config.py": PACED / "trainer_config.py",
        "plain.py": plain / "trainer_config.py",
        "texts.py": plain / "texts.py",
    }
    for name, source in sources.items():
        shutil.copy(source, folder / name)
    for path in (training.job, folder, *folder.iterdir()):
        os.chown(path, POD_UID, POD_UID)
    os.sync()  # a volume that rejects writes a moment later would give back empty files
    training.upgrade()
    return training


@pytest.fixture(scope="session")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], float]:
    """Return the score of a run without faults, which is trained once for all pytest processes."""

    def train_it() -> float:
        """Train without faults and return the test error."""
        with create_trainings(cluster, "undisturbed") as make:
            training = install_paced(make("quick_start", **VALUES))
            training.complete(300)
            record = json.loads((training.output / "run.json").read_text())
            assert record["restarts"] == []
            return float(record["score"]["error"])

    return lambda: create_once(tmp_path_factory, "undisturbed", train_it)


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], None]:
    """Return a function that writes this test's row to the file FAULT_RESULTS, if that is set."""

    def write(row: dict[str, Any]) -> None:
        if "FAULT_RESULTS" not in os.environ:
            return
        with (ROOT / os.environ["FAULT_RESULTS"]).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # pytest may have several processes
            file.seek(0)
            rows = json.loads(file.read() or "{}")
            rows[f"{Path(str(request.node.path)).relative_to(ROOT)}::{request.node.name}"] = row
            file.truncate(0)
            file.write(json.dumps(rows, indent=1, sort_keys=True) + "\n")

    return write


@pytest.fixture
def start_run(
    train: Callable[..., Training],
    undisturbed: Callable[[], float],
    note: Callable[[dict[str, Any]], None],
) -> Callable[..., FaultyRun]:
    """Return a function that starts a run with `VALUES` and the given changes."""

    def start(**changes: Any) -> FaultyRun:
        return FaultyRun(
            install_paced(train("quick_start", **merge_values(VALUES, changes))), undisturbed, note
        )

    return start


@pytest.fixture
def repaired_cluster() -> Iterator[None]:
    """Repair the cluster before and after a test that injects faults into the cluster itself."""
    cluster_faults.repair_cluster()
    yield
    cluster_faults.repair_cluster()


@pytest.fixture
def volume(request: pytest.FixtureRequest) -> Iterator[cluster_faults.Volume]:
    """Return a small volume; use it before `start_run`, since the pods must be removed first."""
    with cluster_faults.small_volume(request.node.name.removeprefix("test_")[:40], 96) as made:
        yield made
