"""The API server's part against a real HTTPS server on loopback that speaks list, watch and create."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
import time
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

from launcher.errors import DeadlineError, SettingsError, StoppedError
from launcher.gang import rank0
from launcher.gang.rank0 import Rank0
from launcher.podapi import ApiRefusedError, PodApi
from launcher.reporting.notify import post_event
from launcher.settings import TrainSettings
from tests.launcher.core.kit import environ
from tests.launcher.core.rank_0 import find_rank_0
from tests.waiting import until


def pod(
    name: str, ip: str | None, phase: str = "Running", deleting: bool = False, made: str = "", **status: Any
) -> dict[str, Any]:
    meta = {"name": name, "uid": f"uid-{name}", "creationTimestamp": made}
    if deleting:
        meta["deletionTimestamp"] = "now"
    return {"metadata": meta, "status": {"phase": phase, "podIP": ip, **status}}


class Server:
    """An API server that knows one namespace's pods and takes its Events."""

    def __init__(self, folder: Path) -> None:
        self.pods: list[dict[str, Any]] = []
        self.changes: list[dict[str, Any]] = []
        """What a watch tells."""
        self.answers: list[int] = []
        """Status of the next answers; then 200."""
        self.hangs = threading.Event()
        """Set: a watch hangs until the server is closed."""
        self.asked = threading.Event()
        self.queries: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.posted: list[dict[str, Any]] = []
        self.account = folder / "account"
        self.account.mkdir(parents=True)
        (self.account / "token").write_text("token-1\n")
        self.closing = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def begin(self) -> dict[str, str]:
                url = urllib.parse.urlsplit(self.path)
                query = dict(urllib.parse.parse_qsl(url.query))
                server.queries.append({"path": url.path, **query})
                server.tokens.append(self.headers["Authorization"])
                status = server.answers.pop(0) if server.answers else 200
                self.send_response(status)
                self.end_headers()
                if status != 200:
                    self.wfile.write(b'{"message": "pods is forbidden"}')
                    return {"refused": ""}
                return query

            def do_GET(self) -> None:
                query = self.begin()
                if "watch" in query:
                    for event in server.changes:
                        self.wfile.write(json.dumps(event).encode() + b"\n")
                    self.wfile.flush()
                    server.asked.set()
                    if server.hangs.is_set():
                        server.closing.wait(30)
                elif "refused" not in query:
                    answer = {"metadata": {"resourceVersion": "7"}, "items": server.pods}
                    self.wfile.write(json.dumps(answer).encode())

            def do_POST(self) -> None:
                if "refused" not in self.begin():
                    body = self.rfile.read(int(self.headers["Content-Length"]))
                    server.posted.append(json.loads(body))
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(folder, self.account / "ca.crt"))
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,))
        self.thread.start()

    def api(self) -> PodApi:
        port = str(self.http.server_address[1])
        env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT_HTTPS": port}
        return PodApi(env, "paddle", self.account)

    def close(self) -> None:
        self.closing.set()
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
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(rank0, "RETRY_SECONDS", 0.05)
    made = Server(tmp_path)
    yield made
    made.close()


class Clock:
    """Time passes only by pauses, a hundred times as fast."""

    def __init__(self) -> None:
        self.now = 0.0

    def pause(self, seconds: float) -> None:
        self.now += 100 * seconds
        time.sleep(seconds)

    def __call__(self) -> float:
        return self.now


def known(rank_0: Rank0) -> str:
    try:
        return rank_0.address()
    except OSError:
        return ""


def settings(**env: str) -> TrainSettings:
    return TrainSettings.from_environ(environ(PADDLE_LAUNCHER_RENDEZVOUS="api", **env))


def test_a_pod_of_rank_0_that_runs_is_found_by_its_job_and_index(server: Server) -> None:
    server.pods = [pod("a", "10.0.0.10")]
    server.hangs.set()
    assert find_rank_0(settings(), server.api()) == "10.0.0.10"
    assert server.queries[0]["labelSelector"] == (
        "batch.kubernetes.io/job-name=quick-start-0a1b2c3d,batch.kubernetes.io/job-completion-index=0"
    )
    assert server.queries[0]["path"] == "/api/v1/namespaces/paddle/pods"
    assert set(server.tokens) == {"Bearer token-1"}


