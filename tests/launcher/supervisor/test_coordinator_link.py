"""Tests of the link between a member and the coordinator, with a real HTTP server on loopback."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import StorageFailedError, TwinError
from launcher.io import run_record
from launcher.paths import OutputPaths
from launcher.runtimes import load_runtime
from launcher.schema import RunFile
from launcher.supervisor.coordinator.members import Membership
from launcher.supervisor.peers import coordinator_link
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.coordinator_link import CoordinatorLink, RunEndedError
from launcher.supervisor.peers.messages import MemberState
from launcher.supervisor.peers.peer_server import PeerServer
from launcher.supervisor.shared_storage.output_lease import hash_credential
from launcher.supervisor.timings import Timings
from testkit.waiting import until
from tests.launcher.supervisor.gang_members import LIMITS, make_plan, make_state
from tests.launcher.supervisor.loopback_gang import train_settings

PORT = 7168


class Rank0:
    """Rank 0: a membership and a real HTTP server, without a coordinator that decides."""

    def __init__(self, host: str) -> None:
        self.wakes = 0
        self.membership = Membership(3, LIMITS, self._wake, 0.05)
        network = PodNetwork()
        network.bind_host = host
        self.server = PeerServer(network, PORT, {"/healthz": lambda: (200, "text/plain", b"ok")})
        self.server.membership = self.membership

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def reported(self) -> MemberState:
        """The state of rank 1 that rank 0 has recorded."""
        return self.membership.members[1].state


class Rank1:
    """The link of rank 1 and what it reads. It finds rank 0 at `hosts` in turn, as if run.lock changed."""

    def __init__(self, job_path: Path, *hosts: str) -> None:
        self.hosts, self.credential, self.state = hosts, "right", make_state(1, "pod-a", "idle")
        self.stuck = False
        self.reads = 0
        settings = train_settings(job_path, JOB_COMPLETION_INDEX="1")
        self.link = CoordinatorLink(
            settings, load_runtime("fleet"), PodNetwork(), Timings(poll=0.02),
            read_state=lambda: None if self.stuck else self.state, wake=lambda: None,
        )  # fmt: skip
        self.link._locator.find = self.find  # type: ignore[method-assign]

    def find(self) -> coordinator_link.Rank0:
        self.reads += 1
        if self.credential == "unreadable":
            raise StorageFailedError("run.lock: Stale file handle")
        return coordinator_link.Rank0(self.hosts[(self.reads - 1) % len(self.hosts)], self.credential)


StartRank1 = Callable[..., Rank1]


@pytest.fixture
def start_rank_1(tmp_path: Path) -> Iterator[StartRank1]:
    """Return a function that starts the link of rank 1, which finds rank 0 at the given addresses in turn."""
    started: list[Rank1] = []

    def start(*hosts: str, credential: str = "right") -> Rank1:
        started.append(Rank1(tmp_path, *hosts))
        started[-1].credential = credential
        started[-1].link.start()
        return started[-1]

    yield start
    for rank_1 in started:
        rank_1.link.close(0.1)


@pytest.fixture
def rank_0(request: pytest.FixtureRequest) -> Iterator[Rank0]:
    name = hash(request.node.name)
    rank_0 = Rank0(f"127.77.{name % 250}.{name // 250 % 250 + 1}")
    yield rank_0
    rank_0.server.close()


@pytest.fixture
def rank_1(rank_0: Rank0, start_rank_1: StartRank1) -> Rank1:
    """Return rank 1 after it has received an order."""
    rank_0.membership.open("right")
    rank_1 = start_rank_1(rank_0.server.server_address[0])
    until(lambda: rank_1.link.order is not None)
    return rank_1


def test_a_rank_is_accepted_when_rank_0_holds_the_lease_and_the_rank_sees_its_secret(
    rank_0: Rank0, start_rank_1: StartRank1
) -> None:
    """NFS may show the earlier content of a file for up to a minute."""
    rank_1 = start_rank_1(rank_0.server.server_address[0], credential="of the earlier holder")
    until(lambda: "503" in rank_1.link.problem)
    rank_0.membership.open("right")
    until(lambda: "401" in rank_1.link.problem)
    assert rank_0.reported == MemberState(1), "nothing"
    rank_1.credential = "unreadable"
    until(lambda: "Stale file handle" in rank_1.link.problem)
    rank_1.credential = "right"
    until(lambda: rank_1.link.order is not None)
    assert rank_0.reported == rank_1.state


def test_a_new_order_reaches_a_waiting_rank_and_its_new_state_returns(rank_0: Rank0, rank_1: Rank1) -> None:
    rank_0.membership.hold = 5.0
    order = make_plan(4, "serve", ("10.0.0.1", "10.0.0.2"))
    rank_0.membership.publish(order)
    until(lambda: rank_1.link.order == order)
    rank_1.state = replace(rank_1.state, phase="serving", attempt=4)
    rank_0.membership.hold = 0.05
    rank_0.membership.publish(make_plan(4, "train", ("10.0.0.1", "10.0.0.2")))
    until(lambda: rank_0.reported == rank_1.state)
    assert rank_0.wakes >= 2, "a new phase wakes the coordinator"


def test_a_launcher_whose_main_thread_is_stuck_reports_nothing(rank_0: Rank0, rank_1: Rank1) -> None:
    rank_1.stuck = True
    time.sleep(0.3)
    last = rank_0.membership.members[1].heard
    time.sleep(0.3)
    assert rank_0.membership.members[1].heard == last
    rank_1.stuck = False
    until(lambda: rank_0.membership.members[1].heard > last)


def test_a_rank_finds_the_next_pod_of_rank_0(rank_0: Rank0, rank_1: Rank1) -> None:
    successor = Rank0("127.78.0.1")
    with contextlib.closing(successor.server):
        successor.membership.open("another token")
        successor.membership.publish(make_plan(1, "stop"))
        rank_1.hosts, rank_1.credential = ("127.78.0.1",), "another token"
        rank_0.membership.close()  # its process lives on, but it lost its lease
        until(lambda: rank_1.link.order == make_plan(1, "stop"))
        rank_1.link.close(0.1)


def test_urgent_states_do_not_wait_for_an_answer_that_is_held_back(rank_0: Rank0, rank_1: Rank1) -> None:
    """The phase `leaving` is reported before the link closes."""
    rank_0.membership.hold = 60.0
    time.sleep(0.1)  # the answer to its next request is held back now
    rank_1.state = replace(rank_1.state, phase="serving", attempt=4)
    rank_1.link.send_now()
    until(lambda: rank_0.reported == rank_1.state)
    rank_1.state = replace(rank_1.state, phase="leaving")
    rank_1.link.close(30)
    assert rank_0.reported == rank_1.state


def test_an_order_counts_from_the_sending_of_the_state_that_it_answers(
    rank_0: Rank0, start_rank_1: StartRank1
) -> None:
    """Rank 0 counts from the arrival of the state. A rank that counted from a late answer would run for too long."""
    rank_0.membership.open("right")
    real, arrivals, answer = rank_0.membership.handle_state, [], threading.Event()

    def handle_state(body: bytes) -> tuple[int, bytes]:
        arrivals.append(time.monotonic())
        answer.wait(20)
        answer.clear()
        return real(body)

    rank_0.membership.handle_state = handle_state  # type: ignore[method-assign]
    link = start_rank_1(rank_0.server.server_address[0]).link
    until(lambda: arrivals)
    time.sleep(0.2)  # the answer is late
    answer.set()
    until(lambda: link.order is not None)
    assert link.heard <= arrivals[0]
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
    link = Rank1(tmp_path).link
    link.credential = "known"
    known = {"run_id": "quick-start-0a1b2c3d", "cause": "it broke", "exit_code": 65}
    output = OutputPaths(tmp_path / "quick-start" / "output")
    output.root.mkdir(parents=True)
    run_record.write(output, RunFile(**known | record))
    late = link.heard + Timings().silence + 1
    if code is None:
        link.update(lambda: make_state(1, "a"), late)
        return
    with pytest.raises(RunEndedError, match="it broke") as ended:
        link.update(lambda: make_state(1, "a"), late)
    assert ended.value.exit_code == code


# -- another server at the address of rank 0

Serve = Callable[[str, int, bytes], list[str]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a server with one answer, and returns the list of its requests' credentials."""
    started: list[Rank0] = []

    def start(host: str, code: int, body: bytes) -> list[str]:
        asked: list[str] = []
        started.append(Rank0(host))
        membership: Any = started[-1].membership
        membership.reject, membership.handle_state = asked.append, lambda _: (code, body)
        return asked

    yield start
    for rank_0 in started:
        rank_0.server.close()


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
    serve: Serve, rank_0: Rank0, start_rank_1: StartRank1, code: int, body: bytes
) -> None:
    """The address of a lost pod may belong to another pod before run.lock has the address of the new one."""
    rank_0.membership.open("right")
    asked = serve("127.79.0.1", code, body)
    link = start_rank_1("127.79.0.1", rank_0.server.server_address[0]).link
    until(lambda: link.order == rank_0.membership.order)
    assert asked == ["right"]


