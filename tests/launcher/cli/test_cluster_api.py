"""Calls of the Kubernetes API, and the messages about calls that fail."""

import pytest

from launcher.cli import errors
from launcher.cli.cluster.cluster_api import Cluster
from launcher.cli.cluster.releases import ReleaseNotFoundError, list_releases

from .fake_cluster import FakeCluster


def test_a_denied_call_is_reported_with_the_missing_verb_and_resource():
    body = (
        '{"kind":"Status","message":"pods is forbidden: User \\"eve\\" cannot create resource \\"pods\\" in '
        'API group \\"\\" in the namespace \\"paddle\\"","code":403}'
    )
    message = str(errors.api_error(403, body, "start the reader pod", "context local"))
    assert "eve may not create pods on context local (403)" in message
    assert "role with verb create on pods" in message


def test_a_rejection_by_pod_security_is_reported_with_the_servers_message():
    body = '{"message":"pods \\"r\\" is forbidden: violates PodSecurity \\"restricted:latest\\""}'
    assert "violates PodSecurity" in str(errors.api_error(403, body, "start the reader pod", "c"))


def test_expired_credentials_are_reported():
    assert "rejects the credentials (401)" in str(errors.api_error(401, "Unauthorized", "x", "c"))


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
    assert [job["metadata"]["name"] for job in cluster.list_in_all_namespaces("job")] == ["a"]
    cluster.suspend_job("a", True)
