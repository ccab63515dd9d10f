"""Calculates the first plan of a new pod of rank 0 from the run record of an earlier pod; a pure function."""

from __future__ import annotations

from dataclasses import replace

from launcher.errors import EXIT_GANG
from launcher.paths import Position
from launcher.schema import RunFile
from launcher.supervisor.coordinator.decisions import AttemptPlan, FailedAttempt
from launcher.supervisor.coordinator.member_states import Member
from launcher.supervisor.peers.messages import Failure, MemberState


def plan_first_attempt(
    earlier: RunFile, attempt: int, trainers: int, now: float, wall_offset: float
) -> tuple[AttemptPlan, tuple[Member, ...]]:
    """Return the first plan of a new pod of rank 0, from the run record that an earlier pod of rank 0 left.

    If run.json still says `training`, the earlier pod was lost while an attempt ran, and the other ranks may still
    run processes. Then the first plan stops that attempt, and waits until each of these ranks has reported that it
    runs no process, or has not reported for too long. Otherwise the first plan waits for all ranks to join.

    Args:
        earlier: run.json of this run; empty if this run has none.
        attempt: number of the next attempt.
        now: monotonic time in seconds.
        wall_offset: Unix time minus monotonic time, in seconds: run.json has Unix times, plans have monotonic ones.

    Returns:
        (the plan, the members that may still run processes).
    """
    restarts = tuple(
        FailedAttempt(r.attempt, r.cause, (r.at or 0.0) - wall_offset, tuple(r.signature or ()) or None)
        for r in earlier.restarts
    )
    plan = AttemptPlan(
        attempt,
        since=now,
        resume=Position(*earlier.resume) if earlier.resume else None,
        restarts=restarts,
        # A failed run is only started again by a user, who expects all restarts.
        counted_restarts=0 if earlier.state == "failed" else earlier.counted_restarts,
    )
    incarnations = earlier.incarnations
    if earlier.state != "training" or len(incarnations) != trainers:
        return plan, ()
    cause = Failure("rank 0's launcher was lost", EXIT_GANG, now, 0)
    members = (
        Member(0),
        # With attempt -1: every state that these launchers report themselves is later.
        *(
            Member(rank, MemberState(rank, incarnations[rank], "training"), now)
            for rank in range(1, trainers)
        ),
    )
    return replace(plan, attempt=attempt - 1, do="stop", cause=cause), members
