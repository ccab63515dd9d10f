"""Calls of the Kubernetes API, and the messages about calls that fail."""

import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlencode

import kubernetes
import pytest
from kubernetes.client.rest import ApiException

from launcher.cli import cluster_api
from launcher.cli.cluster_api import Cluster, ConflictError, UnreachableError, user_and_host
from launcher.cli.errors import CliError
from launcher.cli.releases import ReleaseNotFoundError, list_releases
from testkit.http_servers import serving

from .fake_cluster import FakeCluster

DENIED = (
    '{"kind":"Status","message":"pods is forbidden: User \\"eve\\" cannot create resource \\"pods\\" in '
    'API group \\"\\" in the namespace \\"paddle\\"","code":403}'
)


@pytest.mark.parametrize(
    ("status", "body", "parts"),
    [
        (403, DENIED, ['HTTP status 403: pods is forbidden: User "eve" cannot create', "Fix: ask the owner"]),
        (403, '{"message":"pods is forbidden: violates PodSecurity"}', ["violates PodSecurity"]),
        (401, "Unauthorized", ["HTTP status 401: Unauthorized", "Fix: log in again"]),
    ],
)
def test_a_rejected_call_is_reported_with_the_reason(status, body, parts):
    message = str(cluster_api.api_error(status, body, "start the reader pod", "context local"))
    assert all(part in message for part in parts)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Handshake status 502 Bad Gateway", "HTTP status 502: Handshake status 502 Bad Gateway. Fix: "),
        ("connection refused", "connection refused. Fix: check that the pod runs"),
    ],
)
def test_a_rejected_command_is_reported_with_the_answer(monkeypatch, server, reason, expected):
    def reject(*_, **__):
        raise ApiException(status=0, reason=reason)

    monkeypatch.setattr("kubernetes.stream.ws_client.websocket_call", reject)
    with pytest.raises(CliError, match="cannot run 'ls' in pod p: ") as raised:
        server.cluster().exec("p", "c", ["ls"], None, 1.0)
    assert expected in str(raised.value)


def test_a_command_or_read_that_the_api_server_rejects_is_reported_with_its_message_alone(server):
    query = "container=c&command=ls&stdin=false&stdout=true&stderr=true&tty=false"
    paddle = "/api/v1/namespaces/paddle"
    server.rejected = {f"{paddle}/pods/p/exec?{query}": 403, f"{paddle}/configmaps/r-run": 403}
    server.body = DENIED.encode()
    message = 'test answered with HTTP status 403: pods is forbidden: User "eve".* Fix: ask the owner'
    with pytest.raises(CliError, match=message):
        server.cluster().exec("p", "c", ["ls"], None, 1.0)
    with pytest.raises(CliError, match=message):
        server.cluster().find("config_map", "r-run")


def test_a_missing_release_is_reported_with_those_that_exist(monkeypatch):
    cluster = FakeCluster()
    problem = "namespace paddle on context test has no release a of this chart"
    assert str(ReleaseNotFoundError(cluster, "a")).startswith(f"{problem}, nor has any other namespace")
    for name, namespace in (("c", "three"), ("b", "two")):
        cluster.add_release(name, namespace)
    options = "--release c --namespace three; --release b --namespace two"
    assert str(ReleaseNotFoundError(cluster, "a")) == f"{problem}. Fix: choose one of: {options}"

    def reject(*_):
        raise CliError("403")

    monkeypatch.setattr(cluster, "list_in_all_namespaces", reject)
    assert "this user may not list which others exist" in str(ReleaseNotFoundError(cluster, "a"))


def test_only_run_config_maps_are_releases():
    cluster = FakeCluster()
    cluster.add_release("b", "two")
    cluster.add_release("a", "one")
    cluster.config_maps["x"] = {"metadata": {**cluster.config_maps["a"]["metadata"], "name": "a-other"}}
    found = [(release.namespace, release.name) for release in list_releases(cluster)]
    assert found == [("one", "a"), ("two", "b")]


