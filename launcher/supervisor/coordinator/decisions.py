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

If a pod receives SIGTERM while all ranks train, the plan first keeps `train` with `Plan.save_after`, which asks all
trainers for a checkpoint; once they have saved it, or the first such pod must stop, the plan becomes `stop`, which
counts no failure.

A failure is final if the next attempt would fail in the same way (`FINAL` in launcher/errors.py).

The phases of a rank (`OrderExecutor`): staging → idle → serving → ready → training → done → ended, back to
idle whenever its processes were stopped, and leaving when its launcher exits. A rank follows the newest order
and runs no process without one, so lost messages, reconnects and late ranks need no special cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from launcher.errors import EXIT_GANG, EXIT_STOPPED, FINAL, RUN_ENDS, LauncherError, UnfitError
from launcher.paths import Position
from launcher.reporting.failure_messages import describe_early_exit
from launcher.schema import RestartRecord, RunFile
from launcher.supervisor.coordinator.members import GangLimits, Member, describe_missing, find_missing
from launcher.supervisor.peers.messages import SIGTERM_CAUSE, Action, Failure, MemberState, Phase, Plan
from launcher.supervisor.progress import LEAST_SECONDS

_CAUSE_SECONDS = 2.0
"""Seconds to wait for the cause of a trainer's lost connection: gloo aborts a trainer when another one has closed its
connections, which exits a moment later."""
_STEPS = {
    Action.SERVE: (Phase.READY, Action.TRAIN),
    Action.TRAIN: (Phase.DONE, Action.FINISH),
    Action.FINISH: (Phase.ENDED, Action.END),
}
"""Present action → (phase that every rank must reach, next action)."""
_SAVING_STATES = ("training", "testing", "waiting", "saving")
"""States of progress.json in which a trainer has trained batches that a checkpoint can save."""
_RECENT_SECONDS = 10.0
"""A younger checkpoint is not repeated because a pod must exit: `launcher stop` requests one right before SIGTERM."""


def plan_first_attempt(
    earlier: RunFile, attempt: int, trainers: int, now: float
) -> tuple[Plan, tuple[Member, ...]]:
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
    # A failed run is only started again by a user, who expects all restarts.
    counted = 0 if earlier.state == "failed" else earlier.counted_restarts
    record = earlier.record | {"attempt": attempt, "counted_restarts": counted}
    incarnations = earlier.incarnations
    if earlier.state != "training" or len(incarnations) != trainers:
        return Plan(**record | {"incarnations": ()}, since=now), ()
    cause = Failure("rank 0's launcher was lost", EXIT_GANG, now, 0)
    members = (
        Member(MemberState(0)),
        # With attempt -1: every state that these launchers report themselves is later.
        *(Member(MemberState(rank, incarnations[rank], Phase.TRAINING), now) for rank in range(1, trainers)),
    )
    # run.json keeps the incarnations, so that a further pod of rank 0 waits for the same processes.
    return Plan(**record | {"attempt": attempt - 1}, since=now, do=Action.STOP, cause=cause), members


def decide_next_plan(plan: Plan, members: Sequence[Member], now: float, limits: GangLimits) -> Plan:
    """Return the coordinator's next plan: `plan` itself while nothing changes, else one with a new action.

    `members` are all ranks in rank order, `now` is the monotonic time in seconds. `limits.find_checkpoint` is called
    only when the next plan needs it. If it raises a `LauncherError` other than UnfitError, the next plan ends the run.

    Raises:
        UnfitError: this pod cannot access the storage, but another pod of rank 0 may.
    """
    if plan.do == Action.END:
        return plan
    try:
        if plan.do == Action.WAIT:
            return _plan_after_waiting(plan, members, now, limits)
        if plan.do == Action.STOP:
            return _plan_after_stopping(plan, members, now, limits)
    except UnfitError:
        raise
    except LauncherError as error:
        return _end(plan, now, Failure.from_error(error, now, 0))
    return _plan_while_running(plan, members, now, limits)


def _plan_while_running(plan: Plan, members: Sequence[Member], now: float, limits: GangLimits) -> Plan:
    """Return the plan that follows a plan with the action `serve`, `train` or `finish`.

    After any failure that is `stop`. Otherwise it is the next action of _STEPS, once every rank has reached
    the phase that _STEPS requires.
    """
    failure = _first_failure(plan, members, now, limits)
    if failure is not None:
        trains = any(m.phase == Phase.TRAINING and not m.state.failure for m in members)
        if failure.is_consequence and trains and now - failure.at < _CAUSE_SECONDS:
            return plan
        return replace(plan, do=Action.STOP, since=now, cause=failure)
    reached, then = _STEPS[plan.do]
    if all(m.state.attempt == plan.attempt and m.phase.has_reached(reached) for m in members):
        return replace(plan, do=then, since=now)
    leaving = find_leaving(members)
    if leaving is None or plan.do != Action.TRAIN:
        return plan
    return _plan_before_leaving(plan, members, *leaving, now)


