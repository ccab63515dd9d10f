"""A whole run on a virtual clock: pods, Kubernetes, network, storage and children, with faults, by a seed.

The launcher's own `decide`, `admit` (in `Hub`), `Follower` and `again` run; what is around them is modelled here as
agent.py, control.py, crew.py and lock.py do it. Every main thread is a generator that yields how long it waits;
its other threads (link, guard, lease) and everything else are events. `Violation` is raised by the first event that
breaks an invariant.

    python -m tests.launcher.core.simulation SEED       prints one run's events
    python -m tests.launcher.core.simulation FROM TO    looks for seeds that fail
"""

from __future__ import annotations

import heapq
import logging
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from launcher.errors import (
    EXIT_GANG,
    EXIT_UNFIT,
    DeadlineError,
    LauncherError,
    ProcessError,
    StoppedError,
    StorageError,
    StorageFailedError,
    TwinError,
    UnfitError,
)
from launcher.gang.agent import RUN_ENDS, EndedError
from launcher.gang.control import SOCKET_SECONDS, Hub
from launcher.gang.lead import again
from launcher.gang.machine import FINAL, Failure, Follower, Order, Plan, Refused, Rules, State, decide
from launcher.gang.timings import Timings
from launcher.layout import Position

T = Timings(poll=1.0)  # whatever happens wakes a launcher anyway
RENDEZVOUS = 300.0
STALL = 60.0
SAVES = 600.0  # for one save, by the deadline of its barriers
PATIENCE = 20.0  # of files.patient
GRACE = 30.0  # from a pod's TERM to its KILL
FAULTS_END = 120.0
LIMIT = 4000.0  # by then every run has ended
Wait = Iterator[float]


class Violation(AssertionError):
    """An invariant is broken."""


class Look(Exception):  # noqa: N818 - it is no error: decide() needs the storage, which takes its time
    """`decide` asks for the newest save."""


class Children:
    """One rank's children in one attempt, as crew.py looks after them."""

    def __init__(self, pod: Pod, order: Order) -> None:
        self.pod, self.world, self.attempt, self.order = pod, pod.world, order.attempt, order
        self.phase, self.failure = "serving", None
        self.starting, self.alive, self.hung, self.saving, self.done, self.accepts = (True, *[False] * 5)
        self.dead: ProcessError | None = None
        """One child ended by itself; the others live on."""
        self.dead_at = self.moved = self.kill_at = self.world.now
        self.stopping = False
        self.finish_by: float | None = None
        self.point = self.world.points.index(order.resume) + 1 if order.resume is not None else 0
        self.stubborn = self.world.rng.random() < 0.2

    @property
    def running(self) -> bool:
        return self.starting or self.alive

    @property
    def at_work(self) -> bool:
        return self.alive and self.dead is None and not self.hung and not self.stopping

    def begin(self) -> None:
        self.starting, self.alive = False, True
        self.world.child_starts(self)
        self.ready_by = self.world.now + T.ready
        slow = self.world.rng.random() < 0.003
        self.world.at(T.ready + 9 if slow else self.world.rng.uniform(0.5, 4), self.accept)

    def accept(self) -> None:
        if self.at_work:
            self.accepts = True
            self.pod.wake()

    def train(self) -> None:
        if self.phase == "ready":
            self.phase, self.moved = "training", self.world.now
            self.go_on()

    def go_on(self) -> None:
        if self.point == len(self.world.points):
            self.world.at(self.world.rng.uniform(0, 2), self.end)
        else:
            self.world.at(self.world.seconds, self.reach)

    def end(self) -> None:
        """The trainer has done its part; rank 0's writes the model."""
        if not self.at_work:
            return
        self.done = True
        if self.pod.rank == 0:
            self.world.writes(self.pod, "the model")
            self.world.model = True
        self.pod.wake()

    def reach(self) -> None:
        """The trainer stands where all write their parts of a save."""
        if not self.at_work:
            return
        self.moved, self.saving = self.world.now, True
        if self.world.bug == (self.pod.rank, self.point):
            self.die(1)
            return
        self.world.at(*self.world.child_io(self))

    def part(self) -> None:
        if not self.at_work:
            return
        parts = self.world.parts.setdefault((self.point, self.attempt), set())
        parts.add(self.pod.rank)
        if len(parts) == self.world.ranks:
            leader = next(
                (c for c in self.world.alive if c.pod.rank == 0 and c.attempt == self.attempt), None
            )
            if leader is not None:
                self.world.at(self.world.rng.uniform(0.05, 1), leader.save)

    def save(self) -> None:
        """Trainer 0: all parts are there, so `done`."""
        if not self.at_work:
            return
        self.world.saved(self)
        for crew in self.world.alive:
            if (
                crew.attempt == self.attempt
                and crew.at_work
                and crew.point == self.point
                and crew is not self
            ):
                crew.goes_past()
        self.goes_past()

    def goes_past(self) -> None:
        self.point, self.saving, self.moved = self.point + 1, False, self.world.now
        self.go_on()

    def die(self, code: int) -> None:
        """One child ends by itself."""
        if self.at_work or self.hung:
            self.dead = ProcessError(f"trainer ended with {code}", code, "trainer")
            self.dead_at = self.world.now
            self.world.note("%s: a child of attempt %d ends with %d", self.pod, self.attempt, code)
            self.pod.wake()

    def kill(self) -> None:
        """All of them, now."""
        if self.alive:
            self.alive = False
            self.world.alive.remove(self)
            self.world.note("%s: children of attempt %d have ended", self.pod, self.attempt)
            self.dead = self.dead or ProcessError("trainer was killed", -9, "trainer")
            self.pod.wake()

    def poll(self, now: float) -> None:
        """As Crew.poll."""
        if self.stopping:
            if now >= self.kill_at:
                self.kill()
            return
        if self.phase == "ended" or self.starting:
            return
        if self.finish_by is not None and self.phase == "done":
            if not self.alive:
                self.phase = "ended"
            elif now >= self.finish_by:
                self.kill()
            return
        error: LauncherError | None = self.dead
        if self.phase == "serving":
            if self.accepts:
                self.phase = "ready"
            elif now >= self.ready_by:
                error = error or DeadlineError("pserver 0 does not accept connections")
        elif self.phase == "training":
            if self.done:
                self.phase = "done"
            elif now - self.moved >= (SAVES if self.saving else STALL):
                error = error or ProcessError("trainer hangs", process="trainer")
        if error is not None:
            at = self.world.points[min(self.point, len(self.world.points) - 1)]
            place = (at.passes, at.batches)
            self.failure = Failure.of(
                error, min(self.dead_at, now) if self.dead else now, self.pod.rank, place=place
            )
            self.stop(now)

    def finish(self, now: float) -> None:
        if self.phase == "done" and self.finish_by is None:
            self.finish_by = now + T.servers_end
            late = T.servers_end + 9 if self.world.rng.random() < 0.02 else self.world.rng.uniform(0, 3)
            self.world.at(late, self.kill)

    def stop(self, now: float) -> None:
        if not self.stopping:
            self.stopping, self.kill_at = True, now + T.stop
            if not self.stubborn:
                self.world.at(self.world.rng.uniform(0, 1.5), self.kill)


