"""Faults of elastic runs: ranks that are lost, pods that leave in order and come back, a frozen coordinator."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from launcher.paths import Position
from tests.e2e import job_processes
from tests.faults.faulty_run import FaultyRun
from tests.faults.paced_programs import ONLY_COLLECTIVE, ONLY_PS
from tests.faults.test_pods import cordoned, delete

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

StartRun = Callable[..., FaultyRun]
ELASTIC = {"minTrainers": 1, "maxTrainers": 3, "rankWaitSeconds": 3, "growAfterMinutes": 0.05, "restarts": 9}


def trains_with(run: FaultyRun, *ranks: int) -> bool:
    """Return whether the newest attempt has exactly these ranks, and all of them train."""
    status = run.json("status.json")
    states = {rank["rank"]: rank["state"] for rank in status.get("ranks", [])}
    world = sorted(run.json("run.json").get("world", []))
    return world == list(ranks) and all(states.get(rank) in {"training", "saving"} for rank in ranks)


def wait_for_world(run: FaultyRun, *ranks: int) -> None:
    run.until(lambda: trains_with(run, *ranks), f"training with the ranks {ranks}", 120)


def lose_and_take_in(run: FaultyRun, *lost: int) -> None:
    """Kill the launchers of these ranks, whose pods find a node only when the others train without them."""
    with cordoned(run.training):
        run.broken()
        for rank in lost:
            job_processes.signal_all(run.processes("launcher", rank), signal.SIGKILL)
        wait_for_world(run, *({0, 1, 2} - {*lost}))
        run.seconds = time.time() - (run.at or 0.0)
    wait_for_world(run, 0, 1, 2)


def check_end(run: FaultyRun, *causes: str) -> list[str]:
    """Check that the run completes, learned as the undisturbed one, and restarted for these causes among others."""
    found = run.ends(300)
    text = "\n".join(found)
    assert all(cause in text for cause in causes), text
    run.until(lambda: not run.processes(), f"no process of {run.name}", 30)
    run.keep(len(found), f"complete, {run.check_result()}")
    return found


@pytest.mark.parametrize("lost", [(2,), (1, 2), (0,)], ids=["one", "two", "first"])
def test_a_run_goes_on_without_lost_ranks_and_takes_their_pods_in_again(
    start_run: StartRun, repaired_cluster: None, lost: tuple[int, ...]
) -> None:
    run = start_run(longer=True, training=ELASTIC)
    run.reach(1, batch=20)
    lose_and_take_in(run, *lost)
    check_end(run, "growing from")


@ONLY_COLLECTIVE
def test_a_script_trains_each_row_once_although_a_rank_is_lost_and_taken_in_again(
    start_run: StartRun, repaired_cluster: None
) -> None:
    run = start_run(training={**ELASTIC, "config": "paced/rows.py", "passes": 10})
    run.reach(1, batch=20)
    lose_and_take_in(run, 2)
    restarts = run.ends(150)
    assert "growing from 2 to 3 ranks with rank 2" in restarts[-1]
    counts = run.json("model/counts.json")
    assert counts == {"epochs": [[1]] * 10}, "a row of a pass was trained twice, or not at all"
    run.until(lambda: not run.processes(), f"no process of {run.name}", 30)
    run.keep(len(restarts), "complete, each row of each pass trained once")


@ONLY_PS
def test_a_script_for_parameter_servers_goes_on_without_a_lost_rank_and_takes_it_in_again(
    start_run: StartRun, repaired_cluster: None
) -> None:
    run = start_run(training=ELASTIC)
    run.reach(1)
    lose_and_take_in(run, 2)
    restarts = run.ends(150)
    assert "growing from 2 to 3 ranks with rank 2" in restarts[-1]
    record = run.json("run.json")
    assert record["resume"]["pass"] >= 1, "it resumed and did not start from scratch"
    assert list((run.output / Position(24).folder / "000").glob("part-*")), "the tables of the last pass"
    run.until(lambda: not run.processes(), f"no process of {run.name}", 30)
    run.keep(len(restarts), "complete, all passes")


def test_a_pod_that_leaves_in_order_is_not_waited_for_and_loses_no_step(
    start_run: StartRun, repaired_cluster: None
) -> None:
    run = start_run(
        longer=True,
        training={
            **ELASTIC,
            "savingPeriod": 100,
            "rankWaitSeconds": 600,
            "terminationGracePeriodSeconds": 60,
            "passes": 12,
        },
    )
    run.reach(3)  # more than ten seconds of training, which a pod that leaves would otherwise not save
    with cordoned(run.training):
        run.broken()
        delete(run.training, 2)
        wait_for_world(run, 0, 1)
        run.seconds = time.time() - (run.at or 0.0)
        record = run.json("run.json")
        assert "SIGTERM: saved a checkpoint at pass " in record["restarts"][0]["cause"]
        assert record["countedRestarts"] == 0
    wait_for_world(run, 0, 1, 2)
    check_end(run, "SIGTERM", "growing from 2 to 3 ranks with rank 2")


def test_a_frozen_coordinator_loses_the_run_to_another_rank_and_writes_nothing_when_it_wakes_up(
    start_run: StartRun, repaired_cluster: None
) -> None:
    run = start_run(longer=True, training=ELASTIC)
    run.reach(1, batch=20)
    frozen = min(run.processes("launcher", 0), key=lambda each: each.pid)  # the other one is its guard
    run.broken()
    job_processes.signal_all([frozen], signal.SIGSTOP)
    run.until(
        lambda: not run.processes("trainer", 0), "the guard to kill the frozen launcher's processes", 60
    )
    wait_for_world(run, 1, 2)
    run.seconds = time.time() - (run.at or 0.0)
    holder = run.json("run.lock")["token"]
    seen: list[dict[str, Any]] = [run.json("run.json")]
    job_processes.signal_all([frozen], signal.SIGCONT)
    run.until(lambda: frozen.pid not in [each.pid for each in run.processes("launcher", 0)], "its exit", 60)
    assert run.json("run.json")["holder"] == seen[0]["holder"] == holder
    wait_for_world(run, 0, 1, 2)
    assert run.json("run.json")["holder"] == holder, "the pod that came back does not coordinate"
    check_end(run, "the coordinator's launcher was lost", "growing from 2 to 3 ranks with rank 0")


def test_a_cluster_whose_nodes_are_reclaimed_one_after_another_ends_with_the_same_metric(
    start_run: StartRun, repaired_cluster: None
) -> None:
    """A spot node is reclaimed every half a minute, and its replacement comes 12 s later."""
    run = start_run(longer=True, training={**ELASTIC, "terminationGracePeriodSeconds": 60, "passes": 16})
    run.reach(1, batch=20)
    began = time.time()
    for rank in (2, 1, 0):
        with cordoned(run.training):
            run.broken()
            delete(run.training, rank)
            time.sleep(12)
        run.until(lambda: len(run.processes("trainer")) == 3, "all ranks to train", 120)
        time.sleep(15)
    found = run.ends(300)
    run.seconds = run.json("run.json")["finished"] - began
    run.keep(len(found), f"complete, {run.check_result()}")


def test_scale_changes_the_number_of_pods_of_the_running_job(start_run: StartRun) -> None:
    run = start_run(longer=True, training={**ELASTIC, "terminationGracePeriodSeconds": 60, "passes": 30})
    run.reach(1, batch=20)
    job = run.training.described()["k8sJob"]
    words = "-n", run.training.namespace
    run.broken()
    shown = run.cluster.launcher("scale", "--trainers", "2", *words).stdout
    assert "trainers: 2 (before: 3)" in shown, shown
    wait_for_world(run, 0, 1)
    run.seconds = time.time() - (run.at or 0.0)
    run.cluster.launcher("scale", "--trainers", "3", *words)
    wait_for_world(run, 0, 1, 2)
    assert run.training.described()["k8sJob"] == job, "it is the same Job"
    check_end(run, "SIGTERM", "growing from 2 to 3 ranks with rank 2")
