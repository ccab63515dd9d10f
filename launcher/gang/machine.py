"""Who decides what, as pure functions of what is known. Nothing here waits, sends, writes or starts anything.

Rank 0's plan (`decide`):

      all are here and       all pservers       all trainers      all children
      run no child           accept             are done          have ended
  wait ─────────────→ serve ─────────→ train ───────────→ finish ───────────→ end
   ↑                    └────────────────┴──────┬────────────┘                 ↑
   │                       any failure, any silence, a pod replaced            │
   │                                            ↓                              │
   └──── restarts left: attempt + 1 ────────── stop ──── final, or none left ──┘
                                     (until nobody runs a child)

A rank's phase (`Follower`): staging → idle → serving → ready → training → done → ended, back to idle whenever
its children were stopped, and leaving at its own end. A rank does what the newest order says, and runs no
child without one: a lost message, a reconnect and a late join are no cases of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.errors import EXIT_GANG, EXIT_STOPPED, FINAL, LauncherError, UnfitError
from launcher.gang.deadlines import FLOOR
from launcher.gang.messages import CHILDLESS, PHASES, Do, Failure, Order, State
from launcher.layout import Position


@dataclass(frozen=True)
class Member:
    """What rank 0 knows of one rank."""

    rank: int
    state: State | None = None
    heard: float = 0.0
    """When it last told its state, by rank 0's clock."""
    moved: float = 0.0
    """When its trainer last was at another place or in another state, by rank 0's clock."""
    gone: frozenset[str] = frozenset()
    """Incarnations that were replaced: they never count again."""
    ghost: float = 0.0
    """Until then an earlier pod of this rank may still run children."""

    @property
    def phase(self) -> str:
        return self.state.phase if self.state is not None else "absent"

    @property
    def label(self) -> str:
        """`rank 1 (pod x on node y)`, as far as it is known."""
        pod, node = (self.state.pod, self.state.node) if self.state is not None else ("", "")
        where = " on node ".join(part for part in (f"pod {pod}" if pod else "", node) if part)
        return f"rank {self.rank} ({where})" if where else f"rank {self.rank}"


@dataclass(frozen=True)
class Restart:
    """One attempt that failed, and why."""

    attempt: int
    cause: str
    at: float
    signature: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Plan:
    """What rank 0 has decided, the whole of it."""

    attempt: int
    do: Do = "wait"
    since: float = 0.0
    crew: tuple[str, ...] = ()
    """The incarnations that began this attempt, in rank order."""
    addresses: tuple[str, ...] = ()
    resume: Position | None = None
    cause: Failure | None = None
    restarts: tuple[Restart, ...] = ()
    fruitless: int = 0
    """How many of them were counted since the last new save."""

    def order(self) -> Order:
        """What every rank is told."""
        going = self.do in ("serve", "train", "finish")
        return Order(
            self.attempt,
            self.do,
            self.addresses if going else (),
            self.resume if going else None,
            self.cause.text if self.cause is not None else None,
            self.cause.code if self.cause is not None and self.do == "end" else 0,
        )


@dataclass(frozen=True)
class Rules:
    """The limits of one run. Times in seconds."""

    silence: float
    """Without a sign of life for so long a rank counts as lost."""
    life: float
    """A silent rank's children may live for so long after it was last heard."""
    rendezvous: float
    """For all ranks to come."""
    serve: float
    """For all pservers to accept connections, from the order on."""
    finish: float
    """For all children to end once all trainers are done; also once they are told to stop."""
    restarts: int
    why_absent: Callable[[int], str] = lambda rank: f"rank {rank} has not called rank 0"


class Refused(Exception):  # noqa: N818 - it is an answer, no fault
    """A rank's state was not taken. `twin`: it was replaced, and never will be."""

    def __init__(self, why: str, *, twin: bool) -> None:
        super().__init__(why)
        self.twin = twin


def admit(member: Member, state: State, now: float, rules: Rules) -> Member:
    """The member after `state` came. Raises `Refused` for the wrong one of two pods of one rank.

    The newest pod wins, but only once the link to the older one is silent or it said that it leaves: until
    then the older one may be the healthy one, and its children run.
    """
    known = member.state
    if state.incarnation in member.gone:
        raise Refused(f"another pod has taken the place of this one as rank {state.rank}", twin=True)
    if known is None:
        return replace(member, state=state, heard=now, moved=now)
    if known.incarnation == state.incarnation:
        if _turn(state) < _turn(known):
            return member
        moved = member.moved if _place(state) == _place(known) else now
        return replace(member, state=state, heard=now, moved=moved)
    if known.phase != "leaving" and now - member.heard < rules.silence:
        raise Refused(f"{member.label} is alive; this is another pod of that rank", twin=False)
    ghost = member.ghost if known.phase == "leaving" else max(member.ghost, member.heard + rules.life)
    return replace(
        member, state=state, heard=now, moved=now, gone=member.gone | {known.incarnation}, ghost=ghost
    )