@dataclass
class Server:
    """An HTTP server that answers each path with a list of one object, or with the status in `rejected`."""

    rejected: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str, object]] = field(default_factory=list)
    """Method, path with query, Authorization, and body of each request."""
    agents: set[str] = field(default_factory=set)
    body: bytes = b'{"items": [{"metadata": {"name": "a"}}]}'
    port: int = 0

    def cluster(self) -> Cluster:
        configuration = kubernetes.client.Configuration(host=f"http://127.0.0.1:{self.port}")
        configuration.api_key["authorization"] = "Bearer secret"
        return Cluster(configuration, "paddle", "test")

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        sent = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        token = request.headers.get("Authorization", "")
        self.requests.append((request.command, request.path, token, json.loads(sent) if sent else None))
        self.agents.add(request.headers.get("User-Agent", ""))
        request.send_response(self.rejected.get(request.path, 200))
        request.send_header("Content-Length", str(len(self.body)))
        request.end_headers()
        request.wfile.write(self.body)


@pytest.fixture
def server():
    state = Server()

    def answer(request: BaseHTTPRequestHandler) -> None:
        state.answer(request)

    methods = {f"do_{verb}": answer for verb in ("GET", "POST", "PUT", "PATCH", "DELETE")}
    handler = type("Handler", (BaseHTTPRequestHandler,), methods | {"protocol_version": "HTTP/1.1"})
    with serving(handler) as running:
        state.port = running.server_port
        yield state


WHO = urlencode({"fieldManager": f"paddle-training:{user_and_host()}"})


def names(found):
    return [one["metadata"]["name"] for one in found]


def test_each_call_is_sent_with_its_path_body_and_the_users_token(server):
    cluster = server.cluster()
    thing = {"metadata": {"name": "a"}}
    assert names(cluster.list_objects("config_map", {"x": "y", "z": "1"})) == ["a"]
    assert names(cluster.list_in_all_namespaces("job")) == ["a"]
    cluster.create("pod", thing)
    cluster.suspend_job("a", True)
    cluster.delete("persistent_volume_claim", "a", grace_seconds=1)
    cluster.delete("lease", "a", version="7")
    assert b"".join(cluster.stream_log("a", "train", follow=False, lines=5)).startswith(b'{"items"')
    background = {"propagationPolicy": "Background"}
    claim = "/api/v1/namespaces/paddle/persistentvolumeclaims/a"
    lease = "/apis/coordination.k8s.io/v1/namespaces/paddle/leases/a"
    assert [(method, path, body) for method, path, _, body in server.requests] == [
        ("GET", "/api/v1/namespaces/paddle/configmaps?labelSelector=x%3Dy%2Cz%3D1", None),
        ("GET", "/apis/batch/v1/jobs", None),
        ("POST", "/api/v1/namespaces/paddle/pods", thing),
        ("PATCH", f"/apis/batch/v1/namespaces/paddle/jobs/a?{WHO}", {"spec": {"suspend": True}}),
        ("DELETE", claim, {**background, "gracePeriodSeconds": 1}),
        ("DELETE", lease, {**background, "preconditions": {"resourceVersion": "7"}}),
        ("GET", "/api/v1/namespaces/paddle/pods/a/log?container=train&follow=false&tailLines=5", None),
    ]
    assert server.agents == {"paddle-launcher"}, (
        "the manager of changed fields, which Helm 4 and audit logs name"
    )
    assert {token for _, _, token, _ in server.requests} == {"Bearer secret"}


@pytest.mark.parametrize("status", [403, 500])
def test_only_a_user_who_may_not_list_other_namespaces_gets_the_objects_of_one(server, status):
    """Otherwise `clean` removes what a pod of another namespace uses."""
    server.rejected = {"/api/v1/pods": status}
    if status == 403:
        cluster = server.cluster()
        assert names(cluster.list_in_all_namespaces("pod")) == ["a"]
        assert cluster.has_hidden_namespaces
        return
    with pytest.raises(CliError, match="cannot list every pod: test answered with HTTP status 500"):
        server.cluster().list_in_all_namespaces("pod")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_overloaded_or_failing_api_server_counts_as_unreachable(server, status):
    """`wait`, `run` and `sweep` then ask again: it may be the election of a leader of etcd."""
    server.rejected = {"/apis/batch/v1/namespaces/paddle/jobs/a": status}
    with pytest.raises(UnreachableError, match=f"test answered with HTTP status {status}.* Fix: "):
        server.cluster().find("job", "a")


def test_an_absent_object_is_none_and_a_changed_one_a_conflict(server):
    lease = "/apis/coordination.k8s.io/v1/namespaces/paddle/leases/a"
    server.rejected = {lease: 404}
    cluster = server.cluster()
    assert cluster.find("lease", "a") is None
    cluster.delete("lease", "a")
    server.rejected = {lease: 409}
    with pytest.raises(ConflictError):
        cluster.delete("lease", "a", version="7")