def find_leaving(members: Sequence[Member]) -> tuple[Member, float] | None:
    """Return the member that received SIGTERM and must exit first, and when; None if no member received SIGTERM."""
    found = [(m, m.leave_by) for m in members if m.leave_by is not None]
    return min(found, key=lambda each: each[1], default=None)


def describe_save_request(members: Sequence[Member], now: float) -> str | None:
    """Return which pod must exit, that a checkpoint was requested, and how many seconds are left at time `now`.

    None if no pod must exit (any more).
    """
    if (leaving := find_leaving(members)) is None:
        return None
    return f"{leaving[0].label}{SIGTERM_CAUSE}checkpoint requested, {leaving[1] - now:.0f} s left"


def _plan_before_leaving(
    plan: Plan, members: Sequence[Member], leaving: Member, leave_by: float, now: float
) -> Plan:
    """Return the plan that follows the action `train` when the pod of rank `leaving` must exit by the time `leave_by`.

    All trainers are asked for a checkpoint, and train on until they have saved it or `leave_by` has passed. In the
    second case, the training since the newest checkpoint is lost. The ranks stop at once, and no checkpoint is
    requested, if a rank does not train, if no trainer saves checkpoints, or if the newest one is less than
    _RECENT_SECONDS old.
    """
    busy = [m for m in members if m.phase != Phase.TRAINING or m.state.progress.state not in _SAVING_STATES]
    saved = min((at for m in members if (at := m.state.progress.saved) is not None), default=None)
    age = now - max(m.saved for m in members)
    if plan.save_after is not None and saved is not None and saved > plan.save_after:
        fate = f"saved a checkpoint at {saved}"
    elif plan.save_after is not None and now < leave_by:
        return plan
    elif plan.save_after is not None:
        fate = "the requested checkpoint was not saved in time"
    elif busy:
        state = busy[0].state
        doing = state.progress.state or state.phase
        fate = f"no checkpoint begun: rank {state.rank} is not training (its state is {doing})"
    elif saved is None:
        fate = "no checkpoint begun: no process of this run saves checkpoints"
    elif age < _RECENT_SECONDS:
        fate = f"no checkpoint begun: the newest one is {age:.0f} s old"
    else:
        return replace(plan, save_after=saved)
    cause = Failure(f"{leaving.label}{SIGTERM_CAUSE}{fate}", EXIT_STOPPED, now, leaving.state.rank)
    return replace(plan, do=Action.STOP, since=now, cause=cause, stop_seconds=max(0.0, leave_by - now))


def _end(plan: Plan, now: float, cause: Failure) -> Plan:
    return replace(plan, do=Action.END, since=now, cause=cause)


def _plan_after_waiting(plan: Plan, members: Sequence[Member], now: float, limits: GangLimits) -> Plan:
    """Return the plan that follows the action `wait`.

    It is `serve` once all ranks have joined and run no process. It is `end` if a rank failed before it joined, ranks
    were missing for too long, or the fingerprints differ.
    """
    failures = [
        m.state.failure
        for m in members
        if m.state.failure is not None
        and m.phase in (Phase.STAGING, Phase.LEAVING)
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
    states = [m.state for m in members]
    must_exit = any(state.incarnation in plan.replaced for state in states)
    is_ready = all(m.phase in (Phase.IDLE, Phase.ENDED) and m.ghost_until <= now for m in members)
    if must_exit or not is_ready:
        return plan
    for state in states[1:]:
        if state.fingerprint != states[0].fingerprint:
            return _end(plan, now, Failure(_describe_mismatch(members, state), EXIT_GANG, now))
    return replace(
        plan,
        do=Action.SERVE,
        since=now,
        incarnations=tuple(state.incarnation for state in states),
        addresses=tuple(state.address for state in states),
        resume=limits.find_checkpoint(),
        cause=None,
        replaced=(),
    )


def _describe_mismatch(members: Sequence[Member], state: MemberState) -> str:
    ours, theirs = (each or {} for each in (members[0].state.fingerprint, state.fingerprint))
    differ = "; ".join(
        f"{key} {ours.get(key)!r} against {theirs.get(key)!r}"
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key)
    )
    return (
        f"{members[state.rank].label} has another fingerprint than rank 0: {differ}. The program on the shared storage "
        "changed while the pods started, or the pods run different images. Fix: start the run again."
    )