class Pod:
    """One pod of one rank: its launcher's threads, and what Kubernetes does to it."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        world.made += 1
        self.incarnation = f"{rank}-{world.made}"
        self.follower = Follower(self._start, rank, T.orphan)
        self.follower.address = self.incarnation
        self.dead, self.frozen, self.cut, self.cut_storage = False, 0.0, 0.0, False
        self.blocked, self.turn = False, 0
        self.told_to_stop = self.gone = False
        self.leaving: Failure | None = None
        self.lost: LauncherError | None = None
        self.round = self.heard = self.said = world.now
        self.meanwhile: tuple[str, int, Failure | None] | None = None
        """What the link's thread tells while the main thread is about to start children."""
        # The link.
        self.order: Order | None = None
        self.refused: tuple[bool, float] | None = None
        self.seen, self.asked, self.pending, self.token = 0, 0, 0, ""
        self.target: Pod | None = None
        # Rank 0.
        self.hub: Hub | None = None
        self.plan, self.began, self.complete = Plan(-1), False, False
        self.renewed = world.now
        self.waiting: list[Callable[[], None]] = []
        self._main = self._run()
        self.at(world.rng.uniform(0.5, 3), lambda: self._resume(0))
        self.at(2, self._guard)

    def __str__(self) -> str:
        return f"pod {self.incarnation}"

    def at(self, delay: float, then: Callable[[], None]) -> None:
        """An event of one of this launcher's threads: later when it is frozen, never when it has ended."""

        def event() -> None:
            if self.dead:
                return
            if self.world.now < self.frozen:
                self.at(self.frozen - self.world.now + self.world.rng.uniform(0, 0.3), then)
            else:
                then()

        self.world.at(delay, event)

    # The main thread.

    def wake(self) -> None:
        if not self.blocked and self.turn > 0 and not self.dead:
            turn = self.turn
            self.at(0.0, lambda: self._resume(turn))

    def _resume(self, turn: int) -> None:
        if turn != self.turn:
            return
        self.turn += 1
        turn = self.turn
        try:
            delay = next(self._main)
        except StopIteration as ended:
            self.ends(ended.value[0], ended.value[1])
        else:
            self.at(delay, lambda: self._resume(turn))

    def _block(self, seconds: float) -> Wait:
        """Waits as in a system call: nothing wakes it."""
        self.blocked = True
        yield seconds
        self.blocked = False

    def _io(self, *, write: bool = False) -> Wait:
        """One use of the storage. Raises as `files.patient`."""
        give_up = self.world.now + PATIENCE
        while True:
            trouble, until = self.world.storage(self)
            if trouble == "full" and write:
                raise StorageError("no space left")
            if trouble == "slow":
                yield from self._block(self.world.rng.uniform(0.5, 6))
                return
            if trouble == "hang":
                yield from self._block(until - self.world.now + 0.01)
            elif trouble == "fail":
                if self.world.now >= give_up:
                    raise StorageFailedError("the storage fails: EIO")
                yield from self._block(3)
            else:
                yield from self._block(self.world.rng.uniform(0, 0.05))
                return

    def _pause(self, seconds: float) -> Wait:
        self.round = self.world.now
        if self.lost is not None:
            raise self.lost
        if self.told_to_stop and self.leaving is None:
            raise StoppedError("told to stop")
        yield seconds

    def _run(self) -> Iterator[Any]:
        """As Agent.run: gives (exit code, cause)."""
        error: LauncherError | None = None
        try:
            yield from self._script()
        except LauncherError as caught:
            error = caught
        yield from self._leave(error)
        return (error.exit_code, str(error)) if error is not None else (0, "")

    def _script(self) -> Wait:
        if self.rank == 0:
            self.hub = Hub(self.world.ranks, self.world.rules, self.wake, 0.0)
            yield from self._acquire()
            self._renew()
            self._watch()
            self.hub.open(self.incarnation)
        else:
            yield from self._look_whether_over("complete")
            self.at(0, self._ask)
        yield from self._io()
        for _ in range(self.world.rng.randint(1, 3)):  # the shard
            yield from self._pause(self.world.rng.uniform(0.1, 1))
        self.follower.staged = True
        if self.rank == 0:
            yield from self._begin()
        while True:
            order = yield from self._step()
            if order is not None and order.do == "end" and not self.follower.running:
                if order.cause is not None:
                    raise EndedError(order.cause, order.code)
                return
            yield from self._pause(T.poll)

    def _step(self) -> Iterator[Any]:
        order, heard = self.order, self.heard
        if self.hub is not None:
            yield from self._lead()
            order, heard = self.hub.order, self.world.now
            self.world.receives(self, order)
        else:
            yield from self._check_link()
        self.follower.step(order, heard, self.world.now)
        if self.meanwhile is not None:  # its children start once the storage has answered
            yield from self._starts()
        if self.hub is not None:
            yield from self._lead()
            order = self.hub.order
        return order

    def _start(self, order: Order) -> Children:
        self.meanwhile = self.follower.told
        return Children(self, order)

    def _starts(self) -> Wait:
        crew = self.follower.crew
        assert isinstance(crew, Children)
        try:
            yield from self._io(write=True)
            self.look_again()
        except LauncherError as error:
            crew.starting = False
            self.follower.crew, self.follower.failure = None, Failure.of(error, self.world.now, self.rank)
        else:
            crew.begin()
        self.meanwhile = None
        self.follower.told = self.follower.phase, self.follower.attempt, self.follower.failure

    def look_again(self) -> None:
        """Before the first child: the storage may have taken its time."""
        if self.lost is not None:
            raise self.lost
        if self.hub is None and self.world.now - self.heard >= T.orphan:
            raise UnfitError("the storage answered too late")

    def state(self) -> State:
        phase, attempt, failure = self.meanwhile or self.follower.told
        phase = "leaving" if self.gone else phase
        return State(self.rank, self.incarnation, phase, attempt, self.leaving or failure, self.incarnation)

    def _check_link(self) -> Wait:
        now = self.world.now
        if self.refused is not None:
            twin, since = self.refused
            if twin or now - since >= T.twin:
                raise TwinError("another pod of this rank counts")
        silent = now - self.heard
        if silent < T.silence or now - self.said < T.silence:
            return
        self.said = now
        yield from self._look_whether_over("complete", "failed")
        if silent >= RENDEZVOUS:
            raise DeadlineError(f"rank 0 was not there for {silent:.0f} s")

    def _look_whether_over(self, *states: str) -> Wait:
        yield from self._io()
        told = self.world.run_json
        if told.get("state") not in states:
            return
        if told["state"] == "complete":
            raise EndedError("the run is complete", 0)
        if self.token == told["holder"]:
            raise EndedError(str(told["cause"]), int(told["exitCode"]))

    def _leave(self, error: LauncherError | None) -> Wait:
        told = error if not isinstance(error, EndedError) else None
        if told is not None:
            self.leaving = Failure.of(told, self.world.now, self.rank)
            if self.hub is not None:
                self._leave_plan(told)
        deadline = self.world.now + T.stop + 5
        while self.follower.running and self.world.now < deadline:
            self.round = self.world.now
            self.follower.step(None, self.world.now, self.world.now)
            yield T.poll
        self.kill_children()
        self.gone = True
        if self.hub is None:
            if self.order is not None and self.target is not None:
                self._send(self.target, self.state(), 0)
                yield self.world.rng.uniform(0, T.copies)
            return
        deadline = self.world.now + T.farewell
        while self.world.now < deadline:
            self.round = now = self.world.now
            if self.hub.everybody_knows(now, absent=told is not None) and (self._settled(now) or self.lost is not None):
                break
            yield 0.5
        if told is not None and self.began and self.lost is None:
            ends = told.exit_code in RUN_ENDS
            try:
                yield from self._persist(
                    self.plan, "failed" if ends else "stopped", Failure.of(told, self.world.now, 0)
                )
            except LauncherError:
                pass
        if self.lost is None and self.world.lock is not None and self.world.lock[0] == self.incarnation:
            self.world.lock = None

    def _leave_plan(self, error: LauncherError) -> None:
        """As Leader.end and Leader.leave."""
        cause = Failure.of(error, self.world.now, 0)
        ends = error.exit_code in RUN_ENDS
        self.plan = replace(self.plan, do="end" if ends else "stop", since=self.world.now, cause=cause)
        self.publish()

    def _settled(self, now: float) -> bool:
        assert self.hub is not None
        childless = ("absent", "staging", "idle", "ended", "leaving")
        return all(m.phase in childless or now - m.heard >= T.silence for m in self.hub.members[1:])

    # Rank 0's lease and plan.

    def _acquire(self) -> Wait:
        world, began, seen, seen_at = self.world, self.world.now, None, self.world.now
        while True:
            yield from self._io()
            now = world.now
            if world.lock is None:
                yield from self._io(write=True)
                if world.lock is None:
                    world.lock, self.renewed = (self.incarnation, 0), now
                    return
            elif world.lock != seen:
                seen, seen_at = world.lock, now
            elif now - seen_at >= T.lock_stale:
                looked = now
                yield from self._io(write=True)
                if world.lock == seen or world.lock is None:
                    world.lock = (self.incarnation, 0)
                    late = world.now - looked >= T.lock_settle
                    yield from self._block(T.lock_settle + (T.lock_lease if late else 0))
                    if world.lock[0] == self.incarnation:
                        self.renewed = world.now
                        return
            if now - began >= T.lock_wait:
                raise TwinError("another pod of this run leads it")
            yield from self._pause(T.poll)

    def _renew(self) -> None:
        """The renewing thread."""
        began = self.world.now
        trouble, until = self.world.storage(self)
        takes = {"hang": until - began + 0.01, "slow": self.world.rng.uniform(0.5, 6)}.get(trouble, 0.0)

        def write() -> None:
            lock = self.world.lock
            if self.lost is not None or (self.gone and lock is None):
                return
            if trouble != "fail":
                if lock is None or lock[0] != self.incarnation:
                    self.lease_lost(UnfitError("the lock was taken"))
                    return
                if self.world.now < self.renewed + T.lock_lease:
                    self.world.lock, self.renewed = (self.incarnation, lock[1] + 1), began
            self.at(T.lock_beat, self._renew)

        self.at(takes, write)

    def _watch(self) -> None:
        """Touches no storage."""
        left = self.renewed + T.lock_lease - self.world.now
        if left <= 0:
            self.lease_lost(StorageFailedError("run.lock could not be renewed"))
        elif self.lost is None:
            self.at(left, self._watch)

    def lease_lost(self, error: LauncherError) -> None:
        if self.lost is None and not self.dead:
            self.lost = error
            self.world.note("%s: %s", self, error)
            self.kill_children()
            if self.began:
                self._leave_plan(error)
            self.wake()

    def _begin(self) -> Wait:
        yield from self._io()
        assert self.hub is not None
        told = self.world.run_json
        self.complete = self.world.model
        plan, members = again(told, told.get("attempt", -1) + 1, self.world.ranks, self.world.now, 0.0)
        self.hub.remember(members)
        yield from self._persist(plan, "complete" if self.complete else "training", None)
        self.plan, self.began = plan, True
        self.publish()

    def _lead(self) -> Wait:
        """As Leader.step."""
        assert self.hub is not None
        now = self.world.now
        self.hub.take(self.state(), now)
        if not self.began or self.lost is not None:
            return
        before, members = self.plan, self.hub.members
        if self.complete:
            plan = replace(before, do="end", cause=None) if before.do != "end" else before
        else:
            try:
                plan = decide(before, members, now, self.world.rules, self._look)
            except Look:
                found = yield from self._looks()
                plan = decide(before, members, now, self.world.rules, found)
        if plan == before:
            return
        if plan.do == "end":
            yield from self._persist(plan, "complete" if plan.cause is None else "failed", plan.cause)
        elif (before.attempt, before.restarts, before.crew) != (plan.attempt, plan.restarts, plan.crew):
            yield from self.plans(plan)
        if self.lost is None:
            self.plan = plan
            self.publish()

    def plans(self, plan: Plan) -> Wait:
        """The storage knows a plan before anybody is told, and before it is the plan."""
        yield from self._persist(plan, "training", None)

    def _look(self) -> Position | None:
        raise Look

    def _looks(self) -> Iterator[Any]:
        try:
            yield from self._io()
        except LauncherError as error:
            failed = error

            def raises() -> Position | None:
                raise failed

            return raises
        newest = max(self.world.saves, default=None)
        return lambda: self.world.points[newest] if newest is not None else None

    def _persist(self, plan: Plan, state: str, cause: Failure | None) -> Wait:
        yield from self._io(write=True)
        if self.lost is not None:
            raise self.lost
        self.world.persisted(self, plan, state, cause)

    def publish(self) -> None:
        assert self.hub is not None
        order = self.plan.order()
        if order != self.hub.order:
            self.world.published(self, self.plan)
            self.hub.publish(order)
            waiting, self.waiting = self.waiting, []
            for answer in waiting:
                answer()

    # The link's thread.

    def _ask(self) -> None:
        if self.gone or self.pending:
            return
        if self.world.now - self.round >= T.stuck:
            self.at(T.poll, self._ask)
            return
        if self.target is None or self.target.dead:
            self.target, self.seen = self.world.resolve(), 0
            if self.target is None or self.target.dead:
                self.target = None
                self.at(self.world.rng.choice((0.5, 5)), self._ask)
                return
        if not self.token:
            self._read_token()
        self.asked += 1
        self.pending = number = self.asked
        self._send(self.target, self.state(), number)

        def give_up() -> None:
            if self.pending == number:
                self.pending, self.target = 0, None
                self._ask()

        self.at(SOCKET_SECONDS, give_up)

    def _read_token(self) -> None:
        """What this node sees of the lock: it may be old."""
        trouble, _ = self.world.storage(self)
        if trouble is None:
            self.token = self.world.visible_token()

    def _send(self, target: Pod, state: State, number: int) -> None:
        told = replace(state, failure=state.failure)
        token, seen, sent = self.token, self.seen, self.world.now

        def arrives() -> None:
            target.takes(told, token, seen, lambda answer: self._reply(target, number, sent, answer))

        for delay in self.world.delays(self, target):
            self.world.at(delay, lambda: target.at(0, arrives))

    def takes(self, state: State, token: str, seen: int, reply: Callable[[Any], None]) -> None:
        """Rank 0's server."""
        hub = self.hub
        if hub is None or hub.allows(token) is not True:
            reply(503 if hub is None or hub.allows(token) is None else 401)
            return
        try:
            hub.take(state, self.world.now)
        except Refused as refused:
            reply(refused)
            return

        once: list[bool] = []

        def answer() -> None:
            if not once:
                once.append(True)
                hub.answer(state.rank, -1)
                reply((hub._version, hub.order))

        if seen != hub._version:
            answer()
        else:
            self.waiting.append(answer)
            self.at(1.0, answer)

    def _reply(self, target: Pod, number: int, sent: float, answer: Any) -> None:
        def arrives() -> None:
            if self.pending != number:
                return  # its connection was given up
            self.pending = 0
            if isinstance(answer, tuple):
                version, order = answer
                changed, self.seen, self.order = version != self.seen, version, order
                self.heard, self.refused = self.confirmed(sent), None
                self.world.receives(self, order)
                if changed:
                    self.wake()
                self._ask()
                return
            if isinstance(answer, Refused):
                self.refused = answer.twin, self.refused[1] if self.refused else sent
                self.wake()
            elif answer == 401:
                self._read_token()
            self.target = self.target if self.world.rng.random() < 0.8 else None
            self.at(T.poll, self._ask)

        for delay in self.world.delays(target, self):
            self.world.at(delay, lambda: self.at(0, arrives))

    def confirmed(self, sent: float) -> float:
        """When rank 0 certainly still counted on this rank: an answer may have been long on its way."""
        return sent

    # The guard's thread, and what others do to the pod.

    def _guard(self) -> None:
        now = self.world.now
        stuck = now - self.round
        if self.hub is None and now - self.heard >= T.orphan + T.stop + 2:
            self.kill_children()
        if stuck >= T.stuck or (self.lost is not None and stuck >= T.stop):
            self.kill_children()
        if stuck >= 2 * T.stuck and self.turn > 0:
            self.ends(EXIT_UNFIT, "the launcher was stuck")
            return
        self.at(2, self._guard)

    def kill_children(self) -> None:
        for crew in [crew for crew in self.world.alive if crew.pod is self]:
            crew.kill()

    def ends(self, code: int, why: str) -> None:
        """The container ends, and every process in it."""
        if self.dead:
            return
        self.dead = True
        self.kill_children()
        self.world.note("%s ends with %d: %s", self, code, why)
        self.world.ended(self, code, why)

    def stop(self) -> None:
        """TERM, and KILL after the grace period."""
        self.told_to_stop = True
        self.wake()
        self.world.at(GRACE, lambda: self.ends(137, "killed after its grace period"))


