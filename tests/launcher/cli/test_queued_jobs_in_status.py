"""What `status` and `wait` show of Jobs that a Kueue queue holds back."""

import pytest

from launcher.cli import run_display

from .conftest import DATA_JOB, K8S_JOB, make_job, make_pod, make_view, print_screen

QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 250m more needed"


def queued_job(name, suspended=True):
    """Return a Job with the label of queue research."""
    return make_job(name, suspended=suspended, labels={"kueue.x-k8s.io/queue-name": "research"})


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
def test_a_job_in_a_queue_shows_why_kueue_has_not_admitted_it(found, reason):
    jobs = [queued_job(name) for name in (K8S_JOB, DATA_JOB)]
    seen = make_view(*jobs, workloads=[workload("other"), *found(K8S_JOB)])
    expected = f"queue research (Kueue) has not admitted it{reason.replace('JOB', K8S_JOB)}"
    assert seen.state == "suspended"
    assert run_display.describe_wait(seen).startswith(f"training Job {K8S_JOB}: {expected}")
    assert expected in run_display.status_line(seen)
    shown = " ".join(print_screen(seen))
    assert expected in shown
    assert shown.count(expected) == 1
    assert "spec.suspend" not in shown


def test_a_data_job_without_quota_that_its_training_holds_is_shown_with_the_fix():
    jobs = [queued_job(K8S_JOB, False), queued_job(DATA_JOB)]
    pods = [make_pod("p0", rank=0, phase="Pending")]
    seen = make_view(*jobs, pods=pods, workloads=[workload(DATA_JOB, QuotaReserved=("False", QUOTA))])
    held = f"data Job {DATA_JOB}: queue research (Kueue) has not admitted it: {QUOTA}"
    assert held in run_display.describe_wait(seen)
    shown = " ".join(print_screen(seen))
    assert f"{DATA_JOB}: queue research (Kueue) has not admitted it: {QUOTA}" in shown
    assert "uses quota of queue research while it waits for the data Job" in shown
    assert "Fix: set data.preparedBy to trainingPods" in shown
