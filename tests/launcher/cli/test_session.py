"""How a session reads the storage: through a running pod, a reader pod, or not at all."""

import json

import pytest

from launcher.cli import session
from launcher.cli.cluster.cluster_api import Cluster
from launcher.cli.errors import CliError, OtherRunError
from launcher.cli.storage import job_files, reader_pod
from launcher.cli.storage.job_storage import StorageRequest, folder_storage

from .fake_cluster import FakeCluster


def ended(api, *conditions):
    return [api.job(api.k8s_job, *conditions), api.job(api.data_job, ("Complete", "", ""))]


def running(api):
    return api.pod("p0", rank=0, containerStatuses=[{"name": "train", "state": {"running": {}}}])


def asking(api, jobs, pods, release="paddle-training"):
    cluster = FakeCluster()
    cluster.add_release()
    cluster.jobs, cluster.pods = jobs, pods
    return cluster, session.ClusterSession(cluster, release, lambda _: None)


def test_progress_is_read_through_a_running_pod(api):
    cluster, asked = asking(api, ended(api), [running(api)])
    view = asked.read_view()
    assert (cluster.executed_in, cluster.created) == (["p0"], {})
    assert any("the progress cannot be read: the storage cannot be read here" in note for note in view.notes)


def test_polling_creates_no_reader_pod_while_the_job_exists(api):
    for conditions in ([], [("Complete", "", "")], [("Failed", "x", "y")]):
        cluster, asked = asking(api, ended(api, *conditions), [])
        asked.poll_view()
        assert cluster.created == {}


def test_status_after_the_run_creates_a_reader_pod_and_always_deletes_it(api):
    cluster, asked = asking(api, ended(api, ("Complete", "", "")), [])
    view = asked.read_view()
    assert view.state == "complete"
    assert len(cluster.created) == 1
    assert cluster.deleted == list(cluster.created)


@pytest.mark.parametrize("known", [[], [{"metadata": {"name": "x-run", "namespace": "y", "labels": {}}}]])
def test_an_unknown_release_is_reported(api, known):
    cluster, asked = asking(api, [], [], release="other")
    cluster.config_maps = {str(number): entry for number, entry in enumerate(known)}
    with pytest.raises(CliError, match="namespace paddle on context test has no release other of this chart"):
        asked.read_view()


def test_progress_but_no_copy_is_read_through_a_running_init_container(api):
    waiting = [{"name": "await-data", "state": {"running": {}}}]
    pods = [api.pod("p0", rank=0, phase="Pending", initContainerStatuses=waiting)]
    cluster, asked = asking(api, ended(api), pods)
    asked.poll_view()
    assert (cluster.executed_in, cluster.created) == (["p0"], {})
    assert session.open_through_running_pod(cluster, asked.run(), pods) is None


def test_the_record_of_a_run_whose_output_was_moved_is_read(tmp_path):
    for number, folder in enumerate(("runs/x", "runs/x.2", "runs/y"), 1):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "run.json").write_text(json.dumps({"runId": folder, "score": {"error": number}}))
    found = job_files.read_job_files(folder_storage(tmp_path), "x")
    assert found.moved.score == {"error": 2}
    newest = tmp_path / "runs" / "x.2"
    (newest / "run.json").rename(newest / "run.copy.json")
    (newest / "run.json").write_text("{")
    assert job_files.read_job_files(folder_storage(tmp_path), "x") == found
    assert job_files.read_job_files(folder_storage(tmp_path)).moved is None


@pytest.mark.parametrize("statuses", ["containerStatuses", "initContainerStatuses"])
def test_a_push_uses_a_running_pod_if_the_reader_pod_is_unschedulable(api, monkeypatch, statuses):
    pod = api.pod("p0", rank=0, **{statuses: [{"name": "x", "state": {"running": {}}}]})
    cluster, asked = asking(api, ended(api), [pod])
    monkeypatch.setattr(reader_pod, "UNBOUND_SECONDS", -1.0)
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: too many pods"}
    found = cluster.find
    cluster.find = lambda kind, name, action: (
        {"metadata": {}, "status": {"phase": "Pending", "conditions": [unscheduled]}}
        if kind == "pod"
        else found(kind, name, action)
    )
    with asked.storage(StorageRequest(writable=True)) as storage:
        assert "through pod p0" in storage.where
    assert cluster.deleted == list(cluster.created)
    assert len(cluster.created) == 1
    cluster.pods = []
    with (
        pytest.raises(reader_pod.UnschedulableError, match="too many pods"),
        asked.storage(StorageRequest(writable=True)),
    ):
        pass


def test_a_replaced_run_is_not_followed(api):
    cluster, asked = asking(api, ended(api), [running(api)])
    asked.expect_run(api.k8s_job, lambda: "replaced by eve")
    assert asked.read_view().run_id == api.k8s_job
    cluster.add_release(k8sJob="quick-start-00000000")
    with pytest.raises(OtherRunError, match="replaced by eve") as raised:
        asked.poll_view()
    assert raised.value.exit_code == 4


def test_jobs_of_all_namespaces_are_listed_with_the_batch_api(monkeypatch):
    kubernetes = pytest.importorskip("kubernetes")

    class Answer:
        status = 200

        def read(self):
            return b'{"items": [{"metadata": {"name": "a"}}]}'

        def release_conn(self):
            pass

    api = kubernetes.client.BatchV1Api
    monkeypatch.setattr(api, "list_job_for_all_namespaces", lambda *_, **__: Answer())
    monkeypatch.setattr(api, "patch_namespaced_job", lambda *_, **__: Answer())
    cluster = Cluster(kubernetes.client.ApiClient(), "paddle", "test")
    assert [job["metadata"]["name"] for job in cluster.list_in_all_namespaces("job", "list")] == ["a"]
    cluster.suspend_job("a", True)
