"""Decisions of the coordinator as functions that send, write and start nothing.

The functions read checkpoints and ask DNS, for which they may wait, only through the functions in `GangLimits`.

The actions of the plan of an attempt, and when `decide_next_plan` changes one to the next:

      all ranks joined and   all pservers       all trainers      all processes
      run no process         accept             are done          have exited
  wait ─────────────→ serve ─────────→ train ───────────→ finish ───────────→ end
   ↑                    └────────────────┴──────┬────────────┘                 ↑
   │                  any failure, a lost rank, a replaced pod                 │
   │                                            ↓                              │
   └──── restarts left: attempt + 1 ────────── stop ──── final, or none left ──┘
                                     (until no rank runs a process)

If a pod receives SIGTERM while all ranks train, the plan first keeps the action `train`, and `Plan.save_after` is set,
which asks all trainers for a checkpoint. The plan becomes `stop` once the trainers have saved the checkpoint, or once
the first pod with SIGTERM must stop. Such a stop does not count as a failure.

In an elastic run (`training.minTrainers`) an attempt has a world, the sequence of the ranks that run its processes. A
place is an index in this sequence; the coordinator's own rank has the first place. If some ranks stay missing for too
long and enough others are ready, `wait` becomes `serve` without the missing ranks. Ranks that join later wait in the
phase idle. At the next checkpoint the plan becomes `stop`, and the world of the next attempt contains these ranks, too.
States of ranks outside the world do not influence the attempt.

A failure is final if the next attempt would fail in the same way (`FINAL` in launcher/errors.py).

The phases of a rank (`OrderExecutor`): staging → idle → serving → ready → training → done → ended. The phase becomes
idle again whenever the rank's processes were stopped, and leaving when its launcher exits. A rank follows the newest
order and runs no process without an order, so lost messages, reconnects and late ranks need no special cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from launcher.errors import EXIT_GANG, EXIT_STOPPED, FINAL, RUN_ENDS, LauncherError, UnfitError
from launcher.paths import Position
from launcher.reporting.failure_messages import describe_early_exit
from launcher.schema import RestartRecord, RunFile
from launcher.supervisor.coordinator.members import (
    SETTLED_SECONDS,
    GangLimits,
    Member,
    describe_missing,
    find_expected,
    find_missing,
    runs_no_process,
)
from launcher.supervisor.peers.messages import SIGTERM_CAUSE, Action, Failure, MemberState, Phase, Plan
from launcher.supervisor.progress import LEAST_SECONDS

_CAUSE_SECONDS = 2.0
"""Seconds to wait for the cause of a lost connection between trainers. When one trainer fails, it closes its
connections and exits a moment later; gloo aborts the other trainers already when the connections are closed."""
_STEPS = {
    Action.SERVE: (Phase.READY, Action.TRAIN),
    Action.TRAIN: (Phase.DONE, Action.FINISH),
    Action.FINISH: (Phase.ENDED, Action.END),
}
"""Current action → (phase that every rank must reach, next action)."""
_SAVING_STATES = ("training", "testing", "waiting", "saving")
"""States of progress.json in which a trainer has trained batches that a checkpoint can save."""
_RECENT_SECONDS = 10.0
"""If a pod must exit and the newest checkpoint is less than this many seconds old, no further checkpoint is requested:
`launcher stop` requests one right before SIGTERM."""


def plan_first_attempt(
    earlier: RunFile, attempt: int, shards: int, now: float, own_rank: int = 0, *, succeeds: bool = False
) -> tuple[Plan, tuple[Member, ...]]:
    """Return the first plan of a pod that becomes the coordinator, and the members that the plan must stop.

    The plan follows from run.json, the run record that an earlier coordinator may have written. If run.json still has
    the state `training`, the earlier coordinator was lost while an attempt ran, and the other ranks may still run
    processes. Then the first plan stops that attempt, and the run waits until each of these ranks has reported that it
    runs no process, or has not reported for too long. In all other cases, the first plan waits for all ranks to join.

    Args:
        earlier: run.json of this run; empty if this run has none.
        attempt: number of the next attempt.
        shards: number of ranks that the run may have.
        now: monotonic time in seconds.
        own_rank: the rank of this pod, which runs no process yet.
        succeeds: whether this pod has followed the orders of the earlier coordinator, which was another rank of an
            elastic run.

    Returns:
        (the plan, the members that may still run processes of an attempt that the plan stops). There are no members if
        the plan stops no attempt.
    """
    # A failed run is only started again by a user, who expects all restarts.
    counted = 0 if earlier.state == "failed" else earlier.counted_restarts
    record = earlier.record | {"attempt": attempt, "counted_restarts": counted}
    ranks = earlier.ranks
    is_valid = len(ranks) == len(earlier.incarnations) and set(ranks) <= set(range(shards))
    if earlier.state != "training" or not earlier.incarnations or not is_valid:
        first = Plan(**record | {"incarnations": (), "world": None}, since=now)
        if succeeds and earlier.state == "stopped":  # that pod will not be back soon
            cause = Failure("the coordinator's pod was stopped", EXIT_STOPPED, now, own_rank)
            first = replace(first, cause=cause)
        return first, ()
    cause = Failure("the coordinator's launcher was lost", EXIT_GANG, now, own_rank)
    members = tuple(
        # These states have attempt -1, so every state that the launchers report themselves counts as later.
        Member(MemberState(rank))
        if rank == own_rank
        else Member(MemberState(rank, incarnation, Phase.TRAINING), now)
        for rank, incarnation in zip(ranks, earlier.incarnations, strict=True)
    )
    # run.json keeps the incarnations, so that a further pod of rank 0 waits for the same processes.
    return Plan(**record | {"attempt": attempt - 1}, since=now, do=Action.STOP, cause=cause), members


def decide_next_plan(plan: Plan, members: Sequence[Member], now: float, limits: GangLimits) -> Plan:
    """Return the coordinator's next plan; it is equal to `plan` while nothing changes.

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
        return _end(plan, now, Failure.from_error(error, now, limits.own_rank))
    return _plan_while_running(plan, members, now, limits)


