"""Tests of the link between a member and the coordinator, with a real HTTP server on loopback."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from launcher.errors import StorageFailedError, TwinError
from launcher.io import run_record
from launcher.paths import OutputPaths
from launcher.runtimes import load_runtime
from launcher.schema import RunFile
from launcher.supervisor.coordinator.members import GangLimits, Membership
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.coordinator_link import CoordinatorLink, Rejection, RemoteOrders, RunEndedError
from launcher.supervisor.peers.coordinator_link import Rank0 as Rank0Place
from launcher.supervisor.peers.messages import MemberState
from launcher.supervisor.peers.peer_server import PeerServer
from launcher.supervisor.shared_storage.output_lease import hash_credential
from launcher.supervisor.timings import Timings
from testkit.waiting import until
from tests.launcher.supervisor.gang_members import make_plan, make_state
from tests.launcher.supervisor.loopback_gang import train_settings

LIMITS = GangLimits(silence=5, life=9, rendezvous=60, join=60, serve=60, finish=60, restarts=3)
TIMINGS = Timings(poll=0.02)
PORT = 7168


class OneAddress(PodNetwork):
    """Listens on one address of loopback."""

    def __init__(self, host: str) -> None:
        self.bind_host = host


class Rank0:
    """Rank 0: a membership and a real HTTP server, without a coordinator that decides."""

    def __init__(self, host: str, hold: float = 0.05) -> None:
        self.wakes = 0
        self.membership = Membership(3, LIMITS, self._wake, hold)
        self.server = PeerServer(OneAddress(host), PORT, {"/healthz": lambda: (200, "text/plain", b"ok")})
        self.server.membership = self.membership

    def _wake(self) -> None:
        self.wakes += 1


class Rank1:
    """A link, and the locator and state that it reads. It finds rank 0 at `hosts` in turn, as if run.lock changed."""

    def __init__(self, *hosts: str) -> None:
        self.hosts, self.credential, self.state = hosts, "right", make_state(1, "pod-a", "idle")
        self.stuck = False
        self.reads = 0
        self.link = CoordinatorLink(
            PodNetwork(),
            PORT,
            TIMINGS,
            cast(Any, self),
            read_state=lambda: None if self.stuck else self.state,
            wake=lambda: None,
        )

    def close(self) -> None:
        """Do nothing: nothing is watched."""

    def find(self) -> Rank0Place:
        self.reads += 1
        if self.credential == "unreadable":
            raise StorageFailedError("run.lock: Stale file handle")
        return Rank0Place(self.hosts[(self.reads - 1) % len(self.hosts)], self.credential)


Pair = tuple[Rank0, Rank1]


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    host = f"127.77.{hash(request.node.name) % 250}.{hash(request.node.name) // 250 % 250 + 1}"
    rank_0, rank_1 = Rank0(host), Rank1(host)
    yield rank_0, rank_1
    rank_1.link.close(0.1)
    rank_0.server.close()


def reported(rank_0: Rank0) -> MemberState:
    """Return the state of rank 1 that rank 0 has recorded."""
    return rank_0.membership.members[1].state


def test_a_rank_that_sees_an_old_lease_is_accepted_when_it_sees_the_right_one(pair: Pair) -> None:
    """NFS may show the earlier content of a file for up to a minute."""
    rank_0, rank_1 = pair
    rank_0.membership.open("right")
    rank_1.credential = "of the earlier holder"
    rank_1.link.start()
    until(lambda: rank_1.reads > 3)
    assert "401" in rank_1.link.problem
    assert reported(rank_0) == MemberState(1), "nothing"
    rank_1.credential = "unreadable"
    until(lambda: "Stale file handle" in rank_1.link.problem)
    rank_1.credential = "right"
    until(lambda: rank_1.link.order is not None)
    assert reported(rank_0) == rank_1.state


def test_no_rank_is_accepted_before_rank_0_holds_the_lease(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_1.link.start()
    until(lambda: "503" in rank_1.link.problem)
    rank_0.membership.open("right")
    until(lambda: rank_1.link.order is not None)


def test_a_new_order_reaches_a_waiting_rank_and_its_new_state_returns(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_0.membership.hold = 5.0
    rank_0.membership.open("right")
    rank_1.link.start()
    until(lambda: rank_1.link.order is not None)
    order = make_plan(4, "serve", ("10.0.0.1", "10.0.0.2"))
    rank_0.membership.publish(order)
    until(lambda: rank_1.link.order == order)
    rank_1.state = replace(rank_1.state, phase="serving", attempt=4)
    rank_0.membership.hold = 0.05
    rank_0.membership.publish(make_plan(4, "train", ("10.0.0.1", "10.0.0.2")))
    until(lambda: reported(rank_0) == rank_1.state)
    assert rank_0.wakes >= 2, "a new phase wakes the coordinator"


def test_a_launcher_whose_main_thread_is_stuck_reports_nothing(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_0.membership.open("right")
    rank_1.link.start()
    until(lambda: reported(rank_0) == rank_1.state)
    rank_1.stuck = True
    time.sleep(0.3)
    last = rank_0.membership.members[1].heard
    time.sleep(0.3)
    assert rank_0.membership.members[1].heard == last
    rank_1.stuck = False
    until(lambda: rank_0.membership.members[1].heard > last)


def test_a_rank_finds_the_next_pod_of_rank_0(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_0.membership.open("right")
    rank_1.link.start()
    until(lambda: rank_1.link.order is not None)
    successor = Rank0("127.78.0.1")
    try:
        successor.membership.open("another token")
        successor.membership.publish(make_plan(1, "stop"))
        rank_1.hosts, rank_1.credential = ("127.78.0.1",), "another token"
        rank_0.membership.close()  # its process lives on, but it lost its lease
        until(lambda: rank_1.link.order == make_plan(1, "stop"))
    finally:
        rank_1.link.close(0.1)
        successor.server.close()


def test_the_phase_leaving_is_reported_before_the_link_closes(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_0.membership.open("right")
    rank_1.link.start()
    until(lambda: rank_1.link.order is not None)
    rank_1.state = replace(rank_1.state, phase="leaving")
    rank_1.link.close(5)
    assert reported(rank_0).phase == "leaving"


def test_urgent_states_do_not_wait_for_an_answer_that_is_held_back(pair: Pair) -> None:
    rank_0, rank_1 = pair
    rank_0.membership.hold = 60.0
    rank_0.membership.open("right")
    rank_1.link.start()
    until(lambda: rank_1.link.order is not None)
    time.sleep(0.1)  # the answer to its next request is held back now
    rank_1.state = replace(rank_1.state, phase="serving", attempt=4)
    rank_1.link.send_now()
    until(lambda: reported(rank_0) == rank_1.state)
    rank_1.state = replace(rank_1.state, phase="leaving")
    rank_1.link.close(30)
    assert reported(rank_0) == rank_1.state


def test_an_order_counts_from_the_sending_of_the_state_that_it_answers(pair: Pair) -> None:
    """Rank 0 counts from the arrival of the state. A rank that counted from a late answer would run for too long."""
    rank_0, rank_1 = pair
    rank_0.membership.open("right")
    real, arrivals, answer = rank_0.membership.handle_state, [], threading.Event()

    def handle_state(body: bytes) -> tuple[int, bytes]:
        arrivals.append(time.monotonic())
        answer.wait(20)
        answer.clear()
        return real(body)

    rank_0.membership.handle_state = handle_state  # type: ignore[method-assign]
    rank_1.link.start()
    until(lambda: arrivals)
    time.sleep(0.2)  # the answer is late
    answer.set()
    until(lambda: rank_1.link.order is not None)
    assert rank_1.link.heard <= arrivals[0]
    answer.set()


# -- what a rank does while rank 0 does not answer


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({"state": "failed", "holder": hash_credential("known")}, 65),
        ({"state": "failed", "holder": hash_credential("of an earlier start")}, None),
        ({"state": "failed", "holder": hash_credential("known"), "run_id": "another run"}, None),
        ({"state": "complete", "holder": hash_credential("known")}, None),  # without its model
        ({"state": "training", "holder": hash_credential("known")}, None),
    ],
)
def test_a_rank_that_missed_the_last_order_reads_in_run_json_that_this_start_failed(
    tmp_path: Path, record: dict[str, Any], code: int | None
) -> None:
    orders = build_orders(tmp_path)
    orders.credential = "known"
    known = {"run_id": "quick-start-0a1b2c3d", "cause": "it broke", "exit_code": 65}
    run_record.write(OutputPaths(tmp_path / "quick-start" / "output"), RunFile(**known | record))
    late = orders.heard + Timings().silence + 1
    if code is None:
        orders.update(lambda: make_state(1, "a"), late)
        return
    with pytest.raises(RunEndedError, match="it broke") as ended:
        orders.update(lambda: make_state(1, "a"), late)
    assert ended.value.exit_code == code


def test_a_pod_that_rank_0_rejects_waits_a_minute_unless_it_was_replaced(tmp_path: Path) -> None:
    orders = build_orders(tmp_path)
    for rejection, seconds, ends in (
        (Rejection(replaced=False, since=0.0), 59.0, False),
        (Rejection(replaced=False, since=0.0), 60.0, True),
        (Rejection(replaced=True, since=0.0), 0.0, True),
    ):
        orders.rejection = rejection
        with pytest.raises(TwinError) if ends else contextlib.nullcontext():
            orders.update(lambda: make_state(1, "a"), seconds)


def build_orders(job_path: Path) -> RemoteOrders:
    """Return the source of orders of rank 1, which sends nothing."""
    settings = train_settings(job_path, JOB_COMPLETION_INDEX="1")
    settings.layout.output.mkdir(parents=True)
    return RemoteOrders(
        settings,
        load_runtime("fleet"),
        PodNetwork(),
        Timings(),
        read_state=lambda: None,
        wake=lambda: None,
    )


# -- another server at the address of rank 0

ORDER = json.dumps({"version": 1, "order": make_plan(0, "wait").to_json()}).encode()
Serve = Callable[[str, int, bytes], list[str]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a server with one answer, and returns the list of its requests' credentials."""
    servers = []

    def start(host: str, code: int, body: bytes) -> list[str]:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                asked.append(self.headers["Authorization"])
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer((host, PORT), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def start_link() -> Iterator[Callable[..., CoordinatorLink]]:
    """Return a function that starts a link, which finds rank 0 at the given addresses in turn."""
    links = []

    def start(*addresses: str) -> CoordinatorLink:
        link = Rank1(*addresses).link
        links.append(link)
        link.start()
        return link

    yield start
    for link in links:
        link.close(0.1)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (401, b'{"error": "rank 0 of another run"}'),
        (404, b'{"error": "a rank other than 0"}'),
        (405, b'"not our server"'),
        (200, b"{}"),
    ],
)
def test_a_member_that_reached_another_server_tries_the_next_address(
    serve: Serve, start_link: Callable[..., CoordinatorLink], code: int, body: bytes
) -> None:
    """The address of a lost pod may belong to another pod before run.lock has the address of the new one."""
    other, right = f"127.79.0.{code % 250}", f"127.80.0.{code % 250}"
    asked = serve(other, code, body)
    serve(right, 200, ORDER)
    link = start_link(other, right)
    until(lambda: link.order == make_plan(0, "wait"))
    assert asked == ["Bearer right"]


def test_an_answer_that_is_no_order_is_reported_and_asked_for_again(
    serve: Serve, start_link: Callable[..., CoordinatorLink]
) -> None:
    order = {**make_plan(0, "wait").to_json(), "addresses": "of another version"}
    asked = serve("127.79.1.1", 200, json.dumps({"version": 1, "order": order}).encode())
    link = start_link("127.79.1.1")
    until(lambda: len(asked) > 2)
    assert "addresses is 'of another version'" in link.problem
    assert "Fix: use one image for all pods of the run" in link.problem


def test_a_rejection_is_forgotten_while_rank_0_cannot_be_reached(
    serve: Serve, start_link: Callable[..., CoordinatorLink]
) -> None:
    """Regression: a pod that was rejected once exited as if rank 0 had rejected it for a minute."""
    serve("127.79.2.1", 409, b'{"error": "another pod is alive", "replaced": false}')
    link = start_link("127.79.2.1", "127.79.2.2")
    until(lambda: link.rejection is not None)
    assert link._connection is not None
    link._connection._http.sock.close()
    until(lambda: link.rejection is None and "127.79.2.2" in link.problem)