def _first_failure(plan: Plan, members: Sequence[Member], now: float, limits: GangLimits) -> Failure | None:
    """Return the failure of this attempt that caused the others: the smallest by `Failure.sort_key`.

    It is usually the earliest. Return None if nothing failed, or if a lost rank 0 is the cause.
    """
    if plan.incarnations[:1] != (members[0].state.incarnation,):
        return None  # the attempt of an earlier rank 0, whose loss is the cause
    found = [
        failure
        for member, started in zip(members, plan.incarnations, strict=True)
        if (failure := _find_member_failure(plan, member, started, now, limits)) is not None
    ]
    waiting = all(m.state.progress.state == "waiting" for m in members)
    if plan.do == Action.TRAIN and waiting and now - max(m.progressed for m in members) >= LEAST_SECONDS:
        text = (
            f"all trainers have waited for each other for {LEAST_SECONDS:.0f} s: a message between them was lost. Fix: "
            "see whether their nodes reach each other (lost packets, a network policy)"
        )
        found.append(Failure(text, EXIT_GANG, now))
    ours = [m for m in members if m.state.attempt == plan.attempt]
    hangs = [
        (m.state.hang.at, m.label, m.state.hang) for m in ours if m.phase == Phase.TRAINING and m.state.hang
    ]
    done = sum(m.phase == Phase.DONE for m in ours)
    if plan.do == Action.TRAIN and hangs and len(hangs) + done == len(members):
        _, label, hang = min(hangs, key=lambda each: each[0])  # it hangs for the longest time
        others = f"none of the {len(hangs)} ranks that train makes progress; " if len(hangs) > 1 else ""
        found.append(replace(hang, text=f"{others}{label}: {hang.text}"))
    first = min(found, key=lambda failure: failure.sort_key, default=None)
    if first is None or plan.do not in (Action.TRAIN, Action.STOP) or first.process == "":
        return first
    early = [
        f"{' and '.join(m.state.ended)} of {m.label}"
        for m in ours
        if m.state.ended and m.state.rank != first.rank
    ]
    return replace(first, text=describe_early_exit(" and ".join(early), first.text)) if early else first


def _find_member_failure(
    plan: Plan, member: Member, started: str, now: float, limits: GangLimits
) -> Failure | None:
    """Return why one rank, whose pod `started` began this attempt, makes it fail; None if it does not."""
    state, code, at = member.state, EXIT_GANG, now
    is_ours = state.attempt == plan.attempt
    limit = {Action.SERVE: limits.serve, Action.FINISH: limits.finish}.get(plan.do, float("inf"))
    if state.incarnation != started:
        text = f"rank {state.rank}: its pod was lost and replaced by another one"
        at = min(now, max(plan.since, member.ghost_until - limits.life))
    elif state.failure is not None and (is_ours or state.phase == Phase.LEAVING):
        return replace(state.failure, text=f"{member.label}: {state.failure.text}")
    elif state.phase == Phase.LEAVING:
        text = f"{member.label} exited because its pod was stopped"
        code, at = EXIT_STOPPED, member.heard
    elif is_ours and state.phase == Phase.IDLE and plan.do != Action.STOP:
        text = f"{member.label} stopped its processes, because no order reached it in time"
    elif now - member.heard >= limits.silence:
        text = f"{member.label} was lost: it has not reported for {now - member.heard:.0f} s"
        at = member.heard
    elif now - plan.since >= limit and not (is_ours and state.phase.has_reached(_STEPS[plan.do][0])):
        text = f"{member.label} is still in phase {state.phase} {limit:.0f} s after the order {plan.do}"
    else:
        return None
    return Failure(text, code, at, state.rank)


def _runs_no_process(member: Member, attempt: int) -> bool:
    """Return whether a member runs no process and will start none in this attempt.

    A member that still reports an earlier attempt may be starting processes now: it may have received the order
    for `attempt` after it sent that report.
    """
    if member.phase in (Phase.ABSENT, Phase.LEAVING):
        return True
    return not member.phase.runs_processes and member.state.attempt >= attempt


def _plan_after_stopping(plan: Plan, members: Sequence[Member], now: float, limits: GangLimits) -> Plan:
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
    failed = [(m.state, m.state.failure) for m in members if m.state.failure and m.state.failure.ends_pod]
    # A failure with another priority may be a consequence of the one on another pod.
    broken = [s.incarnation for s, failure in failed if s.rank == cause.rank or failure.priority == 0]
    is_new = newest is not None and (plan.resume is None or newest > plan.resume)
    # The first failure is the first one in any case.
    is_new = is_new or (bool(plan.restarts) and limits.find_script_save() > (plan.restarts[-1].at or 0.0))
    counted = (0 if is_new else plan.counted_restarts) + (cause.code != EXIT_STOPPED)
    if (why := _describe_last_failure(plan, cause, limits, counted, newest)) is not None:
        return _end(plan, now, replace(cause, text=why, code=EXIT_GANG))
    at = round(now + limits.wall_offset, 3)
    return replace(
        plan,
        attempt=plan.attempt + 1,
        do=Action.WAIT,
        since=now,
        resume=newest,
        restarts=(*plan.restarts, RestartRecord(plan.attempt, cause.text, at, cause.signature)),
        counted_restarts=counted,
        save_after=None,
        stop_seconds=0.0,
        replaced=tuple(broken),
    )


def _describe_last_failure(
    plan: Plan, cause: Failure, limits: GangLimits, counted: int, newest: Position | None
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
        return (
            f"{what} (failed twice in a row at {cause.place}; not retrying)\n"
            f"Fix: {own_fix or 'correct the program or the rows of that batch'} (log: {log})."
        )
    return None