def test_an_answer_that_is_no_order_is_reported_and_asked_for_again(
    serve: Serve, start_rank_1: StartRank1
) -> None:
    order = {**make_plan(0, "wait").to_json(), "addresses": "of another version"}
    asked = serve("127.79.1.1", 200, json.dumps({"version": 1, "order": order}).encode())
    link = start_rank_1("127.79.1.1").link
    until(lambda: len(asked) > 2)
    assert "addresses is 'of another version'" in link.problem
    assert "Fix: use one image for all pods of the run" in link.problem


@pytest.mark.parametrize(("replaced", "seconds"), [(False, 60.0), (True, 0.0)])
def test_a_pod_that_rank_0_rejects_waits_a_minute_unless_it_was_replaced(
    serve: Serve, start_rank_1: StartRank1, replaced: bool, seconds: float
) -> None:
    began, body = time.monotonic(), json.dumps({"error": "another pod is alive", "replaced": replaced})
    asked = serve(f"127.79.3.{1 + replaced}", 409, body.encode())
    link = start_rank_1(f"127.79.3.{1 + replaced}").link
    until(lambda: len(asked) > 2, "the first rejection counts")
    link.update(lambda: make_state(1, "a"), began + seconds - 1)
    with pytest.raises(TwinError):
        link.update(lambda: make_state(1, "a"), time.monotonic() + seconds)


def test_a_rejection_is_forgotten_while_rank_0_cannot_be_reached(
    serve: Serve, start_rank_1: StartRank1
) -> None:
    """Regression: a pod that was rejected once exited as if rank 0 had rejected it for a minute."""
    serve("127.79.2.1", 409, b'{"error": "another pod is alive", "replaced": false}')
    # Once it has found the second address it stays there: the state that this test waits for lasts.
    link = start_rank_1("127.79.2.1", *("127.79.2.2",) * 9999).link
    until(lambda: link.rejected_until is not None)
    assert link._connection is not None
    link._connection.sock.close()
    until(lambda: link.rejected_until is None and "127.79.2.2" in link.problem)
