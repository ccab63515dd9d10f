"""The coordinator's knowledge about each rank, and which reported states it admits; pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.paths import Position
from launcher.supervisor.peers.messages import PHASES_WITHOUT_PROCESSES, Failure, MemberState

SEE_WHY = "run `python -m launcher status` to see why those pods do not run, and correct that"
"""What users do while ranks are missing."""
RETRY = (
    "Then repeat `python -m launcher run`, or run `python -m launcher resume`: the training resumes from its newest "
    "checkpoint, without another runId."
)
"""What users do after the run has ended because ranks were missing."""
SHOWN_RANKS = 10
"""How many missing ranks a message describes."""


@dataclass(frozen=True)
class Member:
    """What the coordinator knows about one rank. Times are in seconds of rank 0's monotonic clock."""

    rank: int
    state: MemberState | None = None
    heard: float = 0.0
    """When this rank last reported its state."""
    progressed: float = 0.0
    """When the trainer's position or state last changed."""
    saved: float = 0.0
    """When the trainer first reported its newest checkpoint; before the first one, when this pod first reported."""
    replaced: frozenset[str] = frozenset()
    """Incarnations (random identifiers) of earlier pods of this rank; their states are always rejected."""
    ghost_until: float = 0.0
    """Time until which an earlier pod of this rank may still run processes."""

    @property
    def phase(self) -> str:
        """Return the reported phase, or `absent` before the first report."""
        return self.state.phase if self.state is not None else "absent"

    @property
    def attempt(self) -> int | None:
        """Return the reported attempt, or None before the first report."""
        return self.state.attempt if self.state is not None else None

    @property
    def failure(self) -> Failure | None:
        """Return the reported failure, if any."""
        return self.state.failure if self.state is not None else None

    @property
    def progress(self) -> Mapping[str, Any]:
        """Return the reported progress of the trainer; {} before the first report."""
        return self.state.progress if self.state is not None else {}

    @property
    def leave_by(self) -> float | None:
        """Return when this rank stops its processes because its pod received SIGTERM; None without SIGTERM."""
        leave_in = self.state.leave_in if self.state is not None else None
        return None if leave_in is None else self.heard + leave_in

    @property
    def label(self) -> str:
        """Return the rank's name for messages: `rank 1 (pod x on node y)`, with the parts that are known."""
        pod, node = (self.state.pod, self.state.node) if self.state is not None else ("", "")
        where = " on node ".join(part for part in (f"pod {pod}" if pod else "", node) if part)
        return f"rank {self.rank} ({where})" if where else f"rank {self.rank}"


@dataclass(frozen=True)
class GangLimits:
    """What decisions about one run depend on: deadlines in seconds, counts, and functions that look something up."""

    silence: float
    """A rank that has not reported for so long counts as lost."""
    life: float
    """Time after its last report for which a lost rank's processes may still run."""
    rendezvous: float
    """Time within which all ranks usually join; if it passes, users are notified that ranks are missing."""
    join: float
    """Time within which all ranks must join; if it passes, the run fails."""
    serve: float
    """Time from the order `serve` within which all pservers must accept connections."""
    finish: float
    """Time from the order `finish` or `stop` within which all processes must exit."""
    restarts: int
    """`training.restarts`: more failures than this since the newest checkpoint end the run."""
    batch_size: int
    """Rows of a batch."""
    wall_offset: float = 0.0
    """Unix time minus monotonic time, in seconds."""
    find_checkpoint: Callable[[], Position | None] = lambda: None
    """Returns the position of the newest usable checkpoint; None before the first one."""
    describe_absence: Callable[[int], str] = lambda rank: f"rank {rank} has not called rank 0"
    """Takes a rank, and returns a text that says why it has not joined."""


def find_missing(members: Sequence[Member], now: float, silence: float) -> list[Member]:
    """Return the ranks that have not joined: not reported yet, leaving, or lost for `silence` seconds."""
    return [m for m in members if m.phase in ("absent", "leaving") or now - m.heard >= silence]