def _place(state: State) -> tuple[Any, ...]:
    return state.attempt, *(state.progress.get(key) for key in ("pass", "batch", "state"))


_TURNS = ("staging", "serving", "ready", "training", "done", "ended", "idle", "leaving")
"""The phases of one attempt in the order in which a rank can have them."""


def _turn(state: State) -> tuple[bool, int, int]:
    """Which of two states of one launcher is the later one: TCP may deliver what it sent on an earlier
    connection."""
    return state.phase == "leaving", state.attempt, _TURNS.index(state.phase)


def decide(
    plan: Plan,
    members: Sequence[Member],
    now: float,
    rules: Rules,
    saved: Callable[[], Position | None],
) -> Plan:
    """Rank 0's next plan; the same one while there is nothing to do but wait.

    `saved()` is where the newest save stands that can be gone on from, looked up only when it is needed; a
    `LauncherError` of it ends the run. Raises `UnfitError` when another pod of rank 0 may do better.
    """
    if plan.do == "end":
        return plan
    try:
        if plan.do == "wait":
            return _gather(plan, members, now, rules, saved)
        if plan.do == "stop":
            return _stopped(plan, members, now, rules, saved)
    except UnfitError:
        raise
    except LauncherError as error:
        return _end(plan, now, Failure.of(error, now, 0))
    return _go_on(plan, members, now, rules)


def _go_on(plan: Plan, members: Sequence[Member], now: float, rules: Rules) -> Plan:
    """serve, train, finish: a failure stops all, and the last rank that is as far lets all go on."""
    failure = _first_failure(plan, members, now, rules)
    if failure is not None:
        return replace(plan, do="stop", since=now, cause=failure)
    reached, then = _STEPS[plan.do]
    if all(
        m.state is not None
        and m.state.attempt == plan.attempt
        and PHASES.index(m.phase) >= PHASES.index(reached)
        for m in members
    ):
        return replace(plan, do=then, since=now)
    return plan


_STEPS: dict[str, tuple[str, Do]] = {
    "serve": ("ready", "train"),
    "train": ("done", "finish"),
    "finish": ("ended", "end"),
}


def _end(plan: Plan, now: float, cause: Failure) -> Plan:
    return replace(plan, do="end", since=now, cause=cause)


def _gather(
    plan: Plan, members: Sequence[Member], now: float, rules: Rules, saved: Callable[[], Position | None]
) -> Plan:
    """wait: who is not there, or not ready to begin?"""
    told = [
        m.state.failure
        for m in members
        if m.state is not None
        and m.state.failure is not None
        and m.state.attempt < plan.attempt
        and m.phase in ("staging", "leaving")
        and m.state.failure.code in (*FINAL, EXIT_GANG)
    ]
    if told:
        first = min(told, key=lambda failure: failure.at)
        return _end(plan, now, replace(first, text=f"{members[first.rank].label}: {first.text}"))
    lost = [m for m in members if m.phase in ("absent", "leaving") or now - m.heard >= rules.silence]
    if lost:
        if now - plan.since >= rules.rendezvous:
            why = "; ".join(rules.why_absent(member.rank) for member in lost)
            text = (
                f"{len(lost)} of {len(members)} ranks did not come within {rules.rendezvous:.0f} s "
                f"(rendezvousSeconds): {why}. See why those pods do not run: `python -m launcher status`, or "
                "kubectl describe pod."
            )
            before = f" It waited for attempt {plan.attempt}, after: {plan.cause.text}" if plan.cause else ""
            return _end(plan, now, Failure(text + before, EXIT_GANG, now))
        return plan
    if any(m.phase not in ("idle", "ended") or m.ghost > now for m in members):
        return plan
    states = [m.state for m in members if m.state is not None]
    for state in states[1:]:
        if state.fingerprint != states[0].fingerprint:
            return _end(plan, now, Failure(_mismatch(members, states, state), EXIT_GANG, now))
    return replace(
        plan,
        do="serve",
        since=now,
        crew=tuple(state.incarnation for state in states),
        addresses=tuple(state.address for state in states),
        resume=saved(),
        cause=None,
    )


def _mismatch(members: Sequence[Member], states: Sequence[State], state: State) -> str:
    ours, theirs = dict(states[0].fingerprint or {}), dict(state.fingerprint or {})
    differ = "; ".join(
        f"{key} {ours.get(key)!r} against {theirs.get(key)!r}"
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key)
    )
    return (
        f"{members[state.rank].label} has another fingerprint than rank 0: {differ}. The program on the "
        "shared storage changed while the pods started, or they run other images; start the run again."
    )


