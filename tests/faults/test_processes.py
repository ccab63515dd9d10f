"""Processes that die, and processes that live and do nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.faults.watch import LONG, Run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

Begin = Callable[..., Run]


def test_a_killed_pserver_restarts_the_gang_from_the_newest_save(begin: Begin) -> None:
    run = begin()
    run.reach(1, batch=100)
    run.kill("pserver", rank=1)
    run.recovered()
    run.ends_whole("pserver 0 ended with signal SIGKILL")


def test_a_killed_trainer_restarts_the_gang_from_the_newest_save(begin: Begin) -> None:
    run = begin()
    run.reach(1, batch=100)
    pods = {run.training.pod(rank) for rank in range(3)}
    run.kill("trainer", rank=2)
    run.recovered()
    run.ends_whole("trainer ended with signal SIGKILL")
    assert {run.training.pod(rank) for rank in range(3)} == pods, "no pod was replaced for it"


def test_a_stopped_trainer_counts_as_hung_after_stall_seconds(begin: Begin) -> None:
    run = begin(training={"stallSeconds": 10, **LONG})
    run.reach(1, batch=100)
    run.kill("trainer", 1, signal.SIGSTOP)
    run.recovered()
    run.ends_whole("trainer hangs: no batch for 10 s (training.stallSeconds)")


def test_a_stopped_launcher_is_brought_back_by_its_liveness_probe(begin: Begin) -> None:
    """Its children go on and nobody may end them but Kubernetes: the others wait for that."""
    run = begin(training=LONG)
    run.reach(1, batch=100)
    run.kill("launcher", 1, signal.SIGSTOP)
    run.recovered(240)
    run.ends_whole("rank 1")


def test_a_stopped_launcher_of_rank_0_is_brought_back_by_its_liveness_probe(begin: Begin) -> None:
    """Nobody decides meanwhile, and nobody else may take the output while its lease may be renewed."""
    run = begin(training=LONG)
    run.reach(1, batch=100)
    run.kill("launcher", 0, signal.SIGSTOP)
    run.recovered(240)
    run.ends_whole("rank 0's launcher was lost")


def test_a_killed_launcher_of_rank_0_is_replaced_and_goes_on_from_run_json(begin: Begin) -> None:
    run = begin()
    run.reach(1, batch=100)
    run.kill("launcher", rank=0)
    run.recovered()
    run.ends_whole("rank 0's launcher was lost")


def test_three_faults_in_a_row_are_three_restarts(begin: Begin) -> None:
    run = begin(training={"passes": 10})
    run.reach(1, batch=100)
    run.kill("pserver", rank=2)
    run.recovered()
    run.kill("trainer", rank=1)
    run.recovered()
    run.kill("launcher", rank=1)
    run.recovered()
    run.ends_whole("pserver 0 ended", "trainer ended", "rank 1")
