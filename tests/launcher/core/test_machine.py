"""Who decides what, by value: rank 0's plan, and who is let in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.errors import DataError, LauncherError, ProcessError, StorageFailedError
from launcher.gang.lead import again
from launcher.gang.machine import Member, Plan, Refused, Restart, Rules, admit, decide
from launcher.gang.messages import PHASES, Failure, Order, State
from launcher.layout import Position

RULES = Rules(
    silence=10,
    life=25,
    rendezvous=300,
    serve=150,
    finish=60,
    restarts=2,
    why_absent=lambda rank: f"why {rank}",
)
NOW = 1000.0


def rank(
    number: int, phase: str = "idle", attempt: int = -1, failure: Failure | None = None, **more: Any
) -> Member:
    """A member that was heard just now."""
    state = State(
        number, f"i{number}", phase, attempt, failure, f"10.0.0.{number}", f"pod-{number}", "node-a"
    )
    more = {"heard": NOW} | more
    if "fingerprint" in more:
        state = replace(state, fingerprint=more.pop("fingerprint"))
    return Member(number, state, **more)


def gang(phase: str, attempt: int = 3) -> list[Member]:
    return [rank(0, phase, attempt), rank(1, phase, attempt)]


def plan(do: str, **more: Any) -> Plan:
    return Plan(3, do, NOW - 5, **({"crew": ("i0", "i1"), "addresses": ("10.0.0.0", "10.0.0.1")} | more))  # type: ignore[arg-type]


def failure(code: int = 70, at: float = NOW - 1, **more: Any) -> Failure:
    return Failure("it broke", code, at, 1, **more)


def step(before: Plan, members: list[Member], saved: Position | None = None, now: float = NOW) -> Plan:
    return decide(before, members, now, RULES, lambda: saved)


def stopped(**more: Any) -> Plan:
    return plan("stop", **({"cause": failure()} | more))


# The picture's arrows.


def test_all_are_here_so_all_serve_from_the_newest_save() -> None:
    after = step(Plan(3), gang("idle", 2), Position(2))
    assert (after.do, after.crew, after.resume) == ("serve", ("i0", "i1"), Position(2))
    assert after.order() == Order(3, "serve", ("10.0.0.0", "10.0.0.1"), Position(2))


@pytest.mark.parametrize(
    ("do", "reached", "then"),
    [("serve", "ready", "train"), ("train", "done", "finish"), ("finish", "ended", "end")],
)
def test_the_plan_goes_on_when_the_last_rank_is_as_far(do: str, reached: str, then: str) -> None:
    behind = [rank(0, reached, 3), rank(1, PHASES[PHASES.index(reached) - 1], 3)]
    assert step(plan(do), behind) == plan(do)
    after = step(plan(do), gang(reached))
    assert (after.do, after.cause) == (then, None)


def test_a_rank_of_an_earlier_attempt_is_not_as_far() -> None:
    assert step(plan("serve"), [rank(0, "ready", 3), rank(1, "ended", 2)]).do == "serve"


@pytest.mark.parametrize("do", ["serve", "train", "finish"])
def test_a_failure_stops_all_and_names_its_rank(do: str) -> None:
    after = step(plan(do), [rank(0, "training", 3), rank(1, "training", 3, failure())])
    assert after.do == "stop"
    assert after.order().cause == "rank 1 (pod pod-1 on node node-a): it broke"


def test_a_silent_rank_stops_all() -> None:
    after = step(plan("train"), [rank(0, "training", 3), rank(1, "training", 3, heard=NOW - 10)])
    assert after.cause is not None
    assert after.do == "stop"
    assert "no sign of life for 10 s" in after.cause.text


def test_a_replaced_pod_stops_all() -> None:
    after = step(replace(plan("train"), crew=("i0", "another")), gang("training"))
    assert after.cause is not None
    assert "its pod was lost" in after.cause.text


def test_a_rank_that_ended_its_children_without_being_told_stops_all() -> None:
    after = step(plan("train"), [rank(0, "training", 3), rank(1, "idle", 3)])
    assert after.cause is not None
    assert "no order reached it in time" in after.cause.text


@pytest.mark.parametrize(("do", "limit", "phase"), [("serve", 150, "serving"), ("finish", 60, "done")])
def test_a_step_that_takes_too_long_stops_all(do: str, limit: int, phase: str) -> None:
    late = replace(plan(do), since=NOW - limit)
    after = step(late, gang(phase))
    assert after.cause is not None
    assert f"is still {phase} {limit} s after it was told to {do}" in after.cause.text
    assert step(replace(late, since=NOW - limit + 1), gang(phase)).do == do


def test_the_next_attempt_waits_until_nobody_runs_a_child() -> None:
    assert step(stopped(), [rank(0, "idle", 3), rank(1, "training", 3)]).do == "stop"
    after = step(stopped(), gang("idle"))
    assert (after.do, after.attempt, after.fruitless) == ("wait", 4, 1)
    assert after.restarts == (Restart(3, "it broke", NOW, None),)


def test_a_rank_that_does_not_know_of_the_stop_may_just_start() -> None:
    assert step(stopped(), [rank(0, "idle", 3), rank(1, "idle", 2)]).do == "stop"


def test_a_silent_ranks_children_are_waited_for_as_long_as_they_may_live() -> None:
    silent = [rank(0, "idle", 3), rank(1, "training", 3, heard=NOW - 24)]
    assert step(stopped(), silent).do == "stop"
    assert step(stopped(), silent, now=NOW + 1).do == "wait"


def test_children_that_cannot_be_ended_end_the_run() -> None:
    after = step(replace(stopped(), since=NOW - 60), [rank(0, "idle", 3), rank(1, "training", 3)])
    assert after.cause is not None
    assert (after.do, after.cause.code) == ("end", 70)
    assert "rank 1 (pod pod-1 on node node-a) cannot end its processes" in after.cause.text


def test_an_end_stays_the_end() -> None:
    end = plan("end")
    assert step(end, [rank(0, "training", 3, failure()), rank(1)]) is end


# Causes and the budget.


def test_the_first_failure_by_time_is_the_cause_though_it_is_told_later() -> None:
    first = step(plan("train"), [rank(0, "training", 3), rank(1, "training", 3, failure(at=NOW - 1))])
    members = [
        rank(0, "training", 3, Failure("earlier", 70, NOW - 2, 0)),
        rank(1, "training", 3, failure(at=NOW - 1)),
    ]
    after = step(first, members)
    assert after.cause is not None
    assert after.cause.text.endswith("earlier")


def test_restarts_without_a_new_save_are_bounded() -> None:
    used = stopped(resume=Position(2), fruitless=2)
    after = step(used, gang("idle"), Position(2))
    assert after.cause is not None
    assert (after.do, after.cause.code) == ("end", 70)
    assert "training.restarts is 2, and it failed 3 times since the last new save" in after.cause.text


def test_a_new_save_begins_the_budget_anew_for_a_successor_too() -> None:
    after = step(stopped(resume=Position(2), fruitless=2), gang("idle"), Position(2, 10))
    assert (after.do, after.fruitless, after.resume) == ("wait", 1, Position(2, 10))


def test_a_rank_that_was_told_to_stop_is_not_counted() -> None:
    after = step(stopped(cause=failure(143), fruitless=2), gang("idle"))
    assert (after.do, after.fruitless) == ("wait", 2)


@pytest.mark.parametrize("code", [64, 65, 75])
def test_what_a_restart_cannot_mend_ends_the_run(code: int) -> None:
    after = step(stopped(cause=failure(code)), gang("idle"))
    assert (after.do, after.order().code) == ("end", code)


def test_the_same_failure_twice_at_one_place_ends_the_run() -> None:
    own = failure(process="trainer", returncode=1, place=(1, 40))
    before = stopped(cause=own, restarts=(Restart(2, "it broke", NOW - 50, own.signature),))
    after = step(before, gang("idle"), Position(1))
    assert after.do == "end"
    assert "the second time in a row at pass 2, batch 40" in str(after.order().cause)
    elsewhere = replace(before, cause=replace(own, place=(1, 41)))
    assert step(elsewhere, gang("idle"), Position(1)).do == "wait"


@pytest.mark.parametrize("returncode", [-9, 139, None])
def test_a_signal_is_no_fault_of_the_program(returncode: int | None) -> None:
    assert failure(returncode=returncode, process="trainer", place=(1, 2)).signature is None


def test_a_childs_final_exit_code_is_the_failures_own() -> None:
    assert Failure.of(ProcessError("x", 65, "trainer"), NOW, 1).code == 65
    assert Failure.of(ProcessError("x", 1, "trainer"), NOW, 1).code == 70


def raises(error: LauncherError) -> Any:
    def saved() -> Position | None:
        raise error

    return saved


def test_saves_that_cannot_be_gone_on_from_end_the_run() -> None:
    after = decide(Plan(3), gang("idle", 2), NOW, RULES, raises(DataError("no save is whole")))
    assert (after.do, after.order().code, after.order().cause) == ("end", 65, "no save is whole")


def test_storage_that_fails_is_rank_0s_own_trouble_and_ends_no_run() -> None:
    with pytest.raises(StorageFailedError):
        decide(Plan(3), gang("idle", 2), NOW, RULES, raises(StorageFailedError("EIO")))


# Meeting.


def test_the_rendezvous_names_who_is_missing_and_why() -> None:
    late = Plan(3, since=NOW - 300, cause=failure())
    after = step(late, [rank(0), Member(1)])
    assert "1 of 2 ranks did not come within 300 s (rendezvousSeconds): why 1." in str(after.order().cause)
    assert "It waited for attempt 3, after: it broke" in str(after.order().cause)
    assert step(replace(late, since=NOW - 299), [rank(0), Member(1)]).do == "wait"


@pytest.mark.parametrize("other", [rank(1, "staging"), rank(1, ghost=NOW + 1), rank(1, heard=NOW - 10)])
def test_nobody_starts_before_all_are_ready_and_no_ghost_is_left(other: Member) -> None:
    assert step(Plan(3, since=NOW - 5), [rank(0), other]).do == "wait"


def test_fingerprints_that_differ_end_the_run_and_name_the_keys() -> None:
    ours, theirs = {"mode": "sync", "portsNum": 2}, {"mode": "async", "portsNum": 2}
    after = step(Plan(3), [rank(0, fingerprint=ours), rank(1, fingerprint=theirs)])
    assert "'mode' 'sync'" not in str(after.order().cause)
    assert "mode 'sync' against 'async'" in str(after.order().cause)
    assert "portsNum" not in str(after.order().cause)


def test_a_rank_that_could_not_stage_ends_the_run_with_its_code() -> None:
    after = step(Plan(3), [rank(0), rank(1, "leaving", -1, failure(65))])
    assert (after.do, after.order().code) == ("end", 65)


# Who is let in.


def test_a_second_pod_is_held_while_the_first_one_is_heard() -> None:
    with pytest.raises(Refused) as refused:
        admit(rank(1, "training", 3), State(1, "new"), NOW + 9, RULES)
    assert not refused.value.twin


def test_a_second_pod_takes_a_silent_ones_place_and_leaves_a_ghost() -> None:
    after = admit(rank(1, "training", 3), State(1, "new"), NOW + 10, RULES)
    assert (after.state, after.ghost) == (State(1, "new"), NOW + 25)
    with pytest.raises(Refused) as refused:
        admit(after, State(1, "i1"), NOW + 11, RULES)
    assert refused.value.twin


def test_a_pod_that_left_is_replaced_at_once_and_leaves_no_ghost() -> None:
    after = admit(rank(1, "leaving", 3), State(1, "new"), NOW, RULES)
    assert (after.phase, after.ghost) == ("staging", 0.0)


@pytest.mark.parametrize(("phase", "attempt"), [("idle", 2), ("serving", 3)])
def test_a_state_that_comes_after_a_later_one_is_not_taken(phase: str, attempt: int) -> None:
    known = rank(1, "training", 3)
    assert admit(known, State(1, "i1", phase, attempt), NOW + 1, RULES) is known
    assert admit(known, State(1, "i1", "idle", 3), NOW + 1, RULES).phase == "idle"


# A successor of rank 0.


def test_a_successor_counts_the_loss_and_takes_the_others_children_for_alive() -> None:
    told = {
        "state": "training",
        "crew": ["i0", "i1"],
        "resume": [2, 10],
        "fruitless": 1,
        "restarts": [{"attempt": 1, "cause": "x", "at": 5000.0, "signature": [1, "trainer", 1]}],
    }
    first, members = again(told, 4, 2, NOW, 3000.0)
    assert (first.do, first.attempt, first.resume, first.fruitless) == ("stop", 3, Position(2, 10), 1)
    assert first.restarts == (Restart(1, "x", 2000.0, (1, "trainer", 1)),)
    assert step(first, [rank(0, "idle", 3), members[1]]).do == "stop"
    assert step(first, gang("idle")).fruitless == 2
    assert admit(members[1], State(1, "i1", "idle", 2), NOW, RULES).phase == "idle"


@pytest.mark.parametrize(
    "told", [{}, {"state": "stopped", "crew": ["i0", "i1"]}, {"state": "training", "crew": []}]
)
def test_a_successor_of_nobody_just_waits(told: dict[str, Any]) -> None:
    first, members = again(told, 4, 2, NOW, 0.0)
    assert (first.do, first.attempt, members) == ("wait", 4, ())


@pytest.mark.parametrize(
    ("state", "seconds", "fails"), [("waiting", 181, True), ("waiting", 179, False), ("training", 999, False)]
)
def test_trainers_that_all_wait_for_each_other_are_a_failure(state: str, seconds: int, fails: bool) -> None:
    """A half-open connection: each has sent, and none has received."""

    def at(number: int, said: str, moved: float) -> Member:
        member = rank(number, "training", 3)
        assert member.state is not None
        return replace(member, moved=moved, state=replace(member.state, progress={"state": said}))

    after = step(plan("train"), [at(0, "waiting", NOW - 300), at(1, state, NOW - seconds)])
    assert after.do == ("stop" if fails else "train")
    assert not fails or "all trainers have waited for each other for 180 s" in str(after.cause)


def test_a_member_moves_with_its_trainers_place() -> None:
    before = rank(1, "training", 3)
    assert before.state is not None
    there = admit(before, replace(before.state, progress={"state": "waiting", "batch": 3}), NOW + 1, RULES)
    assert there.state is not None
    same = admit(
        there, replace(there.state, progress={"state": "waiting", "batch": 3, "loss": 1.0}), NOW + 2, RULES
    )
    assert (there.moved, same.moved, same.heard) == (NOW + 1, NOW + 1, NOW + 2)
