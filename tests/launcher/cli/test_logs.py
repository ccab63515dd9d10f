"""The log of a pod, and of the pods that take its place."""

import json

import pytest

from launcher.cli import logs, session
from launcher.cli.problems import CliError

LINES = [
    b'{"time": "2026-11-21T04:00:00.000Z", "level": "info", "who": "rank 0", "message": "[x] 50 %"}\n',
    b'{"time": "2026-11-21T04:00:01.000Z", "level": "error", "who": "rank 0", "mess',
    b'age": "half"}\nno JSON at all\n',
]


class FakeCluster:
    """A release whose pods and Job change each time that somebody pauses."""

    namespace, name = "paddle", "context test"

    def __init__(self, api, *stages):
        self.api, self.stages, self.read = api, list(stages), []

    def pause(self, _seconds):
        assert len(self.stages) > 1, "it waits although the run is over"
        self.stages.pop(0)

    def items(self, kind, doing, selector=""):
        jobs, pods = self.stages[0]
        return {"job": jobs, "pod": pods}.get(kind, [])

    items_everywhere = items

    def find(self, kind, name, doing):
        found = {"data": {"run.json": json.dumps(self.api.run)}, "status": {"phase": "Bound"}}
        return found if kind != "config_map" or name == "paddle-training-run" else None

    def events(self, name):
        return []

    def exec(self, pod, container, argv, stdin, idle):
        raise CliError("the storage is not asked here")

    def pod_log(self, pod, container, follow):
        assert pod not in self.read, "its log comes twice"
        self.read.append(pod)
        yield from [f"{pod} {container} {follow}\n".encode(), *(LINES if pod == "old" else [])]


@pytest.fixture
def read(api, monkeypatch):
    """Read rank 0's log while the release goes through stages of (conditions of its Job, pods)."""

    def run(*stages, following=True):
        jobs = [([api.job(api.k8s_job, *conditions)], pods) for conditions, pods in stages]
        cluster = FakeCluster(api, *jobs)
        monkeypatch.setattr(logs.time, "sleep", cluster.pause)
        said = []
        asked = session.ClusterSession(cluster, "paddle-training", said.append)
        what = {"rank": 0, "role": None, "server": 0, "attempt": None}
        return b"".join(logs.read(asked, **what, following=following, say=said.append)), said

    return run


def a_pod(api, name, made, **more):
    entry = {"name": "train", "state": {"running": {}}}
    return api.pod(name, rank=0, made=made, **{"containerStatuses": [entry], **more})


COMPLETE = [("Complete", "", "")]


def test_json_lines_come_through_as_they_are(api, read):
    out, _ = read((COMPLETE, [a_pod(api, "old", "1")]))
    assert out == b"old train True\n" + b"".join(LINES)


def test_following_goes_on_with_the_pod_that_takes_the_others_place(api, read):
    old, new = a_pod(api, "old", "1", phase="Failed"), a_pod(api, "new", "2")
    coming = a_pod(api, "new", "2", phase="Pending", containerStatuses=[])
    out, said = read(([], [old]), ([], [old, coming]), ([], [old, new]), (COMPLETE, [old, new]))
    assert out == b"old train True\n" + b"".join(LINES) + b"new train True\n"
    assert said == ["pod old has ended; going on with new, which took its place"]


def test_following_ends_with_a_pod_that_is_done_and_with_a_failed_run(api, read):
    assert read(([], [a_pod(api, "p", "1", phase="Succeeded")]))[0] == b"p train True\n"
    assert read(([("Failed", "x", "y")], [a_pod(api, "p", "1", phase="Failed")]))[0] == b"p train True\n"


def test_without_following_the_newest_pods_log_is_all(api, read):
    pods = [a_pod(api, "old", "1", phase="Failed"), a_pod(api, "new", "2")]
    assert read(([], pods), following=False) == (b"new train False\n", [])
