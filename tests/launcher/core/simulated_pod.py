"""One pod's launcher on the simulation's clock: its threads as agent.py, lead.py, control.py and
lock.py have them.

The main thread is a generator that yields how long it waits; the other ones (link, guard, lease) are events.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher.errors import (
    EXIT_UNFIT,
    DeadlineError,
    LauncherError,
    StoppedError,
    StorageError,
    StorageFailedError,
    TwinError,
    UnfitError,
)
from launcher.gang.agent import RUN_ENDS, EndedError
from launcher.gang.control import SOCKET_SECONDS, Hub
from launcher.gang.lead import again
from launcher.gang.machine import Failure, Follower, Order, Plan, Refused, State, decide
from launcher.layout import Position
from tests.launcher.core.simulated_children import Children, T

if TYPE_CHECKING:
    from tests.launcher.core.simulation import World

PATIENCE = 20.0  # of files.patient
GRACE = 30.0  # from a pod's TERM to its KILL
Wait = Iterator[float]


class Look(Exception):  # noqa: N818 - it is no error: decide() needs the storage, which takes its time
    """`decide` asks for the newest save."""


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
        if silent >= self.world.rules.rendezvous:
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
        patience, deadline = self.world.now + T.tell, self.world.now + T.farewell
        while self.world.now < deadline:
            self.round = now = self.world.now
            knows = self.hub.everybody_knows(now, absent=now >= patience)
            if knows and (self._settled(now) or self.lost is not None):
                break
            yield 0.5
        if told is not None and self.began and self.lost is None:
            ends = told.exit_code in RUN_ENDS
            with contextlib.suppress(LauncherError):
                yield from self._persist(
                    self.plan, "failed" if ends else "stopped", Failure.of(told, self.world.now, 0)
                )
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
