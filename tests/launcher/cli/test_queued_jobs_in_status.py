"""What `status` and `wait` show of Jobs that a Kueue queue holds back."""

import io
import json

import pytest
from rich.console import Console

from launcher.cli.cluster.cluster_api import Cluster
from launcher.cli.cluster.releases import ReleaseRun
from launcher.cli.views import run_view_builder, status_text


def view(api, jobs, pods, workloads):
    run = ReleaseRun.from_json("paddle-training", "paddle", api.run)
    return run_view_builder.build_cluster_view(
        run_view_builder.ClusterSnapshot(run=run, jobs=jobs, pods=pods, workloads=workloads)
    )


def screen(seen):
    """Return what `status` prints, without line breaks."""
    text = io.StringIO()
    Console(file=text, width=1000).print(status_text.status_screen(seen))
    return " ".join(text.getvalue().split())


QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 250m more needed"


def queued_job(api, name, suspended=True):
    """Return a Job with the label of queue research."""
    return api.job(name, suspended=suspended, labels={"kueue.x-k8s.io/queue-name": "research"})


def workload(job, spec=None, **conditions):
    """Return Kueue's Workload of a Job; `conditions` are (status, message) by type."""
    return {
        "metadata": {
            "name": f"job-{job}-1a2b3",
            "namespace": "paddle",
            "ownerReferences": [{"kind": "Job", "name": job}],
        },
        "spec": spec or {"active": True},
        "status": {
            "conditions": [
                {"type": kind, "status": status, "message": message}
                for kind, (status, message) in conditions.items()
            ]
        },
    }


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (
            lambda job: [workload(job, QuotaReserved=("False", QUOTA))],
            f": {QUOTA}. Fix: wait until the queue has",
        ),
        (
            lambda job: [
                workload(job, QuotaReserved=("True", "reserved"), Admitted=("False", "checks pending"))
            ],
            ": checks pending. Fix: wait",
        ),
        (
            lambda job: [workload(job, {"active": False}, QuotaReserved=("False", "deactivated"))],
            ": its Workload was deactivated. Fix: kubectl patch workload job-JOB-1a2b3 -n paddle --type merge -p "
            '\'{"spec": {"active": true}}\'',
        ),
        (lambda job: [], ". Fix: wait"),  # not created yet, or this user may not read it
    ],
)
def test_a_job_in_a_queue_shows_why_kueue_has_not_admitted_it(api, found, reason):
    jobs = {name: queued_job(api, name) for name in (api.k8s_job, api.data_job)}
    seen = view(api, jobs, [], [workload("other"), *found(api.k8s_job)])
    expected = f"queue research (Kueue) has not admitted it{reason.replace('JOB', api.k8s_job)}"
    assert seen.state == "suspended"
    assert status_text.describe_wait(seen).startswith(f"training Job {api.k8s_job}: {expected}")
    assert expected in status_text.status_line(seen)
    shown = screen(seen)
    assert expected in shown
    assert shown.count(expected) == 1
    assert "spec.suspend" not in shown


def test_a_data_job_without_quota_that_its_training_holds_is_shown_with_the_fix(api):
    jobs = {api.k8s_job: queued_job(api, api.k8s_job, False), api.data_job: queued_job(api, api.data_job)}
    pods = [api.pod("p0", rank=0, phase="Pending")]
    seen = view(api, jobs, pods, [workload(api.data_job, QuotaReserved=("False", QUOTA))])
    held = f"data Job {api.data_job}: queue research (Kueue) has not admitted it: {QUOTA}"
    assert held in status_text.describe_wait(seen)
    shown = screen(seen)
    assert f"{api.data_job}: queue research (Kueue) has not admitted it: {QUOTA}" in shown
    assert "uses quota of queue research while it waits for the data Job" in shown
    assert "Fix: set data.preparedBy to trainingPods" in shown


@pytest.mark.parametrize("served", ["v1beta2", "v1beta1", None])
def test_workloads_are_read_in_the_version_that_kueue_serves(monkeypatch, served):
    kubernetes = pytest.importorskip("kubernetes")

    class Answer:
        def __init__(self, status):
            self.status = status

        def read(self):
            return json.dumps({"items": [{"metadata": {"name": "job-a-1"}}]}).encode()

        def release_conn(self):
            pass

    def answer(api, group, version, namespace, plural, **_):
        assert (group, namespace, plural) == ("kueue.x-k8s.io", "paddle", "workloads")
        return Answer(200 if version == served else 404)

    monkeypatch.setattr(kubernetes.client.CustomObjectsApi, "list_namespaced_custom_object", answer)
    found = Cluster(kubernetes.client.ApiClient(), "paddle", "test").list_workloads()
    assert [one["metadata"]["name"] for one in found] == (["job-a-1"] if served else [])
