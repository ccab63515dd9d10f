"""The launchers' channel in one process: a real server, a real link, the token as the storage shows it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from launcher.errors import StorageFailedError
from launcher.gang.control import Hub, Link, Server
from launcher.gang.machine import Rules
from launcher.gang.messages import Order, State
from launcher.gang.network import Network
from launcher.timings import Timings
from tests.waiting import until

RULES = Rules(silence=5, life=9, rendezvous=60, serve=60, finish=60, restarts=3)
TIMINGS = Timings(poll=0.02)
PORT = 7168


class Loopback(Network):
    """Servers of this test listen on an address of their own."""

    def __init__(self, host: str) -> None:
        self.bind_host = host


class Rank0:
    """A hub behind a server, without anybody who decides."""

    def __init__(self, host: str, hold: float = 0.05) -> None:
        self.woken = 0
        self.hub = Hub(3, RULES, self._wake, hold)
        self.server = Server(Loopback(host), PORT, {"/healthz": lambda: (200, "text/plain", b"ok")})
        self.server.hub = self.hub

    def _wake(self) -> None:
        self.woken += 1


class Rank1:
    """A link with what it is asked for."""

    def __init__(self, host: str) -> None:
        self.host, self.token, self.state = host, "right", State(1, "pod-a", "idle")
        self.stuck = False
        self.reads = 0
        self.link = Link(
            Loopback(host),
            PORT,
            TIMINGS,
            locate=lambda: self.host,
            token=self._read,
            tell=lambda: None if self.stuck else self.state,
            wake=lambda: None,
        )

    def _read(self) -> str:
        self.reads += 1
        if self.token == "unreadable":
            raise StorageFailedError("run.lock: Stale file handle")
        return self.token


Pair = tuple[Rank0, Rank1]


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    host = f"127.77.{hash(request.node.name) % 250}.{hash(request.node.name) // 250 % 250 + 1}"
    rank_0, rank_1 = Rank0(host), Rank1(host)
    yield rank_0, rank_1
    rank_1.link.close(1)
    rank_0.server.close()


def heard(rank_0: Rank0) -> State | None:
    return rank_0.hub.members[1].state


def test_a_rank_that_sees_an_old_lock_is_let_in_when_it_sees_the_right_one(pair: Pair) -> None:
    """NFS shows a name as it was for up to a minute."""
    rank_0, rank_1 = pair
    rank_0.hub.open("right")
    rank_1.token = "of the holder before"
    rank_1.link.start()
    until(lambda: rank_1.reads > 3)
    assert "401" in rank_1.link.trouble
    assert heard(rank_0) is None
    rank_1.token = "unreadable"
    until(lambda: "Stale file handle" in rank_1.link.trouble)
    rank_1.token = "right"
    until(lambda: rank_1.link.order is not None)
    assert heard(rank_0) == rank_1.state


def test_nobody_is_let_in_before_rank_0_holds_the_output(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_1.link.start()
    until(lambda: "503" in rank_1.link.trouble)
    rank_0.hub.open("right")
    until(lambda: rank_1.link.order is not None)


def test_a_new_order_reaches_a_rank_that_waits_for_one_and_its_state_comes_back(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_0.hub.hold = 5.0
    rank_0.hub.open("right")
    rank_1.link.start()
    until(lambda: rank_1.link.order is not None)
    order = Order(4, "serve", ("10.0.0.1", "10.0.0.2"))
    rank_0.hub.publish(order)
    until(lambda: rank_1.link.order == order)
    rank_1.state = replace(rank_1.state, phase="serving", attempt=4)
    rank_0.hub.hold = 0.05
    rank_0.hub.publish(Order(4, "train", ("10.0.0.1", "10.0.0.2")))
    until(lambda: heard(rank_0) == rank_1.state)
    assert rank_0.woken >= 2, "a new phase wakes who decides"


def test_a_launcher_whose_main_thread_is_stuck_does_not_look_alive(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_0.hub.open("right")
    rank_1.link.start()
    until(lambda: heard(rank_0))
    rank_1.stuck = True
    time.sleep(0.3)
    last = rank_0.hub.members[1].heard
    time.sleep(0.3)
    assert rank_0.hub.members[1].heard == last
    rank_1.stuck = False
    until(lambda: rank_0.hub.members[1].heard > last)


def test_a_rank_finds_rank_0s_next_pod_by_itself(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_0.hub.open("right")
    rank_1.link.start()
    until(lambda: rank_1.link.order is not None)
    successor = Rank0("127.78.0.1")
    try:
        successor.hub.open("another token")
        successor.hub.publish(Order(1, "stop"))
        rank_1.host, rank_1.token = "127.78.0.1", "another token"
        rank_0.hub.shut()  # its process lives on, but it lost its lease
        until(lambda: rank_1.link.order == Order(1, "stop"))
    finally:
        rank_1.link.close(1)
        successor.server.close()


def test_leaving_is_told_before_the_link_ends(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_0.hub.open("right")
    rank_1.link.start()
    until(lambda: rank_1.link.order is not None)
    rank_1.state = replace(rank_1.state, phase="leaving")
    rank_1.link.close(5)
    state = heard(rank_0)
    assert state is not None
    assert state.phase == "leaving"


def test_the_second_pod_of_a_rank_is_told_that_the_first_one_counts(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_0.hub.open("right")
    rank_0.hub.take(State(1, "pod-b", "idle"), time.monotonic())
    rank_1.link.start()
    until(lambda: rank_1.link.refused is not None)
    assert rank_1.link.refused is not None
    assert not rank_1.link.refused[0], "not for good: the first may still fall silent"
    assert heard(rank_0) == State(1, "pod-b", "idle")
    rank_0.hub.take(State(1, "pod-b", "leaving"), time.monotonic())
    until(lambda: heard(rank_0) == rank_1.state)
    until(lambda: rank_1.link.refused is None)


def test_news_and_a_farewell_do_not_wait_for_an_answer_that_is_held(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_0.hub.hold = 60.0
    rank_0.hub.open("right")
    rank_1.link.start()
    until(lambda: rank_1.link.order is not None)
    time.sleep(0.1)  # its next question is held now
    rank_1.state = replace(rank_1.state, phase="serving", attempt=4)
    rank_1.link.news()
    until(lambda: heard(rank_0) == rank_1.state)
    rank_1.state = replace(rank_1.state, phase="leaving")
    rank_1.link.close(30)
    assert heard(rank_0) == rank_1.state