def test_a_pod_that_does_not_run_yet_is_waited_for_by_one_watch(server: Server) -> None:
    server.pods = [
        pod("old", "10.0.0.2", deleting=True),
        pod("dead", "10.0.0.3", phase="Failed"),
        pod("new", None, phase="Pending"),
    ]
    server.changes = [
        {"type": "DELETED", "object": pod("dead", "10.0.0.3")},
        {"type": "MODIFIED", "object": pod("new", "10.0.0.5")},
    ]
    server.hangs.set()
    assert find_rank_0(settings(), server.api()) == "10.0.0.5"
    assert [("watch" in query, query.get("resourceVersion")) for query in server.queries] == [
        (False, None),
        (True, "7"),
    ]


def test_of_two_pods_that_run_the_newer_one_counts(server: Server) -> None:
    """A deletion by force leaves the old pod's processes alive, and for a while its object may seem so."""
    server.pods = [
        pod("new", "10.0.0.5", made="2026-01-02T00:00:00Z"),
        pod("old", "10.0.0.2", made="2026-01-01T00:00:00Z"),
    ]
    assert find_rank_0(settings(), server.api()) == "10.0.0.5"


def test_of_a_pod_with_two_families_the_ipv4_address_is_taken(server: Server) -> None:
    server.pods = [pod("a", "fd00::5", podIPs=[{"ip": "fd00::5"}, {"ip": "10.0.0.5"}])]
    assert find_rank_0(settings(), server.api()) == "10.0.0.5"


def test_a_pod_that_was_deleted_while_it_was_watched_is_not_taken(server: Server) -> None:
    server.pods = [pod("a", None, phase="Pending")]
    server.changes = [{"type": "DELETED", "object": pod("a", "10.0.0.5")}]
    clock = Clock()
    with pytest.raises(DeadlineError, match="no such pod is made yet"):
        server.hangs.set()
        find_rank_0(settings(PADDLE_LAUNCHER_RENDEZVOUS_SECONDS="50"), server.api(), clock.pause, clock)


def test_a_replaced_rank_0_is_known_without_another_request_and_stays_known_while_the_api_server_is_away(
    server: Server,
) -> None:
    """A launcher wants the address at each try to connect: a thousand of them must not ask the API server."""
    server.pods = [pod("old", "10.0.0.2", made="1")]
    server.changes = [
        {"type": "MODIFIED", "object": pod("old", "10.0.0.2", deleting=True, made="1")},
        {"type": "ADDED", "object": pod("new", None, phase="Pending", made="2")},
        {"type": "MODIFIED", "object": pod("new", "10.0.0.3", made="2")},
    ]
    server.hangs.set()
    rank_0 = Rank0(settings(), server.api())
    until(lambda: known(rank_0) == "10.0.0.3")
    assert ["watch" in query for query in server.queries] == [False, True]
    server.answers = [500] * 1000
    server.closing.set()
    until(lambda: len(server.queries) > 4)
    assert rank_0.address() == "10.0.0.3"
    rank_0.close()


def test_an_address_that_is_not_known_yet_is_an_error_at_once_that_says_why(server: Server) -> None:
    server.pods = [pod("a", None, phase="Pending")]
    server.hangs.set()
    rank_0 = Rank0(settings(), server.api())
    until(server.asked.is_set)
    with pytest.raises(
        OSError, match="the pod of rank 0 of Job quick-start-0a1b2c3d does not run: a is Pending"
    ):
        rank_0.address()
    rank_0.close()


def test_a_watch_that_ends_early_is_followed_by_another_list(server: Server) -> None:
    server.pods = [pod("a", None, phase="Pending")]
    server.changes = [{"type": "ERROR", "object": {"code": 410}}]

    def pause(seconds: float) -> None:
        if server.asked.is_set():
            server.pods = [pod("a", "10.0.0.5")]
        time.sleep(seconds)

    assert find_rank_0(settings(), server.api(), pause) == "10.0.0.5"


