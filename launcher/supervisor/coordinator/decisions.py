"""Decisions of the coordinator as pure functions; nothing here waits, sends, writes or starts anything.

The actions of the plan of an attempt, and when `decide_next_plan` changes one to the next:

      all ranks joined and   all pservers       all trainers      all processes
      run no process         accept             are done          have exited
  wait ─────────────→ serve ─────────→ train ───────────→ finish ───────────→ end
   ↑                    └────────────────┴──────┬────────────┘                 ↑
   │                  any failure, a lost rank, a replaced pod                 │
   │                                            ↓                              │
   └──── restarts left: attempt + 1 ────────── stop ──── final, or none left ──┘
                                     (until no rank runs a process)

If a pod receives SIGTERM while all ranks train, the plan first keeps `train` with a `SaveRequest`, if saving a
checkpoint fits into the pod's grace period (save_before_stop.py); then it becomes `stop`, which counts no failure.

A failure is final if the next attempt would fail in the same way (`FINAL` in launcher/errors.py).

The phases of a rank (`OrderExecutor`): staging → idle → serving → ready → training → done → ended, back to
idle whenever its processes were stopped, and leaving when its launcher exits. A rank follows the newest order
and runs no process without one, so lost messages, reconnects and late ranks need no special cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from launcher.errors import EXIT_GANG, EXIT_STOPPED, FINAL, RUN_ENDS, LauncherError, UnfitError
from launcher.paths import Position
from launcher.reporting.failure_messages import describe_early_exit
from launcher.schema import RestartRecord, RunFile
from launcher.supervisor.coordinator.member_states import GangLimits, Member, describe_missing, find_missing
from launcher.supervisor.coordinator.save_before_stop import SaveRequest, decide_save, find_leaving
from launcher.supervisor.peers.messages import (
    PHASES,
    PHASES_WITHOUT_PROCESSES,
    SIGTERM_CAUSE,
    Failure,
    MemberState,
    Order,
    OrderAction,
)
from launcher.supervisor.state_deadlines import LEAST_SECONDS


@dataclass(frozen=True)
class AttemptPlan:
    """The coordinator's decision about the present attempt: what all ranks must do now, and why."""

    attempt: int
    do: OrderAction = "wait"
    since: float = 0.0
    """Monotonic time at which `do` was decided."""
    incarnations: tuple[str, ...] = ()
    """The random identifiers of the pods that started this attempt, in rank order."""
    addresses: tuple[str, ...] = ()
    """The IP addresses of these pods."""
    resume: Position | None = None
    """The checkpoint from which this attempt resumes; None: it starts from scratch."""
    cause: Failure | None = None
    """Why the attempt stops, or the run failed."""
    restarts: tuple[RestartRecord, ...] = ()
    """All earlier attempts that failed."""
    counted_restarts: int = 0
    """Restarts since the newest checkpoint, which `training.restarts` limits."""
    init_model: str | None = None
    """The model that training.initModelPath `previous` refers to, "" if there is none; None before the search."""
    save: SaveRequest | None = None
    """The checkpoint that all ranks save because a pod received SIGTERM; None: no such pod waits for one."""
    stop_seconds: float = 0.0
    """With `stop`: the rest of the grace period of a pod that received SIGTERM; 0 after a failure."""

    @property
    def replaced(self) -> str:
        """Return the incarnation of the pod that must be replaced before this attempt; empty if there is none."""
        must_exit = self.do == "wait" and self.cause is not None and self.cause.ends_pod and self.incarnations
        return self.incarnations[self.cause.rank] if must_exit and self.cause is not None else ""

    def order(self) -> Order:
        """Return this plan as the order that the coordinator sends to every rank."""
        running = self.do in ("serve", "train", "finish")
        return Order(
            self.attempt,
            self.do,
            self.addresses if running else (),
            self.resume if running else None,
            self.cause.text if self.cause is not None else None,
            self.cause.code if self.cause is not None and self.do == "end" else 0,
            self.init_model if running else None,
            self.stop_seconds if self.do == "stop" else 0.0,
            self.replaced,
        )


