"""Tests of what the coordinator knows about ranks: which states it admits, and what a new rank 0 assumes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import UnfitError
from launcher.io import run_record
from launcher.paths import Position
from launcher.runtimes import load_runtime
from launcher.schema import RunFile, TrainerProgress
from launcher.supervisor.coordinator import coordinator
from launcher.supervisor.coordinator.coordinator import Coordinator
from launcher.supervisor.coordinator.members import (
    Membership,
    StateRejectedError,
    admit_state,
    can_run_processes,
    describe_missing,
)
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.messages import Failure, MemberState, Phase, Plan
from launcher.supervisor.shared_storage.output_folder import run_fingerprint
from launcher.supervisor.timings import Timings
from tests.launcher.supervisor.fake_clock import FakeClock
from tests.launcher.supervisor.gang_members import LIMITS, NOW, absent, make_plan, make_state, member
from tests.launcher.supervisor.loopback_gang import build_coordinator, train_settings

T = Timings()

# Which of two pods of a rank is accepted.


def test_a_second_pod_replaces_one_that_was_lost_and_whose_processes_may_still_run() -> None:
    known, second = member(1, "training", 3), make_state(1, "new", "staging")
    with pytest.raises(StateRejectedError) as rejected:
        admit_state(known, second, NOW + 9, LIMITS)
    assert not rejected.value.replaced, "the first one reports"
    after = admit_state(known, second, NOW + 10, LIMITS)
    assert (after.state, after.heard, after.ghost_until) == (second, NOW + 10, NOW + 25)
    with pytest.raises(StateRejectedError) as rejected:
        admit_state(after, make_state(1, "i1"), NOW + 11, LIMITS)
    assert rejected.value.replaced, "for ever"
    third = admit_state(replace(after, heard=NOW + 3), make_state(1, "third"), NOW + 20, LIMITS)
    assert (third.replaced, third.ghost_until) == ({"i1", "new"}, NOW + 28)


def test_a_pod_that_left_is_replaced_at_once_and_runs_no_process() -> None:
    after = admit_state(member(1, "leaving", 3), make_state(1, "new", "staging"), NOW, LIMITS)
    assert (after.phase, after.ghost_until, after.replaced) == ("staging", 0.0, {"i1"})
    ghost = admit_state(member(1, "leaving", 3, ghost_until=NOW + 9), make_state(1, "new"), NOW, LIMITS)
    assert ghost.ghost_until == NOW + 9, "the pod before that one was lost"


@pytest.mark.parametrize(("phase", "attempt"), [("idle", 2), ("serving", 3)])
def test_a_state_that_arrives_after_a_later_one_is_ignored(phase: str, attempt: int) -> None:
    known = member(1, "training", 3)
    assert admit_state(known, make_state(1, "i1", phase, attempt), NOW + 1, LIMITS) is known
    for later in (("idle", 3), ("leaving", 3), ("serving", 4)):
        state = make_state(1, "i1", *later)
        assert admit_state(known, state, NOW + 1, LIMITS).state is state
    gone = member(1, "leaving", 3)
    assert admit_state(gone, make_state(1, "i1", "idle", 4), NOW, LIMITS) is gone


@pytest.mark.parametrize(
    ("change", "progressed", "saved"),
    [
        ({"batch": 2}, True, False),
        ({"number": 1}, True, False),
        ({"state": "waiting"}, True, False),
        ({"loss": 1.0}, False, False),
        ({"saved": Position(1)}, False, True),
    ],
)
def test_a_member_progresses_with_its_trainers_position_and_state_and_saves_with_its_checkpoint(
    change: dict[str, Any], progressed: bool, saved: bool
) -> None:
    before = member(1, "training", 3, progressed=1.0, saved=2.0, progress=TrainerProgress(0, 1))
    state = replace(before.state, progress=replace(before.state.progress, **change))
    after = admit_state(before, state, NOW + 1, LIMITS)
    assert (after.heard, after.progressed == NOW + 1, after.saved == NOW + 1) == (NOW + 1, progressed, saved)
    after = admit_state(before, replace(before.state, attempt=4), NOW + 1, LIMITS)
    assert (after.progressed, after.saved) == (NOW + 1, NOW + 1), "a new attempt"
    assert admit_state(absent(1), state, NOW, LIMITS).saved == NOW


@pytest.mark.parametrize("phase", list(Phase))
def test_a_rank_may_run_processes_until_it_reports_that_it_does_not_or_was_lost_for_long(
    phase: Phase,
) -> None:
    runs = phase in ("serving", "ready", "training", "done")
    assert can_run_processes(member(1, phase), NOW + 24, LIMITS.life) == runs
    assert not can_run_processes(member(1, phase), NOW + 25, LIMITS.life)
    assert can_run_processes(member(1, phase, ghost_until=NOW + 26), NOW + 25, LIMITS.life)


def test_a_message_about_many_missing_ranks_describes_the_first_ten() -> None:
    text = describe_missing([absent(rank) for rank in range(1000)], 0.0, LIMITS.join, LIMITS)
    assert "1000 of 1000 ranks did not join" in text
    assert "why 9; and 990 more ranks. Fix: " in text
    text = describe_missing([absent(rank) for rank in range(10)], 0.0, 300.0, LIMITS)
    assert "within 300 s (rendezvousSeconds): why 0; why 1" in text
    assert "why 9. The run waits for them for up to 1.0 h more (training.rankWaitHours). Fix: " in text


# The membership that server threads share.


def test_orders_are_answered_at_once_if_they_are_new_and_only_once_published() -> None:
    """Otherwise each turn of rank 0's loop would answer the held requests of all ranks."""
    membership = Membership(2, LIMITS, lambda: None, 0.0)
    membership.publish(make_plan(0, "wait"))
    body = json.dumps({"state": make_state(1, "a").to_json(0.0), "seen": 0}).encode()
    first = membership.handle_state(body)
    assert membership.all_have_newest_order(NOW, skip_absent=False)
    membership.publish(make_plan(0, "wait"))
    assert membership.handle_state(body) == first
    membership.publish(make_plan(0, "serve"))
    assert not membership.all_have_newest_order(membership.members[1].heard, skip_absent=True)
    assert membership.all_have_newest_order(membership.members[1].heard + 10, skip_absent=False), "it is lost"
    assert membership.handle_state(body) != first


