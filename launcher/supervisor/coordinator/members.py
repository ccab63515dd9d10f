"""What the coordinator knows about each rank: its newest state. States arrive over HTTP; the answer is the plan."""

from __future__ import annotations

import hmac
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from launcher.log import log
from launcher.paths import Position
from launcher.supervisor.peers.messages import MemberState, Phase, Plan

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

    state: MemberState
    """The newest reported state; before the first report, a state with the phase `absent`."""
    heard: float = 0.0
    """When this rank last reported its state."""
    progressed: float = 0.0
    """When the trainer's position or state last changed."""
    saved: float = 0.0
    """When the rank first reported its trainer's newest checkpoint in this attempt; without a checkpoint, when the rank
    first reported this attempt."""
    replaced: frozenset[str] = frozenset()
    """Incarnations (random identifiers) of earlier pods of this rank; their states are always rejected."""
    ghost_until: float = 0.0
    """Time until which an earlier pod of this rank may still run processes."""

    @property
    def phase(self) -> Phase:
        """Return the reported phase."""
        return self.state.phase

    @property
    def leave_by(self) -> float | None:
        """Return when this rank stops its processes because its pod received SIGTERM; None without SIGTERM."""
        return None if self.state.leave_in is None else self.heard + self.state.leave_in

    @property
    def label(self) -> str:
        """Return the rank's name for messages: `rank 1 (pod x on node y)`, with the parts that are known."""
        state = self.state
        where = " on node ".join(filter(None, (state.pod and f"pod {state.pod}", state.node)))
        return f"rank {state.rank} ({where})" if where else f"rank {state.rank}"


SETTLED_SECONDS = 10.0
"""If a script does not report its checkpoints, a checkpoint counts as complete when none of its files has changed for
this many seconds."""


@dataclass(frozen=True)
class ScriptChanges:
    """When the files of a script's own checkpoints were seen to change, in monotonic seconds.

    Attributes:
        first: the first one of the newest series of changes, which followed each other without a pause of
            SETTLED_SECONDS.
        last: the last change of that series.
    """

    first: float
    last: float


@dataclass(frozen=True)
class GangLimits:
    """What decisions about one run depend on: deadlines in seconds, counts, and functions that look up something."""

    silence: float
    """A rank that has not reported for this number of seconds counts as lost."""
    life: float
    """For how long after the last report of a lost rank its processes may still run."""
    rendezvous: float
    """Time within which all ranks usually join; when it has passed, users are notified that ranks are missing."""
    join: float
    """Time within which all ranks must join; when it has passed, the run fails."""
    serve: float
    """Time after the order `serve` within which all pservers must accept connections."""
    finish: float
    """Time after the order `finish` or `stop` within which all processes must exit."""
    restarts: int
    """`training.restarts`: more failures than this since the newest checkpoint end the run."""
    passes: int = sys.maxsize
    """`training.passes`, unless a script trains another number of passes."""
    own_rank: int = 0
    """The rank of the pod that coordinates."""
    trainers: int = sys.maxsize
    """Number of ranks for which an elastic run waits at its start; other runs wait for all ranks."""
    min_trainers: int = sys.maxsize
    """Smallest number of ranks with which an elastic run continues after it has lost others; other runs need all
    ranks."""
    rank_wait: float = 0.0
    """For how long an elastic run waits for lost ranks before it continues without them."""
    grow: float = 0.0
    """For how long ranks that have joined an elastic run while it trains wait for the next checkpoint; then the run
    requests one, to take them in."""
    offer: float = math.inf
    """If the coordinator of an elastic run has heard of too few ranks for this time, it offers the output lease to
    other pods."""
    offers: int = 0
    """How often this pod has offered the lease while it waits for ranks, without any pod taking it."""
    wall_offset: float = 0.0
    """Unix time minus monotonic time, in seconds."""
    find_checkpoint: Callable[[], Position | None] = lambda: None
    """Returns the position of the newest usable checkpoint; None before the first one."""
    find_script_save: Callable[[], float] = lambda: 0.0
    """Returns the Unix time at which the script last wrote a file of its own checkpoints; 0: there is no such file."""
    find_script_changes: Callable[[], ScriptChanges | None] = lambda: None
    """Returns when the script's own checkpoints were seen to change; None: there is no file."""
    describe_absence: Callable[[int], str] = lambda rank: f"rank {rank} has not joined"
    """Takes a rank, and returns a text that says why it has not joined."""


def find_expected(plan: Plan, members: Sequence[Member], trainers: int) -> list[Member]:
    """Return the members for which a rendezvous waits: those of the newest attempt, or at first `trainers` members."""
    return [members[rank] for rank in plan.ranks or range(min(trainers, len(members)))]