def plan_first_attempt(
    earlier: RunFile, attempt: int, trainers: int, now: float
) -> tuple[AttemptPlan, tuple[Member, ...]]:
    """Return the first plan of a new pod of rank 0, from the run record that an earlier pod of rank 0 left.

    If run.json still says `training`, the earlier pod was lost while an attempt ran, and the other ranks may still
    run processes. Then the first plan stops that attempt, and waits until each of these ranks has reported that it
    runs no process, or has not reported for too long. Otherwise the first plan waits for all ranks to join.

    Args:
        earlier: run.json of this run; empty if this run has none.
        attempt: number of the next attempt.
        now: monotonic time in seconds.

    Returns:
        (the plan, the members that may still run processes).
    """
    plan = AttemptPlan(
        attempt,
        since=now,
        resume=earlier.resume,
        restarts=tuple(earlier.restarts),
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


def decide_next_plan(
    plan: AttemptPlan, members: Sequence[Member], now: float, limits: GangLimits
) -> AttemptPlan:
    """Return the coordinator's next plan: `plan` itself while nothing changes, else one with a new action.

    `members` are all ranks in rank order, `now` is the monotonic time in seconds. `limits.find_checkpoint` is called
    only when the next plan needs it. If it raises a `LauncherError` other than UnfitError, the next plan ends the run.

    Raises:
        UnfitError: this pod cannot access the storage, but another pod of rank 0 may.
    """
    if plan.do == "end":
        return plan
    try:
        if plan.do == "wait":
            return _plan_after_waiting(plan, members, now, limits)
        if plan.do == "stop":
            return _plan_after_stopping(plan, members, now, limits)
    except UnfitError:
        raise
    except LauncherError as error:
        return _end(plan, now, Failure.from_error(error, now, 0))
    return _plan_while_running(plan, members, now, limits)


def _plan_while_running(
    plan: AttemptPlan, members: Sequence[Member], now: float, limits: GangLimits
) -> AttemptPlan:
    """Return the plan that follows a plan with the action `serve`, `train` or `finish`.

    After any failure that is `stop`. Otherwise it is the next action of _STEPS, once every rank has reached
    the phase that _STEPS requires.
    """
    failure = _first_failure(plan, members, now, limits)
    if failure is not None:
        trains = any(m.phase == "training" and not m.failure for m in members)
        if failure.is_consequence and trains and now - failure.at < _CAUSE_SECONDS:
            return plan
        return replace(plan, do="stop", since=now, cause=failure)
    reached, then = _STEPS[plan.do]
    if all(m.attempt == plan.attempt and PHASES.index(m.phase) >= PHASES.index(reached) for m in members):
        return replace(plan, do=then, since=now)
    leaving = find_leaving(members) if plan.do == "train" else None
    if leaving is None:
        return plan
    save = decide_save(plan.save, members, limits.batch_size, now)
    if isinstance(save, SaveRequest):
        return replace(plan, save=save)
    cause = Failure(f"{leaving.label}{SIGTERM_CAUSE}{save}", EXIT_STOPPED, now, leaving.rank)
    left = max(0.0, (leaving.leave_by or now) - now)
    return replace(plan, do="stop", since=now, cause=cause, stop_seconds=left)


_CAUSE_SECONDS = 2.0
"""Seconds to wait for the cause of a trainer's lost connection: gloo aborts a trainer when another one has closed its
connections, which exits a moment later."""
_STEPS: dict[str, tuple[str, OrderAction]] = {
    "serve": ("ready", "train"),
    "train": ("done", "finish"),
    "finish": ("ended", "end"),
}
"""Present action → (phase that every rank must reach, next action)."""


def _end(plan: AttemptPlan, now: float, cause: Failure) -> AttemptPlan:
    return replace(plan, do="end", since=now, cause=cause)


def _plan_after_waiting(
    plan: AttemptPlan, members: Sequence[Member], now: float, limits: GangLimits
) -> AttemptPlan:
    """Return the plan that follows the action `wait`.

    It is `serve` once all ranks have joined and run no process. It is `end` if a rank failed before it joined, ranks
    were missing for too long, or the fingerprints differ.
    """
    failures = [
        m.state.failure
        for m in members
        if m.state is not None
        and m.state.failure is not None
        and m.state.attempt < plan.attempt
        and m.phase in ("staging", "leaving")
        and m.state.failure.code in RUN_ENDS
    ]
    if failures:
        first = min(failures, key=lambda failure: failure.at)
        return _end(plan, now, replace(first, text=f"{members[first.rank].label}: {first.text}"))
    if find_missing(members, now, limits.silence):
        if now - plan.since >= limits.join:
            text = describe_missing(members, plan.since, now, limits)
            before = (
                f" The rendezvous was for attempt {plan.attempt}, after this failure: {plan.cause.text}"
                if plan.cause
                else ""
            )
            return _end(plan, now, Failure(text + before, EXIT_GANG, now))
        return plan
    states = [m.state for m in members if m.state is not None]
    must_exit = plan.replaced in (state.incarnation for state in states)
    if must_exit or any(m.phase not in ("idle", "ended") or m.ghost_until > now for m in members):
        return plan
    for state in states[1:]:
        if state.fingerprint != states[0].fingerprint:
            return _end(plan, now, Failure(_describe_mismatch(members, states, state), EXIT_GANG, now))
    return replace(
        plan,
        do="serve",
        since=now,
        incarnations=tuple(state.incarnation for state in states),
        addresses=tuple(state.address for state in states),
        resume=limits.find_checkpoint(),
        cause=None,
    )


def _describe_mismatch(members: Sequence[Member], states: Sequence[MemberState], state: MemberState) -> str:
    ours, theirs = dict(states[0].fingerprint or {}), dict(state.fingerprint or {})
    differ = "; ".join(
        f"{key} {ours.get(key)!r} against {theirs.get(key)!r}"
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key)
    )
    return (
        f"{members[state.rank].label} has another fingerprint than rank 0: {differ}. The program on the shared storage "
        "changed while the pods started, or the pods run different images. Fix: start the run again."
    )


