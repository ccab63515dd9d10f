"""Nodes, links, the API server and the names: what a run needs to begin, and not to go on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.e2e import processes
from tests.faults import machine
from tests.faults.test_pods import node_of
from tests.faults.watch import LONG, Run
from tests.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("mended"),
]

Begin = Callable[..., Run]


def test_a_node_without_kubelet_and_containerd_trains_on(begin: Begin) -> None:
    """Nobody can look at its pods, and Kubernetes calls the node lost; its processes are well."""
    run = begin()
    run.reach(1, batch=100)
    node = node_of(run.training, 1)
    assert node != node_of(run.training, 0)
    run.broken()
    with machine.stopped(*machine.agents(node)):
        run.reach(3, seconds=120)
        assert run.json("run.json")["restarts"] == []
    run.ends_whole()


def test_a_cut_of_5_seconds_is_waited_out_or_costs_one_restart(begin: Begin) -> None:
    run = begin()
    run.reach(1, batch=100)
    run.broken()
    machine.cut(node_of(run.training, 1), 5)
    run.reach(2)
    if run.json("run.json")["restarts"]:
        run.recovered()
    restarts = run.ends()
    run.ends_whole(*["rank" for _ in restarts])
    assert len(restarts) <= 1


def test_a_cut_of_60_seconds_ends_with_a_restart_on_the_pod_that_comes_back(begin: Begin) -> None:
    run = begin()
    run.reach(1, batch=100)
    node = node_of(run.training, 1)
    assert node != node_of(run.training, 0)
    run.broken()
    machine.cut(node, 60)
    run.recovered(240)
    restarts = run.ends()
    run.ends_whole(*["rank" for _ in restarts])
    assert 1 <= len(restarts) <= 2, "Kubernetes may end the pod of a node that was lost, later"


def test_two_ranks_that_see_rank_0_but_not_each_other_are_restarted_until_they_do(begin: Begin) -> None:
    """Rank 0 hears both, so only their trainers can tell: no batch comes, and the next start hangs."""
    run = begin(training={"stallSeconds": 10, **LONG})
    run.reach(1, batch=100)
    [launcher] = run.processes("launcher", 1)
    run.broken()
    with machine.deaf(launcher.pid, run.address(2)):
        run.until(lambda: run.json("run.json")["restarts"], "a restart", 90)
        time.sleep(15)
        assert run.json("status.json")["state"] != "training", "no rank has had a batch"
    run.recovered(200)
    restarts = run.ends()
    run.ends_whole(*["rank" for _ in restarts])
    assert 1 <= len(restarts) <= 2


def test_the_api_server_may_be_away_while_ranks_look_for_rank_0(begin: Begin) -> None:
    """rendezvous: api. It goes when the data is there, and comes back ten seconds later."""
    run = begin(rendezvous="api")
    manifest = run.training.job / "manifest.json"
    run.until(manifest.exists, "the data", 60)
    run.broken()
    with machine.stopped("apiserver"):
        time.sleep(10)
        assert run.json("status.json")["state"] == "rendezvous", "nobody can know yet where rank 0 is"
    run.recovered()
    run.ends_whole()


def test_a_restart_needs_no_names(begin: Begin) -> None:
    run = begin()
    run.reach(1, batch=100)
    with machine.stopped("coredns"):
        run.kill("trainer", rank=1)
        run.recovered()
    run.ends_whole("trainer ended with signal SIGKILL")


def test_a_new_pod_waits_for_the_names_to_come_back(begin: Begin) -> None:
    run = begin()
    run.reach(1, batch=100)
    with machine.stopped("coredns"):
        run.kill("launcher", rank=1)
        run.until(lambda: run.processes("launcher", 1), "rank 1's new launcher", 60)
        time.sleep(10)
        assert run.json("status.json")["state"] == "rendezvous", "it cannot know yet where rank 0 is"
    run.recovered()
    run.ends_whole("rank 1")


def test_a_killed_data_job_begins_again_and_the_training_waits_for_it(begin: Begin) -> None:
    run = begin()
    at_work = caught(run)
    run.broken()
    processes.signal_all(at_work, signal.SIGKILL)
    run.recovered(180)
    run.ends_whole()


def caught(run: Run) -> list[processes.Process]:
    """The data Job's processes, stopped while they write: all of it takes a quarter of a second."""

    def at_work() -> list[processes.Process]:
        if found := run.processes("data"):
            processes.signal_all(found, signal.SIGSTOP)
            if unfinished(run):
                return found
            processes.signal_all(found, signal.SIGCONT)
        return []

    return until(at_work, "the data Job at work", 60, 0.01, lambda: sorted(run.training.job.glob("*")))


def unfinished(run: Run) -> bool:
    """Whether the data Job has begun to write, and has not ended."""
    job = run.training.job
    return any(job.glob(".*.tmp/*")) and not (job / "manifest.json").exists()
