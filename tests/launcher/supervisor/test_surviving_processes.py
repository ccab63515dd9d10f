"""Tests of what keeps processes of a lost rank from running next to those of the next attempt."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.io import run_record
from launcher.runtimes import load_runtime
from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.schema import RunFile
from launcher.supervisor.agent import ProcessWatchdog, StorageProbe
from launcher.supervisor.child_processes import ChildProcess
from launcher.supervisor.coordinator.coordinator import Coordinator
from launcher.supervisor.coordinator.member_states import GangLimits, Member, StateRejectedError
from launcher.supervisor.coordinator.membership import Membership
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.messages import MemberState, Order
from launcher.supervisor.shared_storage.output_folder import run_fingerprint
from launcher.supervisor.timings import Timings
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import train_settings

T = Timings()
LIMITS = GangLimits(
    silence=10, life=25, rendezvous=60, join=60, serve=60, finish=60, restarts=3, batch_size=10
)


@pytest.fixture
def rank_0(tmp_path: Path) -> Coordinator:
    """Return a new rank 0 of a run whose earlier rank 0 was lost while three ranks trained."""
    settings = train_settings(tmp_path)
    settings.layout.output.mkdir(parents=True)
    coordinator = Coordinator(
        settings,
        load_runtime("fleet"),
        PodNetwork(),
        T,
        address="127.0.0.1",
        pause=time.sleep,
        wake=lambda: None,
    )
    fingerprint = run_fingerprint(settings, "p")
    earlier = RunFile(
        run_id=settings.run_id,
        fingerprint=fingerprint,
        state="training",
        attempt=4,
        incarnations=["a", "b", "c"],
    )
    run_record.write(coordinator.output, earlier)
    coordinator.acquire_output(lambda error: None)
    coordinator.start_run(fingerprint)
    return coordinator


def report(rank: int, incarnation: str, phase: str = "idle", attempt: int = -1) -> MemberState:
    """Return the state that a pod of this rank reports."""
    return MemberState(rank, incarnation, phase, attempt)


def test_a_new_rank_0_waits_for_the_processes_of_the_ranks_in_the_run_record(rank_0: Coordinator) -> None:
    now = time.monotonic()
    assert rank_0.step(report(0, "new", attempt=4), now).do == "stop", "ranks 1 and 2 may still train"
    rank_0.membership.record_state(report(1, "b", attempt=4), now + 1)
    assert rank_0.step(report(0, "new", attempt=4), now + 1).do == "stop", "rank 2 may still train"
    order = rank_0.step(report(0, "new", attempt=4), now + T.life + 2)
    assert (order.do, order.attempt) == ("wait", 5), "rank 2 has stopped its processes without orders"
    rank_0.lock.release()


def test_a_pod_that_replaces_one_of_the_run_record_waits_until_that_ones_processes_are_dead(
    rank_0: Coordinator,
) -> None:
    now = time.monotonic()
    with pytest.raises(StateRejectedError):
        rank_0.membership.record_state(report(2, "d"), now + 1)
    rank_0.membership.record_state(report(2, "d"), now + T.silence + 1)
    member = rank_0.membership.members[2]
    assert member.replaced == {"c"}
    assert member.ghost_until > now + T.silence + 1
    rank_0.lock.release()


def test_a_rank_that_joined_before_the_run_record_was_read_counts_as_the_newer_pod() -> None:
    membership = Membership(2, LIMITS, lambda: None, 0.0)
    membership.record_state(report(1, "new"), 100.0)
    membership.restore([Member(1, report(1, "old", "training"), 101.0)])
    member = membership.members[1]
    assert member.state is not None
    assert (member.state.incarnation, member.replaced) == ("new", {"old"})
    assert member.ghost_until == 101.0 + LIMITS.life
    membership.restore([Member(1, report(1, "new", "training"), 102.0)])
    assert membership.members[1] == member, "it has reported itself already"


@pytest.mark.parametrize("is_helper", [False, True])
def test_the_watchdog_kills_processes_without_orders_although_the_main_thread_runs(
    tmp_path: Path, is_helper: bool
) -> None:
    """The main thread stops them after `orphan` seconds; the watchdog acts when that has not happened."""
    log = tmp_path / "log"
    argv = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
    child = ChildProcess(
        ProcessSpec("trainer", "trainer", argv, dict(os.environ), tmp_path, log),
        lambda: None,
        is_helper=is_helper,
    )
    watchdog = ProcessWatchdog(train_settings(tmp_path), T, StorageProbe(tmp_path))
    watchdog.link = cast(Any, SimpleNamespace(heard=1000.0))
    try:
        watchdog.record_turn()
        watchdog._check_limits(1000.0 + T.orphan + T.stop + 1.9)
        assert not child.done.wait(0.5)
        watchdog._check_limits(1000.0 + T.orphan + T.stop + 2.0)
        if is_helper:
            assert not child.done.wait(0.5), "a helper belongs to no attempt"
        else:
            until(child.done.is_set, "the end of the process")
    finally:
        child.signal(9)
        until(child.done.is_set)


def test_a_state_that_is_late_does_not_replace_a_newer_one_of_the_same_pod() -> None:
    membership = Membership(2, replace(LIMITS), lambda: None, 0.0)
    membership.record_state(report(1, "a", "training", 3), 10.0)
    membership.record_state(report(1, "a", "idle", 2), 11.0)
    member = membership.members[1]
    assert (member.phase, member.attempt, member.heard) == ("training", 3, 10.0)


def test_an_order_that_is_published_again_is_no_new_order() -> None:
    """Otherwise each turn of rank 0's loop would answer the held requests of all ranks."""
    membership = Membership(2, LIMITS, lambda: None, 0.0)
    order = Order(0, "wait")
    membership.publish(order)
    body = json.dumps({"state": report(1, "a").to_json(0.0), "seen": 0}).encode()
    first = membership.handle_state(body)
    membership.publish(Order(0, "wait"))
    assert membership.handle_state(body) == first
    membership.publish(Order(0, "serve"))
    assert membership.handle_state(body) != first