def _first_failure(plan: Plan, members: Sequence[Member], now: float, rules: Rules) -> Failure | None:
    """The earliest failure of this attempt: the others are its wake."""
    if not plan.crew:
        return None  # an earlier rank 0's attempt: that it was lost is the cause
    found = []
    limit = {"serve": rules.serve, "finish": rules.finish}.get(plan.do)
    for member, begun in zip(members, plan.crew, strict=True):
        state = member.state
        if state is None or state.incarnation != begun:
            text = f"rank {member.rank}: its pod was lost, and another one took its place"
            found.append(
                Failure(text, EXIT_GANG, min(now, max(plan.since, member.ghost - rules.life)), member.rank)
            )
        elif state.failure is not None and (state.attempt == plan.attempt or state.phase == "leaving"):
            found.append(replace(state.failure, text=f"{member.label}: {state.failure.text}"))
        elif state.phase == "leaving":
            found.append(Failure(f"{member.label} left", EXIT_STOPPED, member.heard, member.rank))
        elif state.attempt == plan.attempt and state.phase == "idle":
            text = f"{member.label} ended its processes, because no order reached it in time"
            found.append(Failure(text, EXIT_GANG, now, member.rank))
        elif now - member.heard >= rules.silence:
            text = f"{member.label} was lost: no sign of life for {now - member.heard:.0f} s"
            found.append(Failure(text, EXIT_GANG, member.heard, member.rank))
        elif limit is not None and now - plan.since >= limit and state.phase != _STEPS[plan.do][0]:
            text = f"{member.label} is still {state.phase} {limit:.0f} s after it was told to {plan.do}"
            found.append(Failure(text, EXIT_GANG, now, member.rank))
    waiting = all(m.state is not None and m.state.progress.get("state") == "waiting" for m in members)
    if plan.do == "train" and waiting and now - max(m.moved for m in members) >= FLOOR:
        text = (
            f"all trainers have waited for each other for {FLOOR:.0f} s: a message was lost. Fix: see "
            "whether their nodes reach each other (lost packets, a network policy)"
        )
        found.append(Failure(text, EXIT_GANG, now))
    return min(found, key=lambda failure: failure.at, default=None)


def _childless(member: Member, attempt: int) -> bool:
    """Whether it runs no child, and will start none of `attempt`: it may have been told to just now."""
    if member.state is None or member.phase == "leaving":
        return True
    return member.phase in CHILDLESS and member.state.attempt >= attempt


def _stopped(
    plan: Plan, members: Sequence[Member], now: float, rules: Rules, saved: Callable[[], Position | None]
) -> Plan:
    """stop: once nobody runs a child, on to the next attempt or to the end."""
    cause, failure = plan.cause, _first_failure(plan, members, now, rules)
    if failure is not None and (cause is None or failure.at < cause.at):
        cause = failure  # told later, but it happened before
    assert cause is not None  # noqa: S101 - nothing stops without a cause
    if cause is not plan.cause:
        plan = replace(plan, cause=cause)
    running = [m for m in members if not _childless(m, plan.attempt) and now - m.heard < rules.life]
    if running:
        if now - plan.since >= rules.finish:
            names = ", ".join(member.label for member in running)
            text = f"{names} cannot end its processes; they were told to, because: {cause.text}"
            return _end(plan, now, replace(cause, text=text, code=EXIT_GANG))
        return plan
    if cause.code in FINAL:
        return _end(plan, now, cause)
    newest = saved()
    new = newest is not None and (plan.resume is None or newest > plan.resume)
    fruitless = (0 if new else plan.fruitless) + (cause.code != EXIT_STOPPED)
    if fruitless > rules.restarts:
        since = "since the last new save" if plan.resume is not None or new else "without any save"
        used = f" (training.restarts is {rules.restarts}, and it failed {fruitless} times {since})"
        return _end(plan, now, replace(cause, text=cause.text + used, code=EXIT_GANG))
    last = plan.restarts[-1] if plan.restarts else None
    if last is not None and cause.signature is not None and last.signature == cause.signature:
        where = f"pass {cause.place[0] + 1}, batch {cause.place[1]}" if cause.place else "the same place"
        again = f" (the second time in a row at {where}: a third would be the same)"
        return _end(plan, now, replace(cause, text=cause.text + again, code=EXIT_GANG))
    return replace(
        plan,
        attempt=plan.attempt + 1,
        do="wait",
        since=now,
        resume=newest,
        restarts=(*plan.restarts, Restart(plan.attempt, cause.text, now, cause.signature)),
        fruitless=fruitless,
    )
