"""Rank 0's output lease, attempt plan and run record on the simulation's clock.

Models launcher/supervisor/shared_storage/output_lease.py and launcher/supervisor/coordinator/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from launcher.errors import (
    LauncherError,
    TwinError,
    UnfitError,
)
from launcher.paths import Position
from launcher.supervisor.coordinator.coordinator import RUN_ENDS, plan_first_attempt
from launcher.supervisor.coordinator.decisions import AttemptPlan, decide_next_plan
from launcher.supervisor.peers.messages import Failure
from launcher.supervisor.shared_storage.output_lease import LeaseLostError
from tests.launcher.supervisor.simulated_launcher import SimulatedLauncher, Waits
from tests.launcher.supervisor.simulated_processes import T


class CheckpointNeeded(Exception):  # noqa: N818 - not an error: the caller reads the storage and calls again
    """`decide_next_plan` needs the newest checkpoint, which takes time to read."""


class SimulatedCoordinator(SimulatedLauncher):
    """Model a launcher that is the coordinator if it is rank 0."""

    def _acquire_lease(self) -> Waits:
        """Wait for the output lease; raise `TwinError` if another pod holds it too long."""
        world, began, seen, seen_at = self.world, self.world.now, None, self.world.now
        while True:
            yield from self._use_storage()
            now = world.now
            if world.lock is None:
                yield from self._use_storage(write=True)
                if world.lock is None:
                    world.lock, self.renewed = (self.incarnation, 0), now
                    return
            elif world.lock != seen:
                seen, seen_at = world.lock, now
            elif now - seen_at >= T.lock_stale:
                checked_at = now
                yield from self._use_storage(write=True)
                if world.lock == seen or world.lock is None:
                    world.lock = (self.incarnation, 0)
                    late = world.now - checked_at >= T.lock_settle
                    yield from self._block(T.lock_settle + (T.lock_lease if late else 0))
                    if world.lock[0] == self.incarnation:
                        self.renewed = world.now
                        return
            if now - began >= T.lock_wait:
                raise TwinError("another pod of this run holds the lease")
            yield from self._pause(T.poll)

    def _renew_lease(self) -> None:
        """Renew the lease, as the renewing thread does every `lock_beat` seconds."""
        began = self.world.now
        storage_fault, until = self.world.find_storage_fault(self)
        takes = {"hang": until - began + 0.01, "slow": self.world.rng.uniform(0.5, 6)}.get(storage_fault, 0.0)

        def write() -> None:
            lock = self.world.lock
            if self.lost is not None or (self.has_left and lock is None):
                return
            if storage_fault != "fail":
                if lock is None or lock[0] != self.incarnation:
                    self.lease_lost(UnfitError("another pod took the lease"))
                    return
                if self.world.now < self.renewed + T.lock_lease:
                    self.world.lock, self.renewed = (self.incarnation, lock[1] + 1), began
            self.schedule(T.lock_beat, self._renew_lease)

        self.schedule(takes, write)

    def _watch_lease(self) -> None:
        """Lose the lease when it expires. This thread does not touch the storage."""
        left = self.renewed + T.lock_lease - self.world.now
        if left <= 0:
            self.lease_lost(LeaseLostError("run.lock could not be renewed"))
        elif self.lost is None:
            self.schedule(left, self._watch_lease)

    def lease_lost(self, error: LauncherError) -> None:
        """Kill this pod's processes and stop the run after the lease is lost."""
        if self.lost is None and not self.dead:
            self.lost = error
            self.world.log_event("%s: %s", self, error)
            self.kill_processes()
            if self.began:
                self._publish_last_plan(error)
            self.wake()

    def _start_run(self) -> Waits:
        """Read run.json and publish the plan of the first attempt of this pod."""
        yield from self._use_storage()
        assert self.membership is not None
        record = self.world.run_json
        self.complete = self.world.model
        plan, members = plan_first_attempt(
            record, record.get("attempt", -1) + 1, self.world.ranks, self.world.now, 0.0
        )
        self.membership.restore(members)
        yield from self._persist(plan, "complete" if self.complete else "training", None)
        self.plan, self.began = plan, True
        self.publish()

    def _step_coordinator(self) -> Waits:
        """Decide and publish the next plan, as `Coordinator.step` does."""
        assert self.membership is not None
        now = self.world.now
        self.membership.record_state(self.state(), now)
        if not self.began or self.lost is not None:
            return
        before, members = self.plan, self.membership.members
        if self.complete:
            plan = replace(before, do="end", cause=None) if before.do != "end" else before
        else:
            try:
                plan = decide_next_plan(
                    before, members, now, self.world.rules, self._request_newest_checkpoint
                )
            except CheckpointNeeded:
                found = yield from self._find_newest_checkpoint()
                plan = decide_next_plan(before, members, now, self.world.rules, found)
        if plan == before:
            return
        if plan.do == "end":
            yield from self._persist(plan, "complete" if plan.cause is None else "failed", plan.cause)
        elif (before.attempt, before.restarts, before.incarnations) != (
            plan.attempt,
            plan.restarts,
            plan.incarnations,
        ):
            yield from self.record_plan(plan)
        if self.lost is None:
            self.plan = plan
            self.publish()

    def record_plan(self, plan: AttemptPlan) -> Waits:
        """Write a plan to the storage before it is published."""
        yield from self._persist(plan, "training", None)

    def _request_newest_checkpoint(self) -> Position | None:
        """Raise `CheckpointNeeded`."""
        raise CheckpointNeeded

    def _find_newest_checkpoint(self) -> Iterator[Any]:
        """Read the storage, and return a function that returns the newest checkpoint or raises the error."""
        try:
            yield from self._use_storage()
        except LauncherError as error:
            failed = error

            def raise_storage_error() -> Position | None:
                raise failed

            return raise_storage_error
        newest = max(self.world.checkpoints, default=None)
        return lambda: self.world.points[newest] if newest is not None else None

    def _persist(self, plan: AttemptPlan, state: str, cause: Failure | None) -> Waits:
        """Write run.json."""
        yield from self._use_storage(write=True)
        if self.lost is not None:
            raise self.lost
        self.world.record_run_json(self, plan, state, cause)

    def publish(self) -> None:
        """Publish the plan's order to all waiting ranks if it changed."""
        assert self.membership is not None
        order = self.plan.order()
        if order != self.membership.order:
            self.world.check_published_plan(self, self.plan)
            self.membership.publish(order)
            waiting, self.waiting = self.waiting, []
            for answer in waiting:
                answer()

    def _publish_last_plan(self, error: LauncherError) -> None:
        """Publish that the run ends or stops because of an error of rank 0."""
        cause = Failure.from_error(error, self.world.now, 0)
        ends = error.exit_code in RUN_ENDS
        self.plan = replace(self.plan, do="end" if ends else "stop", since=self.world.now, cause=cause)
        self.publish()

    def _other_ranks_stopped(self, now: float) -> bool:
        """Return whether no other rank can still run processes."""
        assert self.membership is not None
        without_processes = ("absent", "staging", "idle", "ended", "leaving")
        others = self.membership.members[1:]
        return all(
            (m.phase in without_processes or now - m.heard >= T.life) and m.ghost_until <= now for m in others
        )
