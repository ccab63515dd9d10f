"""Tests of the decision whether all ranks save a checkpoint before a pod that received SIGTERM exits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.errors import EXIT_STOPPED
from launcher.paths import Position
from launcher.supervisor.coordinator.decisions import AttemptPlan, decide_next_plan
from launcher.supervisor.coordinator.member_states import Member, admit_state
from launcher.supervisor.coordinator.save_before_stop import SaveRequest
from launcher.supervisor.coordinator.status import describe_wait
from launcher.supervisor.peers.messages import Failure, MemberState
from launcher.trainer.save_schedule import ASK_SECONDS
from tests.launcher.supervisor.test_decisions import LIMITS, NOW

PLAN = AttemptPlan(3, "train", NOW - 500, ("i0", "i1"), ("10.0.0.0", "10.0.0.1"))
PROGRESS = {
    "pass": 1,
    "batch": 50,
    "batches": 100,
    "samples_per_second": 20.0,  # two batches a second
    "state": "training",
    "saved": {"pass": 1, "batch": 0},
}


def rank(number: int, leave_in: float | None = None, save: float | None = 5.0, **progress: Any) -> Member:
    """Return a training member; its newest checkpoint is 300 s old and the longest save took `save` seconds."""
    state = MemberState(
        number, f"i{number}", "training", 3, pod=f"pod-{number}", progress=PROGRESS | progress,
        leave_in=leave_in, save_seconds=save,
    )  # fmt: skip
    return Member(number, state, heard=NOW, progressed=NOW, saved=NOW - 300)


def step(members: list[Member], before: AttemptPlan = PLAN, now: float = NOW) -> AttemptPlan:
    return decide_next_plan(before, members, now, LIMITS)


def outcome(after: AttemptPlan) -> str:
    """Return why the plan is to stop."""
    assert after.do == "stop"
    assert after.cause is not None
    assert after.cause.code == EXIT_STOPPED, "this is not counted as a failure"
    return after.cause.text


def test_a_checkpoint_that_fits_is_requested_and_all_ranks_train_on() -> None:
    after = step([rank(0), rank(1, leave_in=92.0)])
    assert after == replace(PLAN, save=SaveRequest(NOW + 92 - 5, Position(1)))
    assert describe_wait(after, [rank(0), rank(1, leave_in=41.0)], NOW, LIMITS.silence) == (
        "rank 1 (pod pod-1): SIGTERM: checkpoint requested, 41 s left"
    )
    assert step([rank(0), rank(1, leave_in=90.0)], after, NOW + 2) == after


def test_all_pods_may_receive_sigterm() -> None:
    after = step([rank(0, leave_in=92.0), rank(1, leave_in=91.0)])
    assert after.save == SaveRequest(NOW + 91 - 5, Position(1)), "the first pod to exit determines the time"


def test_the_longest_save_of_any_rank_must_fit_into_the_time_of_the_first_pod() -> None:
    # The trainers ask within ASK_SECONDS, and the longest save took 80 s.
    members = [rank(0, save=80.0), rank(1, leave_in=ASK_SECONDS + 80, save=1.0)]
    assert step(members).save is not None
    members[1] = rank(1, leave_in=ASK_SECONDS + 79, save=1.0)
    text = outcome(step(members))
    assert text == (
        "rank 1 (pod pod-1): SIGTERM: no checkpoint begun: it would take 90 s (saving alone 80 s), 89 s are left"
    )


def test_a_slow_rank_must_reach_the_batch_after_which_all_save() -> None:
    slow = rank(0, batch=30, samples_per_second=10.0)  # 20 batches behind, at half the speed
    assert "would take 45 s" in outcome(step([slow, rank(1, leave_in=44.0)]))
    assert step([slow, rank(1, leave_in=46.0)]).save is not None


def test_a_save_that_was_never_measured_is_estimated_by_the_checkpoints_size() -> None:
    members = [rank(0, save=None), rank(1, 92.0, None, bytes=600_000_000)]
    assert step(members).save == SaveRequest(NOW + 92 - 60, Position(1))
    members[1] = rank(1, 92.0, None, bytes=900_000_000)
    assert "saving alone 90 s" in outcome(step(members))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        *(
            ([rank(n, n * 92.0 or None, None, saved=None, bytes=size) for n in (0, 1)], "duration is unknown")
            for size in (0, None)
        ),
        # `launcher stop` suspends the Job right after the checkpoint that it requested.
        ([replace(rank(0), saved=NOW - 3), rank(1, 92.0)], "no checkpoint begun: the newest one is 3 s old"),
        # A long batch must end first.
        ([rank(0, samples_per_second=0.1), rank(1, 90.0, samples_per_second=0.1)], "would take 105 s"),
        *(
            ([rank(0, state=state), rank(1, 92.0)], "no checkpoint begun: rank 0 is not training")
            for state in ("loading", "joining", "writing", "done", None)
        ),
    ],
)
def test_a_checkpoint_that_cannot_be_complete_in_time_or_is_not_needed_is_not_begun(
    members: list[Member], why: str
) -> None:
    assert why in outcome(step(members))


def test_the_ranks_stop_once_all_have_reported_a_newer_checkpoint() -> None:
    before = step([rank(0), rank(1, leave_in=92.0)])
    new = {"pass": 1, "batch": 60}
    assert step([rank(0, saved=new), rank(1, leave_in=80.0)], before, NOW + 9) == before
    after = step([rank(0, saved=new), rank(1, leave_in=80.0, saved=new)], before, NOW + 9)
    assert outcome(after) == "rank 1 (pod pod-1): SIGTERM: saved a checkpoint at pass 2, batch 60"


def test_the_ranks_stop_at_the_deadline_without_a_new_checkpoint() -> None:
    before = step([rank(0), rank(1, leave_in=92.0)])
    members = [replace(rank(0), heard=NOW + 92), replace(rank(1, leave_in=0.0), heard=NOW + 92)]
    assert "the requested checkpoint was not saved in time" in outcome(step(members, before, NOW + 92))


def test_a_failure_during_the_wait_is_the_cause() -> None:
    before = step([rank(0), rank(1, leave_in=92.0)])
    failed = rank(0)
    assert failed.state is not None
    failed = replace(failed, state=replace(failed.state, failure=Failure("it broke", 70, NOW, 0)))
    after = step([failed, rank(1, leave_in=91.0)], before, NOW + 1)
    assert after.cause is not None
    assert (after.do, after.cause.code) == ("stop", 70)


def test_the_next_attempt_has_no_request_and_counts_no_failure() -> None:
    waiting = step([rank(0), rank(1, leave_in=92.0)])
    stopped = replace(waiting, do="stop", cause=Failure("SIGTERM", EXIT_STOPPED, NOW, 1))
    idle = [Member(n, MemberState(n, f"i{n}", "idle", 3), heard=NOW) for n in (0, 1)]
    after = step(idle, stopped)
    assert (after.do, after.attempt, after.counted_restarts, after.save) == ("wait", 4, 0, None)


def test_the_age_of_a_checkpoint_counts_from_its_first_report() -> None:
    before = rank(1)
    assert before.state is not None
    same = admit_state(before, replace(before.state, progress=PROGRESS | {"batch": 51}), NOW + 1, LIMITS)
    assert same.saved == NOW - 300
    new = PROGRESS | {"saved": {"pass": 1, "batch": 50}}
    assert admit_state(before, replace(before.state, progress=new), NOW + 1, LIMITS).saved == NOW + 1