def _plan_while_running(plan: Plan, members: Sequence[Member], now: float, limits: GangLimits) -> Plan:
    """Return the plan that follows a plan with the action `serve`, `train` or `finish`.

    After any failure, the next action is `stop`. If another failure may have caused this failure and a rank still
    trains, the plan first stays the same for up to _CAUSE_SECONDS. Without a failure, it is the next action of _STEPS,
    once every rank has reached the phase that _STEPS requires. With the action `train`, the next plan may also request
    a checkpoint or stop the attempt, because a pod must exit or because ranks wait to be taken in.
    """
    gang = [members[rank] for rank in plan.ranks]
    failure = _first_failure(plan, gang, now, limits)
    if failure is not None:
        trains = any(m.phase == Phase.TRAINING and not m.state.failure for m in gang)
        if failure.is_consequence and trains and now - failure.at < _CAUSE_SECONDS:
            return plan
        return replace(plan, do=Action.STOP, since=now, cause=failure)
    reached, then = _STEPS[plan.do]
    if all(m.state.attempt == plan.attempt and m.phase.has_reached(reached) for m in gang):
        return replace(plan, do=then, since=now)
    if plan.do != Action.TRAIN:
        return plan
    if (leaving := find_leaving(gang)) is not None:
        return _plan_before_leaving(plan, gang, *leaving, now)
    return _plan_before_growing(plan, gang, find_spares(plan, members, now, limits), now, limits)


def find_leaving(members: Sequence[Member]) -> tuple[Member, float] | None:
    """Return (the member that must exit first because of SIGTERM, when it must exit); None if none received SIGTERM."""
    found = [(m, m.leave_by) for m in members if m.leave_by is not None]
    return min(found, key=lambda each: each[1], default=None)


def describe_save_request(members: Sequence[Member], now: float) -> str | None:
    """Return a text about a requested checkpoint: which pod must exit, and how many seconds it has left at time `now`.

    Return None if no pod must exit, or none must exit any more.
    """
    if (leaving := find_leaving(members)) is None:
        return None
    return f"{leaving[0].label}{SIGTERM_CAUSE}checkpoint requested, {leaving[1] - now:.0f} s left"


def _plan_before_leaving(
    plan: Plan, members: Sequence[Member], leaving: Member, leave_by: float, now: float
) -> Plan:
    """Return the plan that follows the action `train` when the pod of rank `leaving` must exit by the time `leave_by`.

    In three cases the ranks stop at once, without a checkpoint: a rank does not train, no trainer saves checkpoints, or
    the newest checkpoint is less than _RECENT_SECONDS old. In all other cases all trainers are asked for a checkpoint.
    They continue to train until they have saved it, or until `leave_by`. If they have not saved it by then, the
    training since the newest checkpoint is lost.
    """
    # A script that reports no steps has no state: it trains, but cannot be asked for a checkpoint.
    states = *_SAVING_STATES, ""
    busy = [m for m in members if m.phase != Phase.TRAINING or m.state.progress.state not in states]
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
        fate = "no checkpoint begun: no process of this run has reported that it saves checkpoints"
    elif age < _RECENT_SECONDS:
        fate = f"no checkpoint begun: the newest one is {age:.0f} s old"
    else:
        return replace(plan, save_after=saved)
    cause = Failure(f"{leaving.label}{SIGTERM_CAUSE}{fate}", EXIT_STOPPED, now, leaving.state.rank)
    return replace(plan, do=Action.STOP, since=now, cause=cause, stop_seconds=max(0.0, leave_by - now))