@pytest.mark.parametrize(
    ("phase", "skip_absent", "informed"),
    [("absent", True, True), ("absent", False, False), ("leaving", False, True)],
)
def test_a_leaving_rank_and_perhaps_an_absent_one_need_no_order(
    phase: str, skip_absent: bool, informed: bool
) -> None:
    membership = Membership(2, LIMITS, lambda: None, 0.0)
    membership.members = (absent(0), member(1, phase))
    assert membership.all_have_newest_order(NOW, skip_absent=skip_absent) == informed


def test_a_change_of_phase_or_failure_wakes_the_agent_and_invalid_states_are_rejected() -> None:
    wakes: list[int] = []
    membership = Membership(2, LIMITS, lambda: wakes.append(1), 0.0)
    for phase in ("staging", "staging", "idle"):
        membership.record_state(make_state(1, "a", phase), NOW)
    assert len(wakes) == 2
    membership.record_state(make_state(1, "a", failure=Failure("it broke", 70, NOW)), NOW)
    assert len(wakes) == 3
    for rank in (-1, 2):
        with pytest.raises(ValueError, match="ranks are 0 to 1"):
            membership.record_state(make_state(rank, "a"), NOW)
    assert membership.handle_state(b'{"state": {"rank": 1, "phase": "dancing"}}')[0] == 400


# A new rank 0.


def test_a_rank_that_joined_before_the_run_record_was_read_counts_as_the_newer_pod() -> None:
    membership = Membership(3, LIMITS, lambda: None, 0.0)
    membership.record_state(make_state(1, "new"), 100.0)
    recorded = [member(1, "training", incarnation="old", heard=101.0), member(2, "training", incarnation="c")]
    membership.restore(recorded)
    after = membership.members
    assert (after[1].state.incarnation, after[1].replaced) == ("new", {"old"})
    assert after[1].ghost_until == 101.0 + LIMITS.life
    assert after[2] == recorded[1], "it has not reported yet"
    membership.restore([member(1, "training", incarnation="new", heard=102.0)])
    assert membership.members == after, "it has reported itself already"


def step(rank_0: Coordinator, own_state: MemberState, now: float) -> Plan:
    """Let rank 0 decide with this state of its own, and return the order that all ranks receive."""
    rank_0.update(lambda: own_state, now)
    return rank_0.order


@pytest.fixture
def rank_0(tmp_path: Path) -> Coordinator:
    """Return a new rank 0 of a run whose earlier rank 0 was lost while three ranks trained."""
    settings = train_settings(tmp_path)
    settings.layout.output.mkdir(parents=True)
    made = Coordinator(
        settings,
        load_runtime("fleet"),
        PodNetwork(),
        T,
        address="127.0.0.1",
        pause=time.sleep,
        wake=lambda: None,
    )
    fingerprint = run_fingerprint(settings, "p")
    known = {"run_id": settings.run_id, "fingerprint": fingerprint, "incarnations": ("a", "b", "c")}
    run_record.write(made.output, RunFile(**known, state="training", attempt=4))
    made.acquire_output(lambda: None)
    made.start_run(fingerprint)
    return made


