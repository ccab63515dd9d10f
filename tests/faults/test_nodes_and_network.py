"""Faults of nodes, network links, the API server and DNS, injected while a training runs."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.faults import cluster_faults
from tests.faults.faulty_run import FaultyRun
from tests.faults.paced_programs import BOTH_RUNTIMES
from tests.faults.test_pods import node_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.usefixtures("repaired_cluster")]

StartRun = Callable[..., FaultyRun]


def test_a_node_without_kubelet_and_containerd_continues_training(start_run: StartRun) -> None:
    """Kubernetes cannot inspect the node's pods and reports the node as lost, but its processes are fine."""
    run = start_run()
    run.reach(1, batch=100)
    node = node_of(run.training, 1)
    assert node != node_of(run.training, 0)
    run.broken()
    with cluster_faults.stopped_daemons(*cluster_faults.kubelet_and_containerd(node)):
        run.reach(3, seconds=120)
        assert run.json("run.json")["restarts"] == []
    run.ends_complete()


@BOTH_RUNTIMES
def test_a_network_failure_of_60_seconds_ends_with_a_restart_in_the_same_pods(start_run: StartRun) -> None:
    run = start_run()
    run.reach(1, batch=100)
    node = node_of(run.training, 1)
    assert node != node_of(run.training, 0)
    run.broken()
    cluster_faults.disconnect_node(node, 60)
    run.recovered(240)
    restarts = run.ends()
    run.ends_complete(*["rank" for _ in restarts])
    assert 1 <= len(restarts) <= 2, "Kubernetes may end the pod of a node that was lost, later"


@BOTH_RUNTIMES
def test_two_ranks_that_reach_rank_0_but_not_each_other_are_restarted_until_they_do(
    start_run: StartRun,
) -> None:
    """Rank 0 reaches both, so only their trainers notice: no batch completes, and the next start hangs."""
    run = start_run(longer=True, training={"progressDeadlineSeconds": 10})
    run.reach(1, batch=100)
    [launcher] = run.processes("launcher", 1)
    run.broken()
    with cluster_faults.dropped_packets(launcher.pid, run.address(2)):
        run.until(lambda: run.json("run.json")["restarts"], "a restart", 90)
        time.sleep(15)
        assert run.json("status.json")["state"] != "training", "no rank has had a batch"
    run.recovered(200)
    restarts = run.ends()
    run.ends_complete(*["rank" for _ in restarts])
    assert 1 <= len(restarts) <= 2


def test_the_api_server_may_be_unavailable_while_ranks_look_up_rank_0(start_run: StartRun) -> None:
    """With `rendezvous: api`: the API server is stopped when the data is ready, and started ten seconds later."""
    run = start_run(rendezvous="api")
    manifest = run.training.job / "manifest.json"
    run.until(manifest.exists, "the data", 60)
    run.broken()
    with cluster_faults.stopped_daemons("apiserver"):
        time.sleep(10)
        assert run.json("status.json")["state"] == "rendezvous", "nobody can know yet where rank 0 is"
    run.recovered()
    run.ends_complete()