def find_spares(plan: Plan, members: Sequence[Member], now: float, limits: GangLimits) -> list[Member]:
    """Return the ranks that are ready to train, but outside the world of the attempt of `plan`."""
    world = set(plan.ranks)
    return [m for m in members if m.state.rank not in world and _is_ready(plan, m, now, limits)]


def _is_ready(plan: Plan, member: Member, now: float, limits: GangLimits) -> bool:
    """Return whether a rank can start the processes of the next attempt.

    It can if it has joined, neither its pod nor an earlier one runs processes, and its pod need not exit.
    """
    return (
        member.phase in (Phase.IDLE, Phase.ENDED)
        and now - member.heard < limits.silence
        and member.ghost_until <= now
        and member.leave_by is None
        and member.state.incarnation not in plan.replaced
    )


def _plan_before_growing(
    plan: Plan, gang: Sequence[Member], spares: Sequence[Member], now: float, limits: GangLimits
) -> Plan:
    """Return the plan that follows the action `train` when `spares` wait to be taken into the world.

    The attempt stops after the next checkpoint, but not after that of the last pass. If no checkpoint is saved within
    `GangLimits.grow` seconds, all trainers are asked for one. A script that reports no checkpoints is stopped when it
    has written files to its checkpoint folder and has then not changed them for SETTLED_SECONDS. If the script changes
    its files again and again without such a pause, it is stopped after `GangLimits.grow` seconds.
    """
    saved = min((at for m in gang if (at := m.state.progress.saved) is not None), default=None)
    passes = max(m.state.progress.passes or limits.passes for m in gang)
    if not spares or (saved is not None and saved.passes >= passes):  # only the model is left to be written
        return replace(plan, grow_since=None, grow_after=None, save_after=None)
    if plan.grow_since is None:
        return replace(plan, grow_since=now, grow_after=saved)
    changes = limits.find_script_changes() if saved is None else None
    has_written = changes is not None and (
        plan.grow_since < changes.last <= now - SETTLED_SECONDS
        or max(plan.grow_since, changes.first) + limits.grow < changes.last
    )
    if has_written or (saved is not None and (plan.grow_after is None or saved > plan.grow_after)):
        names = ", ".join(m.label for m in spares)
        sizes = f"from {len(gang)} to {len(gang) + len(spares)} ranks"
        how = "the script wrote a checkpoint" if saved is None else f"saved a checkpoint at {saved}"
        cause = Failure(f"growing {sizes} with {names}: {how}", EXIT_STOPPED, now, limits.own_rank)
        return replace(plan, do=Action.STOP, since=now, cause=cause)
    is_busy = any(m.phase != Phase.TRAINING or m.state.progress.state not in _SAVING_STATES for m in gang)
    if now - plan.grow_since < limits.grow or saved is None or is_busy:
        return plan
    return replace(plan, save_after=saved)


def describe_growth(plan: Plan, members: Sequence[Member], now: float, limits: GangLimits) -> str:
    """Return which ranks wait to be taken into the world of an elastic run, and for what; empty if none waits."""
    spares = [] if plan.grow_since is None else find_spares(plan, members, now, limits)
    if not spares:
        return ""
    names = ", ".join(m.label for m in spares)
    saves = any(members[rank].state.progress.saved is not None for rank in plan.ranks)
    if saves or limits.find_script_changes() is not None:
        return f"the next checkpoint, to take in {names}"
    return (
        f"the first checkpoint, to take in {names}; without one they are taken in at the next restart. Fix: let the "
        "script save checkpoints, with ScriptRun or below training.checkpointDir"
    )


def _end(plan: Plan, now: float, cause: Failure) -> Plan:
    return replace(plan, do=Action.END, since=now, cause=cause)