def test_a_new_rank_0_waits_for_the_processes_of_the_ranks_in_the_run_record(rank_0: Coordinator) -> None:
    now, own = time.monotonic(), make_state(0, "new", attempt=4)
    assert step(rank_0, own, now).do == "stop", "ranks 1 and 2 may still train"
    rank_0.membership.record_state(make_state(1, "b", attempt=4), now + 1)
    assert step(rank_0, own, now + 1).do == "stop", "rank 2 may still train"
    with pytest.raises(StateRejectedError):
        rank_0.membership.record_state(make_state(2, "d"), now + 1)
    order = step(rank_0, own, now + T.life + 2)
    assert (order.do, order.attempt) == ("wait", 5), "rank 2 has stopped its processes without orders"
    rank_0.lock.release()


def test_run_json_has_the_pods_of_an_attempt_before_they_receive_its_order(
    rank_0: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new pod of rank 0 reads there whose processes may run."""
    recorded: list[Any] = []

    def publish(plan: Plan) -> None:
        found = run_record.read(rank_0.output)[0] or {}
        recorded.append((plan.do, found["attempt"], found["incarnations"]))

    monkeypatch.setattr(rank_0.membership, "publish", publish)
    now = time.monotonic()
    for rank, incarnation in enumerate(("new", "b", "c")):
        rank_0.membership.record_state(make_state(rank, incarnation, attempt=4), now)
    for _ in range(2):
        step(rank_0, make_state(0, "new", attempt=4), now)
    assert recorded == [("wait", 5, ["a", "b", "c"]), ("serve", 5, ["new", "b", "c"])]
    rank_0.lock.release()


def test_a_rank_0_whose_main_thread_was_stuck_accepts_states_again(rank_0: Coordinator) -> None:
    """Regression: it kept the lease, but rejected all states until the run failed at rendezvousSeconds."""
    rank_0.membership.close()  # as the watchdog does
    assert rank_0.membership.reject(rank_0.credential) is not None
    step(rank_0, make_state(0, "new", attempt=4), time.monotonic())
    assert rank_0.membership.reject(rank_0.credential) is None
    rank_0.lock.release()


def test_a_coordinator_whose_rank_has_another_living_pod_exits_and_says_why(rank_0: Coordinator) -> None:
    now = time.monotonic()
    step(rank_0, make_state(0, "new", attempt=4), now)
    with pytest.raises(UnfitError, match=r"rank 0 .*is alive; this is another pod of the same rank.*Fix: "):
        step(rank_0, make_state(0, "other"), now + 0.1)
    rank_0.lock.release()


def test_a_pod_that_replaces_one_of_the_run_record_waits_until_that_ones_processes_are_dead(
    rank_0: Coordinator,
) -> None:
    now = time.monotonic()
    rank_0.membership.record_state(make_state(2, "d"), now + T.silence + 1)
    found = rank_0.membership.members[2]
    assert found.replaced == {"c"}
    assert found.ghost_until > now + T.silence + 1
    rank_0.lock.release()


def test_the_main_thread_waits_only_once_for_a_dns_that_does_not_respond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: with six missing ranks it waited a minute, and the watchdog took it for stuck in the storage."""
    clock, asked = FakeClock(), []

    class SlowDns(PodNetwork):
        def resolve(self, name: str) -> list[str]:
            asked.append(name)
            clock.pause(10)
            return []

    monkeypatch.setattr(coordinator, "time", SimpleNamespace(**vars(time) | {"monotonic": clock}))
    clock.pause(100)
    made = Coordinator(
        train_settings(tmp_path), load_runtime("fleet"), SlowDns(), T,
        address="127.0.0.1", pause=clock.pause, wake=lambda: None,
    )  # fmt: skip
    texts = [made._describe_absence(rank) for rank in range(1, 10)]
    assert clock.now < 120
    assert len(asked) == 1
    assert "rank 1: quick-start-0a1b2c3d-1.paddle-training does not resolve" in texts[0]
    assert "rank 9: DNS responds too slowly to find out whether" in texts[-1]
    clock.pause(30)
    made._describe_absence(1)
    assert len(asked) == 2


@pytest.mark.parametrize(("least", "name"), [(None, "rank 0"), (1, "the coordinator")])
def test_an_absence_names_rank_0_only_where_no_other_rank_may_coordinate(
    tmp_path: Path, least: int | None, name: str
) -> None:
    class Dns(PodNetwork):
        def resolve(self, name: str) -> list[str]:
            return ["10.0.0.7"]

    made = build_coordinator(train_settings(tmp_path, min_trainers=least), network=Dns())
    called = f"resolves to 10.0.0.7, but its launcher has not called {name} on peerPort"
    assert called in made._describe_absence(1)
