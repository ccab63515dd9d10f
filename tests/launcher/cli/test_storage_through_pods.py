"""How a session reads the storage: through a running pod, a reader pod, or not at all."""

import errno
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest
import yaml

from launcher.cli import job_sessions
from launcher.cli import storage as reader_storage
from launcher.cli.cluster_api import CommandOutput
from launcher.cli.errors import CliError
from launcher.cli.releases import ReleaseRun
from launcher.cli.storage import Storage, StorageRequest

from .conftest import DATA_JOB, DONE, FAILED, K8S_JOB, RUN_JSON, make_job, make_pod
from .fake_cluster import FakeCluster


def ended(*conditions):
    return [make_job(K8S_JOB, *conditions), make_job(DATA_JOB, DONE)]


def running(statuses="containerStatuses", **more):
    return make_pod("p0", rank=0, **{statuses: [{"name": "x", "state": {"running": {}}}]}, **more)


def preparing():
    return running("initContainerStatuses", phase="Pending")


def open_release(jobs, pods, name="paddle-training"):
    cluster = FakeCluster()
    cluster.add_release()
    cluster.jobs, cluster.pods = jobs, pods
    return cluster, job_sessions.ClusterSession(cluster, name)


def test_progress_is_read_through_a_running_pod():
    cluster, release = open_release(ended(), [running()])
    view = release.read_view()
    assert (cluster.executed_in, cluster.created) == (["p0"], {})
    assert any("the progress cannot be read: the storage cannot be read here" in note for note in view.notes)


def test_data_that_was_just_prepared_is_not_reported_as_lost(job_folder):
    manifest = job_folder / "manifest.json"
    content = manifest.read_text()
    manifest.unlink()
    (job_folder / "output" / "status.json").unlink()
    cluster, release = open_release([make_job(K8S_JOB), make_job(DATA_JOB)], [preparing()])
    cluster.root = job_folder.parent
    cluster.add_release()
    assert release.peek_view().data.state == "waiting"
    manifest.write_text(content)
    cluster.jobs[1] = make_job(DATA_JOB, DONE)
    view = release.peek_view()
    assert view.data.state == "complete"
    assert not [note for note in view.notes if "does not contain the data" in note]


@pytest.mark.parametrize("conditions", [[], [DONE], [FAILED]])
def test_status_after_the_run_creates_a_reader_pod_and_deletes_it_and_peeking_creates_none(conditions):
    cluster, release = open_release(ended(*conditions), [])
    release.peek_view()
    assert cluster.created == {}
    release.read_view()
    assert len(cluster.created) == bool(conditions)
    assert cluster.deleted == list(cluster.created)


def test_a_reader_pod_that_may_not_be_created_is_reported_with_that_reason(monkeypatch):
    cluster, release = open_release(ended(DONE), [])
    monkeypatch.setattr(reader_storage, "time", SimpleNamespace(sleep=lambda _: None))

    def reject(verb):
        def call(*_, **__):
            raise CliError(f"you may not {verb} pods")

        return call

    monkeypatch.setattr(cluster, "create", reject("create"))
    monkeypatch.setattr(cluster, "delete", reject("delete"))
    with pytest.raises(CliError, match="may not create pods"), release.storage(StorageRequest()):
        pass


def test_an_unknown_release_is_reported():
    _, release = open_release([], [], name="other")
    with pytest.raises(CliError, match="namespace paddle on context test has no release other of this chart"):
        release.read_view()


def test_progress_but_no_copy_is_read_through_a_running_init_container():
    cluster, release = open_release(ended(), [preparing()])
    release.peek_view()
    assert (cluster.executed_in, cluster.created) == (["p0"], {})
    assert job_sessions.open_through_running_pod(cluster, release.run(), cluster.pods) is None


def waiting_reader(monkeypatch, cluster, **status):
    """Make each reader pod wait in this state."""
    found = cluster.find
    pod = {"metadata": {}, "spec": {"nodeName": "node1"}, "status": {"phase": "Pending", **status}}
    monkeypatch.setattr(cluster, "find", lambda kind, name: pod if kind == "pod" else found(kind, name))


def test_a_missing_image_is_reported_and_the_pod_deleted(monkeypatch):
    cluster, release = open_release(ended(DONE), [])
    waiting = {"reason": "ErrImageNeverPull", "message": "not on this node"}
    waiting_reader(
        monkeypatch, cluster, containerStatuses=[{"name": "reader", "state": {"waiting": waiting}}]
    )
    message = f"cannot start: ErrImageNeverPull.* Fix: make the run's image {RUN_JSON['image']} available to node node1"
    with pytest.raises(CliError, match=message), release.storage(StorageRequest()):
        pass
    assert cluster.deleted == list(cluster.created) != []


@pytest.mark.parametrize("statuses", ["containerStatuses", "initContainerStatuses"])
def test_a_push_uses_a_running_pod_if_the_reader_pod_is_unschedulable(monkeypatch, statuses):
    cluster, release = open_release(ended(), [running(statuses)])
    monkeypatch.setattr(reader_storage, "UNBOUND_SECONDS", -1.0)
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: too many pods"}
    waiting_reader(monkeypatch, cluster, conditions=[unscheduled])
    with release.storage(StorageRequest(writable=True)) as storage:
        assert "through pod p0" in storage.where
    assert cluster.deleted == list(cluster.created)
    assert len(cluster.created) == 1
    cluster.pods = []
    with (
        pytest.raises(reader_storage.UnschedulableError, match="too many pods"),
        release.storage(StorageRequest(writable=True)),
    ):
        pass


def test_a_reader_pod_meets_restricted_pod_security_and_has_what_the_run_has():
    run = ReleaseRun.from_json("paddle-training", "paddle", RUN_JSON)
    template = {"tolerations": [{"key": "training", "operator": "Exists"}], "hostNetwork": True}
    pod = reader_storage.build_pod(run, "r-1", seconds=300, writable=False, template=template)
    text = Path(__file__).with_name("reader_pod.yaml").read_text()
    assert pod == yaml.safe_load(text)
    writable = reader_storage.build_pod(run, "r-1", seconds=300, writable=True, template=template)
    assert writable == yaml.safe_load(text.replace("readOnly: true", "readOnly: false"))


class UnreadOutput(CommandOutput):
    """The stdout of a command whose connection stays open; reading it to its end takes for ever."""

    def result(self):
        raise AssertionError("the rest of stdout was read")


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), CliError("no byte for 60 s")]
)
def test_a_full_disk_or_lost_connection_is_reported_without_reading_the_rest(error):
    output = UnreadOutput()
    storage = Storage(PurePosixPath("/jobs/a"), lambda *_: output)
    with pytest.raises(type(error)) as raised, storage.run("tar"):
        raise error
    assert raised.value is error
    assert output.closed