def _plan_after_waiting(plan: Plan, members: Sequence[Member], now: float, limits: GangLimits) -> Plan:
    """Return the plan that follows the action `wait`.

    The next action is `serve` once all ranks of the last attempt have joined and run no process. Before the first
    attempt, these are `GangLimits.trainers` ranks. An elastic run with at least `GangLimits.min_trainers` such ranks
    waits for the other ranks for at most `GangLimits.rank_wait` seconds. If the last attempt did not fail but was
    stopped (EXIT_STOPPED), for example because a pod must exit, the run waits only for the ranks that do not exit, and
    for at most `GangLimits.silence` seconds.

    The next action is `end` if a rank exits with an error that ends the run (RUN_ENDS), if too many ranks were missing
    for too long, or if the fingerprints of the ranks differ. If the coordinator of an elastic run may be cut off, the
    action stays `wait`, and the plan offers the output lease (`_may_be_cut_off`).
    """
    failures = [m.state.failure for m in members if m.phase in (Phase.STAGING, Phase.LEAVING)]
    final = [failure for failure in failures if failure is not None and failure.code in RUN_ENDS]
    if final:
        first = min(final, key=lambda failure: failure.at)
        return _end(plan, now, replace(first, text=f"{members[first.rank].label}: {first.text}"))
    expected = find_expected(plan, members, limits.trainers)
    ready = [m for m in members if _is_ready(plan, m, now, limits)]
    may_shrink = limits.min_trainers <= len(ready) and _has_waited(plan, expected, ready, now, limits)
    if not may_shrink and find_missing(expected, now, limits.silence):
        if now - plan.since >= limits.join:
            text = describe_missing(expected, plan.since, now, limits)
            if plan.cause is not None:
                text += (
                    f" The rendezvous was for attempt {plan.attempt}, after this failure: {plan.cause.text}"
                )
            return _end(plan, now, Failure(text, EXIT_GANG, now))
        is_cut_off = _may_be_cut_off(plan, members, expected, now, limits)
        return replace(plan, offers_lease=True) if is_cut_off else plan
    is_complete = may_shrink or all(m in ready for m in expected)
    has_own = any(m.state.rank == limits.own_rank for m in ready)
    if not is_complete or not has_own or any(m.ghost_until > now for m in members):
        return plan
    # Trainers look for their store on the pod of the first place, and the store is on the coordinator's pod.
    ready.sort(key=lambda m: (m.state.rank != limits.own_rank, m.state.rank))
    states = [m.state for m in ready]
    for other in ready[1:]:
        if other.state.fingerprint != states[0].fingerprint:
            return _end(plan, now, Failure(_describe_mismatch(ready[0], other), EXIT_GANG, now))
    return replace(
        plan,
        do=Action.SERVE,
        since=now,
        incarnations=tuple(state.incarnation for state in states),
        world=tuple(state.rank for state in states),
        addresses=tuple(state.address for state in states),
        resume=limits.find_checkpoint(),
        cause=None,
        grow_since=None,
        grow_after=None,
        replaced=(),
    )


def _has_waited(
    plan: Plan, expected: Sequence[Member], ready: Sequence[Member], now: float, limits: GangLimits
) -> bool:
    """Return whether an elastic run has waited long enough for the ranks that are not ready."""
    if plan.cause is None or plan.cause.code != EXIT_STOPPED:
        return now - plan.since >= limits.rank_wait
    # The attempt was stopped on purpose: ranks that exit do not come back soon, and the others are ready soon.
    stay = [m for m in expected if m.phase != Phase.LEAVING and m.leave_by is None]
    return now - plan.since >= limits.silence or all(m in ready for m in stay)


def _may_be_cut_off(
    plan: Plan, members: Sequence[Member], expected: Sequence[Member], now: float, limits: GangLimits
) -> bool:
    """Return whether the coordinator of an elastic run must offer the output lease, because it hears of too few ranks.

    The coordinator's pod may reach the storage, but not the other pods, which could continue the run without it. The
    ranks are too few in these two cases:

    - They are fewer than `min_trainers`, so that the run cannot continue. After each offer that no pod takes, the time
      until the next offer is four times as long.
    - More than half of the ranks of the last attempt were lost. The run can continue without them, so the coordinator
      makes only one offer for this reason. A rank that has reported that it exits does not count as lost.
    """
    if now - plan.since < limits.offer * 4**limits.offers:
        return False
    lost = [m for m in find_missing(expected, now, limits.silence) if m.phase != Phase.LEAVING]
    present = len(members) - len(find_missing(members, now, limits.silence))
    return present < limits.min_trainers or (2 * len(lost) > len(expected) and not limits.offers)


def _describe_mismatch(first: Member, other: Member) -> str:
    ours, theirs = (each.state.fingerprint or {} for each in (first, other))
    keys = [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]
    differ = "; ".join(f"{key} {ours.get(key)!r} against {theirs.get(key)!r}" for key in keys)
    return (
        f"{other.label} has another fingerprint than rank {first.state.rank}: {differ}. The program on the shared "
        "storage changed while the pods started, or the pods run different images. Fix: start the run again."
    )