def test_a_stop_is_noticed_while_the_api_server_says_nothing(server: Server) -> None:
    server.pods = [pod("a", None, phase="Pending")]
    server.hangs.set()

    def pause(seconds: float) -> None:
        if server.asked.is_set():
            raise StoppedError("told to stop")
        time.sleep(seconds)

    with pytest.raises(StoppedError):
        find_rank_0(settings(), server.api(), pause)
    until(lambda: not any(thread.name == "find rank 0" for thread in threading.enumerate()))


def test_after_its_close_no_request_begins(server: Server) -> None:
    """The list's answer may come just then, and the watch behind it would last for an hour."""
    api = server.api()
    api.close()
    with pytest.raises(OSError, match="closed"):
        api.list("quick-start-0a1b2c3d")
    assert server.queries == []


def test_at_the_deadline_the_message_says_what_rank_0_waits_for(server: Server) -> None:
    unfit = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes fit"}
    ]
    pulling = [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]
    server.pods = [
        pod("b", None, phase="Pending", conditions=unfit),
        pod("c", None, phase="Pending", containerStatuses=pulling),
        pod("d", "fd00::1"),
    ]
    server.hangs.set()
    clock = Clock()
    with pytest.raises(DeadlineError) as caught:
        find_rank_0(settings(PADDLE_LAUNCHER_RENDEZVOUS_SECONDS="50"), server.api(), clock.pause, clock)
    text = str(caught.value)
    assert "after 50 s (rendezvousSeconds) the pod of rank 0 of Job quick-start-0a1b2c3d does not run" in text
    assert "b is Pending (Unschedulable: 0/3 nodes fit)" in text
    assert "c is Pending (ImagePullBackOff)" in text
    assert "d is Running (it has no IPv4 address, only fd00::1)" in text


def test_an_api_server_that_has_just_started_may_fail_and_refuse_for_a_while(server: Server) -> None:
    server.answers = [500, 403, 401]
    server.pods = [pod("a", "10.0.0.5")]
    assert find_rank_0(settings(), server.api()) == "10.0.0.5"
    assert server.answers == []


def test_a_refusal_that_stays_names_the_role_that_is_needed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank0, "REFUSED_SECONDS", 0.2)
    server.answers = [403] * 1000
    with pytest.raises(ApiRefusedError, match=r"403.*pods is forbidden.*list and watch on pods"):
        find_rank_0(settings(), server.api())
    assert len(server.queries) > 1


def test_a_server_with_another_certificate_is_not_believed(server: Server, tmp_path: Path) -> None:
    certificate(tmp_path, server.account / "ca.crt")
    clock = Clock()
    with pytest.raises(DeadlineError, match="CERTIFICATE_VERIFY_FAILED"):
        find_rank_0(settings(PADDLE_LAUNCHER_RENDEZVOUS_SECONDS="50"), server.api(), clock.pause, clock)
    assert server.queries == []


def test_without_a_service_account_the_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"rendezvous 'api' and notify.events need.*no service account"):
        PodApi({"KUBERNETES_SERVICE_HOST": "127.0.0.1"}, "paddle", tmp_path)


def test_an_event_is_on_the_job_with_the_uid_that_kubectl_describe_asks_for(server: Server) -> None:
    s = settings(PADDLE_LAUNCHER_K8S_JOB_UID="0a-1b")
    post_event(s, server.api(), "GangRestarted", "ü" * 2000, "Warning", name="quick-start.1", at=0.0)
    (event,) = server.posted
    assert server.queries[0]["path"] == "/api/v1/namespaces/paddle/events"
    assert event["involvedObject"] == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "namespace": "paddle",
        "name": "quick-start-0a1b2c3d",
        "uid": "0a-1b",
    }
    assert (event["metadata"], event["type"], event["reason"]) == (
        {"name": "quick-start.1", "namespace": "paddle"},
        "Warning",
        "GangRestarted",
    )
    assert event["lastTimestamp"] == "1970-01-01T00:00:00Z"
    assert len(event["message"].encode()) == 1024, "the newer API of Events takes no more"


def test_an_event_that_is_there_already_was_written_by_an_earlier_try(server: Server) -> None:
    server.answers = [409]
    post_event(settings(), server.api(), "Started", "x", name="quick-start.1", at=0.0)
    server.answers = [500]
    with pytest.raises(OSError, match="answers 500"):
        post_event(settings(), server.api(), "Started", "x", name="quick-start.1", at=0.0)
