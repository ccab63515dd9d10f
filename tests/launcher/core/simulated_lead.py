"""Rank 0's lease, plan and books on the simulation's clock, as lock.py, lead.py and books.py have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from launcher.errors import (
    LauncherError,
    TwinError,
    UnfitError,
)
from launcher.gang.lead import RUN_ENDS, again
from launcher.gang.machine import Plan, decide
from launcher.gang.messages import Failure
from launcher.layout import Position
from launcher.storage.lock import LockLostError
from tests.launcher.core.simulated_children import T
from tests.launcher.core.simulated_launcher import Launcher, Wait


class Look(Exception):  # noqa: N818 - it is no error: decide() needs the storage, which takes its time
    """`decide` asks for the newest save."""


class Leader(Launcher):
    """A launcher that leads, when it is rank 0's."""

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
            self.lease_lost(LockLostError("run.lock could not be renewed"))
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

    def _leave_plan(self, error: LauncherError) -> None:
        """As Leader.end and Leader.leave."""
        cause = Failure.of(error, self.world.now, 0)
        ends = error.exit_code in RUN_ENDS
        self.plan = replace(self.plan, do="end" if ends else "stop", since=self.world.now, cause=cause)
        self.publish()

    def _settled(self, now: float) -> bool:
        assert self.hub is not None
        childless = ("absent", "staging", "idle", "ended", "leaving")
        others = self.hub.members[1:]
        return all((m.phase in childless or now - m.heard >= T.life) and m.ghost <= now for m in others)
