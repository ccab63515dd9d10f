"""Runs that are long enough to be broken, the score of one that is not, and the results' file."""

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
from tests.e2e.conftest import cluster, train, trainings
from tests.e2e.kube import ROOT, Cluster, Training, merged
from tests.faults import machine
from tests.faults.watch import Run
from tests.once import once

__all__ = ["cluster", "train"]

PACED = Path(__file__).parent / "paced"
VALUES: dict[str, Any] = {
    # 434 batches a pass: 4.4 s of training at least, and a save after each pass.
    "training": {
        "config": f"{PACED.name}/trainer_config.py",
        "passes": 4,
        "batchSize": 16,
        "keepSaves": 100,
        "terminationGracePeriodSeconds": 15,
    },
}
"""On top of the example quick_start."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What would begin too late is skipped: CI ends a run after 90 minutes, and with it what was seen."""
    late = time.time() - float(os.environ.get("FAULTS_UNTIL", "inf"))
    if late > 0:
        pytest.skip(f"{item.name} would begin {late:.0f} s after FAULTS_UNTIL; `make test-faults` runs it")


def started(training: Training) -> Training:
    """The training with the paced program in its job's folder, where `push` would put it."""
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
    os.sync()  # a volume that refuses writes a moment later would give back empty files
    training.upgrade()
    return training


@pytest.fixture(scope="session")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], float]:
    """The score of a run that nobody breaks, trained once for all of pytest's processes."""

    def train_it() -> float:
        with trainings(cluster, "undisturbed") as make:
            training = started(make("quick_start", **VALUES))
            training.complete(300)
            told = json.loads((training.output / "run.json").read_text())
            assert told["restarts"] == []
            return float(told["score"]["error"])

    return lambda: once(tmp_path_factory, "undisturbed", train_it)


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], None]:
    """Writes this test's row to the file named by FAULT_RESULTS; without it to nowhere."""

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
def begin(
    train: Callable[..., Training],
    undisturbed: Callable[[], float],
    note: Callable[[dict[str, Any]], None],
) -> Callable[..., Run]:
    """Starts a run with `VALUES` and these changes."""

    def start(**changes: Any) -> Run:
        return Run(started(train("quick_start", **merged(VALUES, changes))), undisturbed, note)

    return start


@pytest.fixture
def mended() -> Iterator[None]:
    """For tests that break the cluster itself: whole before, and whole behind them."""
    machine.mend()
    yield
    machine.mend()


@pytest.fixture
def volume(request: pytest.FixtureRequest) -> Iterator[machine.Volume]:
    """A small volume, to be named before `begin`, since the pods must go first."""
    with machine.volume(request.node.name.removeprefix("test_")[:40], 96) as made:
        yield made
