"""Which way the progress is read: through a pod that runs, a reader pod, or not at all."""

import json

import pytest

from launcher.cli import readerpod, session
from launcher.cli.cluster import Cluster
from launcher.cli.problems import CliError, OtherRunError


class FakeCluster:
    """Answers with the given objects, and keeps the pods that were asked to run something or were made."""

    namespace, name = "paddle", "context test"

    def __init__(self, api, jobs, pods):
        self.maps = [{"metadata": {}, "data": {"run.json": json.dumps(api.run)}}]
        self.objects = {"job": jobs, "pod": pods, "config_map": []}
        self.asked, self.made, self.deleted = [], [], []

    def items(self, kind, doing, selector=""):
        return self.objects[kind] if "reader" not in selector else []

    items_everywhere = items

    def find(self, kind, name, doing):
        if kind == "config_map":
            return self.maps[0] if name == "paddle-training-run" else None
        return {"status": {"phase": "Bound"}} if kind == "persistent_volume_claim" else None

    def events(self, name):
        return []

    def create_pod(self, pod):
        self.made.append(pod["metadata"]["name"])

    def delete_pod(self, name):
        self.deleted.append(name)

    def exec(self, pod, container, argv, stdin, idle):
        self.asked.append(pod)
        raise CliError("no such thing here")


def ended(api, *conditions):
    return [api.job(api.k8s_job, *conditions), api.job(api.data_job, ("Complete", "", ""))]


def running(api):
    return api.pod("p0", rank=0, containerStatuses=[{"name": "train", "state": {"running": {}}}])


def asking(api, jobs, pods, release="paddle-training"):
    cluster = FakeCluster(api, jobs, pods)
    return cluster, session.ClusterSession(cluster, release, lambda _: None)


def test_progress_is_read_through_a_pod_that_runs(api):
    cluster, asked = asking(api, ended(api), [running(api)])
    looked = asked.look()
    assert (cluster.asked, cluster.made) == (["p0"], [])
    assert any("no progress shown: no such thing here" in note for note in looked.notes)


def test_waiting_makes_no_reader_pod_while_the_job_itself_tells(api):
    for conditions in ([], [("Complete", "", "")], [("Failed", "x", "y")]):
        cluster, asked = asking(api, ended(api, *conditions), [])
        asked.glance()
        assert cluster.made == []


def test_status_after_the_run_makes_a_reader_pod_and_deletes_it_whatever_happens(api):
    cluster, asked = asking(api, ended(api, ("Complete", "", "")), [])
    looked = asked.look()
    assert looked.state == "complete"
    assert len(cluster.made) == 1
    assert cluster.deleted == cluster.made


@pytest.mark.parametrize("known", [[], [{"metadata": {"name": "x-run", "namespace": "y", "labels": {}}}]])
def test_an_unknown_release_is_said_so(api, known):
    cluster, asked = asking(api, [], [], release="other")
    cluster.objects["config_map"] = known
    with pytest.raises(CliError, match="no release other of this chart in namespace paddle"):
        asked.look()


def test_progress_is_read_through_a_pod_that_still_waits_for_its_data_but_no_copy_is(api):
    waiting = [{"name": "await-data", "state": {"running": {}}}]
    pods = [api.pod("p0", rank=0, phase="Pending", initContainerStatuses=waiting)]
    cluster, asked = asking(api, ended(api), pods)
    asked.glance()
    assert (cluster.asked, cluster.made) == (["p0"], [])
    assert session.through_running(cluster, asked.run(), pods) is None


def test_the_record_of_a_run_whose_output_was_moved_aside_is_read(tmp_path):
    for number, folder in enumerate(("runs/x", "runs/x.2", "runs/y"), 1):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "run.json").write_text(json.dumps({"runId": folder, "score": {"error": number}}))
    found = session.status_files(session.FolderStorage(tmp_path), "x")
    assert found["moved"]["score"] == {"error": 2}
    newest = tmp_path / "runs" / "x.2"
    (newest / "run.json").rename(newest / "run.copy.json")
    (newest / "run.json").write_text("{")
    assert session.status_files(session.FolderStorage(tmp_path), "x") == found
    assert session.status_files(session.FolderStorage(tmp_path))["moved"] is None


@pytest.mark.parametrize("statuses", ["containerStatuses", "initContainerStatuses"])
def test_where_no_node_has_a_place_for_the_reader_pod_a_push_goes_through_a_running_pod(
    api, monkeypatch, statuses
):
    pod = api.pod("p0", rank=0, **{statuses: [{"name": "x", "state": {"running": {}}}]})
    cluster, asked = asking(api, ended(api), [pod])
    monkeypatch.setattr(readerpod, "UNBOUND_SECONDS", -1.0)
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: too many pods"}
    found = cluster.find
    cluster.find = lambda kind, name, doing: (
        {"metadata": {}, "status": {"phase": "Pending", "conditions": [unscheduled]}}
        if kind == "pod"
        else found(kind, name, doing)
    )
    with asked.storage(writable=True) as storage:
        assert "through pod p0" in storage.where
    assert cluster.deleted == cluster.made
    assert len(cluster.made) == 1
    cluster.objects["pod"] = []
    with pytest.raises(readerpod.NoPlaceError, match="too many pods"), asked.storage(writable=True):
        pass


def test_a_run_that_was_replaced_is_not_taken_for_the_one_that_is_followed(api):
    cluster, asked = asking(api, ended(api), [running(api)])
    asked.expect(api.k8s_job, lambda: "replaced by eve")
    assert asked.look().run_id == api.k8s_job
    cluster.maps[0]["data"]["run.json"] = json.dumps({**api.run, "k8sJob": "quick-start-00000000"})
    with pytest.raises(OtherRunError, match="replaced by eve") as raised:
        asked.glance()
    assert raised.value.exit_code == 4


def test_jobs_of_all_namespaces_are_asked_of_the_api_that_has_them(monkeypatch):
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
    assert [job["metadata"]["name"] for job in cluster.items_everywhere("job", "list")] == ["a"]
    cluster.suspend_job("a", True)
