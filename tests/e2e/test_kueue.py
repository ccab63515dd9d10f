"""Both Jobs in a queue of the real Kueue controller (`make test-kueue`): held back, admitted, trained, stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from local.toolchain.pinned_tools import kueue_folder
from testkit.kueue_controller import LABEL, run_kueue
from testkit.local_cluster import Cluster, Training
from testkit.waiting import until

pytestmark = [pytest.mark.kueue, pytest.mark.timeout(1800)]

QUEUE, FLAVOR = "research", "default"
DATA_CPU, TRAINING_CPU = 250, 400  # millicores: of the data pod, and of two training pods

Make = Callable[..., Training]


@pytest.fixture(scope="module", autouse=True)
def kueue(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not kueue_folder().is_dir():
        pytest.skip("the Kueue controller is not built, which takes five minutes. Fix: make test-kueue")
    with run_kueue(cluster, tmp_path_factory.mktemp("kueue")):
        yield


def kueue_object(kind: str, name: str, spec: dict[str, Any] | None = None, **metadata: str) -> dict[str, Any]:
    made: dict[str, Any] = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind}
    return {**made, "metadata": {"name": name, **metadata}, **({"spec": spec} if spec else {})}


def set_quota(training: Training, millicores: int, stop_policy: str = "None", **quota: str) -> None:
    """Create or change the queue of a training: a LocalQueue and a ClusterQueue that nobody else uses.

    `quota` has further resources; by default enough of all that the pods request.
    """
    quota = {"cpu": f"{millicores}m", **(quota or {"memory": "100Gi", "ephemeral-storage": "1Ti"})}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": FLAVOR, "resources": resources}]}
    spec = {"namespaceSelector": {}, "stopPolicy": stop_policy, "resourceGroups": [group]}
    objects = [
        kueue_object("ResourceFlavor", FLAVOR),
        kueue_object("ClusterQueue", training.namespace, spec),
        kueue_object("LocalQueue", QUEUE, {"clusterQueue": training.namespace}, namespace=training.namespace),
    ]
    for one in objects:
        training.cluster.kubectl("apply", "-f", "-", given=json.dumps(one))


def jobs(training: Training) -> dict[str, dict[str, Any]]:
    """Return the release's Jobs by component."""
    found = training.cluster.get("jobs", training.namespace, f"app.kubernetes.io/instance={training.release}")
    return {job["metadata"]["labels"]["app.kubernetes.io/component"]: job for job in found}


def are_suspended(training: Training) -> dict[str, bool]:
    return {component: bool(job["spec"].get("suspend")) for component, job in jobs(training).items()}


def workloads(training: Training) -> dict[str, dict[str, Any]]:
    """Return the Workloads of the release's Jobs by component."""
    owners = {job["metadata"]["name"]: component for component, job in jobs(training).items()}
    found = training.cluster.get("workloads", training.namespace)
    named = [(one["metadata"]["ownerReferences"][0]["name"], one) for one in found]
    return {owners[name]: one for name, one in named if name in owners}


def set_active(training: Training, component: str, active: bool) -> None:
    name = workloads(training)[component]["metadata"]["name"]
    patch = json.dumps({"spec": {"active": active}})
    training.cluster.kubectl("patch", "workload", name, "-n", training.namespace, "--type=merge", "-p", patch)


def status(training: Training) -> str:
    """Return what `status` prints, without line breaks."""
    return " ".join(training.cluster.launcher("status", "-n", training.namespace).stdout.split())


def shows(training: Training, *texts: str) -> None:
    """Wait until `status` prints all these texts."""
    until(
        lambda: all(t in status(training) for t in texts),
        f"status to print {texts}",
        60,
        1.0,
        lambda: status(training),
    )


@pytest.fixture
def training(train: Make, cluster: Cluster) -> Training:
    """Return a training in a namespace that Kueue manages; neither its queue nor its release exists yet."""
    made = train("quick_start", trainers=2, training={"passes": 3}, scheduling={"queue": QUEUE})
    cluster.kubectl("label", "namespace", made.namespace, f"{LABEL}=true")
    return made


