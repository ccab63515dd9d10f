"""Faults of processes: killed ones, and ones that run but make no progress."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.e2e import job_processes
from tests.faults.faulty_run import FaultyRun
from tests.faults.paced_programs import ONLY_COLLECTIVE, pace_first_attempt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

StartRun = Callable[..., FaultyRun]


def test_a_stopped_launcher_of_rank_0_is_restarted_by_its_liveness_probe(start_run: StartRun) -> None:
    """No attempt can start meanwhile; no other pod may write to the output until the lease has expired."""
    run = start_run(longer=True)
    run.reach(1, batch=100)
    run.kill("launcher", 0, signal.SIGSTOP)
    run.recovered(240)
    run.ends_complete("the coordinator's launcher was lost")


def test_three_faults_in_a_row_cause_three_restarts(start_run: StartRun) -> None:
    run = start_run(training={"passes": 10})
    run.reach(1, batch=100)
    run.kill("pserver", rank=2)
    run.recovered()
    run.kill("trainer", rank=1)
    run.recovered()
    run.kill("launcher", rank=1)
    run.recovered()
    run.ends_complete("pserver 0 exited", "trainer exited", "rank 1")


@ONLY_COLLECTIVE
def test_the_processes_of_two_pods_that_die_at_once_cause_one_restart(start_run: StartRun) -> None:
    """Each pod has two processes, which share its shard."""
    training = {"processesPerPod": 2, "checkpointEvery": {"batches": 60}}
    run = start_run(training=training, **pace_first_attempt(0.05))
    run.reach(1, batch=480)  # of 648: 80 steps of each of 6 processes
    run.broken()
    at = max(one.progress()["batch"] for one in run.processes("trainer"))
    job_processes.signal_all(run.processes("trainer", 1) + run.processes("trainer", 2), signal.SIGKILL)
    run.recovered()
    assert run.json("run.json")["resume"] == {"pass": 1, "batch": 360}
    run.ends_complete("exited with signal SIGKILL", what=f"{at // 6 - 60} steps done again; ")
