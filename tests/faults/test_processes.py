"""Faults of processes: killed ones, and ones that run but make no progress."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.faults.faulty_run import LONG, FaultyRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

StartRun = Callable[..., FaultyRun]


def test_a_killed_pserver_restarts_the_gang_from_the_newest_checkpoint(start_run: StartRun) -> None:
    run = start_run()
    run.reach(1, batch=100)
    run.kill("pserver", rank=1)
    run.recovered()
    run.ends_complete("pserver 0 exited with signal SIGKILL")


def test_a_killed_trainer_restarts_the_gang_from_the_newest_checkpoint(start_run: StartRun) -> None:
    run = start_run()
    run.reach(1, batch=100)
    pods = {run.training.pod(rank) for rank in range(3)}
    run.kill("trainer", rank=2)
    run.recovered()
    run.ends_complete("trainer exited with signal SIGKILL")
    assert {run.training.pod(rank) for rank in range(3)} == pods, "no pod was replaced for it"


def test_a_stopped_trainer_counts_as_hung_after_progress_deadline_seconds(start_run: StartRun) -> None:
    run = start_run(training={"progressDeadlineSeconds": 10, **LONG})
    run.reach(1, batch=100)
    run.kill("trainer", 1, signal.SIGSTOP)
    run.recovered()
    run.ends_complete("trainer hangs: no batch for 10 s (training.progressDeadlineSeconds)")


def test_a_stopped_launcher_is_restarted_by_its_liveness_probe(start_run: StartRun) -> None:
    """Its child processes continue, and only Kubernetes may terminate them: the other ranks wait for that."""
    run = start_run(training=LONG)
    run.reach(1, batch=100)
    run.kill("launcher", 1, signal.SIGSTOP)
    run.recovered(240)
    run.ends_complete("rank 1")


def test_a_stopped_launcher_of_rank_0_is_restarted_by_its_liveness_probe(start_run: StartRun) -> None:
    """No attempt can start meanwhile; no other pod may write to the output until the lease has expired."""
    run = start_run(training=LONG)
    run.reach(1, batch=100)
    run.kill("launcher", 0, signal.SIGSTOP)
    run.recovered(240)
    run.ends_complete("rank 0's launcher was lost")


def test_a_killed_launcher_of_rank_0_is_restarted_and_resumes_from_run_json(start_run: StartRun) -> None:
    run = start_run()
    run.reach(1, batch=100)
    run.kill("launcher", rank=0)
    run.recovered()
    run.ends_complete("rank 0's launcher was lost")


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
