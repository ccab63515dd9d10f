"""Test real Jobs on the local cluster: both programs, fixed ports, two releases, resuming, a killed process."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli.releases import merge_values
from testkit.local_cluster import Cluster, Serving, Training, run_checked
from testkit.waiting import until
from tests.e2e import job_processes

pytestmark = pytest.mark.e2e

Make = Callable[..., Training]
NO_NODE = {"resources": {"requests": {"cpu": "999"}}}
"""Values of a release whose data Job runs, and whose training pods fit on no node."""
ANY_NODE = {"resources": {"requests": {"cpu": "200m"}}}


def rows(output: Path) -> list[dict[str, str]]:
    with (output / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_recommendation(training: Training) -> None:
    """Check nodes, host ports 7164-7168, score and output files, which are as of the original tutorial."""
    pods = training.pods()
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 3, "one training pod per node"
    ports = {p["hostPort"] for p in pods[0]["spec"]["containers"][0]["ports"]}
    assert ports == {7164, 7165, 7166, 7167, 7168}
    for rank in range(3):
        for name in ("server.log", "server-1.log", "train.log"):
            assert (training.output / f"node_{rank}" / name).stat().st_size > 0, name
    for number in range(2):
        folder = training.output / f"pass-{number:05d}"
        assert (folder / "done").exists()
        assert (folder / "path.txt").exists()
        assert list(folder.glob("trainer_config*"))
    found = rows(training.output)
    assert {(row["pass"], row["rank"]) for row in found} == {
        (str(p), str(r)) for p in range(2) for r in range(3)
    }
    score = training.record()["score"]
    assert 0 < float(score["rmse"]) < 1.2


@pytest.mark.seconds(160)
def test_a_run_extended_changed_to_another_mode_and_rolled_back(train: Make, cluster: Cluster) -> None:
    """The serving chart serves the run's model meanwhile; with followLatest it restarts with the newer model."""
    training = train("quick_start", trainers=2, training={"passes": 1})
    training.upgrade()
    training.complete()
    first = training.described()
    before = training.record()
    check_shards(training)
    pass_zero = sha256(training.output / "pass-00000" / "done")
    serving, follower = Serving(training), Serving(training, "follower")
    serving.install()
    follower.install(followLatest=True, pollSeconds=5)

    row = {"text": "what a lovely day"}
    serving.rollout("status")
    follower.rollout("status")
    before_restart = follower.pod()["status"]
    assert follower.predict([row])["predictions"] == [pytest.approx(serving.predict([row])["predictions"][0])]
    assert json.loads(serving.get("healthz")) == {"status": "ok"}
    [old, _] = serving.predict([row, row])["predictions"]
    assert "\npaddle_serve_rows_total 3.0\n" in serving.get("metrics")

    training.upgrade({"training": {"passes": 2}})
    assert training.described()["dataDigest"] == first["dataDigest"], (
        "more passes do not prepare the data again"
    )
    training.complete()
    assert sha256(training.output / "pass-00000" / "done") == pass_zero, "pass 0 was kept"
    assert {row["pass"] for row in rows(training.output)} == {"0", "1"}
    more = training.record()
    assert more["fingerprint"] == before["fingerprint"]

    package = cluster.launcher("predict", str(training.output), f"text={row['text']}", "--output", "json")
    new = json.loads(package.stdout)[0]["prediction"]
    assert serving.predict([row])["predictions"] == [pytest.approx(old, rel=1e-5)], "it loads no other model"
    assert abs(new[0] - old[0]) > 1e-3, "the second pass changed the prediction"
    until(
        lambda: follower.pod()["status"]["containerStatuses"][0]["restartCount"] == 1,
        "the restart for the newer model",
        180,
        1,
    )
    follower.rollout("status")
    assert follower.predict([row])["predictions"] == [pytest.approx(new, rel=1e-5)]
    status = follower.pod()["status"]
    assert status["podIP"] == before_restart["podIP"], "the same pod"
    [container] = status["containerStatuses"]
    assert container["lastState"]["terminated"]["exitCode"] == 0

    training.upgrade({"training": {"mode": "sync", "passes": 1}})
    training.complete()
    assert [path.name for path in (training.job / "runs").iterdir()] == [more["runId"]]
    assert training.record()["fingerprint"] != before["fingerprint"]

    training.upgrade({"training": {"mode": "async", "passes": 2}})
    training.complete()
    assert training.record()["fingerprint"] == before["fingerprint"], "the first run is back"
    assert not (training.job / "runs" / str(more["runId"])).exists()


