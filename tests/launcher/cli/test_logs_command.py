"""`logs`: the log of a pod, and of the pods that replace it."""

import pytest

from launcher.cli import job_sessions
from launcher.cli.commands import logs
from launcher.cli.errors import CliError, UsageError

from .conftest import K8S_JOB, make_job, make_pod
from .fake_cluster import FakeCluster

LINES = [
    b'{"time": "2026-11-21T04:00:00.000Z", "level": "info", "who": "rank 0", "message": "[x] 50 %"}\n',
    b'{"time": "2026-11-21T04:00:01.000Z", "level": "error", "who": "rank 0", "mess',
    b'age": "half"}\nno JSON at all\n',
]


class ChangingCluster(FakeCluster):
    """A release whose pods and Job change each time that a command pauses."""

    def __init__(self, *stages, **run_json):
        super().__init__()
        self.add_release(**run_json)
        self.stages, self.read = list(stages), []
        self.jobs, self.pods = self.stages[0]

    def pause(self, _seconds):
        assert len(self.stages) > 1, "the command waits although the run is over"
        self.stages.pop(0)
        self.jobs, self.pods = self.stages[0]

    def stream_log(self, pod, container, follow):
        assert (pod, container) not in self.read, "a log is printed twice"
        self.read.append((pod, container))
        yield from [f"{pod} {container} {follow}\n".encode(), *(LINES if pod == "old" else [])]


@pytest.fixture
def read(monkeypatch, capsys):
    """Return a function that reads a rank's log while the release goes through stages (conditions of its Job, pods)."""

    def run(*stages, following=True, role=None, rank=0, **run_json):
        jobs = [([make_job(K8S_JOB, *conditions)], pods) for conditions, pods in stages]
        cluster = ChangingCluster(*jobs, **run_json)
        monkeypatch.setattr(logs.time, "sleep", cluster.pause)
        session = job_sessions.ClusterSession(cluster, "paddle-training")
        request = logs.LogRequest(rank=rank, role=role, follow=following)
        return b"".join(logs.read_log(session, request)), capsys.readouterr().err.splitlines()

    return run


def a_pod(name, made, **more):
    entry = {"name": "train", "state": {"running": {}}}
    return make_pod(name, rank=0, made=made, **{"containerStatuses": [entry], **more})


COMPLETE = [("Complete", "", "")]


def test_json_lines_are_printed_unchanged(read):
    out, _ = read((COMPLETE, [a_pod("old", "1")]))
    assert out == b"old train True\n" + b"".join(LINES)


def test_following_continues_with_the_pod_that_replaces_another(read):
    old, new = a_pod("old", "1", phase="Failed"), a_pod("new", "2")
    coming = a_pod("new", "2", phase="Pending", containerStatuses=[])
    out, printed = read(([], [old]), ([], [old, coming]), ([], [old, new]), (COMPLETE, [old, new]))
    assert out == b"old train True\n" + b"".join(LINES) + b"new train True\n"
    assert printed == ["pod old has exited; continuing with new, which replaces it"]


def test_following_stops_after_a_succeeded_pod_and_after_a_failed_run(read):
    assert read(([], [a_pod("p", "1", phase="Succeeded")]))[0] == b"p train True\n"
    assert read(([("Failed", "x", "y")], [a_pod("p", "1", phase="Failed")]))[0] == b"p train True\n"


def test_without_follow_only_the_newest_pods_log_is_printed(read):
    pods = [a_pod("old", "1", phase="Failed"), a_pod("new", "2")]
    assert read(([], pods), following=False) == (b"new train False\n", [])


def preparing(name, **state):
    entries = [{"name": "prepare", "state": state or {"running": {}}}]
    return a_pod(name, "1", phase="Pending", initContainerStatuses=entries, containerStatuses=[])


def test_following_continues_with_the_main_container_after_the_init_container(read):
    started = a_pod("p", "1", initContainerStatuses=[{"name": "prepare", "state": {"terminated": {}}}])
    out, printed = read(([], [preparing("p")]), ([], [started]), (COMPLETE, [started]))
    assert out == b"p prepare True\np train True\n"
    assert printed == []


def test_role_data_prints_the_init_container_of_a_rank_if_training_pods_prepare_the_data(read):
    in_training = {"role": "data", "k8sDataJob": "", "dataPreparedBy": "trainingPods"}
    others = [a_pod("p0", "1"), make_pod("p2", rank=2, initContainerStatuses=[])]
    statuses = {
        "initContainerStatuses": [{"name": "prepare", "state": {"terminated": {"exitCode": 0}}}],
        "containerStatuses": [{"name": "train", "state": {"running": {}}}],
    }
    pods = [*others, make_pod("p1", rank=1, **statuses)]
    assert read(([], pods), rank=1, **in_training)[0] == b"p1 prepare True\n"
    with pytest.raises(CliError, match="pod p2 has no log yet"):
        read(([], pods), rank=2, **in_training)


def test_role_data_of_a_release_without_a_data_job_says_so(read):
    out, printed = read(([], []), role="data", k8sDataJob="")
    assert (out, printed) == (b"this release has no data Job (data.enabled is false)\n", [])


def test_an_attempt_of_the_data_job_is_rejected_instead_of_printing_a_trainer_log(tmp_path):
    request = logs.LogRequest(role="data", attempt=0)
    with pytest.raises(UsageError, match="the preparation of the data has no attempts"):
        next(logs.read_log(job_sessions.FolderSession(tmp_path), request))
