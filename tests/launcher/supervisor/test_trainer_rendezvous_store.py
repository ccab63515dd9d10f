"""Tests of the trainers' store in rank 0's HTTP server."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import DeadlineError
from launcher.io import requested_checkpoints
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.peer_server import (
    VALUE_MAX_BYTES,
    PeerServer,
    TrainerStore,
    build_store_prefix,
)
from testkit.waiting import until

HOST = "127.0.0.1"
CREDENTIAL = "paddle/run/token"
PREFIX = build_store_prefix(CREDENTIAL, 3)


class Loopback(PodNetwork):
    bind_host = HOST


class Rank0:
    """Rank 0's HTTP server with a store, in attempt 3."""

    def __init__(self, request: Path) -> None:
        self.request = request
        self.server = PeerServer(Loopback(), 0, {"/healthz": lambda: (200, "text/plain", b"ok")})
        self.port = int(self.server.socket.getsockname()[1])
        self.store = self.server.trainer_store = TrainerStore(request)
        self.store.open(PREFIX)

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        connection.request(method, path, body)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def ask(self, step: int, proposed: int = 9) -> tuple[bool, int]:
        path = f"{PREFIX}_checkpoint/{step}"
        return requested_checkpoints.ask_checkpoint_decision(HOST, self.port, path, proposed)


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


def test_requests_are_rejected_before_the_first_attempt_and_on_other_ranks(tmp_path: Path) -> None:
    server = PeerServer(Loopback(), 0, {})
    for store in (None, TrainerStore(tmp_path / "request")):
        server.trainer_store = store
        connection = http.client.HTTPConnection(HOST, int(server.socket.getsockname()[1]), timeout=5)
        connection.request("PUT", f"{PREFIX}_gloo/0", b"x")
        assert connection.getresponse().status == 403
        connection.close()
    server.close()


def test_a_value_that_is_too_long_is_rejected(rank_0: Rank0) -> None:
    connection = http.client.HTTPConnection(HOST, rank_0.port, timeout=5)
    connection.putrequest("PUT", f"{PREFIX}_gloo/0")
    connection.putheader("Content-Length", str(VALUE_MAX_BYTES + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


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