def check_shards(training: Training) -> None:
    """Check the shards: digests as in the manifest, sizes equal up to one line, labels spread evenly."""
    manifest = training.manifest()
    assert manifest["dataDigest"] == training.described()["dataDigest"]
    counts = [shard["lines"] for shard in manifest["shards"]]
    assert max(counts) - min(counts) <= 1, "even to one line"
    files = [training.job / str(shard["index"]) / "data" / "train.txt" for shard in manifest["shards"]]
    assert [sha256(path) for path in files] == [shard["sha256"] for shard in manifest["shards"]]
    texts = [path.read_text().splitlines() for path in files]
    assert [len(lines) for lines in texts] == counts
    shares = [
        sum(line.split("\t")[0].startswith("neg") or line[0] == "0" for line in t) / len(t) for t in texts
    ]
    assert max(shares) - min(shares) < 0.03, "no label skew between the shards"


@pytest.mark.seconds(70)
def test_training_pods_prepare_the_shards_of_a_data_job_although_the_one_that_reads_is_lost(
    train: Make, cluster: Cluster
) -> None:
    by_job = train("quick_start", trainers=2, data={"seed": 8}, **NO_NODE)
    by_job.upgrade()
    by_job.wait_for_data()
    wanted = data_files(by_job)
    by_job.remove()  # else the next job would link its data

    prepared = {"seed": 8, "preparedBy": "trainingPods"}
    training = train("quick_start", trainers=2, data=prepared, training={"passes": 1})
    training.upgrade()
    at_work, reader = stop_while_reading(training)
    shown = json.loads(cluster.launcher("status", "-n", training.namespace, "-o", "json").stdout)
    assert (shown["state"], shown["data"]["name"], shown["data"]["state"]) == (
        "preparing",
        "training pods",
        "running",
    )
    lost = training.pod(reader.rank)
    kill = ("--grace-period=1", "--wait=false")  # a stopped process cannot react to SIGTERM
    cluster.kubectl("delete", "pod", lost, "-n", training.namespace, *kill)
    until(lambda: not Path(f"/proc/{reader.pid}").exists(), "the end of the pod that reads", 60, 0.5)
    job_processes.signal_all([one for one in at_work if one != reader], signal.SIGCONT)
    training.complete(240)
    assert data_files(training) == wanted
    assert training.pod(reader.rank) != lost
    assert not training.pods("data")
    shown = json.loads(cluster.launcher("status", "-n", training.namespace, "-o", "json").stdout)
    assert (shown["state"], shown["data"]["state"]) == ("complete", "complete")
    of_rank = ("logs", "-n", training.namespace, "--role", "data", "--rank")
    logs = [cluster.launcher(*of_rank, str(rank)).stdout for rank in range(2)]
    assert sum("preparing part 00000" in log for log in logs) == 1, logs


def data_files(training: Training) -> list[tuple[str, str]]:
    """Return name and sha256 of each file that the manifest lists; check that the files have it."""
    manifest = training.manifest()
    files = [(f"{shard['index']}/data/train.txt", shard["sha256"]) for shard in manifest["shards"]]
    files += [("test.txt", manifest["test"]["sha256"])]
    assert [sha256(training.job / name) for name, _ in files] == [digest for _, digest in files]
    return files


def stop_while_reading(training: Training) -> tuple[list[job_processes.JobProcess], job_processes.JobProcess]:
    """Stop the training pods' processes that prepare data while one of them reads; return all, and that one."""

    def at_work() -> tuple[list[job_processes.JobProcess], job_processes.JobProcess] | None:
        if not (found := job_processes.find_job_processes(str(training.values["jobName"]), "data")):
            return None
        job_processes.signal_all(found, signal.SIGSTOP)
        readers = [one for one in found if any("/work-0" in path for path in job_processes.open_files(one))]
        if readers and not (training.job / "manifest.json").exists():
            return found, readers[0]
        job_processes.signal_all(found, signal.SIGCONT)
        return None

    return until(at_work, "a training pod that reads the source", 120, 0.01, training.last_log_lines)