def _first_failure(
    plan: AttemptPlan, members: Sequence[Member], now: float, limits: GangLimits
) -> Failure | None:
    """Return the failure of this attempt that caused the others: by `Failure.sort_key`, mostly the earliest."""
    if not plan.incarnations:
        return None  # the attempt of an earlier rank 0, whose loss is the cause
    found = [
        failure
        for member, started in zip(members, plan.incarnations, strict=True)
        if (failure := _find_member_failure(plan, member, started, now, limits)) is not None
    ]
    waiting = all(m.progress.get("state") == "waiting" for m in members)
    if plan.do == "train" and waiting and now - max(m.progressed for m in members) >= LEAST_SECONDS:
        text = (
            f"all trainers have waited for each other for {LEAST_SECONDS:.0f} s: a message between them was lost. Fix: "
            "see whether their nodes reach each other (lost packets, a network policy)"
        )
        found.append(Failure(text, EXIT_GANG, now))
    ours = [m for m in members if m.attempt == plan.attempt and m.state is not None]
    hangs = [(m.state.hang.at, m) for m in ours if m.phase == "training" and m.state and m.state.hang]
    if plan.do == "train" and hangs and len(hangs) + sum(m.phase == "done" for m in ours) == len(members):
        found.append(_describe_hang(min(hangs, key=lambda hang: hang[0])[1], len(hangs)))
    first = min(found, key=lambda failure: failure.sort_key, default=None)
    if first is None or plan.do not in ("train", "stop") or first.process == "":
        return first
    early = [
        f"{' and '.join(m.state.ended)} of {m.label}"
        for m in ours
        if m.state is not None and m.state.ended and m.rank != first.rank
    ]
    return replace(first, text=describe_early_exit(" and ".join(early), first.text)) if early else first


def _describe_hang(member: Member, count: int) -> Failure:
    """Return the failure of a world whose `count` ranks hang that still train; `member` hangs for the longest time."""
    assert member.state is not None and member.state.hang is not None  # noqa: S101 - the caller looked
    hang = member.state.hang
    others = f"none of the {count} ranks that train makes progress; " if count > 1 else ""
    return replace(hang, text=f"{others}{member.label}: {hang.text}")


def _find_member_failure(
    plan: AttemptPlan, member: Member, started: str, now: float, limits: GangLimits
) -> Failure | None:
    """Return why one rank, whose pod `started` began this attempt, makes it fail; None if it does not."""
    state, code, at = member.state, EXIT_GANG, now
    limit = {"serve": limits.serve, "finish": limits.finish}.get(plan.do)
    if state is None or state.incarnation != started:
        text = f"rank {member.rank}: its pod was lost and replaced by another one"
        at = min(now, max(plan.since, member.ghost_until - limits.life))
    elif state.failure is not None and (state.attempt == plan.attempt or state.phase == "leaving"):
        return replace(state.failure, text=f"{member.label}: {state.failure.text}")
    elif state.phase == "leaving":
        text = f"{member.label} exited because its pod was stopped"
        code, at = EXIT_STOPPED, member.heard
    elif state.attempt == plan.attempt and state.phase == "idle" and plan.do != "stop":
        text = f"{member.label} stopped its processes, because no order reached it in time"
    elif now - member.heard >= limits.silence:
        text = f"{member.label} was lost: it has not reported for {now - member.heard:.0f} s"
        at = member.heard
    elif limit is not None and now - plan.since >= limit and state.phase != _STEPS[plan.do][0]:
        text = f"{member.label} is still in phase {state.phase} {limit:.0f} s after the order {plan.do}"
    else:
        return None
    return Failure(text, code, at, member.rank)


