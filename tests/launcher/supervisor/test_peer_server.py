"""Tests of a launcher's HTTP server: the store of rank 0's trainers, and what a sender without a secret can do."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import DeadlineError
from launcher.io import requested_checkpoints
from launcher.supervisor.coordinator.members import Membership
from launcher.supervisor.peers import peer_server
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.peer_server import PeerServer, TrainerStore, build_store_prefix
from testkit.waiting import until
from tests.launcher.supervisor.gang_members import LIMITS, make_state

HOST = "127.0.0.1"
CREDENTIAL = "paddle/run/token"
PREFIX = build_store_prefix(CREDENTIAL, 3)


class Rank0:
    """Rank 0's HTTP server with a store, in attempt 3; its ranks have the credential `right`."""

    def __init__(self, request: Path) -> None:
        self.request, network = request, PodNetwork()
        network.bind_host = HOST
        self.server = PeerServer(network, 0, {"/healthz": lambda: (200, "text/plain", b"ok")})
        self.server.membership = Membership(2, LIMITS, lambda: None, 0.05)
        self.server.membership.open("right")
        self.store = self.server.trainer_store = TrainerStore(request)
        self.store.open(PREFIX)
        self.address = HOST, int(self.server.socket.getsockname()[1])

    def connect(self) -> socket.socket:
        """Return a new connection, on which a missing answer is an error."""
        return socket.create_connection(self.address, timeout=20)

    def send(self, data: bytes) -> int:
        """Send a request on a connection of its own, and return the HTTP status of the answer."""
        with self.connect() as connection:
            connection.sendall(data)
            return receive_status(connection)

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a complete request; return the HTTP status and the body of the answer."""
        with contextlib.closing(http.client.HTTPConnection(*self.address, timeout=5)) as connection:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def ask(self, step: int, proposed: int = 9) -> tuple[bool, int]:
        """Ask as a trainer whether to save a checkpoint at this step."""
        return requested_checkpoints.ask_checkpoint_decision(self.url(f"_checkpoint/{step}"), proposed)

    def url(self, end: str = "", prefix: str = PREFIX) -> str:
        """Return an address in the trainers' store."""
        host, port = self.address
        return f"{host}:{port}{prefix}{end}"


@pytest.fixture
def rank_0(tmp_path: Path) -> Iterator[Rank0]:
    started = Rank0(tmp_path / "request")
    yield started
    started.server.close()


def test_a_value_is_read_until_the_next_attempt(rank_0: Rank0) -> None:
    path = f"{PREFIX}_gloo/0"
    assert rank_0.call("GET", path)[0] == 404
    assert rank_0.call("PUT", path, b"\x00address")[0] == 200
    assert rank_0.call("GET", path) == (200, b"\x00address")
    assert rank_0.call("DELETE", path)[0] == 200
    assert rank_0.call("GET", path) == (200, b"\x00address"), "another trainer may still need it"
    later = build_store_prefix(CREDENTIAL, 4)
    rank_0.store.open(later)
    assert rank_0.call("GET", path)[0] == 404
    assert rank_0.call("PUT", path, b"late")[0] == 403
    rank_0.store.write(path, b"accepted before the attempt changed")
    assert rank_0.store.read(path) is None
    assert rank_0.call("GET", f"{later}_gloo/0")[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/trainers/3_gloo/0",
        f"/trainers/3/{'0' * 64}_gloo/0",
        build_store_prefix("paddle/run/other", 3) + "_gloo/0",
        build_store_prefix(CREDENTIAL, 2) + "_gloo/0",
        PREFIX[:-1],
    ],
)
def test_a_request_without_the_attempts_secret_is_rejected(rank_0: Rank0, path: str) -> None:
    rank_0.call("PUT", f"{PREFIX}_gloo/0", b"real")
    assert rank_0.call("PUT", path, b"false")[0] == 403
    assert b"real" not in rank_0.call("GET", path)[1]
    assert rank_0.call("DELETE", path)[0] == 403
    assert rank_0.call("POST", path, b"7")[0] == 404
    assert rank_0.call("GET", f"{PREFIX}_gloo/0") == (200, b"real")
    assert rank_0.call("GET", "/healthz") == (200, b"ok")


def test_requests_are_rejected_before_the_first_attempt_and_on_other_ranks(rank_0: Rank0) -> None:
    for store in (None, TrainerStore(rank_0.request)):
        rank_0.server.trainer_store = store
        assert rank_0.call("PUT", f"{PREFIX}_gloo/0", b"x")[0] == 403


def test_all_trainers_at_one_batch_get_the_same_answer_and_a_request_is_granted_once(rank_0: Rank0) -> None:
    assert rank_0.ask(1, 2) == (False, 2)
    rank_0.request.write_text("a")
    steps = iter(range(2, 1000))
    last = [0]

    def granted() -> bool:
        last[0] = next(steps)
        return rank_0.ask(last[0])[0]

    until(granted, "the request to be seen")
    assert rank_0.ask(1, 7) == (False, 2), "the decision of a batch stays, with the first one's proposal"
    assert rank_0.ask(last[0]) == (True, 9)
    assert not rank_0.ask(1001)[0], "the same request, whose file still exists"
    rank_0.request.write_text("b")
    until(granted, "the next request to be seen")


def test_a_request_that_a_failed_attempt_did_not_save_is_granted_again(rank_0: Rank0) -> None:
    rank_0.request.write_text("a")
    steps = iter(range(1000))
    until(lambda: rank_0.ask(next(steps))[0], "the request to be seen")
    rank_0.store.open(PREFIX)
    assert rank_0.ask(1001)[0]


