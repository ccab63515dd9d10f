"""Tests of the coordinator's decisions: the next plan, and which of two pods of a rank is accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.errors import DataError, LauncherError, ProcessError, StorageFailedError
from launcher.paths import Position
from launcher.schema import RestartRecord, RunFile, from_json
from launcher.supervisor.coordinator.decisions import AttemptPlan, decide_next_plan, plan_first_attempt
from launcher.supervisor.coordinator.member_states import GangLimits, Member, StateRejectedError, admit_state
from launcher.supervisor.peers.messages import PHASES, Failure, MemberState, Order

LIMITS = GangLimits(
    silence=10,
    life=25,
    rendezvous=300,
    join=3900,
    serve=150,
    finish=60,
    restarts=2,
    batch_size=10,
    describe_absence=lambda rank: f"why {rank}",
)
NOW = 1000.0


def rank(
    number: int, phase: str = "idle", attempt: int = -1, failure: Failure | None = None, **more: Any
) -> Member:
    """Return a member whose state was received just now."""
    state = MemberState(
        number, f"i{number}", phase, attempt, failure, f"10.0.0.{number}", f"pod-{number}", "node-a"
    )
    more = {"heard": NOW} | more
    if "fingerprint" in more:
        state = replace(state, fingerprint=more.pop("fingerprint"))
    return Member(number, state, **more)


def gang(phase: str, attempt: int = 3) -> list[Member]:
    return [rank(0, phase, attempt), rank(1, phase, attempt)]


def plan(do: str, **more: Any) -> AttemptPlan:
    return AttemptPlan(
        3, do, NOW - 5, **({"incarnations": ("i0", "i1"), "addresses": ("10.0.0.0", "10.0.0.1")} | more)
    )  # type: ignore[arg-type]


def failure(code: int = 70, at: float = NOW - 1, **more: Any) -> Failure:
    return Failure("it broke", code, at, 1, **more)


def step(
    before: AttemptPlan, members: list[Member], checkpoint: Position | None = None, now: float = NOW
) -> AttemptPlan:
    return decide_next_plan(before, members, now, replace(LIMITS, find_checkpoint=lambda: checkpoint))


def stopped(**more: Any) -> AttemptPlan:
    return plan("stop", **({"cause": failure()} | more))


# The arrows of the diagram in decisions.py.


def test_wait_becomes_serve_from_the_newest_checkpoint_once_all_ranks_joined() -> None:
    after = step(AttemptPlan(3), gang("idle", 2), Position(2))
    assert (after.do, after.incarnations, after.resume) == ("serve", ("i0", "i1"), Position(2))
    assert after.order() == Order(3, "serve", ("10.0.0.0", "10.0.0.1"), Position(2))


@pytest.mark.parametrize(
    ("do", "reached", "then"),
    [("serve", "ready", "train"), ("train", "done", "finish"), ("finish", "ended", "end")],
)
def test_the_next_action_follows_when_the_last_rank_reaches_the_phase(
    do: str, reached: str, then: str
) -> None:
    late = [rank(0, reached, 3), rank(1, PHASES[PHASES.index(reached) - 1], 3)]
    assert step(plan(do), late) == plan(do)
    after = step(plan(do), gang(reached))
    assert (after.do, after.cause) == (then, None)


def test_a_phase_of_an_earlier_attempt_does_not_count() -> None:
    assert step(plan("serve"), [rank(0, "ready", 3), rank(1, "ended", 2)]).do == "serve"


@pytest.mark.parametrize("do", ["serve", "train", "finish"])
def test_a_failure_stops_all_ranks_and_the_cause_contains_its_rank(do: str) -> None:
    after = step(plan(do), [rank(0, "training", 3), rank(1, "training", 3, failure())])
    assert after.do == "stop"
    assert after.order().cause == "rank 1 (pod pod-1 on node node-a): it broke"


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (rank(1, "training", 3, heard=NOW - 10), "it has not reported for 10 s"),
        (Member(1, MemberState(1, "another pod", "training", 3), heard=NOW), "its pod was lost"),
        (rank(1, "idle", 3), "no order reached it in time"),
    ],
)
def test_a_lost_replaced_or_idle_rank_stops_all_ranks(other: Member, text: str) -> None:
    after = step(plan("train"), [rank(0, "training", 3), other])
    assert after.do == "stop"
    assert text in str(after.cause)


@pytest.mark.parametrize(("do", "limit", "phase"), [("serve", 150, "serving"), ("finish", 60, "done")])
def test_an_action_that_takes_too_long_stops_all_ranks(do: str, limit: int, phase: str) -> None:
    late = replace(plan(do), since=NOW - limit)
    after = step(late, gang(phase))
    assert after.cause is not None
    assert f"is still in phase {phase} {limit} s after the order {do}" in after.cause.text
    assert step(replace(late, since=NOW - limit + 1), gang(phase)).do == do


def test_the_next_attempt_waits_until_no_rank_runs_a_process() -> None:
    assert step(stopped(), [rank(0, "idle", 3), rank(1, "training", 3)]).do == "stop"
    after = step(stopped(), gang("idle"))
    assert (after.do, after.attempt, after.counted_restarts) == ("wait", 4, 1)
    assert after.restarts == (RestartRecord(3, "it broke", NOW, None),)


def test_a_rank_that_is_idle_in_an_earlier_attempt_may_still_start_processes() -> None:
    assert step(stopped(), [rank(0, "idle", 3), rank(1, "idle", 2)]).do == "stop"


def test_the_next_attempt_waits_as_long_as_a_lost_ranks_processes_may_run() -> None:
    lost = [rank(0, "idle", 3), rank(1, "training", 3, heard=NOW - 24)]
    assert step(stopped(), lost).do == "stop"
    assert step(stopped(), lost, now=NOW + 1).do == "wait"


def test_processes_that_cannot_be_stopped_end_the_run() -> None:
    after = step(replace(stopped(), since=NOW - 60), [rank(0, "idle", 3), rank(1, "training", 3)])
    assert after.cause is not None
    assert (after.do, after.cause.code) == ("end", 70)
    assert "rank 1 (pod pod-1 on node node-a) cannot stop its processes" in after.cause.text


def test_the_plan_end_never_changes() -> None:
    end = plan("end")
    assert step(end, [rank(0, "training", 3, failure()), rank(1)]) is end


# Causes and limits.


def test_the_earliest_failure_is_the_cause_even_if_it_is_reported_later() -> None:
    first = step(plan("train"), [rank(0, "training", 3), rank(1, "training", 3, failure(at=NOW - 1))])
    members = [
        rank(0, "training", 3, Failure("earlier", 70, NOW - 2, 0)),
        rank(1, "training", 3, failure(at=NOW - 1)),
    ]
    after = step(first, members)
    assert after.cause is not None
    assert after.cause.text.endswith("earlier")


def test_an_aborted_trainer_waits_for_a_cause_on_another_rank() -> None:
    aborted = rank(0, "training", 3, Failure("it aborted", 70, NOW - 1, 0, "trainer", -6))
    assert step(plan("train"), [aborted, rank(1, "training", 3)]).do == "train"
    later = [aborted, rank(1, "training", 3, heard=NOW + 2)]
    assert "it aborted" in str(step(plan("train"), later, now=NOW + 2).cause)
    early = rank(1, "done", 3)
    assert early.state is not None
    early = replace(early, state=replace(early.state, ended=("trainer",)))
    assert "0 before the other" in str(step(plan("train"), [aborted, early]).cause)
    assert "it broke" in str(step(plan("train"), [aborted, rank(1, "training", 3, failure(at=NOW))]).cause)


def test_restarts_without_a_new_checkpoint_are_limited() -> None:
    used = stopped(resume=Position(2), counted_restarts=2)
    after = step(used, gang("idle"), Position(2))
    assert after.cause is not None
    assert (after.do, after.cause.code) == ("end", 70)
    assert after.cause.text.startswith("training.restarts: 3 failures since the newest checkpoint (limit 2).")
    assert "Fix: correct that cause (its log: python -m launcher logs --rank " in after.cause.text


def test_the_final_message_contains_only_the_fix_of_the_last_cause() -> None:
    own = Failure("rank 1: it broke. Fix: mount the volume.", 70, NOW, 1, "trainer", 1, (1, 40))
    earlier = RestartRecord(2, "it broke", NOW - 50, own.signature)
    for before in (stopped(cause=own, counted_restarts=2), stopped(cause=own, restarts=(earlier,))):
        after = step(before, gang("idle"))
        assert after.do == "end"
        text = str(after.order().cause)
        assert text.startswith("rank 1: it broke (failed twice") or "Last cause: rank 1: it broke\n" in text
        assert text.count("Fix: ") == 1
        assert "\nFix: mount the volume (" in text
        assert "python -m launcher logs --rank 1 --attempt" in text


def test_a_new_checkpoint_resets_the_count_of_restarts() -> None:
    after = step(stopped(resume=Position(2), counted_restarts=2), gang("idle"), Position(2, 10))
    assert (after.do, after.counted_restarts, after.resume) == ("wait", 1, Position(2, 10))


def test_a_rank_that_received_a_stop_signal_is_not_counted_as_a_failure() -> None:
    after = step(stopped(cause=failure(143), counted_restarts=2), gang("idle"))
    assert (after.do, after.counted_restarts) == ("wait", 2)


@pytest.mark.parametrize("code", [64, 65, 75])
def test_a_final_exit_code_ends_the_run(code: int) -> None:
    after = step(stopped(cause=failure(code)), gang("idle"))
    assert (after.do, after.order().code) == ("end", code)


def test_the_same_failure_twice_at_one_place_ends_the_run() -> None:
    own = failure(process="trainer", returncode=1, place=(1, 40))
    before = stopped(cause=own, restarts=(RestartRecord(2, "it broke", NOW - 50, own.signature),))
    after = step(before, gang("idle"), Position(1))
    assert after.do == "end"
    assert "failed twice in a row at pass 2, batch 40; not retrying" in str(after.order().cause)
    assert f"logs --rank {own.rank} --attempt {before.attempt} --role trainer" in str(after.order().cause)
    elsewhere = replace(before, cause=replace(own, place=(1, 41)))
    assert step(elsewhere, gang("idle"), Position(1)).do == "wait"


@pytest.mark.parametrize("returncode", [-9, 139, None, 71])
def test_a_signal_or_a_storage_error_is_not_counted_as_a_failure_of_the_program(
    returncode: int | None,
) -> None:
    assert failure(returncode=returncode, process="trainer", place=(1, 2)).signature is None


def test_a_final_exit_code_of_a_process_becomes_the_failures_code() -> None:
    assert Failure.from_error(ProcessError("x", 65, "trainer"), NOW, 1).code == 65
    assert Failure.from_error(ProcessError("x", 1, "trainer"), NOW, 1).code == 70


def raises(error: LauncherError) -> GangLimits:
    def find() -> Position | None:
        raise error

    return replace(LIMITS, find_checkpoint=find)


def test_a_run_without_a_usable_checkpoint_ends() -> None:
    limits = raises(DataError("no usable checkpoint"))
    after = decide_next_plan(AttemptPlan(3), gang("idle", 2), NOW, limits)
    assert (after.do, after.order().code, after.order().cause) == ("end", 65, "no usable checkpoint")


def test_a_storage_error_of_rank_0_does_not_end_the_run() -> None:
    with pytest.raises(StorageFailedError):
        decide_next_plan(AttemptPlan(3), gang("idle", 2), NOW, raises(StorageFailedError("EIO")))


# Rendezvous.


def test_missing_ranks_end_the_run_after_the_whole_wait_with_reasons_and_how_to_start_it_again() -> None:
    late = AttemptPlan(3, since=NOW - 3900, cause=failure())
    after = step(late, [rank(0), Member(1)])
    cause = str(after.order().cause)
    assert (
        "1 of 2 ranks did not join within 3900 s (rendezvousSeconds + training.rankWaitHours): why 1. Fix:"
        in cause
    )
    assert "`python -m launcher resume`: the training resumes from its newest checkpoint" in cause
    assert "The rendezvous was for attempt 3, after this failure: it broke" in cause
    assert after.order().code == 70


@pytest.mark.parametrize(
    "gone", [Member(1), rank(1, "leaving", 2), rank(1, "training", 2, heard=NOW - 10)], ids=lambda m: m.phase
)
def test_missing_ranks_are_waited_for_longer_than_the_usual_rendezvous(gone: Member) -> None:
    late = AttemptPlan(3, since=NOW - 3899)
    assert step(late, [rank(0), gone]) is late
    assert step(late, gang("idle", 2)).do == "serve", "the rank has come back"


@pytest.mark.parametrize("other", [rank(1, "staging"), rank(1, ghost_until=NOW + 1), rank(1, heard=NOW - 10)])
def test_no_rank_starts_before_all_are_idle_and_earlier_pods_have_no_processes(other: Member) -> None:
    assert step(AttemptPlan(3, since=NOW - 5), [rank(0), other]).do == "wait"


def test_different_fingerprints_end_the_run_and_list_the_keys() -> None:
    ours, theirs = {"mode": "sync", "portsNum": 2}, {"mode": "async", "portsNum": 2}
    after = step(AttemptPlan(3), [rank(0, fingerprint=ours), rank(1, fingerprint=theirs)])
    assert "'mode' 'sync'" not in str(after.order().cause)
    assert "mode 'sync' against 'async'" in str(after.order().cause)
    assert "portsNum" not in str(after.order().cause)


def test_a_rank_that_could_not_stage_ends_the_run_with_its_code() -> None:
    after = step(AttemptPlan(3), [rank(0), rank(1, "leaving", -1, failure(65))])
    assert (after.do, after.order().code) == ("end", 65)


# Which of two pods of a rank is accepted.


def test_a_second_pod_is_rejected_while_the_first_one_reports() -> None:
    with pytest.raises(StateRejectedError) as rejected:
        admit_state(rank(1, "training", 3), MemberState(1, "new"), NOW + 9, LIMITS)
    assert not rejected.value.replaced


def test_a_second_pod_replaces_a_lost_one_whose_processes_may_still_run() -> None:
    after = admit_state(rank(1, "training", 3), MemberState(1, "new"), NOW + 10, LIMITS)
    assert (after.state, after.ghost_until) == (MemberState(1, "new"), NOW + 25)
    with pytest.raises(StateRejectedError) as rejected:
        admit_state(after, MemberState(1, "i1"), NOW + 11, LIMITS)
    assert rejected.value.replaced


def test_a_pod_that_left_is_replaced_at_once_and_runs_no_process() -> None:
    after = admit_state(rank(1, "leaving", 3), MemberState(1, "new"), NOW, LIMITS)
    assert (after.phase, after.ghost_until) == ("staging", 0.0)


@pytest.mark.parametrize(("phase", "attempt"), [("idle", 2), ("serving", 3)])
def test_a_state_that_arrives_after_a_later_one_is_ignored(phase: str, attempt: int) -> None:
    known = rank(1, "training", 3)
    assert admit_state(known, MemberState(1, "i1", phase, attempt), NOW + 1, LIMITS) is known
    assert admit_state(known, MemberState(1, "i1", "idle", 3), NOW + 1, LIMITS).phase == "idle"


# A new pod of rank 0.


def test_a_new_rank_0_counts_the_loss_and_assumes_that_the_members_processes_run() -> None:
    record = {
        "state": "training",
        "incarnations": ["i0", "i1"],
        "resume": [2, 10],
        "countedRestarts": 1,
        "restarts": [{"attempt": 1, "cause": "x", "at": 5000.0, "signature": [1, "trainer", 1]}],
    }
    first, members = plan_first_attempt(from_json(RunFile, record), 4, 2, NOW)
    assert (first.do, first.attempt, first.resume, first.counted_restarts) == ("stop", 3, Position(2, 10), 1)
    assert first.restarts == (RestartRecord(1, "x", 5000.0, [1, "trainer", 1]),)
    assert step(first, [rank(0, "idle", 3), members[1]]).do == "stop"
    assert step(first, gang("idle")).counted_restarts == 2
    assert admit_state(members[1], MemberState(1, "i1", "idle", 2), NOW, LIMITS).phase == "idle"


def test_a_user_who_starts_a_failed_run_again_gets_all_restarts() -> None:
    record = {"state": "failed", "incarnations": ["i0", "i1"], "countedRestarts": 2}
    first, members = plan_first_attempt(from_json(RunFile, record), 4, 2, NOW)
    assert (first.do, first.attempt, first.counted_restarts, members) == ("wait", 4, 0, ())


@pytest.mark.parametrize(
    "record",
    [{}, {"state": "stopped", "incarnations": ["i0", "i1"]}, {"state": "training", "incarnations": []}],
)
def test_a_new_rank_0_of_a_run_without_an_open_attempt_waits(record: dict[str, Any]) -> None:
    first, members = plan_first_attempt(from_json(RunFile, record), 4, 2, NOW)
    assert (first.do, first.attempt, members) == ("wait", 4, ())


@pytest.mark.parametrize(
    ("state", "seconds", "fails"), [("waiting", 181, True), ("waiting", 179, False), ("training", 999, False)]
)
def test_trainers_that_all_wait_for_each_other_are_a_failure(state: str, seconds: int, fails: bool) -> None:
    """A half-open connection: each has sent, and none has received."""

    def at(number: int, state: str, progressed: float) -> Member:
        member = rank(number, "training", 3)
        assert member.state is not None
        return replace(member, progressed=progressed, state=replace(member.state, progress={"state": state}))

    after = step(plan("train"), [at(0, "waiting", NOW - 300), at(1, state, NOW - seconds)])
    assert after.do == ("stop" if fails else "train")
    assert not fails or "all trainers have waited for each other for 180 s" in str(after.cause)


def test_a_member_progresses_with_its_trainers_position_and_state() -> None:
    before = rank(1, "training", 3)
    assert before.state is not None
    changed = admit_state(
        before, replace(before.state, progress={"state": "waiting", "batch": 3}), NOW + 1, LIMITS
    )
    assert changed.state is not None
    same = admit_state(
        changed,
        replace(changed.state, progress={"state": "waiting", "batch": 3, "loss": 1.0}),
        NOW + 2,
        LIMITS,
    )
    assert (changed.progressed, same.progressed, same.heard) == (NOW + 1, NOW + 1, NOW + 2)


# A user's script, whose ranks stall together (runtime collective).


def hanging(number: int, at: float = NOW - 1, phase: str = "training", **more: Any) -> Member:
    hang = Failure("trainer hangs: its log has not grown", 70, at, number, "trainer")
    return changed(rank(number, phase, 3), hang=hang, **more)


def changed(member: Member, **changes: Any) -> Member:
    """Return a member that reports these fields."""
    assert member.state is not None
    return replace(member, state=replace(member.state, **changes))


@pytest.mark.parametrize("other", ["training", "ready", "serving"])
def test_a_rank_that_hangs_alone_is_no_failure(other: str) -> None:
    assert step(plan("train"), [hanging(0), rank(1, other, 3)]) == plan("train")


def test_ranks_that_hang_together_are_a_failure_of_the_one_that_hangs_for_longest() -> None:
    after = step(plan("train"), [hanging(0), hanging(1, at=NOW - 30)])
    assert after.cause is not None
    assert (after.do, after.cause.rank) == ("stop", 1)
    assert (
        "none of the 2 ranks that train makes progress; rank 1 (pod pod-1 on node node-a): trainer"
        in after.cause.text
    )


def test_the_last_rank_that_trains_hangs_and_the_early_end_of_the_other_one_is_named_first() -> None:
    done = changed(rank(1, "done", 3), ended=("trainer",))
    cause = step(plan("train"), [hanging(0), done]).cause
    assert cause is not None
    assert cause.text.startswith("trainer of rank 1 (pod pod-1 on node node-a) exited with code 0 before")
    assert ". Then: rank 0 (pod pod-0 on node node-a): trainer hangs" in cause.text


def test_an_early_end_that_is_reported_after_the_failure_completes_its_message() -> None:
    failed = rank(0, "idle", 3, Failure("it failed", 70, NOW - 1, 0, "trainer", 1))
    before = step(plan("train"), [failed, rank(1, "training", 3)])
    assert str(before.cause).startswith("Failure(text='rank 0 (pod pod-0")
    late = changed(rank(1, "idle", 3), ended=("trainer 0", "trainer 1"))
    after = step(before, [failed, late])
    assert (after.do, after.attempt) == ("wait", 4)
    assert after.restarts[-1].cause.startswith(
        "trainer 0 and trainer 1 of rank 1 (pod pod-1 on node node-a) exited with"
    )


def broken(number: int, at: float, priority: int = 0) -> Failure:
    return Failure("its GPU failed", 71, at, number, "trainer", 1, priority=priority)


def test_a_broken_device_is_the_cause_although_another_rank_failed_earlier() -> None:
    early = rank(0, "training", 3, Failure("it failed", 70, NOW - 60, 0, "trainer", 1))
    after = step(plan("train"), [early, rank(1, "training", 3, broken(1, NOW))])
    assert after.cause is not None
    assert (after.cause.rank, after.cause.ends_pod) == (1, True)


def test_a_broken_device_that_is_reported_while_all_stop_becomes_the_cause() -> None:
    before = stopped(cause=Failure("it failed", 70, NOW - 60, 0, "trainer", 1))
    after = step(before, [rank(0, "idle", 3), rank(1, "idle", 3, broken(1, NOW))])
    assert after.restarts[-1].cause == "rank 1 (pod pod-1 on node node-a): its GPU failed"


def test_the_next_attempt_waits_for_a_new_pod_instead_of_the_one_with_a_broken_device() -> None:
    ranks = [rank(0, "idle", 3), rank(1, "idle", 3, broken(1, NOW))]
    waiting = step(stopped(cause=broken(1, NOW)), ranks)
    assert (waiting.do, waiting.order().replaced, waiting.counted_restarts) == ("wait", "i1", 1)
    assert step(waiting, ranks) == waiting
    new = changed(rank(1), incarnation="new")
    after = step(waiting, [ranks[0], new])
    assert (after.do, after.order().replaced, after.counted_restarts) == ("serve", "", 1)


def test_all_ranks_have_the_rest_of_the_grace_period_of_the_pod_that_must_exit_first() -> None:
    leaving = [changed(rank(0, "training", 3), leave_in=92.0), changed(rank(1, "training", 3), leave_in=50.0)]
    after = step(plan("train"), leaving)
    assert (after.do, after.order().stop_seconds) == ("stop", 50.0)
    busy = replace(after, since=NOW - LIMITS.finish - 49)
    assert step(busy, gang("training")).do == "stop"
    assert step(replace(busy, since=NOW - LIMITS.finish - 51), gang("training")).do == "end"
    failed = step(plan("train"), [rank(0, "training", 3), rank(1, "training", 3, failure())])
    assert failed.order().stop_seconds == 0.0


def test_a_failure_at_an_unknown_place_twice_in_a_row_is_not_final() -> None:
    cause = Failure("it failed", 70, NOW - 1, 1, "trainer", 1)
    before = stopped(cause=cause, restarts=(RestartRecord(2, "it failed", NOW - 9, cause.signature),))
    assert step(before, gang("idle")).do == "wait"