def find_missing(members: Sequence[Member], now: float, silence: float) -> list[Member]:
    """Return the members that have not joined: they have never reported, are leaving, or were lost.

    A member was lost if it has not reported for `silence` seconds.
    """
    return [m for m in members if m.phase in (Phase.ABSENT, Phase.LEAVING) or now - m.heard >= silence]


def runs_no_process(member: Member, attempt: int) -> bool:
    """Return whether a member runs no process and will start none in this attempt.

    A member that still reports an earlier attempt may be starting processes now: it may have received the order
    for `attempt` after it sent that report.
    """
    if member.phase in (Phase.ABSENT, Phase.LEAVING):
        return True
    return not member.phase.runs_processes and member.state.attempt >= attempt


def can_run_processes(member: Member, now: float, life: float, attempt: int = -1) -> bool:
    """Return whether a rank may still run processes of `attempt` (-1: of the attempt that the rank reports).

    Return False only if two things are true. First, no earlier pod of the rank may still run processes. Second, the
    rank itself has reported that it runs none, has never reported, or has not reported for `life` seconds.
    """
    may_run = not runs_no_process(member, attempt) and now - member.heard < life
    return may_run or member.ghost_until > now


def describe_absences(missing: Sequence[Member], limits: GangLimits) -> list[str]:
    """Return a text for each missing rank that says why it is missing.

    After SHOWN_RANKS texts, one last text says how many more ranks are missing. Each text needs a request to DNS.
    """
    texts = [limits.describe_absence(member.state.rank) for member in missing[:SHOWN_RANKS]]
    return texts if len(missing) <= SHOWN_RANKS else [*texts, f"and {len(missing) - SHOWN_RANKS} more ranks"]


