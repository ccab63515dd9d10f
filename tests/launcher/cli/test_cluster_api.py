"""Calls of the Kubernetes API, and the messages about calls that fail."""

import kubernetes
import pytest

from launcher.cli import errors
from launcher.cli.cluster.cluster_api import Cluster
from launcher.cli.cluster.releases import ReleaseNotFoundError, list_releases

from .fake_cluster import FakeCluster

DENIED = (
    '{"kind":"Status","message":"pods is forbidden: User \\"eve\\" cannot create resource \\"pods\\" in '
    'API group \\"\\" in the namespace \\"paddle\\"","code":403}'
)


@pytest.mark.parametrize(
    ("status", "body", "parts"),
    [
        (403, DENIED, ["eve may not create pods on context local (403)", "role with verb create on pods"]),
        (403, '{"message":"pods is forbidden: violates PodSecurity"}', ["violates PodSecurity"]),
        (401, "Unauthorized", ["rejects the credentials (401)"]),
    ],
)
def test_a_rejected_call_is_reported_with_the_reason(status, body, parts):
    message = str(errors.api_error(status, body, "start the reader pod", "context local"))
    assert all(part in message for part in parts)


def test_a_rejected_websocket_is_parsed_from_the_clients_text():
    text = (
        "Handshake status 403 Forbidden -+-+- {'audit-id': 'x'} -+-+- "
        'b\'{"kind":"Status","message":"cannot","code":403}\\n\''
    )
    assert errors.parse_handshake_error(text) == (403, '{"kind":"Status","message":"cannot","code":403}')
    assert errors.parse_handshake_error("connection refused") is None


def test_a_missing_release_is_reported_with_those_that_exist(monkeypatch):
    cluster = FakeCluster()
    problem = "namespace paddle on context test has no release a of this chart"
    assert str(ReleaseNotFoundError(cluster, "a")).startswith(f"{problem}, nor has any other namespace")
    for name, namespace in (("c", "three"), ("b", "two")):
        cluster.add_release(name, namespace)
    options = "--release c --namespace three; --release b --namespace two"
    assert str(ReleaseNotFoundError(cluster, "a")) == f"{problem}. Fix: choose one of: {options}"

    def reject(*_):
        raise errors.CliError("403")

    monkeypatch.setattr(cluster, "list_in_all_namespaces", reject)
    assert "this user may not list which others exist" in str(ReleaseNotFoundError(cluster, "a"))


def test_only_run_config_maps_are_releases():
    cluster = FakeCluster()
    cluster.add_release("b", "two")
    cluster.add_release("a", "one")
    cluster.config_maps["x"] = {"metadata": {**cluster.config_maps["a"]["metadata"], "name": "a-other"}}
    assert [(release.namespace, release.name) for release in list_releases(cluster)] == [
        ("one", "a"),
        ("two", "b"),
    ]


class Answer:
    """An answer of the API server with a list of one object."""

    def __init__(self, status=200):
        self.status = status

    def read(self):
        return b'{"items": [{"metadata": {"name": "a"}}]}'

    def release_conn(self):
        pass


def test_jobs_of_all_namespaces_are_listed_with_the_batch_api(monkeypatch):
    api = kubernetes.client.BatchV1Api
    monkeypatch.setattr(api, "list_job_for_all_namespaces", lambda *_, **__: Answer())
    monkeypatch.setattr(api, "patch_namespaced_job", lambda *_, **__: Answer())
    cluster = Cluster(kubernetes.client.ApiClient(), "paddle", "test")
    assert [job["metadata"]["name"] for job in cluster.list_in_all_namespaces("job")] == ["a"]
    cluster.suspend_job("a", True)


@pytest.mark.parametrize("served", ["v1beta2", "v1beta1", None])
def test_workloads_are_read_in_the_version_that_kueue_serves(monkeypatch, served):
    def answer(_api, group, version, namespace, plural, **_):
        assert (group, namespace, plural) == ("kueue.x-k8s.io", "paddle", "workloads")
        return Answer(200 if version == served else 404)

    monkeypatch.setattr(kubernetes.client.CustomObjectsApi, "list_namespaced_custom_object", answer)
    found = Cluster(kubernetes.client.ApiClient(), "paddle", "test").list_workloads()
    assert [one["metadata"]["name"] for one in found] == (["a"] if served else [])


@pytest.mark.parametrize("status", [403, 500])
def test_only_a_user_who_may_not_list_other_namespaces_gets_the_objects_of_one(monkeypatch, status):
    """Otherwise `clean` removes what a pod of another namespace uses."""
    api = kubernetes.client.CoreV1Api
    monkeypatch.setattr(api, "list_pod_for_all_namespaces", lambda *_, **__: Answer(status))
    monkeypatch.setattr(api, "list_namespaced_pod", lambda *_, **__: Answer())
    cluster = Cluster(kubernetes.client.ApiClient(), "paddle", "test")
    if status == 403:
        assert [pod["metadata"]["name"] for pod in cluster.list_in_all_namespaces("pod")] == ["a"]
        return
    with pytest.raises(errors.CliError, match="cannot list every pod: test answered with HTTP status 500"):
        cluster.list_in_all_namespaces("pod")
