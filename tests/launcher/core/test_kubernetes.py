"""`rendezvous: api` against a real HTTPS server on loopback that speaks list and watch."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from launcher.errors import DeadlineError, GangError, SettingsError
from launcher.gang.kubernetes import ApiRefusedError, PodApi, wait_for_pods
from launcher.gang.rendezvous import peer_names
from launcher.settings import TrainSettings
from tests.launcher.core.kit import environ


def pod(
    name: str, ip: str | None, phase: str = "Running", deleting: bool = False, **status: Any
) -> dict[str, Any]:
    meta = {"name": name, "uid": f"uid-{name}", **({"deletionTimestamp": "now"} if deleting else {})}
    return {"metadata": meta, "status": {"phase": phase, "podIP": ip, **status}}


class Server:
    """An API server that knows one namespace's pods."""

    def __init__(self, folder: Path) -> None:
        self.pods: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.status = 200
        self.queries: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.account = folder / "account"
        self.account.mkdir(parents=True)
        (self.account / "token").write_text("token-1\n")
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urllib.parse.urlsplit(self.path)
                query = dict(urllib.parse.parse_qsl(url.query))
                server.queries.append({"path": url.path, **query})
                server.tokens.append(self.headers["Authorization"])
                self.send_response(server.status)
                self.end_headers()
                if server.status != 200:
                    self.wfile.write(b'{"message": "pods is forbidden"}')
                elif "watch" in query:
                    for event in server.events:
                        self.wfile.write(json.dumps(event).encode() + b"\n")
                else:
                    answer = {"metadata": {"resourceVersion": "7"}, "items": server.pods}
                    self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(folder, self.account / "ca.crt"))
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()

    def api(self) -> PodApi:
        port = str(self.http.server_address[1])
        env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT_HTTPS": port}
        return PodApi(env, "paddle", self.account)

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def certificate(folder: Path, ca: Path) -> Path:
    """A file with key and self-signed certificate for 127.0.0.1; the certificate alone goes to `ca`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test api")])
    now = datetime.datetime.now(datetime.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = cert.public_bytes(serialization.Encoding.PEM)
    ca.write_bytes(pem)
    both = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both.write_bytes(private + pem)
    return both


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


def settings(**env: str) -> TrainSettings:
    return TrainSettings.from_environ(environ(PADDLE_LAUNCHER_RENDEZVOUS="api", **env))


def test_running_pods_are_ranked_by_the_number_of_their_address(server: Server) -> None:
    server.pods = [pod("a", "10.0.0.10"), pod("b", "10.0.0.9"), pod("c", "10.0.0.100")]
    assert wait_for_pods(settings(), server.api()) == ["10.0.0.9", "10.0.0.10", "10.0.0.100"]
    assert server.queries[0]["labelSelector"] == "batch.kubernetes.io/job-name=quick-start-0a1b2c3d"
    assert server.queries[0]["path"] == "/api/v1/namespaces/paddle/pods"
    assert server.tokens == ["Bearer token-1"]


def test_terminating_failed_and_pending_pods_do_not_count_and_a_watch_brings_the_rest(server: Server) -> None:
    server.pods = [
        pod("a", "10.0.0.1"),
        pod("old", "10.0.0.2", deleting=True),
        pod("dead", "10.0.0.3", phase="Failed"),
        pod("b", None, phase="Pending"),
    ]
    server.events = [
        {"type": "MODIFIED", "object": pod("b", "10.0.0.5")},
        {"type": "DELETED", "object": pod("dead", None)},
        {"type": "ADDED", "object": pod("c", "10.0.0.4")},
    ]
    assert wait_for_pods(settings(), server.api()) == ["10.0.0.1", "10.0.0.4", "10.0.0.5"]
    assert server.queries[1]["resourceVersion"] == "7"


def test_at_the_deadline_the_message_says_who_is_missing_and_why(server: Server) -> None:
    unfit = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes fit"}
    ]
    pulling = [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]
    server.pods = [
        pod("a", "10.0.0.1"),
        pod("b", None, phase="Pending", conditions=unfit),
        pod("c", None, phase="Pending", containerStatuses=pulling),
    ]
    ticks = iter(range(0, 10_000, 2))
    with pytest.raises(DeadlineError) as caught:
        wait_for_pods(
            settings(PADDLE_LAUNCHER_RENDEZVOUS_SECONDS="10"),
            server.api(),
            lambda _: None,
            lambda: next(ticks),
        )
    text = str(caught.value)
    assert "1 of 3 run" in text
    assert "b is Pending (Unschedulable: 0/3 nodes fit)" in text
    assert "c is Pending (ImagePullBackOff)" in text


def test_a_refusal_ends_at_once_and_names_the_role_that_is_needed(server: Server) -> None:
    server.status = 403
    with pytest.raises(ApiRefusedError, match=r"403.*pods is forbidden.*get, list and watch on pods"):
        wait_for_pods(settings(), server.api())


def test_a_server_with_another_certificate_is_not_believed(server: Server, tmp_path: Path) -> None:
    certificate(tmp_path, server.account / "ca.crt")
    ticks = iter(range(0, 10_000, 2))
    with pytest.raises(DeadlineError, match="CERTIFICATE_VERIFY_FAILED"):
        wait_for_pods(
            settings(PADDLE_LAUNCHER_RENDEZVOUS_SECONDS="4"),
            server.api(),
            lambda _: None,
            lambda: next(ticks),
        )
    assert server.queries == []


def test_without_a_service_account_the_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="rendezvous is 'api', but this pod has no service account"):
        PodApi({"KUBERNETES_SERVICE_HOST": "127.0.0.1"}, "paddle", tmp_path)


def test_the_own_address_gives_the_rank_and_must_be_among_them(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pods = [pod("a", "10.0.0.10"), pod("b", "10.0.0.9"), pod("c", "10.0.0.100")]
    monkeypatch.setattr("launcher.gang.kubernetes.PodApi", lambda *_: server.api())
    names, rank = peer_names(settings(PADDLE_LAUNCHER_POD_IP="10.0.0.10"), lambda _: None)
    assert (names[rank], rank) == ("10.0.0.10", 1)
    with pytest.raises(GangError, match=r"'10\.9\.9\.9'.*is not among"):
        peer_names(settings(PADDLE_LAUNCHER_POD_IP="10.9.9.9"), lambda _: None)