def test_both_jobs_wait_for_quota_are_admitted_and_train_to_the_end(training: Training) -> None:
    set_quota(training, 100)
    training.upgrade()
    assert are_suspended(training) == {"data": True, "training": True}
    where = ("-n", training.namespace)
    training.cluster.kubectl("create", "job", "unlabelled", "--image=example.org/none", *where)
    suspended = ("get", "job", "unlabelled", *where, "-o", "jsonpath={.spec.suspend}")
    assert training.cluster.kubectl(*suspended) == "true", "this Kueue also holds back Jobs without a queue"
    shows(
        training,
        f"queue {QUEUE} (Kueue) has not admitted it: couldn't assign flavors to pod set main: insufficient quota "
        f"for cpu in flavor {FLAVOR}, previously considered podsets requests (0) + current podset request (",
        "m) > maximum capacity (100m)",
        "Fix: wait until the queue has free quota, or ask its owner for more. If the request is above the quota, lower",
    )
    assert not training.pods("data") and not training.pods("training")

    set_quota(training, DATA_CPU + TRAINING_CPU)
    until(lambda: not any(are_suspended(training).values()), "both Jobs are admitted", 60, 0.5)
    admitted = {
        component: [c["status"] for c in one["status"]["conditions"] if c["type"] == "Admitted"]
        for component, one in workloads(training).items()
    }
    assert admitted == {"data": ["True"], "training": ["True"]}
    until(lambda: training.pass_of(0) >= 0, "rank 0 trains", 180, 0.5, training.last_log_lines)
    before = {pod["metadata"]["uid"] for pod in training.pods()}
    training.upgrade()
    training.upgrade({"ttlSecondsAfterFinished": 7200})
    assert are_suspended(training)["training"] is False
    assert {pod["metadata"]["uid"] for pod in training.pods()} == before, "an upgrade does not stop the Job"
    training.complete()
    assert training.cluster.kubectl(*suspended) == "true", "without the label a Job waits for ever"


def test_a_training_that_holds_the_data_jobs_quota_is_reported_and_both_fixes_work(
    training: Training,
) -> None:
    """The test lets Kueue admit the training Job first.

    With more quota it trains, is stopped as `stop` says, and resumed. At last the other fix: no data Job.
    """
    set_quota(training, DATA_CPU + TRAINING_CPU, "Hold")
    training.upgrade({"training": {"passes": 500}})
    until(lambda: len(workloads(training)) == 2, "both Workloads", 60, 0.5)
    set_active(training, "data", False)
    set_quota(training, TRAINING_CPU + 50, memory="100Gi")
    shows(training, f"queue {QUEUE} (Kueue) has not admitted it: ", "resource ephemeral-storage unavailable")
    set_quota(training, TRAINING_CPU + 50)
    until(
        lambda: are_suspended(training) == {"data": True, "training": False}, "the training Job runs", 60, 0.5
    )
    set_active(training, "data", True)
    shows(
        training,
        f"queue {QUEUE} (Kueue) has not admitted it: couldn't assign flavors to pod set main: insufficient unused "
        f"quota for cpu in flavor {FLAVOR}, 200m more needed",
        f"uses quota of queue {QUEUE} while it waits for the data Job",
        "Fix: set data.preparedBy to trainingPods",
    )
    set_quota(training, DATA_CPU + TRAINING_CPU)
    until(lambda: training.pass_of(0) >= 0, "rank 0 trains", 240, 0.5, training.last_log_lines)

    stopped = training.cluster.launcher("stop", "-n", training.namespace, "--yes", check=False)
    assert f"Kueue suspends and resumes its Job (queue {QUEUE})" in stopped.stderr
    assert '{"spec": {"active": false}}' in stopped.stderr
    set_active(training, "training", False)
    until(lambda: are_suspended(training)["training"], "Kueue has suspended the Job", 60, 0.5)
    until(lambda: training.pass_of(0) < 0, "the run has stopped", 60, 0.5)
    name = workloads(training)["training"]["metadata"]["name"]
    shows(training, "its Workload was deactivated. Fix: kubectl patch workload", name)
    set_active(training, "training", True)
    until(lambda: training.pass_of(0) >= 0, "rank 0 trains again", 180, 0.5, training.last_log_lines)

    set_quota(training, TRAINING_CPU + 50)  # too little for a data Job
    one_job = {"data": {"preparedBy": "trainingPods", "seed": 8}, "training": {"passes": 1}}
    training.upgrade(one_job)
    assert jobs(training).keys() == {"training"}
    training.complete()