def describe_missing(members: Sequence[Member], since: float, now: float, limits: GangLimits) -> str:
    """Return a text that says which ranks are missing and why, for how long the run still waits for them, and a fix.

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
        """`replaced` says whether the rejected pod is an older pod, whose states are always rejected from now on."""
        super().__init__(why)
        self.replaced = replaced


def admit_state(member: Member, state: MemberState, now: float, limits: GangLimits) -> Member:
    """Return `member` with `state`, which a pod of this rank has reported at monotonic time `now`.

    If two pods report with the same rank, the newer pod is rejected until the older pod was lost or has reported that
    it exits. Until then the older pod may be healthy, and its processes may run.

    Raises:
        StateRejectedError: `state` comes from the pod that is not the valid one.
    """
    known = member.state
    if state.incarnation in member.replaced:
        raise StateRejectedError(f"another pod has replaced this one as rank {state.rank}", replaced=True)
    if known.incarnation == state.incarnation:
        if _order_key(state) < _order_key(known):
            return member
        progressed = member.progressed if _trainer_place(state) == _trainer_place(known) else now
        is_new_save = (state.attempt, state.progress.saved) != (known.attempt, known.progress.saved)
        saved = now if is_new_save else member.saved
        return replace(member, state=state, heard=now, progressed=progressed, saved=saved)
    after = replace(member, state=state, heard=now, progressed=now, saved=now)
    if known.phase == Phase.ABSENT:
        return after
    if known.phase != Phase.LEAVING and now - member.heard < limits.silence:
        raise StateRejectedError(
            f"{member.label} is alive; this is another pod of the same rank", replaced=False
        )
    ghost_until = 0.0 if known.phase == Phase.LEAVING else member.heard + limits.life
    return replace(
        after,
        replaced=member.replaced | {known.incarnation},
        ghost_until=max(member.ghost_until, ghost_until),
    )


def _trainer_place(state: MemberState) -> tuple[object, ...]:
    return state.attempt, state.progress.number, state.progress.batch, state.progress.state


def _order_key(state: MemberState) -> tuple[bool, int, int]:
    """Return a sort key for the states of one launcher: a later state has a larger key.

    The key is needed because a state from an earlier connection may arrive after a later state from a newer connection.
    """
    return state.phase == Phase.LEAVING, state.attempt, list(Phase).index(state.phase)


class Membership:
    """Holds the newest state of every rank and the newest `Plan`. Server threads and the agent share it."""

    def __init__(self, trainers: int, limits: GangLimits, wake: Callable[[], None], hold: float) -> None:
        """Create the record of `trainers` ranks, none of which has reported yet.

        `wake` is called when a member's phase or failure changes. If there is no newer plan, the answer to a state is
        held back for up to `hold` seconds.
        """
        self.limits, self._wake, self.hold = limits, wake, hold
        self.members = tuple(Member(MemberState(rank)) for rank in range(trainers))
        """All members, in the order of their ranks."""
        self._credential: str | None = None
        self.order = Plan(attempt=-1)
        """The plan that all ranks receive."""
        self._version, self._body = 0, b""
        self._sent_versions: dict[int, int] = {}
        self._changed = threading.Condition()
        self.publish(self.order)

    def restore(self, members: Sequence[Member]) -> None:
        """Add the members that an earlier rank 0 recorded in run.json.

        If another pod of a rank has reported already, the recorded pod counts as replaced, and may still run processes.
        """
        with self._changed:
            recorded = {member.state.rank: member for member in members}
            self.members = tuple(
                self._merge(member, recorded.get(member.state.rank, member)) for member in self.members
            )

    def _merge(self, known: Member, recorded: Member) -> Member:
        earlier = recorded.state.incarnation
        if known.phase == Phase.ABSENT:
            return recorded
        if known.state.incarnation == earlier or recorded.phase == Phase.ABSENT:
            return known  # it has already reported to this rank 0
        ghost_until = recorded.heard + self.limits.life
        return replace(known, replaced=known.replaced | {earlier}, ghost_until=ghost_until)

    def open(self, credential: str) -> None:
        """Accept the states of ranks that send this credential, from now on."""
        self._credential = credential

    def close(self) -> None:
        """Reject all states until `open` is called.

        This coordinator's main thread is stuck, so the other ranks must look for another coordinator.
        """
        self._credential = None

    def record_state(self, state: MemberState, now: float) -> None:
        """Record the state that a rank reports at monotonic time `now`.

        Raises:
            StateRejectedError: another pod with the same rank is the valid one.
            ValueError: there is no such rank.
        """
        with self._changed:
            if not 0 <= state.rank < len(self.members):
                raise ValueError(f"there is no rank {state.rank}: ranks are 0 to {len(self.members) - 1}")
            before = self.members[state.rank]
            after = admit_state(before, state, now, self.limits)
            self.members = (*self.members[: state.rank], after, *self.members[state.rank + 1 :])
        if before.state.incarnation != state.incarnation:
            log.info("%s has joined", after.label)
        if (before.phase, before.state.failure) != (after.phase, state.failure):
            self._wake()

    def publish(self, order: Plan) -> None:
        """Make `order` the newest plan: from now on it is the answer to the states of all ranks."""
        with self._changed:
            if self._body and order == self.order:
                return
            self._version, self.order = self._version + 1, order
            self._body = json.dumps({"version": self._version, "order": order.to_json()}).encode()
            self._changed.notify_all()

    def reject(self, credential: str) -> tuple[int, bytes] | None:
        """Return the answer (HTTP status, JSON body) to a sender of POST /state that must be rejected; else None.

        401: the sender's credential does not have this run's secret. 503: this rank does not hold the output lease.
        """
        expected = self._credential
        if expected is None:
            return 503, _error("this rank does not hold the lease on the output")
        if not hmac.compare_digest(expected.encode(), credential.encode()):
            return 401, _error("this credential does not have the secret of the run that holds run.lock")
        return None

    def handle_state(self, body: bytes) -> tuple[int, bytes]:
        """Handle POST /state of a rank that `reject` has accepted: record the rank's state, and return the newest plan.

        This returns at once if the rank does not have the newest plan yet. Otherwise it waits for a newer plan for at
        most `hold` seconds.

        Args:
            body: JSON object with `state` and `seen`, the version of the newest plan that the rank has.

        Returns:
            (HTTP status, JSON body). With status 200 the body has the plan (`order`) and its version. Status 400 means
            that the request's body is invalid. Status 409 means that the state is not used, because another pod with
            the same rank is the valid one.
        """
        try:
            message = json.loads(body)
            state = MemberState.from_json(message["state"], time.monotonic())
            seen = -1 if state.phase == Phase.LEAVING else int(message.get("seen") or 0)
            self.record_state(state, time.monotonic())
        except StateRejectedError as rejected:
            return 409, _error(str(rejected), replaced=rejected.replaced)
        except (ValueError, KeyError, TypeError) as error:
            return 400, _error(
                f"invalid state: {type(error).__name__}: {error}. Fix: use one image for all pods of the run"
            )
        return 200, self._await_order(state.rank, seen)

    def _await_order(self, rank: int, seen: int) -> bytes:
        """Wait for a plan newer than version `seen`, at most `hold` seconds; return the newest plan as JSON."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen, self.hold)
            self._sent_versions[rank] = self._version
            return self._body

    def all_have_newest_order(self, now: float, *, skip_absent: bool) -> bool:
        """Return whether the newest plan was sent to every other rank, except to lost and leaving ranks.

        A rank is lost if it has not reported for `limits.silence` seconds at the monotonic time `now`. With
        `skip_absent`, ranks that have never reported do not count either.
        """
        return all(
            self._sent_versions.get(member.state.rank) == self._version
            or (skip_absent if member.phase == Phase.ABSENT else now - member.heard >= self.limits.silence)
            for member in self.members
            if member.phase != Phase.LEAVING and member.state.rank != self.limits.own_rank
        )


def _error(text: str, **more: object) -> bytes:
    return json.dumps({"error": text, **more}).encode()