class World:
    """The clock, Kubernetes, the network, the storage, and what must always hold.

    `mild`: no fault is final and the budget is large, so that the run has to complete.
    """

    def __init__(self, seed: int, *, faults: bool = True) -> None:
        self.rng = rng = random.Random(seed)
        self.seed, self.now, self.made, self._count = seed, 0.0, 0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._log: list[tuple[float, str, tuple[Any, ...]]] = []
        self.mild = rng.random() < 0.5
        self.ranks = rng.choice((1, 2, 2, 3, 3, 4))
        passes, inside = rng.randint(1, 3), rng.choice((0, 0, 2))
        self.points = [
            at
            for number in range(passes)
            for at in (*(Position(number, 10 * (i + 1)) for i in range(inside)), Position(number + 1))
        ]
        self.seconds = rng.uniform(2, 12)
        """Of training between two saves."""
        self.restarts = 1000 if self.mild else rng.randint(0, 5)
        self.rules = Rules(
            silence=T.silence,
            life=T.life,
            rendezvous=RENDEZVOUS,
            serve=T.ready + T.stop + T.stuck,
            finish=T.servers_end + 2 * T.stop + T.stuck,
            restarts=self.restarts,
        )
        self.bug: tuple[int, int] | None = None
        self.lock: tuple[str, int] | None = None
        self._tokens: list[tuple[float, str]] = []
        self.run_json: dict[str, Any] = {}
        self.saves: dict[int, int] = {}
        self.parts: dict[tuple[int, int], set[int]] = {}
        self.model = False
        self._troubles: list[tuple[float, float, str, Pod | None]] = []
        self.noise = 0.0
        self.alive: list[Children] = []
        self._best, self._fruitless, self._restarted, self._newest = -1, 0, 0, -1
        self.failed: tuple[int, str] | None = None
        self.completed: set[int] = set()
        self._lost = [0] * self.ranks
        self.given_up: set[int] = set()
        self.current: list[Pod | None] = [None] * self.ranks
        self.before: tuple[float, Pod | None] = (0.0, None)
        """(until when DNS may give it, an earlier pod of rank 0)."""
        for rank in range(self.ranks):
            self._make(rank)
        if faults:
            self._plan_faults()

    # The clock.

    def at(self, delay: float, then: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, then))

    def note(self, text: str, *values: Any) -> None:
        self._log.append((self.now, text, values))

    def tail(self, lines: int = 60) -> str:
        """The newest events."""
        return "\n".join(f"{at:8.2f}  {text % values}" for at, text, values in self._log[-lines:])

    def run(self) -> str:
        """How the run ended. Raises `Violation`."""
        while self._events and self.now < LIMIT:
            self.now, _, then = heapq.heappop(self._events)
            then()
            if self._over():
                break
        else:
            self.breaks(f"the run has not ended after {LIMIT:.0f} s")
        if self.failed is None:
            if self.points[-1] not in [self.points[i] for i in self.saves] or not self.model:
                self.breaks("all ranks are done, but not all passes are there")
            return "complete"
        code, why = self.failed
        if not why or code not in RUN_ENDS:
            self.breaks(f"it failed without a reason: {code} {why!r}")
        if self.mild:
            self.breaks(f"no fault was final, but it failed with {code}: {why}")
        return f"failed with {code}: {why}"

    def breaks(self, why: str) -> None:
        """Raises `Violation`."""
        self.note("VIOLATION: %s", why)
        raise Violation(f"seed {self.seed} at {self.now:.2f} s: {why}")

    def _over(self) -> bool:
        if len(self.completed) + len(self.given_up) == self.ranks:
            self.failed = self.failed or (EXIT_GANG, "Kubernetes gave it up") if self.given_up else None
            return True
        return self.failed is not None and not any(pod is not None and not pod.dead for pod in self.current)

    # Kubernetes.

    def _make(self, rank: int) -> None:
        if self.failed is None and self.current[rank] is None:
            pod = self.current[rank] = Pod(self, rank)
            self.note("%s is there", pod)

    def _replaces(self, rank: int, *, soon: bool) -> None:
        if rank == 0:
            self.before = self.now + self.rng.choice((0, 10, 30)), self.current[0]
        self.current[rank] = None
        self.at(self.rng.uniform(0.5, 3) if soon else self.rng.uniform(1, 20), lambda: self._make(rank))

    def ended(self, pod: Pod, code: int, why: str) -> None:
        """A container ended: what the Job's podFailurePolicy says."""
        if self.current[pod.rank] is not pod:
            return
        if code == 0:
            self.completed.add(pod.rank)
        elif self.failed is not None:
            self.current[pod.rank] = None
        elif code in RUN_ENDS:
            self.current[pod.rank] = None
            self.failed = code, why
            self.note("the Job fails")
            for other in self.current:
                if other is not None:
                    other.stop()
        elif code not in (69, 143) and self._counts(pod.rank):
            self.current[pod.rank] = None
            self.given_up.add(pod.rank)
            self.note("Kubernetes gives rank %d up", pod.rank)
        else:
            self._replaces(pod.rank, soon=False)

    def _counts(self, rank: int) -> bool:
        self._lost[rank] += 1
        return self._lost[rank] > 10 * self.restarts

    def resolve(self) -> Pod | None:
        """Rank 0's pod, as DNS gives it."""
        until, before = self.before
        return before if self.now < until and self.rng.random() < 0.3 else self.current[0]

    # The network.

    def delays(self, source: Pod, target: Pod) -> list[float]:
        """When one message arrives: never, once or twice, and maybe late."""
        rng = self.rng
        cut = max(source.cut, target.cut) - self.now
        if cut > 0 and source is not target:
            return [cut + rng.uniform(0, 15)] if rng.random() < 0.5 else []  # TCP tries on
        if rng.random() >= self.noise:
            return [rng.uniform(0.001, 0.05)]
        kind = rng.random()
        if kind < 0.3:
            return []
        if kind < 0.6:
            return [rng.uniform(0, 0.1), rng.uniform(0, 25)]
        return [rng.uniform(0, 15)]

    # The storage.

    def storage(self, pod: Pod) -> tuple[str | None, float]:
        """(what is wrong with it for this pod now, until when)."""
        if pod.cut_storage and self.now < pod.cut:
            return "hang", pod.cut
        for begin, end, kind, whose in self._troubles:
            if begin <= self.now < end and whose in (None, pod):
                return kind, end
        return None, 0.0

    def child_io(self, crew: Children) -> tuple[float, Callable[[], None]]:
        """(how long a part of a save takes, what is then)."""
        trouble, until = self.storage(crew.pod)
        if trouble in ("full", "fail"):
            return 1.0, lambda: crew.die(75 if trouble == "full" else 71)
        if trouble == "hang":
            return until - self.now + 0.1, crew.part
        return self.rng.uniform(0.5, 6) if trouble == "slow" else self.rng.uniform(0.05, 1), crew.part

    def visible_token(self) -> str:
        """The lock's token as another node sees it: NFS keeps names for up to a minute."""
        token = self.lock[0] if self.lock is not None else ""
        if not self._tokens or self._tokens[-1][1] != token:
            self._tokens.append((self.now, token))
        old = [token for at, token in self._tokens[:-1] if self.now - self._tokens[-1][0] < 60]
        return old[-1] if old and self.rng.random() < 0.3 else token

    def writes(self, pod: Pod, what: str) -> None:
        """Something is written to the output for this rank 0."""
        if self.lock is not None and self.lock[0] != pod.incarnation:
            self.breaks(f"{pod} writes {what}, but the output is {self.lock[0]}'s")

    def saved(self, crew: Children) -> None:
        """`done` of a save."""
        self.writes(crew.pod, "a save")
        parts = self.parts.get((crew.point, crew.attempt), set())
        if len(parts) < self.ranks:
            self.breaks(f"a save of attempt {crew.attempt} is done with the parts {sorted(parts)} alone")
        self.note("saved %s (attempt %d)", self.points[crew.point], crew.attempt)
        self.saves[crew.point] = crew.attempt
        for old in sorted(self.saves)[:-3]:
            del self.saves[old]

    def persisted(self, pod: Pod, plan: Plan, state: str, cause: Failure | None) -> None:
        """run.json is written."""
        self.writes(pod, "run.json")
        self.note("%s writes attempt %d %s (%s)", pod, plan.attempt, plan.do, state)
        self._budget(plan)
        self.run_json = {
            "attempt": plan.attempt,
            "restarts": [
                {"attempt": r.attempt, "cause": r.cause, "at": r.at, "signature": r.signature}
                for r in plan.restarts
            ],
            "crew": plan.crew,
            "fruitless": plan.fruitless,
            "resume": (plan.resume.passes, plan.resume.batches) if plan.resume is not None else None,
            "state": state,
            "holder": pod.incarnation,
            "cause": cause.text if cause is not None else None,
            "exitCode": cause.code if cause is not None else None,
        }

    # What must hold.

    def _budget(self, plan: Plan) -> None:
        """Restarts without a new save in between, counted apart from the launcher's own books."""
        if len(plan.restarts) < self._restarted:
            self.breaks("restarts were forgotten")
        if len(plan.restarts) == self._restarted:
            return
        self._restarted += 1
        newest = max(self.saves, default=-1)
        if newest > self._best:
            self._best, self._fruitless = newest, 0
        self._fruitless += plan.cause is None or plan.cause.code != 143
        if self._fruitless > self.restarts:
            self.breaks(f"{self._fruitless} restarts without a new save, of {self.restarts}")
        if plan.cause is not None and plan.cause.code in FINAL:
            self.breaks(f"it restarts after {plan.cause.code}")

    def published(self, pod: Pod, plan: Plan) -> None:
        self.note("%s orders attempt %d %s: %s", pod, plan.attempt, plan.do, plan.cause and plan.cause.text)
        if plan.do == "end" and plan.cause is not None and plan.cause.code not in RUN_ENDS:
            self.breaks(
                f"everybody is told to end with {plan.cause.code}, which ends no Job: {plan.cause.text}"
            )
        self._known(plan.attempt, len(plan.restarts))

    def receives(self, pod: Pod, order: Order) -> None:
        self._known(order.attempt, 0)

    def _known(self, attempt: int, restarts: int) -> None:
        known = self.run_json.get("attempt", -1), len(self.run_json.get("restarts", ()))
        if attempt > known[0] or restarts > known[1]:
            self.breaks(f"attempt {attempt} and {restarts} restarts were told, but run.json has {known}")

    def child_starts(self, crew: Children) -> None:
        self.note("%s: children of attempt %d start", crew.pod, crew.attempt)
        for other in self.alive:
            if other.attempt != crew.attempt or other.pod.rank == crew.pod.rank:
                self.breaks(
                    f"{crew.pod} starts children of attempt {crew.attempt} while those of attempt "
                    f"{other.attempt} live on {other.pod}"
                )
        if crew.attempt < self._newest:
            self.breaks(f"attempt {crew.attempt} starts after {self._newest}")
        self._newest = crew.attempt
        if crew.point and crew.point - 1 not in self.saves:
            self.breaks(f"there is no save at {crew.order.resume} to go on from")
        self.alive.append(crew)

    # Faults.

    def _plan_faults(self) -> None:
        rng = self.rng
        kinds = [*self._mild, *([] if self.mild else self._harsh)]
        for _ in range(rng.choice((0, 1, 1, 2, 3, 4, 6, 9))):
            kind = rng.choice(kinds)
            rank = rng.choice((0, rng.randrange(self.ranks)))
            self.at(rng.uniform(0, FAULTS_END), self._fault(kind, rank))
            if rng.random() < 0.4:  # troubles come together
                near = rng.choice(kinds)
                self.at(rng.uniform(0, FAULTS_END), self._fault(near, rng.randrange(self.ranks)))
        if rng.random() < 0.4:
            self.noise = rng.choice((0.02, 0.1, 0.2, 0.4))
            self.at(FAULTS_END, lambda: setattr(self, "noise", 0.0))

    def _fault(self, kind: str, rank: int) -> Callable[[], None]:
        def happens() -> None:
            pod = self.current[rank]
            if pod is None or pod.dead or self.failed is not None:
                return
            self.note("FAULT %s of %s", kind, pod)
            getattr(self, "_" + kind)(pod)

        return happens

    _mild = ["child_killed", "child_hangs", "launcher_killed", "drained", "forced", "frozen", "cut", "node_lost", "storage_slow", "storage_hangs", "storage_fails"]
    _harsh = ["child_fails", "storage_full", "program_bug"]

    def _crews(self, pod: Pod) -> list[Children]:
        return [crew for crew in self.alive if crew.pod is pod]

    def _child_killed(self, pod: Pod) -> None:
        for crew in self._crews(pod):
            crew.die(-9)

    def _child_fails(self, pod: Pod) -> None:
        for crew in self._crews(pod):
            crew.die(self.rng.choice((1, 64, 65, 71, 75, 139)))

    def _child_hangs(self, pod: Pod) -> None:
        for crew in self._crews(pod):
            crew.hung = True

    def _launcher_killed(self, pod: Pod) -> None:
        pod.ends(137, "killed")

    def _drained(self, pod: Pod) -> None:
        everybody = self.rng.random() < 0.2
        for other in [*self.current] if everybody else [pod]:
            if other is not None and not other.dead:
                other.stop()

    def _forced(self, pod: Pod) -> None:
        """Deleted by force: its successor comes at once. The kubelet ends it later, or sees nothing of it for long."""
        if pod.frozen > self.now:
            pod.ends(137, "killed")
            return
        self._replaces(pod.rank, soon=True)
        if self.rng.random() < 0.5 or (self.mild and pod.rank == 0):
            self.at(self.rng.uniform(0, 20), pod.stop)

    def _node_lost(self, pod: Pod) -> None:
        """Its node is cut off and deleted; its processes live on."""
        if pod.frozen > self.now:
            return
        # A rank 0 that is replaced, lives on and reaches the storage keeps the lease, and the others look for its
        # successor: that ends with a reason, but does not heal by itself.
        pod.cut_storage = self.rng.random() < 0.5 or (self.mild and pod.rank == 0)
        replaced = self.rng.random() < 0.7
        pod.cut = self.now + self.rng.uniform(60, 400 if replaced or not self.mild else RENDEZVOUS - 60)
        if replaced:
            self._replaces(pod.rank, soon=self.rng.random() < 0.7)

    def _cut(self, pod: Pod) -> None:
        pod.cut, pod.cut_storage = self.now + self.rng.choice((3, 8, 15, 40)), self.rng.random() < 0.5

    def _frozen(self, pod: Pod) -> None:
        """SIGSTOP: its children go on, and its liveness probe ends the pod, should it last."""
        if self.current[pod.rank] is not pod or self.rng.random() < 0.4:
            pod.frozen = self.now + self.rng.uniform(1, 50)
            return
        pod.frozen = self.now + LIMIT
        self.at(self.rng.uniform(60, 90), lambda: pod.ends(137, "its liveness probe failed"))

    def _trouble(self, kind: str, pod: Pod, longest: float) -> None:
        whose = pod if self.rng.random() < 0.6 else None
        self._troubles.append((self.now, self.now + self.rng.uniform(1, longest), kind, whose))

    def _storage_slow(self, pod: Pod) -> None:
        self._trouble("slow", pod, 60)

    def _storage_hangs(self, pod: Pod) -> None:
        self._trouble("hang", pod, 70)

    def _storage_fails(self, pod: Pod) -> None:
        self._trouble("fail", pod, 50)

    def _storage_full(self, pod: Pod) -> None:
        self._trouble("full", pod, 30)

    def _program_bug(self, pod: Pod) -> None:
        """From now on the program fails wherever this rank comes to this point."""
        self.bug = pod.rank, self.rng.randrange(len(self.points))


def main(arguments: list[str]) -> int:
    """0, or 1 when an invariant is broken."""
    logging.disable(logging.CRITICAL)
    first = int(arguments[0])
    broken = 0
    for seed in range(first, int(arguments[1]) if len(arguments) > 1 else first + 1):
        world = World(seed)
        try:
            how = world.run()
        except Violation as violation:
            how, broken = f"VIOLATION {violation}", broken + 1
        if len(arguments) == 1:
            sys.stdout.write(world.tail(10_000) + "\n")
        if len(arguments) == 1 or how.startswith("VIOLATION"):
            sys.stdout.write(f"seed {seed}, {world.ranks} ranks, {world.now:.0f} s: {how}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