def _runs_no_process(member: Member, attempt: int) -> bool:
    """Return whether a member runs no process and will start none in this attempt.

    A member that still reports an earlier attempt may be starting processes now: it may have received the order
    for `attempt` after it sent that report.
    """
    if member.state is None or member.phase == "leaving":
        return True
    return member.phase in PHASES_WITHOUT_PROCESSES and member.state.attempt >= attempt


def _plan_after_stopping(
    plan: AttemptPlan, members: Sequence[Member], now: float, limits: GangLimits
) -> AttemptPlan:
    """Return the plan that follows the action `stop`.

    Once no rank runs a process, that is the next attempt (`wait`) or `end`; until then `plan`, whose cause may be
    replaced by an earlier failure.
    """
    cause, failure = plan.cause, _first_failure(plan, members, now, limits)
    assert cause is not None  # noqa: S101 - an attempt stops only with a cause
    if failure is not None:
        # Reported later, but it happened earlier, or caused the other one; or more is known about the same failure.
        is_same = failure.process != "" and (failure.rank, failure.process) == (cause.rank, cause.process)
        is_first = failure.sort_key < cause.sort_key and (failure.process or failure.at < cause.at)
        if is_first or (is_same and failure.text != cause.text):
            cause = failure
    if cause is not plan.cause:
        plan = replace(plan, cause=cause)
    running = [m for m in members if not _runs_no_process(m, plan.attempt) and now - m.heard < limits.life]
    seconds = limits.finish + plan.stop_seconds
    if running and now - plan.since < seconds:
        return plan
    if running:
        names = ", ".join(member.label for member in running)
        text = (
            f"{names} cannot stop its processes within {seconds:.0f} s, so the run fails. Fix: check that the "
            "volumes of that pod respond, then start the run again; it resumes. The processes had to stop after this "
            f"failure: {cause.text}"
        )
        return _end(plan, now, replace(cause, text=text, code=EXIT_GANG))
    if cause.code in FINAL:
        return _end(plan, now, cause)
    newest = limits.find_checkpoint()
    is_new = newest is not None and (plan.resume is None or newest > plan.resume)
    counted = (0 if is_new else plan.counted_restarts) + (cause.code != EXIT_STOPPED)
    if (why := _describe_last_failure(plan, cause, limits, counted, newest)) is not None:
        return _end(plan, now, replace(cause, text=why, code=EXIT_GANG))
    at = round(now + limits.wall_offset, 3)
    return replace(
        plan,
        attempt=plan.attempt + 1,
        do="wait",
        since=now,
        resume=newest,
        restarts=(*plan.restarts, RestartRecord(plan.attempt, cause.text, at, cause.signature)),
        counted_restarts=counted,
        save=None,
        stop_seconds=0.0,
    )


def _describe_last_failure(
    plan: AttemptPlan, cause: Failure, limits: GangLimits, counted: int, newest: Position | None
) -> str | None:
    """Return why no further attempt follows after `cause`, with one `Fix:`; None if one does.

    `counted` is the number of failures since the newest checkpoint `newest`, with this one.
    """
    role = "pserver" if cause.process.startswith("pserver") else "trainer"
    log = f"python -m launcher logs --rank {max(cause.rank, 0)} --attempt {plan.attempt} --role {role}"
    what, _, own_fix = cause.text.partition("Fix: ")
    what, own_fix = what.rstrip(" .\n"), own_fix.replace("Fix: ", "").rstrip().rstrip(".")
    if counted > limits.restarts:
        since = "without a checkpoint" if newest is None else "since the newest checkpoint"
        return (
            f"training.restarts: {counted} failures {since} (limit {limits.restarts}). Last cause: {what}\n"
            f"Fix: {own_fix or 'correct that cause'} (its log: {log}), then start the run again; it resumes."
        )
    last = plan.restarts[-1] if plan.restarts else None
    if last is not None and cause.signature is not None and last.signature == cause.signature:
        number, batch = cause.place or (0, 0)  # a signature has a place
        return (
            f"{what} (failed twice in a row at pass {number + 1}, batch {batch}; not retrying)\n"
            f"Fix: {own_fix or 'correct the program or the rows of that batch'} (log: {log})."
        )
    return None