def can_run_processes(member: Member, now: float, life: float) -> bool:
    """Return whether a rank may still run processes.

    It runs none if it reports so, or if its last report is at least `life` seconds old, and its earlier pods run none.
    """
    has_none = member.phase in (*PHASES_WITHOUT_PROCESSES, "absent") or now - member.heard >= life
    return not has_none or member.ghost_until > now


def describe_absences(missing: Sequence[Member], limits: GangLimits) -> list[str]:
    """Return a text for each of the first SHOWN_RANKS missing ranks that says why it is missing, and how many more are.

    Each text needs a request to DNS.
    """
    texts = [limits.describe_absence(member.rank) for member in missing[:SHOWN_RANKS]]
    return texts if len(missing) <= SHOWN_RANKS else [*texts, f"and {len(missing) - SHOWN_RANKS} more ranks"]


def describe_missing(members: Sequence[Member], since: float, now: float, limits: GangLimits) -> str:
    """Return which ranks are missing and why, for how long the run waits for them, and a fix.

    The wait began at `since`, at least `GangLimits.rendezvous` seconds before `now`.
    """
    missing, left = find_missing(members, now, limits.silence), since + limits.join - now
    why = "; ".join(describe_absences(missing, limits))
    start = f"{len(missing)} of {len(members)} ranks did not join within"
    if left > 0:
        return (
            f"{start} {limits.rendezvous:.0f} s (rendezvousSeconds): {why}. The run waits for them for up to "
            f"{left / 3600:.1f} h more (training.rankWaitHours). Fix: {SEE_WHY}."
        )
    total = f"{limits.join:.0f} s (rendezvousSeconds + training.rankWaitHours)"
    return f"{start} {total}: {why}. Fix: {SEE_WHY}. {RETRY}"


class StateRejectedError(Exception):
    """The coordinator rejects the state of a pod, because another pod with the same rank is the valid one."""

    def __init__(self, why: str, *, replaced: bool) -> None:
        """`replaced`: whether the rejected pod is an older one, whose states are rejected for ever."""
        super().__init__(why)
        self.replaced = replaced


def admit_state(member: Member, state: MemberState, now: float, limits: GangLimits) -> Member:
    """Return `member` with the state that a pod of this rank has reported at monotonic time `now`.

    If two pods report with the same rank, the newer one is rejected until the older one was lost or has
    reported that it exits: until then the older one may be healthy, and its processes run.

    Raises:
        StateRejectedError: `state` comes from the pod that is not the valid one.
    """
    known = member.state
    if state.incarnation in member.replaced:
        raise StateRejectedError(f"another pod has replaced this one as rank {state.rank}", replaced=True)
    if known is None:
        return replace(member, state=state, heard=now, progressed=now, saved=now)
    if known.incarnation == state.incarnation:
        if _order_key(state) < _order_key(known):
            return member
        progressed = member.progressed if _trainer_place(state) == _trainer_place(known) else now
        saved = member.saved if _checkpoint(state) == _checkpoint(known) else now
        return replace(member, state=state, heard=now, progressed=progressed, saved=saved)
    if known.phase != "leaving" and now - member.heard < limits.silence:
        raise StateRejectedError(
            f"{member.label} is alive; this is another pod of the same rank", replaced=False
        )
    left = known.phase == "leaving"
    return replace(
        member,
        state=state,
        heard=now,
        progressed=now,
        saved=now,
        replaced=member.replaced | {known.incarnation},
        ghost_until=member.ghost_until if left else max(member.ghost_until, member.heard + limits.life),
    )


def _trainer_place(state: MemberState) -> tuple[Any, ...]:
    return state.attempt, *(state.progress.get(key) for key in ("pass", "batch", "state"))


def _checkpoint(state: MemberState) -> tuple[Any, ...]:
    return state.attempt, state.progress.get("saved")


_PHASE_ORDER = ("staging", "serving", "ready", "training", "done", "ended", "idle", "leaving")
"""The phases of one attempt in the order in which a rank can pass through them."""


def _order_key(state: MemberState) -> tuple[bool, int, int]:
    """Return a sort key for the states of one launcher: a later state has a larger key.

    A state that was sent on an earlier connection may arrive after one from a later connection.
    """
    return state.phase == "leaving", state.attempt, _PHASE_ORDER.index(state.phase)
