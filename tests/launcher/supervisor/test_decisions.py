"""Tests of the coordinator's decisions: the next plan after a plan, from the states of all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.errors import EXIT_STOPPED, DataError, LauncherError, ProcessError, StorageFailedError
from launcher.paths import Position
from launcher.schema import RestartRecord, RunFile, TrainerProgress, from_json
from launcher.supervisor.coordinator.decisions import decide_next_plan, plan_first_attempt
from launcher.supervisor.coordinator.members import GangLimits, Member, ScriptChanges
from launcher.supervisor.peers.messages import Failure, Phase, Plan
from tests.launcher.supervisor.gang_members import LIMITS, NOW, absent, make_plan, member

WAIT = make_plan(3, "wait", since=NOW - 5)


def gang(phase: str, attempt: int = 3) -> list[Member]:
    return [member(0, phase, attempt), member(1, phase, attempt)]


def plan(do: str, **more: Any) -> Plan:
    known = {"since": NOW - 5, "incarnations": ("i0", "i1"), "addresses": ("10.0.0.0", "10.0.0.1")}
    return make_plan(3, do, **known | more)


def failure(code: int = 70, at: float = NOW - 1, **more: Any) -> Failure:
    return Failure("it broke", code, at, 1, **more)


def program_failure(rank: int = 1, place: Position | None = None, **more: Any) -> Failure:
    return Failure(
        "it failed", 70, **{"at": NOW - 1, **more}, rank=rank, process="trainer", returncode=1, place=place
    )


def step(before: Plan, members: list[Member], checkpoint: Position | None = None, now: float = NOW) -> Plan:
    return decide_next_plan(before, members, now, replace(LIMITS, find_checkpoint=lambda: checkpoint))


def stopped(**more: Any) -> Plan:
    return plan("stop", **{"cause": failure()} | more)


def outcome(after: Plan) -> tuple[str, int]:
    """Return the action of a plan that has a cause, and the exit code of the cause."""
    assert after.cause is not None
    return after.do, after.cause.code


# The arrows of the diagram in decisions.py.


def test_wait_becomes_serve_from_the_newest_checkpoint_once_all_ranks_joined() -> None:
    after = step(replace(WAIT, cause=failure(), replaced=("old",)), gang("idle", 2), Position(2))
    assert after == plan("serve", since=NOW, resume=Position(2), world=(0, 1)), (
        "with the pods and addresses of all ranks"
    )


@pytest.mark.parametrize(
    ("do", "before", "reached", "then"),
    [
        ("serve", "serving", "ready", "train"),
        ("train", "training", "done", "finish"),
        ("finish", "done", "ended", "end"),
    ],
)
def test_the_next_action_follows_when_the_last_rank_reaches_the_phase(
    do: str, before: str, reached: str, then: str
) -> None:
    assert step(plan(do), [member(0, reached, 3), member(1, before, 3)]) == plan(do)
    assert step(plan(do), [member(0, reached, 3), member(1, reached, 2)]).do == do, "an earlier attempt"
    assert step(plan(do), gang(reached)) == plan(then, since=NOW)


@pytest.mark.parametrize("do", ["serve", "train", "finish"])
def test_a_failure_stops_all_ranks_and_the_cause_contains_its_rank(do: str) -> None:
    after = step(plan(do), [member(0, "training", 3), member(1, "training", 3, failure())])
    assert (after.do, after.stop_seconds) == ("stop", 0.0)
    assert after.cause_text == "rank 1 (pod pod-1 on node node-a): it broke"


@pytest.mark.parametrize(
    ("other", "text", "code"),
    [
        (member(1, "training", 3, heard=NOW - 10), "it has not reported for 10 s", 70),
        (member(1, "training", 3, incarnation="another pod"), "its pod was lost", 70),
        (member(1, "idle", 3), "no order reached it in time", 70),
        (member(1, "leaving", 3), "exited because its pod was stopped", EXIT_STOPPED),
        (member(1, "leaving", 2, failure(71)), "it broke", 71),
    ],
)
def test_a_rank_that_is_lost_or_leaves_or_stops_its_processes_stops_all_ranks(
    other: Member, text: str, code: int
) -> None:
    after = step(plan("train"), [member(0, "training", 3), other])
    assert after.cause is not None
    assert (after.do, after.cause.code, after.cause.rank) == ("stop", code, 1)
    assert text in after.cause_text


@pytest.mark.parametrize(
    "other", [member(1, "training", 3, heard=NOW - 9), member(1, "training", 2, failure())]
)
def test_a_short_silence_and_a_failure_of_an_earlier_attempt_stop_nothing(other: Member) -> None:
    assert step(plan("train"), [member(0, "training", 3), other]) == plan("train")


@pytest.mark.parametrize(("do", "limit", "phase"), [("serve", 150, "serving"), ("finish", 60, "done")])
def test_an_action_that_takes_too_long_stops_all_ranks(do: str, limit: int, phase: str) -> None:
    late = plan(do, since=NOW - limit)
    assert f"is still in phase {phase} {limit} s after the order {do}" in step(late, gang(phase)).cause_text
    assert step(replace(late, since=NOW - limit + 1), gang(phase)).do == do
    assert step(plan("train", since=NOW - 1e6), gang("training")).do == "train", "training may take any time"


def test_the_next_attempt_waits_until_no_rank_runs_a_process() -> None:
    assert step(stopped(), [member(0, "idle", 3), member(1, "training", 3)]).do == "stop"
    assert step(stopped(), [member(0, "idle", 3), member(1, "idle", 2)]).do == "stop", (
        "it may still start some"
    )
    limits = replace(LIMITS, wall_offset=5000.0)
    after = decide_next_plan(stopped(), gang("idle"), NOW, limits)
    assert (after.do, after.attempt, after.counted_restarts) == ("wait", 4, 1)
    assert after.restarts == (RestartRecord(3, "it broke", NOW + 5000, None),)


@pytest.mark.parametrize("phase", ["ended", "leaving", "absent", "staging"])
def test_ranks_without_processes_do_not_delay_the_next_attempt(phase: str) -> None:
    assert step(stopped(), [member(0, "idle", 3), member(1, phase, 3)]).do == "wait"


def test_the_next_attempt_waits_as_long_as_a_lost_ranks_processes_may_run() -> None:
    lost = [member(0, "idle", 3), member(1, "training", 3, heard=NOW - 24)]
    assert step(stopped(), lost).do == "stop"
    assert step(stopped(), lost, now=NOW + 1).do == "wait"


def test_processes_that_cannot_be_stopped_end_the_run() -> None:
    after = step(stopped(since=NOW - 60), [member(0, "idle", 3), member(1, "training", 3)])
    assert outcome(after) == ("end", 70)
    assert "rank 1 (pod pod-1 on node node-a) cannot stop its processes" in after.cause_text


def test_the_plan_end_never_changes() -> None:
    end = plan("end")
    assert step(end, [member(0, "training", 3, failure()), absent(1)]) is end


# Causes and limits.


def test_the_earliest_failure_is_the_cause_even_if_it_is_reported_later() -> None:
    late = member(1, "training", 3, failure(at=NOW - 1))
    first = step(plan("train"), [member(0, "training", 3), late])
    after = step(first, [member(0, "training", 3, Failure("earlier", 70, NOW - 2, 0)), late])
    assert after.cause_text.endswith("earlier")
    assert step(after, [member(0, "training", 3), late]).cause_text == after.cause_text, "it stays the cause"


def test_an_aborted_trainer_waits_for_a_cause_on_another_rank() -> None:
    aborted = member(0, "training", 3, Failure("it aborted", 70, NOW - 1, 0, "trainer", -6))
    assert step(plan("train"), [aborted, member(1, "training", 3)]).do == "train"
    later = [aborted, member(1, "training", 3, heard=NOW + 2)]
    assert "it aborted" in step(plan("train"), later, now=NOW + 2).cause_text
    assert (
        "0 before the other"
        in step(plan("train"), [aborted, member(1, "done", 3, ended=("trainer",))]).cause_text
    )
    assert "it broke" in step(plan("train"), [aborted, member(1, "training", 3, failure(at=NOW))]).cause_text


def test_restarts_without_a_new_checkpoint_are_limited() -> None:
    used = stopped(resume=Position(2), counted_restarts=2)
    after = step(used, gang("idle"), Position(2))
    assert outcome(after) == ("end", 70)
    assert after.cause_text.startswith("training.restarts: 3 failures since the newest checkpoint (limit 2).")
    assert "Fix: correct that cause (its log: python -m launcher logs --rank " in after.cause_text
    assert step(replace(used, counted_restarts=1), gang("idle"), Position(2)).do == "wait", "the last one"
    after = step(used, gang("idle"), Position(2, 10))
    assert (after.do, after.counted_restarts, after.resume) == ("wait", 1, Position(2, 10)), (
        "a new checkpoint"
    )
    after = step(replace(used, cause=failure(143)), gang("idle"), Position(2))
    assert (after.do, after.counted_restarts) == ("wait", 2), "a stop signal is no failure"


@pytest.mark.parametrize(("saved", "expected"), [(99.0, ("end", 2)), (101.0, ("wait", 1))])
def test_a_new_file_of_the_scripts_own_checkpoints_begins_the_count_again(
    saved: float, expected: tuple[str, int]
) -> None:
    limits = replace(LIMITS, restarts=2, find_script_save=lambda: saved)
    before = stopped(counted_restarts=2, restarts=(RestartRecord(2, "x", 100.0),))
    after = decide_next_plan(before, gang("idle"), NOW, limits)
    assert (after.do, after.counted_restarts) == expected


def test_the_final_message_contains_only_the_fix_of_the_last_cause() -> None:
    own = replace(program_failure(place=Position(1, 40)), text="rank 1: it broke. Fix: mount the volume.")
    earlier = RestartRecord(2, "it broke", NOW - 50, own.signature)
    for before in (stopped(cause=own, counted_restarts=2), stopped(cause=own, restarts=(earlier,))):
        after = step(before, gang("idle"))
        assert after.do == "end"
        text = after.cause_text
        assert text.startswith("rank 1: it broke (failed twice") or "Last cause: rank 1: it broke\n" in text
        assert text.count("Fix: ") == 1
        assert "\nFix: mount the volume (" in text
        assert "python -m launcher logs --rank 1 --attempt" in text


@pytest.mark.parametrize("code", [64, 65, 75])
def test_a_final_exit_code_ends_the_run(code: int) -> None:
    after = step(stopped(cause=failure(code)), gang("idle"))
    assert outcome(after) == ("end", code)
    assert Failure.from_error(ProcessError("x", code, "trainer"), NOW, 1).code == code
    assert Failure.from_error(ProcessError("x", 1, "trainer"), NOW, 1).code == 70


def test_the_same_failure_twice_at_one_place_ends_the_run() -> None:
    own = program_failure(place=Position(1, 40))
    before = stopped(cause=own, restarts=(RestartRecord(2, "it failed", NOW - 50, own.signature),))
    after = step(before, gang("idle"), Position(1))
    assert after.do == "end"
    assert "failed twice in a row at pass 2, batch 40; not retrying" in after.cause_text
    assert "logs --rank 1 --attempt 3 --role trainer" in after.cause_text
    elsewhere = replace(before, cause=replace(own, place=Position(1, 41)))
    assert step(elsewhere, gang("idle"), Position(1)).do == "wait"
    unknown = replace(
        before, cause=replace(own, place=None), restarts=(RestartRecord(2, "it failed", 1.0, None),)
    )
    assert step(unknown, gang("idle"), Position(1)).do == "wait"


@pytest.mark.parametrize("returncode", [-9, 128, 139, 0, None, 71])
def test_a_signal_or_a_storage_error_is_not_counted_as_a_failure_of_the_program(
    returncode: int | None,
) -> None:
    assert failure(returncode=returncode, process="trainer", place=Position(1, 2)).signature is None
    assert failure(returncode=1, process="trainer", place=Position(1, 2)).signature == [1, "trainer", 1, 1, 2]


@pytest.mark.parametrize("before", [WAIT, stopped()], ids=["wait", "stop"])
def test_a_run_without_a_usable_checkpoint_ends_and_a_storage_error_of_rank_0_does_not_end_it(
    before: Plan,
) -> None:
    def raises(error: LauncherError) -> GangLimits:
        def find() -> Position | None:
            raise error

        return replace(LIMITS, find_checkpoint=find)

    after = decide_next_plan(before, gang("idle"), NOW, raises(DataError("no usable checkpoint")))
    assert (outcome(after), after.cause_text) == (("end", 65), "no usable checkpoint")
    with pytest.raises(StorageFailedError):
        decide_next_plan(before, gang("idle"), NOW, raises(StorageFailedError("EIO")))


# Rendezvous.


@pytest.mark.parametrize(
    "gone",
    [absent(1), member(1, "leaving", 2), member(1, "training", 2, heard=NOW - 10)],
    ids=lambda m: m.phase,
)
def test_missing_ranks_end_the_run_after_the_whole_wait_with_reasons_and_how_to_start_it_again(
    gone: Member,
) -> None:
    late = replace(WAIT, since=NOW - 3899, cause=failure())
    assert step(late, [member(0), gone]) is late
    assert step(late, gang("idle", 2)).do == "serve", "the rank has come back"
    after = step(replace(late, since=NOW - 3900), [member(0), gone])
    assert outcome(after) == ("end", 70)
    start = (
        "1 of 2 ranks did not join within 3900 s (rendezvousSeconds + training.rankWaitHours): why 1. Fix:"
    )
    assert after.cause_text.startswith(start)
    assert "`python -m launcher resume`: the training resumes from its newest checkpoint" in after.cause_text
    assert "The rendezvous was for attempt 3, after this failure: it broke" in after.cause_text


@pytest.mark.parametrize(
    "other",
    [member(1, "staging"), member(1, ghost_until=NOW + 1), member(1, heard=NOW - 10), member(1, "done", 2)],
)
def test_no_rank_starts_before_all_are_idle_and_earlier_pods_have_no_processes(other: Member) -> None:
    assert step(WAIT, [member(0), other]).do == "wait"


def test_different_fingerprints_end_the_run_and_list_the_keys() -> None:
    ours, theirs = {"mode": "sync", "portsNum": 2}, {"mode": "async", "portsNum": 2}
    after = step(WAIT, [member(0, fingerprint=ours), member(1, fingerprint=theirs)])
    assert after.do == "end"
    assert "rank 0: mode 'sync' against 'async'. The program" in after.cause_text


def test_a_rank_that_could_not_stage_ends_the_run_with_its_code() -> None:
    for phase in ("staging", "leaving"):
        after = step(WAIT, [member(0), member(1, phase, -1, failure(65))])
        assert outcome(after) == ("end", 65)
    assert step(WAIT, [member(0), member(1, "leaving", -1, failure(71))]).do == "wait", "a new pod follows"
    assert step(WAIT, [member(0), member(1, "idle", 2, failure(65))]).do == "serve", "that attempt is over"


# A new pod of rank 0.


def test_a_new_rank_0_counts_the_loss_and_assumes_that_the_members_processes_run() -> None:
    record = {
        "state": "training",
        "incarnations": ["old", "i1"],
        "resume": {"pass": 2, "batch": 10},
        "countedRestarts": 1,
        "restarts": [{"attempt": 1, "cause": "x", "at": 5000.0, "signature": [1, "trainer", 1]}],
    }
    first, members = plan_first_attempt(from_json(RunFile, record), 4, 2, NOW)
    assert (first.do, first.attempt, first.resume, first.counted_restarts) == ("stop", 3, Position(2, 10), 1)
    assert first.restarts == (RestartRecord(1, "x", 5000.0, [1, "trainer", 1]),)
    assert step(first, [member(0, "idle", 3), members[1]]).do == "stop"
    after = step(first, gang("idle"))
    assert (after.counted_restarts, after.cause_text) == (2, "the coordinator's launcher was lost")
    for known in (first, after):  # a third pod of rank 0, before these ranks have joined the next attempt
        record = RunFile(**known.record, state="training")
        _, again = plan_first_attempt(record, known.attempt + 1, 2, NOW)
        assert again == members, "it waits for the same processes"


@pytest.mark.parametrize(
    ("record", "counted"),
    [
        ({}, 0),
        ({"state": "stopped", "incarnations": ["i0", "i1"], "countedRestarts": 2}, 2),
        ({"state": "training", "incarnations": []}, 0),
        (
            {"state": "training", "incarnations": ["i0", "i1"], "world": [0, 2]},
            0,
        ),  # of another run, or damaged
        # A user who starts a failed run again expects all restarts.
        ({"state": "failed", "incarnations": ["i0", "i1"], "countedRestarts": 2}, 0),
    ],
)
def test_a_new_rank_0_of_a_run_without_an_open_attempt_waits(record: dict[str, Any], counted: int) -> None:
    first, members = plan_first_attempt(from_json(RunFile, record), 4, 2, NOW)
    assert (first.do, first.attempt, first.counted_restarts, first.incarnations) == ("wait", 4, counted, ())
    assert members == ()


# Hangs of all ranks together.


@pytest.mark.parametrize(
    ("state", "seconds", "fails"), [("waiting", 181, True), ("waiting", 179, False), ("training", 999, False)]
)
def test_trainers_that_all_wait_for_each_other_are_a_failure(state: str, seconds: int, fails: bool) -> None:
    """A half-open connection: each has sent, and none has received."""
    members = [
        member(rank, "training", 3, progressed=progressed, progress=TrainerProgress(state=state))
        for rank, state, progressed in ((0, "waiting", NOW - 300), (1, state, NOW - seconds))
    ]
    after = step(plan("train"), members)
    assert after.do == ("stop" if fails else "train")
    assert ("all trainers have waited for each other for 180 s" in after.cause_text) == fails


def hanging(rank: int, at: float = NOW - 1) -> Member:
    hang = Failure("trainer hangs: its log has not grown", 70, at, rank, "trainer")
    return member(rank, "training", 3, hang=hang)


@pytest.mark.parametrize("other", ["training", "ready", "serving"])
def test_a_rank_that_hangs_alone_is_no_failure(other: str) -> None:
    assert step(plan("train"), [hanging(0), member(1, other, 3)]) == plan("train")


def test_ranks_that_hang_together_are_a_failure_of_the_one_that_hangs_for_longest() -> None:
    after = step(plan("train"), [hanging(0), hanging(1, at=NOW - 30)])
    assert after.cause is not None
    assert (after.do, after.cause.rank) == ("stop", 1)
    first = "none of the 2 ranks that train makes progress; rank 1 (pod pod-1 on node node-a): trainer"
    assert after.cause_text.startswith(first)


def test_the_last_rank_that_trains_hangs_and_the_early_end_of_the_other_one_is_named_first() -> None:
    text = step(plan("train"), [hanging(0), member(1, "done", 3, ended=("trainer",))]).cause_text
    assert text.startswith("trainer of rank 1 (pod pod-1 on node node-a) exited with code 0 before")
    assert ". Then: rank 0 (pod pod-0 on node node-a): trainer hangs" in text


def test_an_early_end_that_is_reported_after_the_failure_completes_its_message() -> None:
    failed = member(0, "idle", 3, program_failure(0))
    before = step(plan("train"), [failed, member(1, "training", 3)])
    assert before.cause_text.startswith("rank 0 (pod pod-0")
    after = step(before, [failed, member(1, "idle", 3, ended=("trainer 0", "trainer 1"))])
    assert (after.do, after.attempt) == ("wait", 4)
    start = "trainer 0 and trainer 1 of rank 1 (pod pod-1 on node node-a) exited with"
    assert after.restarts[-1].cause.startswith(start)


# A broken device, whose pod must be replaced.


def broken(rank: int, at: float = NOW) -> Failure:
    return Failure("its GPU failed", 71, at, rank, "trainer", 1, priority=0)


def test_a_broken_device_is_the_cause_although_another_rank_failed_earlier() -> None:
    early = member(0, "training", 3, program_failure(0, at=NOW - 60))
    after = step(plan("train"), [early, member(1, "training", 3, broken(1))])
    assert after.cause is not None
    assert (after.cause.rank, after.cause.ends_pod, failure(71).ends_pod) == (1, True, False), (
        "its launcher did not fail"
    )
    before = stopped(cause=program_failure(0, at=NOW - 60))
    after = step(before, [member(0, "idle", 3), member(1, "idle", 3, broken(1))])
    assert after.restarts[-1].cause == "rank 1 (pod pod-1 on node node-a): its GPU failed", "reported later"


def test_the_next_attempt_waits_for_new_pods_instead_of_those_with_a_broken_device() -> None:
    """Also of the second one: otherwise the next attempt fails on it, which counts one more restart."""
    ranks = [member(rank, "idle", 3, broken(rank)) for rank in (0, 1)]
    waiting = step(stopped(cause=broken(1)), ranks)
    assert (waiting.do, waiting.replaced, waiting.counted_restarts) == ("wait", ("i0", "i1"), 1)
    assert step(waiting, ranks) == waiting
    assert step(waiting, [ranks[0], member(1, incarnation="new")]) == waiting
    after = step(waiting, [member(0, incarnation="new 0"), member(1, incarnation="new")])
    assert (after.do, after.replaced, after.counted_restarts) == ("serve", (), 1)
    connection = replace(broken(1), priority=2)
    assert step(
        stopped(cause=connection), [member(0, "idle", 3), member(1, "idle", 3, connection)]
    ).replaced == ("i1",)
    for other in (failure(), replace(broken(0), priority=2)):  # that may be a consequence of the broken one
        assert step(stopped(cause=broken(1)), [member(0, "idle", 3, other), ranks[1]]).replaced == ("i1",)


# A pod that received SIGTERM.

PROGRESS = TrainerProgress(1, 50, 100, 20.0, state="training", saved=Position(1))


def trainer(rank: int, leave_in: float | None = None, **progress: Any) -> Member:
    """Return a training member, whose newest checkpoint was saved 300 s ago."""
    state = replace(PROGRESS, **progress)
    return member(rank, "training", 3, saved=NOW - 300, leave_in=leave_in, progress=state)


def test_all_ranks_save_a_checkpoint_before_a_pod_exits_and_then_stop() -> None:
    saving = step(plan("train"), [trainer(0), trainer(1, 92.0)])
    assert saving == plan("train", save_after=Position(1)), "they train on"
    first = [trainer(0, saved=Position(0)), trainer(1, 92.0, saved=Position(0))]
    assert step(plan("train"), first).save_after == Position(0), "the first checkpoint"
    new = Position(1, 60)
    assert step(saving, [trainer(0, saved=new), trainer(1, 80.0)]) == saving, "one has not reported it yet"
    after = step(saving, [trainer(0, saved=new), trainer(1, 80.0, saved=new)], now=NOW + 9)
    assert (outcome(after), after.stop_seconds) == (("stop", EXIT_STOPPED), 71.0)
    assert after.cause_text.endswith(" on node node-a): SIGTERM: saved a checkpoint at pass 2, batch 60")
    waiting = step(after, gang("idle"))
    assert (waiting.do, waiting.counted_restarts) == ("wait", 0), "this is no failure"
    assert (waiting.save_after, waiting.stop_seconds) == (None, 0.0)


def test_the_first_pod_that_must_exit_determines_the_time_of_all() -> None:
    members = [trainer(0, 92.0), trainer(1, 50.0)]
    saving = step(plan("train"), members)
    assert step(saving, [replace(m, heard=NOW + 49) for m in members], now=NOW + 49).do == "train"
    late = [replace(trainer(0, 42.0), heard=NOW + 50), replace(trainer(1, 0.0), heard=NOW + 50)]
    after = step(saving, late, now=NOW + 50)
    assert (after.do, after.stop_seconds) == ("stop", 0.0)
    assert after.cause_text.startswith("rank 1 ")
    assert after.cause_text.endswith("the requested checkpoint was not saved in time")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        *(
            (trainer(0, state=state), f"rank 0 is not training (its state is {state})")
            for state in ("loading", "joining", "writing", "done")
        ),
        (member(0, "done", 3), "rank 0 is not training (its state is done)"),
        *(
            (
                trainer(0, saved=None, state=state),
                "no process of this run has reported that it saves checkpoints",
            )
            for state in ("training", "")
        ),
        # `launcher stop` suspends the Job right after the checkpoint that it requested.
        (replace(trainer(0), saved=NOW - 9), "the newest one is 9 s old"),
    ],
)
def test_a_checkpoint_that_cannot_be_saved_or_is_not_needed_is_not_requested(other: Member, why: str) -> None:
    after = step(plan("train"), [other, trainer(1, 92.0, saved=None)])
    assert after.do == "stop"
    assert after.cause_text.endswith(f"SIGTERM: no checkpoint begun: {why}")
    assert after.stop_seconds == 92.0, "a script may use the rest of the grace period"
    busy = replace(after, since=NOW - LIMITS.finish - 91)
    assert step(busy, gang("training")).do == "stop"
    assert step(replace(busy, since=NOW - LIMITS.finish - 92), gang("training")).do == "end"


def test_only_processes_that_save_checkpoints_must_have_saved_it() -> None:
    """With runtime collective that is process 0."""
    saving = plan("train", save_after=Position(1))
    members = [trainer(0, saved=Position(2)), trainer(1, 90.0, saved=None)]
    assert "saved a checkpoint at the end of pass 2" in step(saving, members).cause_text


@pytest.mark.parametrize("do", ["serve", "finish"])
def test_a_pod_that_must_exit_stops_the_others_only_while_they_train(do: str) -> None:
    phase = Phase.SERVING if do == "serve" else Phase.DONE
    assert step(plan(do), [member(0, phase, 3), member(1, phase, 3, leave_in=9.0)]) == plan(do)


def test_a_failure_during_the_wait_for_a_checkpoint_is_the_cause() -> None:
    saving = plan("train", save_after=Position(1))
    after = step(saving, [member(0, "training", 3, failure()), trainer(1, 91.0)])
    assert outcome(after) == ("stop", 70)


# Elastic runs.

FIRST = Position(1)
ELASTIC = replace(LIMITS, trainers=3, min_trainers=2, rank_wait=60, grow=300)
TRIO = {
    "incarnations": ("i0", "i1", "i2"),
    "addresses": ("10.0.0.0", "10.0.0.1", "10.0.0.2"),
    "world": (0, 1, 2),
}
DUO = {"incarnations": ("i1", "i0"), "addresses": ("10.0.0.1", "10.0.0.0"), "world": (1, 0)}


def decide(before: Plan, members: list[Member], now: float = NOW, **limits: Any) -> Plan:
    return decide_next_plan(before, members, now, replace(ELASTIC, **limits))


def elastic(do: str, **more: Any) -> Plan:
    return make_plan(3, do, **{"since": NOW - 5} | TRIO | more)


def in_pass(rank: int, saved: Position | None = FIRST, **more: Any) -> Member:
    return member(
        rank, "training", 3, progress=TrainerProgress(1, 5, 30, state="training", saved=saved), **more
    )


@pytest.mark.parametrize(
    ("waited", "min_trainers", "cause", "then"),
    [
        (61, 2, failure(), "serve"),
        (59, 2, failure(), "wait"),  # the lost rank may come back
        (61, 3, failure(), "wait"),  # too few are left
        (11, 2, failure(EXIT_STOPPED), "serve"),  # the pod was stopped in order
        (61, 2, None, "serve"),  # at the start of the run
    ],
)
def test_an_elastic_run_goes_on_without_a_rank_that_stays_missing(
    waited: float, min_trainers: int, cause: Failure | None, then: str
) -> None:
    before = elastic("wait", since=NOW - waited, cause=cause)
    members = [member(0, "idle", 2), member(1, "idle", 2), member(2, "training", 2, heard=NOW - 80)]
    after = decide(before, members, min_trainers=min_trainers)
    assert after.do == then
    if then == "serve":
        assert (after.world, after.addresses) == ((0, 1), ("10.0.0.0", "10.0.0.1"))


def test_ranks_that_stay_after_an_orderly_stop_are_all_in_the_next_attempt() -> None:
    before = elastic("wait", since=NOW, cause=failure(EXIT_STOPPED))
    leaving = member(2, "idle", 3, leave_in=20.0)
    assert decide(before, [member(0, "idle", 3), member(1, "staging", 2), leaving], min_trainers=1) == before
    assert decide(before, [member(0, "idle", 3), member(1, "idle", 3), leaving]).world == (0, 1)


def test_no_attempt_starts_while_an_earlier_pod_of_a_rank_may_run_processes() -> None:
    before = elastic("wait", since=NOW - 61, cause=failure())
    returned = member(2, "staging", -1, ghost_until=NOW + 1)
    assert decide(before, [member(0), member(1), returned]) == before
    assert decide(before, [member(0), member(1), returned], NOW + 1.5).world == (0, 1)


def test_the_coordinators_pod_is_the_first_of_the_processes() -> None:
    before = elastic("wait", since=NOW - 61, cause=failure())
    after = decide(before, [absent(0), member(1), member(2)], own_rank=2)
    assert (after.world, after.incarnations) == ((2, 1), ("i2", "i1"))


def test_a_rank_outside_the_world_decides_nothing_while_the_others_train() -> None:
    before = elastic("train", **DUO)
    gang = [in_pass(0), in_pass(1)]
    broken = member(2, "leaving", -1, failure(code=70))
    assert decide(before, [*gang, broken], own_rank=1) == before
    assert decide(before, [*gang, absent(2)], own_rank=1) == before
    done = [member(0, "done", 3), member(1, "done", 3)]
    assert decide(before, [*done, member(2)], own_rank=1).do == "finish"


def test_a_rank_that_joined_is_taken_in_after_the_next_checkpoint_without_a_counted_failure() -> None:
    members = [in_pass(0), in_pass(1), member(2)]
    waiting = decide(elastic("train", **DUO), members, own_rank=1)
    assert (waiting.do, waiting.grow_since, waiting.grow_after) == ("train", NOW, Position(1))
    assert decide(waiting, members, NOW + 9, own_rank=1) == waiting
    saved = [in_pass(0, Position(1, 9)), in_pass(1, Position(1, 9)), member(2)]
    after = decide(waiting, saved, own_rank=1)
    assert outcome(after) == ("stop", EXIT_STOPPED)
    assert "growing from 2 to 3 ranks with rank 2 (pod pod-2 on node node-a): saved" in after.cause_text
    idle = [member(rank, "idle", 3) for rank in range(3)]
    again = decide(decide(after, idle, own_rank=1), idle, own_rank=1)
    assert (again.do, again.world, again.counted_restarts, again.grow_since) == ("serve", (1, 0, 2), 0, None)


def test_no_rank_is_taken_in_after_the_last_pass_and_the_trainers_do_not_wait_for_it() -> None:
    before = elastic("train", **DUO, grow_since=NOW, grow_after=Position(1))
    members = [in_pass(0, Position(2)), in_pass(1, Position(2)), member(2)]
    after = decide(before, members, own_rank=1, passes=2)
    assert (after.do, after.grow_since) == ("train", None)
    assert decide(after, members, NOW + 1, own_rank=1, passes=2) == after
    assert decide(before, members, own_rank=1, passes=3).do == "stop"


def test_no_rank_is_taken_in_after_a_training_that_stopped_early() -> None:
    """Its trainers report the passes after which training.patience ended it, fewer than training.passes."""
    before = elastic("train", **DUO, grow_since=NOW, grow_after=Position(1))
    early = TrainerProgress(1, 5, 30, state="saving", saved=Position(2), passes=2)
    members = [member(0, "training", 3, progress=early), member(1, "training", 3, progress=early), member(2)]
    after = decide(before, members, own_rank=1, passes=9)
    assert (after.do, after.grow_since) == ("train", None)
    done = [member(0, "done", 3, progress=early), member(1, "done", 3, progress=early), member(2)]
    assert decide(after, done, own_rank=1, passes=9).do == "finish", "it does not wait for the spare rank 2"


def test_a_checkpoint_is_requested_for_a_rank_that_has_waited_for_long() -> None:
    since = {"grow_since": NOW - 301, "grow_after": Position(1)}
    before = elastic("train", **DUO, **since)
    assert decide(before, [in_pass(0), in_pass(1), member(2)], own_rank=1).save_after == Position(1)
    assert decide(before, [in_pass(0, None), in_pass(1, None), member(2)], own_rank=1).save_after is None
    gone = decide(replace(before, save_after=Position(1)), [in_pass(0), in_pass(1), absent(2)], own_rank=1)
    assert (gone.grow_since, gone.save_after) == (None, None)


@pytest.mark.parametrize(
    ("changes", "now", "then"),
    [
        (None, NOW + 900, "train"),  # the script has no checkpoints
        (ScriptChanges(NOW - 1, NOW - 1), NOW + 900, "train"),  # before the rank joined
        (ScriptChanges(NOW + 49, NOW + 50), NOW + 59, "train"),  # it may not be complete yet
        (ScriptChanges(NOW + 49, NOW + 50), NOW + 60, "stop"),
        # Without a pause it would never be: LIMITS.grow after the rank joined, or after the first change.
        (ScriptChanges(NOW - 900, NOW + 300), NOW + 301, "train"),
        (ScriptChanges(NOW - 900, NOW + 301), NOW + 301, "stop"),
        (ScriptChanges(NOW + 200, NOW + 500), NOW + 501, "train"),
        (ScriptChanges(NOW + 200, NOW + 501), NOW + 501, "stop"),
    ],
)
def test_a_script_that_reports_no_checkpoints_is_stopped_after_it_has_written_one(
    changes: ScriptChanges | None, now: float, then: str
) -> None:
    before = elastic("train", **DUO, grow_since=NOW)
    at = {"saved": None, "heard": now, "progressed": now}
    members = [in_pass(0, **at), in_pass(1, **at), member(2, heard=now)]
    after = decide(before, members, now, own_rank=1, find_script_changes=lambda: changes)
    assert after.do == then
    if then == "stop":
        assert outcome(after) == ("stop", EXIT_STOPPED)
        assert after.cause_text.endswith(
            "with rank 2 (pod pod-2 on node node-a): the script wrote a checkpoint"
        )


@pytest.mark.parametrize(
    ("present", "least", "offers", "waited", "is_offered"),
    [
        (1, 2, 0, 30, True),
        (1, 2, 0, 29, False),
        (1, 2, 1, 119, False),  # the last offer was in vain
        (1, 2, 1, 120, True),
        (2, 2, 0, 59, False),  # enough ranks, with most of the last attempt
        (1, 1, 0, 30, True),  # enough ranks, but most are missing
        (1, 1, 1, 59, False),
    ],
)
def test_a_coordinator_that_hears_of_too_few_ranks_offers_the_lease(
    present: int, least: int, offers: int, waited: float, is_offered: bool
) -> None:
    before = elastic("wait", since=NOW - waited, cause=failure())
    members = [member(rank, heard=NOW if rank < present else NOW - 99) for rank in range(3)]
    after = decide(before, members, min_trainers=least, offer=30.0, offers=offers)
    assert after == replace(before, offers_lease=is_offered)


def test_ranks_that_have_left_in_order_are_no_reason_to_offer_the_lease() -> None:
    before = elastic("wait", since=NOW - 59, cause=failure())
    members = [member(0), member(1, "leaving", heard=NOW - 50), member(2, "leaving", heard=NOW - 50)]
    assert decide(before, members, min_trainers=1, offer=30.0) == before


def test_a_new_coordinator_first_waits_for_the_processes_of_the_lost_attempt() -> None:
    record = {"state": "training", "incarnations": ["i0", "i1"], "world": [0, 1]}
    first, members = plan_first_attempt(from_json(RunFile, record), 4, 3, NOW, own_rank=1)
    assert (first.do, first.attempt, first.world) == ("stop", 3, (0, 1))
    lost, own = members
    now = NOW + LIMITS.life
    states = [lost, replace(own, state=member(1, "idle", 3).state, heard=NOW + 24), absent(2)]
    assert decide(first, states, NOW + 24, own_rank=1) == first
    assert decide(first, states, now, own_rank=1).do == "wait"


def test_a_rank_that_takes_over_from_a_pod_that_was_drained_does_not_wait_for_it() -> None:
    record = from_json(
        RunFile, {"state": "stopped", "incarnations": ["i0", "i1", "i2"], "countedRestarts": 1}
    )
    first, _ = plan_first_attempt(record, 4, 3, NOW, own_rank=1, succeeds=True)
    members = [absent(0), member(1, "idle", 3), member(2, "idle", 3, heard=NOW + 9)]
    assert decide(first, members, NOW + 9, own_rank=1) == first, "the others may still connect"
    members = [replace(each, heard=NOW + 10) if each.state.rank else each for each in members]
    assert decide(first, members, NOW + 10, own_rank=1).world == (1, 2)
    resumed, _ = plan_first_attempt(record, 4, 3, NOW, own_rank=1)
    assert decide(resumed, members, NOW + 10, own_rank=1) == resumed, (
        "pods of a resumed Job are still starting"
    )