@pytest.mark.seconds(60)
def test_releases_with_one_name_in_two_namespaces_train_at_once_and_a_third_starts_from_a_model(
    train: Make,
) -> None:
    """The third has other data and training.initModelPath: its first loss is lower than without a model."""
    one = train("quick_start", trainers=2, training={"passes": 2})
    ports = {"hostPorts": True, "port": 7164, "portsNum": 2, "portsNumSparse": 2}
    two = train("recommendation", level="privileged", **ports, training={"passes": 2})
    one.upgrade()
    two.upgrade()
    one.complete(300)
    two.complete(300)
    check_recommendation(two)
    assert one.record()["release"] == two.record()["release"] == "paddle-training"
    assert one.record()["namespace"] != two.record()["namespace"]
    assert "error" in one.record()["score"]

    initial = {"config": "quick_start/trainer_config.py", "initModelPath": f"{one.values['jobName']}/output"}
    third = train("quick_start", trainers=1, training={"passes": 1, **initial}, data={"seed": 8})
    third.upgrade()
    third.complete()
    assert third.described()["dataDigest"] != one.described()["dataDigest"]
    losses = [float(row["train_loss"]) for row in rows(one.output) if row["rank"] == "0"]
    (after,) = (float(row["train_loss"]) for row in rows(third.output) if row["rank"] == "0")
    assert after < (losses[0] + losses[-1]) / 2, (losses, after)
    assert not (one.output / "run.lock").exists(), "the other run's folder is only read"


def test_helm_test_says_that_the_cluster_does_not_enforce_the_policy_of_the_servers(
    train: Make, cluster: Cluster
) -> None:
    """The local cluster enforces no NetworkPolicies, so this is the result on a cluster without protection."""
    training = train(trainers=1, training={"passes": 2000})
    training.upgrade()
    until(lambda: training.current_pass() >= 0, "training", 120, 0.5, training.last_log_lines)
    command = ["helm", "test", training.release, "-n", training.namespace, "--logs"]
    failed = run_checked(command, cluster.env, check=False)
    assert failed.returncode == 1
    assert "does not enforce NetworkPolicies. Fix: " in failed.stdout, failed.stderr
    job = training.described()["k8sJob"]
    training.upgrade({"networkPolicy": {"requireEnforced": False}})
    assert training.described()["k8sJob"] == job, "the value belongs to the test, not to the training"
    passed = run_checked(command, cluster.env).stdout
    assert "policies: WARNING: this pod could connect to " in passed
    assert "answered 200" in passed


def test_a_failed_data_job_fails_the_training_at_once_with_its_reason(train: Make) -> None:
    training = train("quick_start", trainers=1, data={"sha256": "0" * 64})
    training.upgrade()
    assert training.ended(90) == "Failed"
    failed = json.loads((training.job / "data-failed.json").read_text())
    assert "0" * 64 in failed["reason"]
    assert not (training.job / "manifest.json").exists()
    init = [s for pod in training.pods() for s in pod["status"].get("initContainerStatuses", [])]
    messages = [(s["state"].get("terminated") or {}).get("message", "") for s in init]
    assert any("sha256" in text for text in messages), messages


@pytest.mark.seconds(90)
def test_a_release_trains_its_data_after_another_one_with_its_job_name_prepared_other_data(
    train: Make, cluster: Cluster
) -> None:
    """The job's folder has links to the data of the second release when the first one's pod starts."""
    ours = train(trainers=1, data={"seed": 1}, **NO_NODE)
    theirs = dataclasses.replace(
        ours, values=merge_values(ours.values, {"data": {"seed": 2}}), release="theirs"
    )
    for one in (ours, theirs):
        one.upgrade()
        one.wait_for_data()
    wanted = ours.described()["dataDigest"]
    assert ours.manifest()["dataDigest"] == theirs.described()["dataDigest"] != wanted
    ours.upgrade(ANY_NODE)
    ours.complete(240)
    assert ours.record()["fingerprint"]["dataDigest"] == wanted
    printed = cluster.launcher("status", "-n", ours.namespace).stdout
    assert "release theirs in namespace" in printed
    assert "has the same jobName" in printed