def test_a_checkpoint_before_a_pod_exits_is_granted_once(rank_0: Rank0) -> None:
    assert not rank_0.ask(1)[0]
    rank_0.store.request_checkpoint()
    assert not rank_0.ask(1)[0], "the decision of a batch stays"
    assert rank_0.ask(2)[0]
    assert not rank_0.ask(3)[0]
    rank_0.store.request_checkpoint()
    rank_0.store.open(PREFIX)
    assert not rank_0.ask(4)[0], "the request was made for the previous attempt"


def test_a_trainer_without_an_answer_exits_with_the_reason(
    rank_0: Rank0, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_0.store.open(build_store_prefix(CREDENTIAL, 4))
    monkeypatch.setattr(requested_checkpoints, "ASK_SECONDS", 0.0)
    with pytest.raises(DeadlineError, match=r"did not answer within 0 s .*: HTTP status 404\. Fix: "):
        rank_0.ask(1)


# -- senders without a secret


def head(request: str, length: int, credential: str = "wrong") -> bytes:
    """Return the head of a request."""
    return f"{request} HTTP/1.1\r\nAuthorization: Bearer {credential}\r\nContent-Length: {length}\r\n\r\n".encode()


def state(size: int = 0) -> bytes:
    """Return the body of POST /state of rank 1, which is longer than `size`."""
    value = make_state(1, "pod-a", "idle", fingerprint={"args": "x" * size}).to_json(time.monotonic())
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
    ("sent", "status"),
    [
        (head("POST /state", 1000), 401),
        (head("POST /elsewhere", 1000), 404),
        (head("PUT /trainers/0/wrong_gloo/0", 1000), 403),
        (head("POST /state", peer_server.STATE_MAX_BYTES + 1, "right"), 413),
        (head(f"PUT {PREFIX}_gloo/0", peer_server.VALUE_MAX_BYTES + 1), 413),
    ],
    ids=["rank", "elsewhere", "trainer", "long state", "long value"],
)
def test_a_request_is_rejected_before_its_body_arrives(rank_0: Rank0, sent: bytes, status: int) -> None:
    assert rank_0.send(sent) == status


def test_a_rank_with_an_old_credential_receives_the_reason_although_its_state_is_long(rank_0: Rank0) -> None:
    """Otherwise it would not read its run's secret again: a reset would look like a lost network."""
    body = state(300_000)
    for credential, status in (("of an earlier rank 0", 401), ("right", 200)):
        assert rank_0.send(head("POST /state", len(body), credential) + body) == status


@pytest.mark.parametrize(
    "begin", [b"", b"GET /healthz HTTP/1.1\r\nX-Slow: ", head("POST /state", 9000, "right")]
)
def test_a_request_that_arrives_byte_by_byte_is_ended(
    rank_0: Rank0, begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, but not the request."""
    monkeypatch.setattr(peer_server, "REQUEST_SECONDS", 1.0)
    with rank_0.connect() as connection:
        connection.sendall(begin)

        def send_byte() -> bool:
            with contextlib.suppress(OSError):
                connection.send(b"x")
            return is_closed(connection)

        until(send_byte, "the end of a connection that sends a byte every 0.05 s", every=0.05)


def test_idle_connections_keep_out_neither_the_kubelet_nor_a_rank(
    rank_0: Rank0, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "MAX_STRANGERS", 8)
    with contextlib.ExitStack() as opened:
        rank = opened.enter_context(rank_0.connect())
        rank.sendall(head("POST /state", len(state()), "right") + state())
        assert receive_status(rank) == 200
        idle = [opened.enter_context(rank_0.connect()) for _ in range(100)]
        until(lambda: sum(map(is_closed, idle)) >= 100 - 8, "the end of the oldest idle connections")
        kubelet = opened.enter_context(rank_0.connect())
        kubelet.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert receive_status(kubelet) == 200
        rank.sendall(head("POST /state", len(state()), "right") + state())
        assert receive_status(rank) == 200, "the connection of an authenticated rank stays open"


def test_a_head_above_the_limit_ends_the_connection(rank_0: Rank0, monkeypatch: pytest.MonkeyPatch) -> None:
    request = b"GET /healthz HTTP/1.1\r\nX-More: " + b"x" * 30_000 + b"\r\n\r\n"
    with rank_0.connect() as connection:
        connection.sendall(request)
        assert receive_status(connection) == 200
    monkeypatch.setattr(peer_server, "HEAD_MAX_BYTES", 5000)
    with rank_0.connect() as connection:
        connection.sendall(request)
        until(lambda: is_closed(connection), "the end of a connection without an answer")


def test_trainers_wait_after_a_checkpoint_while_the_launcher_is_about_to_stop_them(rank_0: Rank0) -> None:
    def is_held(store: str = PREFIX) -> bool:
        return requested_checkpoints.is_held(rank_0.url(prefix=store))

    requested_checkpoints.wait_while_held(rank_0.url())  # returns at once
    rank_0.store.hold(True)
    assert is_held()
    assert not is_held("/trainers/3/of-another-run")
    waiting = threading.Thread(target=requested_checkpoints.wait_while_held, args=(rank_0.url(),))
    waiting.start()
    waiting.join(1.0)
    assert waiting.is_alive(), "it waits"
    rank_0.store.hold(False)
    waiting.join(20)
    assert not waiting.is_alive()
    rank_0.store.hold(True)
    rank_0.store.open(build_store_prefix(CREDENTIAL, 4))
    assert not is_held(build_store_prefix(CREDENTIAL, 4)), "the next attempt trains"
