"""Faults of pods: deleted, duplicate, evicted or late ones, and a killed data Job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.releases import merge_values
from launcher.paths import JobPaths
from testkit.local_cluster import Training
from testkit.waiting import until
from tests.e2e import job_processes
from tests.faults import cluster_faults
from tests.faults.faulty_run import FaultyRun
from tests.faults.paced_programs import BOTH_RUNTIMES, pace_first_attempt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

StartRun = Callable[..., FaultyRun]


def delete(training: Training, rank: int) -> None:
    pod = training.pod(rank)
    training.cluster.kubectl("delete", "pod", pod, "-n", training.namespace, "--wait=false")


def forget(training: Training, rank: int) -> None:
    """Delete a rank's pod with --force, and remove the finalizer by which its Job keeps it."""
    words = "pod", training.pod(rank), "-n", training.namespace
    training.cluster.kubectl("delete", *words, "--wait=false", "--force", "--grace-period=0")
    training.cluster.kubectl("patch", *words, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')


def node_of(training: Training, rank: int) -> str:
    name = training.pod(rank)
    return str(next(p["spec"]["nodeName"] for p in training.pods() if p["metadata"]["name"] == name))


@BOTH_RUNTIMES
def test_a_deleted_pod_is_replaced_and_the_other_ranks_wait_with_their_staged_data(
    start_run: StartRun,
) -> None:
    run = start_run()
    run.reach(1, batch=100)
    others = {run.training.pod(rank) for rank in (0, 1)}
    run.broken()
    delete(run.training, 2)
    run.recovered()
    run.ends_complete("received SIGTERM")
    assert {run.training.pod(rank) for rank in (0, 1)} == others, "no other pod was replaced for it"


def test_a_deleted_pod_of_rank_0_is_replaced_and_resumes_from_run_json(start_run: StartRun) -> None:
    run = start_run()
    run.reach(1, batch=100)
    run.broken()
    delete(run.training, 0)
    run.recovered()
    assert run.json("run.json")["resume"]["pass"] >= 1, "it resumed and did not start from scratch"
    run.ends_complete(*run.ends())


@contextlib.contextmanager
def cordoned(training: Training, *nodes: str) -> Iterator[None]:
    """During the block these nodes, by default all, take no new pods."""
    names = nodes or training.cluster.kubectl("get", "nodes", "-o", "name").split()
    training.cluster.kubectl("cordon", *names)
    try:
        yield
    finally:
        training.cluster.kubectl("uncordon", *names)


def test_a_second_rank_0_waits_until_the_first_one_has_exited(
    start_run: StartRun, repaired_cluster: None
) -> None:
    """The pod is force-deleted while its node's kubelet is stopped: Kubernetes forgets the pod, which keeps running."""
    run = start_run(training={"passes": 10})
    run.reach(1, batch=100)
    node = node_of(run.training, 0)
    with cluster_faults.stopped_daemons(f"{node}-kubelet"), cordoned(run.training, node):
        run.broken()
        forget(run.training, 0)
        run.until(lambda: len(run.processes("launcher", 0)) == 2, "two launchers of rank 0", 90)
        token = json.loads((run.output / "run.lock").read_text())["token"]
        first = run.progress()
        run.until(lambda: run.progress() != first, "more of the first one's training", 60)
        assert json.loads((run.output / "run.lock").read_text())["token"] == token, (
            "the first pod must still hold the lease"
        )
    restarts = run.ends(300)
    run.ends_complete(*restarts)
    assert len(restarts) <= 2, (
        "the first one's node removes its disk, then its processes: at most two restarts"
    )


def test_a_rank_without_a_node_is_waited_for_and_the_failed_job_is_started_again(
    start_run: StartRun, repaired_cluster: None
) -> None:
    wait = {"rendezvousSeconds": 10, "notify": {"events": True}}
    run = start_run(**wait, longer=True, training={"rankWaitHours": 0.02})
    there = "-n", run.training.namespace
    run.reach(1, batch=100)

    def count_events() -> int:
        found = run.cluster.get("events", run.training.namespace)
        return sum(event["reason"] == "TrainingWaiting" for event in found)

    with cordoned(run.training):
        earlier = count_events()  # a rank may have started late
        run.broken()
        delete(run.training, 2)
        run.until(lambda: count_events() > earlier, "the Event about the missing rank", 60)
        assert not run.processes("trainer"), "the ranks that wait run no process"
        assert run.json("status.json")["waitingSince"] > run.at
        shown = " ".join(run.cluster.launcher("status", *there).stdout.split())
        assert "the run gives up at" in shown
        assert "unschedulable" in shown, "the reason why the pod does not start"
    run.recovered()
    with cordoned(run.training):
        delete(run.training, 2)
        assert run.training.ended(240) == "Failed"
        assert any("did not join within 82 s" in message for message in run.training.messages())
    run.cluster.launcher("resume", *there)
    run.ends_complete(
        "received SIGTERM", "received SIGTERM", what="failed at the end of the 2nd wait; after `resume` "
    )


def test_a_suspended_run_stops_cleanly_and_resumes_when_it_is_allowed_to(start_run: StartRun) -> None:
    """A suspended Job: Kubernetes sends SIGTERM to all pods at once, as a queue or a user does."""
    run = start_run()
    run.reach(1, batch=100)
    job = run.training.described()["k8sJob"]

    def suspend(wanted: bool) -> None:
        patch = json.dumps({"spec": {"suspend": wanted}})
        run.cluster.kubectl("patch", "job", job, "-n", run.training.namespace, "-p", patch)

    suspend(True)
    run.until(lambda: not run.processes(), "no process", 60)
    record = run.json("run.json")
    assert record["state"] == "stopped"
    assert "SIGTERM" in record["cause"]
    assert not (run.output / "run.lock").exists(), "the output lease was released"
    stopped_at = record["resume"], sorted(path.name for path in run.output.glob("pass-*"))
    assert stopped_at[1]
    run.broken()
    suspend(False)
    run.recovered()
    assert run.json("run.json")["resume"]["pass"] >= len(stopped_at[1]), (
        "it resumed from the newest checkpoint"
    )
    run.ends_complete(*run.ends())


STOPPED = {"fleet": {"training": {"passes": 1, "batchSize": 2}}, "collective": pace_first_attempt(0.1)}
"""Runtime → values. fleet: 3472 batches; collective: a pass takes 22 s, and process 0 asks for requests every 5 s."""


@BOTH_RUNTIMES
def test_a_run_that_a_user_stops_loses_nothing_of_its_only_pass(start_run: StartRun, runtime: str) -> None:
    """`stop` saves inside the pass without training.checkpointEvery, and `resume` continues there."""
    run = start_run(**STOPPED[runtime])
    place = "--release", run.training.release, "-n", run.training.namespace
    run.reach(0, batch=100)
    said = run.cluster.launcher("stop", *place).stdout
    assert "checkpoint: pass 1, batch " in said
    assert run.processes() == []
    [saved] = [path.parent.name for path in run.output.glob("pass-*/done")]
    assert saved in said
    assert run.json("run.json")["state"] == "stopped"
    run.broken()
    run.cluster.launcher("resume", *place)
    run.recovered()
    passes, batches = run.json("run.json")["resume"].values()
    assert (passes, f"{batches:07d}") == (0, saved[-7:])
    assert batches >= 100
    run.training.complete()
    result = f", {run.check_result()}" if runtime == "collective" else ""
    run.keep(
        0,
        "complete; only the few batches between this checkpoint and the suspension are trained again"
        + result,
    )


# The newest checkpoint is 12 s old or older; one that is younger than 10 s would be used.
DRAINED: dict[str, tuple[dict[str, Any], int, int]] = {
    # 6944 batches, at most 100 a second. The checkpoint is at 4000, and the next one would be at 8000.
    "fleet": ({"training": {"passes": 1, "batchSize": 1, "checkpointEvery": {"batches": 4000}}}, 0, 5200),
    # 216 steps of 3 processes a pass; the checkpoint is at the end of the first pass.
    "collective": (pace_first_attempt(0.1), 1, 375),
}
"""Runtime → values; pass and batch at which the node is drained."""


@BOTH_RUNTIMES
def test_a_drained_node_loses_no_work_of_its_pod(
    start_run: StartRun, repaired_cluster: None, runtime: str
) -> None:
    """As before a spot node is reclaimed: the eviction is a SIGTERM, upon which all ranks save a checkpoint."""
    values, number, batch = DRAINED[runtime]
    run = start_run(**merge_values({"training": {"terminationGracePeriodSeconds": 110}}, values))
    run.reach(number, batch=batch)
    run.broken()
    at = max(run.progress(rank)["batch"] for rank in range(3))
    node = node_of(run.training, 1)
    pods = f"--pod-selector=batch.kubernetes.io/job-name={run.training.described()['k8sJob']}"
    with cordoned(run.training, node):
        run.cluster.kubectl("drain", node, pods, "--delete-emptydir-data", "--timeout=150s")
        run.recovered()
        resumed = tuple(run.json("run.json")["resume"].values())
        assert resumed >= (number, at), "no batch from before the drain is trained again"
        [cause] = run.ends()
    assert "SIGTERM: saved a checkpoint at " in cause
    run.until(lambda: not run.processes(), "no process", 30)
    result = f", {run.check_result()}" if runtime == "collective" else ""
    run.keep(1, f"complete; 0 of the batches from before the drain done again{result}")


def test_a_run_of_one_pass_whose_processes_all_die_loses_at_most_one_checkpoint_interval(
    start_run: StartRun,
) -> None:
    """Power failure at 80 %: every process of every pod dies at the same moment."""
    every = 50
    run = start_run(training={"passes": 1, "batchSize": 8, "checkpointEvery": {"batches": every}})
    run.reach(0, batch=694)  # of 868
    run.broken()
    at = max(run.progress(rank)["batch"] for rank in range(3))
    job_processes.signal_all(run.processes(), signal.SIGKILL)
    run.recovered()
    passes, batches = run.json("run.json")["resume"].values()
    assert passes == 0
    assert at - 2 * every < batches <= at + every, (
        "a checkpoint that was being saved may be lost in addition to the interval"
    )
    restarts = run.ends()
    run.until(lambda: not run.processes(), "no process", 30)
    run.keep(len(restarts), f"complete; {at - batches} of 868 batches done again")


def test_a_killed_data_job_starts_again_and_the_training_waits_for_it(start_run: StartRun) -> None:
    # A value of its own that changes no row: data that another run has prepared would be linked at once.
    run = start_run(data={"testRows": 199_999})
    at_work = caught(run)
    run.broken()
    job_processes.signal_all(at_work, signal.SIGKILL)
    run.recovered(180)
    run.ends_complete()


def caught(run: FaultyRun) -> list[job_processes.JobProcess]:
    """Stop the data Job's processes while they write, and return them.

    Writing takes a quarter of a second. So the processes are stopped when they start, and then run step by step, with a
    low priority, so that other programs on this machine cannot make a step long.
    """
    layout = JobPaths(run.training.job.parent, run.training.job.name)
    alive = layout.data_alive(run.training.described()["dataDigest"])

    def listing() -> list[Path]:
        return sorted(run.training.job.glob("*"))

    found = until(lambda: run.processes("data"), "the data Job", 60, 0.01, listing)
    for process in found:
        os.setpriority(os.PRIO_PROCESS, process.pid, 19)

    def step() -> bool:
        job_processes.signal_all(found, signal.SIGCONT)
        time.sleep(0.005)
        job_processes.signal_all(found, signal.SIGSTOP)
        return alive.exists()

    until(step, "the data Job at work", 60, 0.0, listing)
    assert not layout.manifest.exists(), "it has not finished"
    return found
