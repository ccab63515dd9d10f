"""Commands on a release with training.schedule: its run is that of the CronJob's newest Job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.errors import UsageError
from launcher.cli.job_sessions import ClusterSession
from launcher.cli.launch_training import continue_training
from launcher.cli.releases import Helm, list_storage_users

from .conftest import DONE, FAILED, RUN_JSON, make_job
from .fake_cluster import FakeCluster
from .test_run_command_changes_a_release import launch

CRON = {"k8sJob": "nightly", "k8sDataJob": "", "cronJob": "nightly", "dataPreparedBy": "trainingPods"}


def started(name: str, made: str, *conditions: Any, by: str = "nightly", **status: Any) -> dict[str, Any]:
    job = make_job(name, *conditions, **status)
    owners = [{"kind": "CronJob", "name": by}]
    return {**job, "metadata": {"name": name, "creationTimestamp": made, "ownerReferences": owners}}


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    cluster = FakeCluster(tmp_path)
    cluster.add_release(**CRON)
    return cluster


def session(cluster: FakeCluster) -> ClusterSession:
    return ClusterSession(cluster, "paddle-training")


NIGHTS = [
    started("nightly-2", "2026-11-22T02:00:00Z", active=1),
    started("nightly-1", "2026-11-21T02:00:00Z", DONE),
    started("other-9", "2026-11-23T02:00:00Z", by="other"),
]


def test_the_run_is_the_newest_job_of_the_cron_job(cluster: FakeCluster) -> None:
    assert session(cluster).run().k8s_job == "nightly"
    cluster.jobs = NIGHTS
    run = session(cluster).run()
    assert run.k8s_job == "nightly-2"
    assert run.data_digest == f"{RUN_JSON['dataDigest']}-nightly-2"


def test_status_says_that_no_run_was_started_yet_and_shows_no_earlier_job_as_foreign(
    cluster: FakeCluster,
) -> None:
    view = session(cluster).peek_view()
    assert view.state == "missing"
    [note] = [note for note in view.notes if "CronJob" in note]
    assert "has started no run yet" in note
    assert "kubectl create job nightly-1 --from=cronjob/nightly -n paddle" in note
    cluster.jobs = NIGHTS
    view = session(cluster).peek_view()
    assert (view.run_id, view.training.state) == ("nightly-2", "waiting")
    [note] = [note for note in view.notes if "not in this release's values" in note]
    assert "other-9" in note


@pytest.mark.parametrize(("jobs", "state"), [(NIGHTS, "running"), (NIGHTS[1:], "over"), ([], "over")])
def test_the_storage_is_in_use_while_the_newest_job_runs(
    cluster: FakeCluster, jobs: list[dict[str, Any]], state: str
) -> None:
    cluster.jobs = [{**job, "metadata": {**job["metadata"], "namespace": "paddle"}} for job in jobs]
    [user] = list_storage_users(cluster, str(RUN_JSON["claim"]))
    assert user.state == state


def test_a_failed_job_that_is_started_again_stays_the_newest_run_of_its_cron_job(
    cluster: FakeCluster,
) -> None:
    cluster.jobs = [started("nightly-2", "2026-11-22T02:00:00Z", FAILED), NIGHTS[1]]
    assert continue_training(cluster, session(cluster).run())
    again = next(job for job in cluster.jobs if job["metadata"]["name"] == "nightly-2")
    again["metadata"]["creationTimestamp"] = "2026-11-22T09:00:00Z"  # as the API server does
    assert session(cluster).run().k8s_job == "nightly-2"


def test_run_does_not_remove_a_schedule_unasked(cluster: FakeCluster) -> None:
    with pytest.raises(UsageError, match=r"training\.schedule, which training mine would remove.*--replace"):
        launch(cluster)


def test_run_rejects_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    run_json = json.dumps({**RUN_JSON, **CRON})
    manifest = f"kind: ConfigMap\nmetadata: {{name: r-run}}\ndata: {{run.json: '{run_json}'}}\n"
    monkeypatch.setattr(Helm, "_upgrade", lambda *_: json.dumps({"manifest": manifest}))
    helm = Helm(FakeCluster())
    with pytest.raises(UsageError, match=r"training\.schedule is set.*Fix: remove training\.schedule here"):
        helm.check("r", {})