def _first_failure(plan: Plan, gang: Sequence[Member], now: float, limits: GangLimits) -> Failure | None:
    """Return the failure of this attempt that caused the other failures: the smallest one by `Failure.sort_key`.

    It is usually the earliest one. Return None if nothing failed, or if the cause is the loss of an earlier
    coordinator.
    """
    if plan.ranks[:1] != (limits.own_rank,) or plan.incarnations[:1] != (gang[0].state.incarnation,):
        return None  # the attempt of an earlier coordinator, whose loss is the cause
    started = zip(gang, plan.incarnations, strict=True)
    failures = (_find_member_failure(plan, member, pod, now, limits) for member, pod in started)
    found = [failure for failure in failures if failure is not None]
    waiting = all(m.state.progress.state == "waiting" for m in gang)
    if plan.do == Action.TRAIN and waiting and now - max(m.progressed for m in gang) >= LEAST_SECONDS:
        text = (
            f"all trainers have waited for each other for {LEAST_SECONDS:.0f} s: a message between them was lost. Fix: "
            "see whether their nodes reach each other (lost packets, a network policy)"
        )
        found.append(Failure(text, EXIT_GANG, now))
    ours = [m for m in gang if m.state.attempt == plan.attempt]
    hangs = [
        (m.state.hang.at, m.label, m.state.hang) for m in ours if m.phase == Phase.TRAINING and m.state.hang
    ]
    done = sum(m.phase == Phase.DONE for m in ours)
    if plan.do == Action.TRAIN and hangs and len(hangs) + done == len(gang):
        _, label, hang = min(hangs, key=lambda each: each[0])  # it hangs for the longest time
        others = f"none of the {len(hangs)} ranks that train makes progress; " if len(hangs) > 1 else ""
        found.append(replace(hang, text=f"{others}{label}: {hang.text}"))
    first = min(found, key=lambda failure: failure.sort_key, default=None)
    if first is None or plan.do not in (Action.TRAIN, Action.STOP) or first.process == "":
        return first
    others_ended = [m for m in ours if m.state.ended and m.state.rank != first.rank]
    early = [f"{' and '.join(m.state.ended)} of {m.label}" for m in others_ended]
    return replace(first, text=describe_early_exit(" and ".join(early), first.text)) if early else first


def _find_member_failure(
    plan: Plan, member: Member, started: str, now: float, limits: GangLimits
) -> Failure | None:
    """Return why one rank makes the attempt fail; None if it does not.

    `started` is the incarnation of the rank's pod when the attempt started.
    """
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


def _plan_after_stopping(plan: Plan, members: Sequence[Member], now: float, limits: GangLimits) -> Plan:
    """Return the plan that follows the action `stop`.

    Once no rank runs a process, the action becomes `wait` if another attempt follows, and `end` otherwise. Until then
    only the cause of the plan may change: a rank may report a failure that happened earlier than the one in the plan,
    or the failure in the plan with a longer text. If ranks still run processes after `limits.finish` and
    `plan.stop_seconds`, the run ends with EXIT_GANG.
    """
    cause, failure = plan.cause, _first_failure(plan, [members[rank] for rank in plan.ranks], now, limits)
    assert cause is not None  # noqa: S101 - an attempt stops only with a cause
    if failure is not None:
        # This failure was reported later, but happened earlier or caused the other one; or it is the same failure,
        # and its text now says more.
        is_same = failure.process != "" and (failure.rank, failure.process) == (cause.rank, cause.process)
        is_first = failure.sort_key < cause.sort_key and (failure.process or failure.at < cause.at)
        if is_first or (is_same and failure.text != cause.text):
            cause = failure
    if cause is not plan.cause:
        plan = replace(plan, cause=cause)
    running = [m for m in members if not runs_no_process(m, plan.attempt) and now - m.heard < limits.life]
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
    # A failure with another priority may be a consequence of a failure on another pod.
    broken = [s.incarnation for s, failure in failed if s.rank == cause.rank or failure.priority == 0]
    is_new = newest is not None and (plan.resume is None or newest > plan.resume)
    # At the first failure nothing was counted before, so it does not matter whether a script saved anything.
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
    """Return the message why the run ends after the failure `cause`; None if another attempt follows.

    The run ends if there were more failures than `limits.restarts` since the newest checkpoint, or if the attempt
    before failed in the same way at the same place. The message has one `Fix:`.

    Args:
        plan: the plan of the attempt that failed.
        cause: the failure of this attempt.
        limits: the limits of the gang.
        counted: the number of failures since the newest checkpoint, including `cause` unless it is a stop.
        newest: the position of the newest checkpoint; None if there is no checkpoint.
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
