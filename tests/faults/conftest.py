"""Fixtures of the fault tests: long runs to inject faults into, the result of an undisturbed run, results."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.releases import merge_values
from testkit.local_cluster import ROOT, Cluster, Training
from testkit.shared_fixtures import create_once
from tests.e2e.conftest import cluster, create_trainings, train
from tests.faults import cluster_faults
from tests.faults.faulty_run import FaultyRun
from tests.faults.paced_programs import LONGER, Result, install_paced, paced_values

__all__ = ["cluster", "train"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that would start after FAULTS_UNTIL: CI stops a run after 90 minutes and loses its results."""
    late = time.time() - float(os.environ.get("FAULTS_UNTIL", "inf"))
    if late > 0:
        pytest.skip(f"{item.name} would start {late:.0f} s after FAULTS_UNTIL; `make test-faults` runs it")


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> str:
    """Return the runtime of this test's run: fleet, unless a mark of paced_programs.py says others."""
    return str(getattr(request, "param", "fleet"))


@pytest.fixture
def undisturbed(
    runtime: str, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Result]:
    """Return the result of a run without faults, which is trained once for all tests of its runtime."""

    def train_it() -> Result:
        """Train without faults and return the result."""
        with create_trainings(cluster, f"undisturbed_{runtime}") as make:
            training = install_paced(make("quick_start", **paced_values(runtime, {})))
            training.complete(300)
            assert training.record()["restarts"] == []
            return Result.of(training.output)

    return lambda: create_once(tmp_path_factory, f"undisturbed_{runtime}", train_it)


@pytest.fixture
def note(request: pytest.FixtureRequest, runtime: str) -> Callable[[dict[str, Any]], None]:
    """Return a function that writes this test's result to the file FAULT_RESULTS, if that is set.

    The file is JSON: test → runtime → result.
    """

    def write(row: dict[str, Any]) -> None:
        if "FAULT_RESULTS" not in os.environ:
            return
        with (ROOT / os.environ["FAULT_RESULTS"]).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # pytest may have several processes
            file.seek(0)
            rows = json.loads(file.read() or "{}")
            test = f"{Path(str(request.node.path)).relative_to(ROOT)}::{request.node.originalname}"
            rows[test] = {**rows.get(test, {}), runtime: row}
            file.truncate(0)
            file.write(json.dumps(rows, indent=1, sort_keys=True) + "\n")

    return write


@pytest.fixture
def start_run(
    runtime: str,
    train: Callable[..., Training],
    undisturbed: Callable[[], Result],
    note: Callable[[dict[str, Any]], None],
) -> Callable[..., FaultyRun]:
    """Return a function that starts a run of the test's runtime with the given changes of its values."""

    def start(*, longer: bool = False, **changes: Any) -> FaultyRun:
        values = paced_values(runtime, merge_values(LONGER[runtime] if longer else {}, changes))
        return FaultyRun(install_paced(train("quick_start", **values)), undisturbed, note)

    return start


@pytest.fixture
def repaired_cluster(cluster: Cluster) -> Iterator[None]:
    """Repair the cluster before and after a test that injects faults into the cluster itself."""
    # The API server may not have answered when an earlier test, which failed, let pods run on the nodes again. A
    # cluster with such a node does not count as ready.
    for node in cluster.kubectl("get", "nodes", "-o", "name", check=False).split():
        cluster.kubectl("uncordon", node, check=False)
    cluster_faults.repair_cluster()
    yield
    cluster_faults.repair_cluster()


@pytest.fixture
def volume(request: pytest.FixtureRequest) -> Iterator[cluster_faults.Volume]:
    """Return a small volume; use it before `start_run`, since the pods must be removed first."""
    with cluster_faults.small_volume(request.node.name.removeprefix("test_")[:40], 96) as made:
        yield made
