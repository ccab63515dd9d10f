"""Tests of what a sender without the run's secret can do to a launcher's HTTP server."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest

from launcher.supervisor.coordinator.members import GangLimits, Membership
from launcher.supervisor.peers import peer_server
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.peer_server import PeerServer
from testkit.waiting import until
from tests.launcher.supervisor.gang_members import make_state

HOST = "127.0.0.1"
LIMITS = GangLimits(silence=5, life=9, rendezvous=60, join=60, serve=60, finish=60, restarts=3)


class Loopback(PodNetwork):
    bind_host = HOST


@pytest.fixture
def server() -> Iterator[PeerServer]:
    """Return the server of rank 0, whose ranks have the credential `right`."""
    membership = Membership(2, LIMITS, lambda: None, 0.05)
    membership.open("right")
    started = PeerServer(Loopback(), 0, {"/healthz": lambda: (200, "text/plain", b"ok")})
    started.membership = membership
    yield started
    started.close()


def connect(server: PeerServer) -> socket.socket:
    """Return a new connection, on which a missing answer is an error."""
    return socket.create_connection((HOST, int(server.socket.getsockname()[1])), timeout=20)


def head(request: str, length: int, credential: str = "wrong") -> bytes:
    """Return the head of a request."""
    return f"{request} HTTP/1.1\r\nAuthorization: Bearer {credential}\r\nContent-Length: {length}\r\n\r\n".encode()


def state(size: int = 0) -> bytes:
    """Return the body of POST /state of rank 1, which is longer than `size`."""
    value = make_state(1, "pod-a", "idle", fingerprint={"extraArgs": "x" * size}).to_json(time.monotonic())
    return json.dumps({"state": value, "seen": 0}).encode()


def receive_status(connection: socket.socket) -> int:
    """Return the HTTP status of the next answer."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server has closed the connection."""
    connection.settimeout(0.01)
    try:
        return connection.recv(1 << 16) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize(
    ("request_line", "status"),
    [("POST /state", 401), ("POST /elsewhere", 404), ("PUT /trainers/0/wrong_gloo/0", 403)],
)
def test_a_sender_is_rejected_before_its_body_arrives(
    server: PeerServer, request_line: str, status: int
) -> None:
    with connect(server) as connection:
        connection.sendall(head(request_line, 1000))  # and nothing of the body
        assert receive_status(connection) == status


def test_a_body_above_the_limit_is_rejected_before_it_arrives(server: PeerServer) -> None:
    with connect(server) as connection:
        connection.sendall(head("POST /state", peer_server.STATE_MAX_BYTES + 1, "right"))
        assert receive_status(connection) == 413


def test_a_rank_with_an_old_credential_receives_the_reason_although_its_state_is_long(
    server: PeerServer,
) -> None:
    """Otherwise it would not read its run's secret again: a reset would look like a lost network."""
    body = state(300_000)
    with connect(server) as connection:
        connection.sendall(head("POST /state", len(body), "of an earlier rank 0") + body)
        assert receive_status(connection) == 401
    with connect(server) as connection:
        connection.sendall(head("POST /state", len(body), "right") + body)
        assert receive_status(connection) == 200


@pytest.mark.parametrize(
    "begin", [b"", b"GET /healthz HTTP/1.1\r\nX-Slow: ", head("POST /state", 9000, "right")]
)
def test_a_request_that_arrives_byte_by_byte_is_ended(
    server: PeerServer, begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, but not the request."""
    monkeypatch.setattr(peer_server, "REQUEST_SECONDS", 1.0)
    with connect(server) as connection:
        connection.sendall(begin)

        def send_byte() -> bool:
            with contextlib.suppress(OSError):
                connection.send(b"x")
            return is_closed(connection)

        until(send_byte, "the end of a connection that sends a byte every 0.05 s", every=0.05)


def test_idle_connections_keep_out_neither_the_kubelet_nor_a_rank(
    server: PeerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "MAX_STRANGERS", 8)
    with contextlib.ExitStack() as opened:
        rank = opened.enter_context(connect(server))
        rank.sendall(head("POST /state", len(state()), "right") + state())
        assert receive_status(rank) == 200
        idle = [opened.enter_context(connect(server)) for _ in range(100)]
        until(lambda: sum(map(is_closed, idle)) >= 100 - 8, "the end of the oldest idle connections")
        kubelet = opened.enter_context(connect(server))
        kubelet.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert receive_status(kubelet) == 200
        rank.sendall(head("POST /state", len(state()), "right") + state())
        assert receive_status(rank) == 200, "the connection of an authenticated rank stays open"


def test_a_head_above_the_limit_ends_the_connection(
    server: PeerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = b"GET /healthz HTTP/1.1\r\nX-More: " + b"x" * 30_000 + b"\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(request)
        assert receive_status(connection) == 200
    monkeypatch.setattr(peer_server, "HEAD_MAX_BYTES", 5000)
    with connect(server) as connection:
        connection.sendall(request)
        until(lambda: is_closed(connection), "the end of a connection without an answer")
