"""Simulate a run on a virtual clock: what rank 0 decides while random faults happen.

The parts of the product are the decisions of the coordinator, `Membership`, `OrderExecutor`, and the JSON of the
messages between them. The simulation stands in for the rest: pods, their processes, Kubernetes, the output lease,
run.json and the network. Everything runs in one thread, and a seed determines a run. `InvariantBrokenError` is raised
by the first event that breaks an invariant of docs/explanation/decisions.md.

`python -m tests.launcher.supervisor.simulation SEED [KIND…]` prints the events of one run. Without KIND, all kinds of
faults (`Faults`) happen.
"""

from __future__ import annotations

import heapq
import json
import logging
import random
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from launcher.errors import (
    EXIT_STOPPED,
    EXIT_UNFIT,
    FINAL,
    RUN_ENDS,
    DeadlineError,
    LauncherError,
    ProcessError,
    StoppedError,
    TwinError,
    UnfitError,
)
from launcher.paths import Position
from launcher.schema import RunFile, TrainerProgress, from_json, to_json
from launcher.supervisor.agent import SPARE_SECONDS
from launcher.supervisor.coordinator import decisions, members
from launcher.supervisor.coordinator.members import GangLimits, Membership, can_run_processes
from launcher.supervisor.peers.coordinator_link import ANSWER_SECONDS, RunEndedError
from launcher.supervisor.peers.messages import Action, Failure, MemberState, Phase, Plan
from launcher.supervisor.process_group import OrderExecutor
from launcher.supervisor.timings import Timings

T = Timings(hold=0.0)
EXIT_SECONDS = T.stop + T.copies + SPARE_SECONDS
STALL = 60.0  # training.progressDeadlineSeconds
SAVE_SECONDS = 15.0  # every simulated checkpoint is complete within this time without faults
LIMIT = 4000.0  # every run ends within this many seconds


class InvariantBrokenError(AssertionError):
    """A run broke an invariant."""


class Processes:
    """The processes of one rank in one attempt: what `OrderExecutor` needs of `ProcessGroup`."""

    def __init__(self, pod: Pod, order: Plan) -> None:
        self.pod, self.world, self.attempt, self.resume = pod, pod.world, order.attempt, order.resume
        self.phase, self.failure = Phase.SERVING, None
        self.running, self.is_stopping, self.hung, self.saves = True, False, 0.0, False
        self.ranks = len(order.addresses)
        self._finishes = False
        self.at = 0 if order.resume is None else self.world.points.index(order.resume) + 1
        """Number of the checkpoint that is trained for."""
        self._exit: tuple[float, LauncherError] | None = None
        rng = self.world.rng
        self._is_stubborn = rng.random() < 0.2
        self.world.check_start(self)
        self.world.processes.append(self)
        if self.world.now < self.world.killed_starts and rng.random() < 0.3:
            self._after(rng.uniform(0, 1), lambda: self.exit(-9))
        self._after(T.ready + 9 if rng.random() < 0.003 else rng.uniform(0.5, 4), self._accept)

    @property
    def progress(self) -> TrainerProgress:
        """Return what the trainer reports."""
        at = self.world.points[min(self.at, len(self.world.points) - 1)]
        saved = self.world.points[self.at - 1] if self.at else Position(0)
        state = "saving" if self.saves else "training" if self.at < len(self.world.points) else "writing"
        return TrainerProgress(at.passes, at.batches, 30, state=state, saved=saved)

    def _after(self, delay: float, then: Callable[[], None]) -> None:
        """Call `then` after `delay` seconds, unless the processes have exited or hang, or obey a signal, by then."""

        def call() -> None:
            obeys = self.is_stopping and not self._is_stubborn
            if self.running and self._exit is None and not self.hung and not obeys:
                then()

        self.world.schedule(delay, call)

    def _accept(self) -> None:
        self.phase = Phase.READY

    def exit(self, code: int, *, ends_pod: bool = False) -> None:
        """Let a process exit with `code`, because its device fails if `ends_pod`."""
        self.world.log_event("%s: a process of attempt %d exits with %d", self.pod, self.attempt, code)
        error = ProcessError(f"trainer exited with {code}", code, "trainer", ends_pod=ends_pod)
        self._exit = self._exit or (self.pod.now, error)

    def poll(self, now: float) -> None:
        """Find the failure of a process, and stop the others."""
        if self.hung and self._exit is None and self.world.now - self.hung >= STALL:
            self._exit = now, ProcessError("trainer hangs", None, "trainer")
        if self._exit is not None and self.failure is None and not self.is_stopping:
            at, error = self._exit
            place = self.world.points[self.at - 1] if self.at else Position(0)
            self.failure = Failure.from_error(error, at, self.pod.rank, place=place)
            self.stop(now)

    def stop(self, now: float, seconds: float = 0.0) -> None:
        """Stop all processes soon, or by SIGKILL."""
        if not self.is_stopping:
            self.is_stopping = True
            hangs = self._is_stubborn or self.hung
            self.world.schedule(T.stop if hangs else self.world.rng.uniform(0, 6), self.end)

    def end(self) -> None:
        """Let all processes be gone."""
        if self.running:
            self.running = False
            self.world.processes.remove(self)

    def train(self) -> None:
        """Start to train, at the first call."""
        if self.phase == Phase.READY:
            self.phase = Phase.TRAINING
            self._continue()

    def _continue(self) -> None:
        self.saves = False
        if self.at == len(self.world.points):
            self._after(self.world.rng.uniform(0, 2), self._finish_training)
        else:
            self.reach(self.at, self.world.seconds)

    def _finish_training(self) -> None:
        self.phase = Phase.DONE

    def finish(self, now: float) -> None:
        """Let the pservers exit soon, as all training is done."""
        if self.phase == Phase.DONE and not self._finishes:
            self._finishes = True
            late = T.pserver_exit + 9 if self.world.rng.random() < 0.02 else self.world.rng.uniform(0, 3)
            self._after(late, self._finish)

    def _finish(self) -> None:
        self.phase = Phase.ENDED
        self.end()

    # Checkpoints.

    def reach(self, at: int, delay: float) -> None:
        """After `delay` seconds wait for the other trainers, to save checkpoint number `at` with them."""
        self._after(delay, lambda: self._save(at))

    def _save(self, at: int) -> None:
        if at != self.at or self.saves or self.phase != Phase.TRAINING:
            return  # it has been saved earlier, because a user or a pod's exit requested it
        if self.world.bug == (self.pod.rank, at):
            self.exit(1)
            return
        self.saves = True
        gang = [other for other in self.world.processes if other.attempt == self.attempt and other.saves]
        if len(gang) == self.ranks:
            gang[0]._after(self.world.rng.uniform(0.1, 2), lambda: self._publish(gang))

    def _publish(self, gang: list[Processes]) -> None:
        self.world.record_checkpoint(self)
        for trainer in gang:
            trainer.at += 1
            trainer._after(0.0, trainer._continue)


class Pod:
    """A pod with its launcher, and the faults that it has now. Its clock differs from those of other pods."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        world.pods.append(self)
        self.name = f"{rank}-{len(world.pods)}"
        self.offset = world.rng.uniform(0, 1e4)
        self.dead, self.staged = False, False
        self.is_deleted = False
        """Whether Kubernetes deleted the pod before it exited, so that its exit code means nothing to the Job."""
        self.frozen = self.cut = self.deaf = self.mute = self.storage_hangs = 0.0
        """Until these times the launcher does not run, no message reaches the pod (cut, deaf), none that it sends
        arrives (cut, mute), or its storage does not answer."""
        self.executor = OrderExecutor(lambda order: Processes(self, order), rank, T.orphan)
        self.executor.address = self.name
        self.order: Plan | None = None
        self.heard = self.turned = self.now
        self.rejected: tuple[bool, float] | None = None
        """(whether this pod was replaced, when rank 0 first rejected it)."""
        self._request, self._sent = 0, -100.0
        """Number of the newest request to rank 0; ANSWER_SECONDS after this time the next one is sent."""
        self.leave_by: float | None = None
        """When the launcher must stop its processes, because the pod received SIGTERM."""
        self.is_hurried = False
        self.offers, self.waits_since, self._offered_at = 0, 0.0, -1.0
        """As in the agent, and when this pod, which offers the lease, began to leave it to others (-1: it does not)."""
        self._yielded = -100.0
        self._exits: tuple[float, int, str] | None = None
        """When the launcher began to exit, its exit code, and why."""
        self.coordinator: Rank0 | None = None
        """On rank 0, once it holds the output lease."""
        world.schedule(world.rng.uniform(0.5, 3), self._tick)
        world.schedule(world.rng.uniform(3, 6), lambda: setattr(self, "staged", True))

    def __str__(self) -> str:
        return f"pod {self.name}"

    @property
    def now(self) -> float:
        """Return the time of this pod's monotonic clock."""
        return self.world.now + self.offset

    def _tick(self) -> None:
        """Run the main loop and the watchdog from time to time."""
        if self.dead:
            return
        self.world.schedule(
            max(0.0, self.frozen - self.world.now) + self.world.rng.uniform(0.2, 1), self._tick
        )
        self.turn()
        stuck = self.now - self.turned
        silent = self.coordinator is None and self.now - self.heard >= T.orphan + T.stop + 2
        silent = silent and (self.rank > 0 or self.world.is_elastic)
        if self.frozen <= self.world.now and (silent or stuck >= T.stuck or self._has_lost_lease()):
            self.kill_processes()
        if self.frozen <= self.world.now and stuck >= 2 * T.stuck:
            self.exit(EXIT_UNFIT, "its main thread is stuck")

    def _has_lost_lease(self) -> bool:
        return self.coordinator is not None and self.world.lease_age(self) >= T.lock_lease

    def kill_processes(self) -> None:
        """Kill all processes of this pod."""
        for each in [each for each in self.world.processes if each.pod is self]:
            each.end()

    def turn(self) -> None:
        """Run the main loop once, unless the launcher is frozen or its storage hangs."""
        if self.dead or max(self.frozen, self.storage_hangs) > self.world.now:
            return
        self.turned = self.now
        if self._exits is None:
            try:
                if self._offered_at >= 0 and self.coordinator is not None:
                    self._leave_run(self.coordinator)
                else:
                    self._train()
            except LauncherError as error:
                self._exits = self.world.now, error.exit_code, str(error)
                self.world.log_event("%s stops: %s", self, error)
                if self.coordinator is not None and not isinstance(error, RunEndedError):
                    self.coordinator.announce_exit(error)
        if self._exits is not None:
            self._shut_down(*self._exits)
        elif self.coordinator is None:
            self._send()

    def _train(self) -> None:
        self.executor.staged = self.staged
        if self.coordinator is not None or (self.rank == 0 and not self.world.is_elastic):
            self._hold_lease()
        elif self._may_coordinate():
            if self.order is not None and self.world.record.state == "failed":
                raise RunEndedError("the run has failed, as run.json says", 70)
            if self.world.acquire_lease(self):
                self.coordinator = Rank0(self)
        elif self.rejected is not None and (
            self.rejected[0] or self.now - self.rejected[1] >= T.second_pod_wait
        ):
            raise TwinError("rank 0 rejects this pod")
        elif self.now - self.heard >= T.silence and self.world.record.state == "complete":
            raise RunEndedError("the run is complete, as run.json says", 0)
        elif self.now - self.heard >= self.world.limits.join:
            raise DeadlineError("rank 0 was unreachable")
        heard = float("inf") if self.coordinator is not None else self.heard
        self.executor.step(self.order, heard, self.now)
        if self.coordinator is not None:
            self.coordinator.step(self.build_state(), self.now)
            self.order = self.coordinator.membership.order
        order = self.order
        if order is not None and order.do == Action.END and not self.executor.running:
            raise RunEndedError(order.cause_text, order.cause.code if order.cause else 0)
        if order is not None and self.name in order.replaced:
            raise UnfitError(order.cause_text)
        trains = self.executor.phase == Phase.TRAINING and order is not None and order.do == Action.TRAIN
        if self.is_hurried or (self.leave_by is not None and not (trains and self.now < self.leave_by)):
            raise StoppedError("received SIGTERM")

    def offer_lease(self, plan: Plan) -> None:
        """Begin to leave the run to another pod, as `plan` says."""
        self.offers, self.waits_since, self._offered_at = self.offers + 1, plan.since, self.now

    def _leave_run(self, coordinator: Rank0) -> None:
        """Release the lease once the others know, and do not take it for a while."""
        if self._has_lost_lease():
            raise UnfitError("the lease was lost")
        if not self.world.acquire_lease(self) or coordinator.can_close(
            self.now - self._offered_at, EXIT_STOPPED
        ):
            self.world.log_event("%s leaves the run to others", self)
            self.coordinator = self.order = None
            self._offered_at, self.heard = -1.0, self.now
            self._yielded = self.now + T.offer - T.silence

    def _may_coordinate(self) -> bool:
        """Return whether this rank of an elastic run may take a free lease: rank 0 at once, others after a while."""
        has_left = self.order is not None and self.order.do == Action.STOP
        is_late = self.now - max(self.heard, self._yielded) >= (T.left if has_left else T.silence)
        first = self.rank == 0 and self.order is None and not self.offers
        return self.world.is_elastic and not self.executor.running and (first or (is_late and self.staged))

    def _hold_lease(self) -> None:
        """Acquire the output lease or renew it, and create the coordinator and its first plan."""
        if self._has_lost_lease():
            raise UnfitError("the lease was lost")
        if not self.world.acquire_lease(self):
            if self.now - self.heard >= T.lock_wait + self.world.grace:
                raise TwinError("another pod holds the lease")
        elif self.coordinator is None:
            self.coordinator = Rank0(self)
        elif self.staged and not self.coordinator.is_started:
            self.coordinator.start_run()

    def build_state(self) -> MemberState:
        """Return the state of this rank as it reports it."""
        phase, attempt, failure = self.executor.report
        processes: Any = self.executor.processes
        left = None if self.leave_by is None else max(0.0, self.leave_by - self.now)
        is_leaving = self._exits is not None and not self.executor.running
        if self._exits is not None:
            failure = Failure(self._exits[2], self._exits[1], self._exits[0] + self.offset, self.rank)
        return MemberState(
            self.rank, self.name, Phase.LEAVING if is_leaving else phase, attempt, failure, self.name,
            fingerprint={}, leave_in=left, progress=processes.progress if processes else TrainerProgress(),
        )  # fmt: skip

    def _shut_down(self, began: float, code: int, why: str) -> None:
        """Stop the processes, tell rank 0, or as rank 0 wait for the others; then exit."""
        seconds = self.world.now - began
        self.executor.step(None, self.now, self.now)
        if seconds >= T.stop + 5:
            self.kill_processes()
        if self.executor.running:
            self._send()
        elif self.coordinator is not None:
            if self.coordinator.can_close(seconds, code):
                self.exit(code, why)
        elif (self.rank == 0 and not self.world.is_elastic) or seconds >= T.stop + T.copies:
            self.exit(code, why)
        else:
            self._send()

    def exit(self, code: int, why: str) -> None:
        """Exit the container, which kills all its processes."""
        if not self.dead:
            self.dead = True
            self.kill_processes()
            self.world.log_event("%s exits with %d: %s", self, code, why)
            self.world.handle_exit(self, code, why)

    def stop(self) -> None:
        """Send SIGTERM to the launcher, and SIGKILL after the grace period. A second SIGTERM ends it at once."""
        if self.leave_by is not None:
            self.is_hurried = True
            if self.executor.phase == Phase.TRAINING:
                self.world.hurried.add(self.world.newest_attempt)
        else:
            self.leave_by = self.now + self.world.grace - EXIT_SECONDS
        self.world.schedule(self.world.grace, lambda: self.exit(137, "killed after its grace period"))

    # Messages to and from rank 0.

    def _send(self) -> None:
        """Send this rank's state to the pod that holds the lease; wait for the answer before the next one."""
        holder = self.world.holder
        if holder in {None, self} or self.now - self._sent < ANSWER_SECONDS:
            return
        self._request, self._sent = self._request + 1, self.now
        number, sent, state = self._request, self.now, self.build_state()
        body = json.dumps({"state": state.to_json(self.now), "seen": -1}).encode()

        def answer(status: int, content: bytes) -> None:
            if self._request == number:
                self._receive(sent, status, json.loads(content))
                if status == 200 and state.phase == Phase.LEAVING and self._exits is not None:
                    self.exit(*self._exits[1:])

        def arrive() -> None:
            if holder.frozen > self.world.now:
                self.world.schedule(holder.frozen - self.world.now, arrive)
            elif holder.coordinator is not None and not holder.dead:
                reply = holder.coordinator.handle_state(body)
                for delay in self.world.message_delays(holder, self):
                    self.world.schedule(delay, lambda: answer(*reply))

        for delay in self.world.message_delays(self, holder):
            self.world.schedule(delay, arrive)

    def _receive(self, sent: float, status: int, answer: dict[str, Any]) -> None:
        self._sent = self.now - ANSWER_SECONDS + 1.0  # rank 0 holds its answers back for a second
        if status == 200:
            self.order, self.heard, self.rejected = from_json(Plan, answer["order"]), sent, None
            self.world.check_is_recorded(self.order.attempt)
            self.turn()
        elif status == 409:
            self.rejected = bool(answer["replaced"]), self.rejected[1] if self.rejected else sent


class Rank0:
    """What the coordinator of rank 0 does with the decisions; `Coordinator` does it with files and threads."""

    def __init__(self, pod: Pod) -> None:
        self.pod, self.world, self.is_started, self.plan = pod, pod.world, False, Plan(attempt=-1)
        self._limits = replace(
            self.world.limits, find_checkpoint=self._find_checkpoint, own_rank=pod.rank, offers=pod.offers
        )
        self.membership = Membership(self.world.ranks, self._limits, self._wake, T.hold)
        self.membership.open("")

    def _wake(self) -> None:
        self.world.schedule(0.0, self.pod.turn)

    def _find_checkpoint(self) -> Position | None:
        if self.world.now < self.world.storage_fails and self.world.rng.random() < 0.3:
            raise UnfitError("the storage failed")
        return max(self.world.saved, default=None)

    def handle_state(self, body: bytes) -> tuple[int, bytes]:
        """Answer the state of another rank."""
        with mock.patch.object(members, "time", types.SimpleNamespace(monotonic=lambda: self.pod.now)):
            return self.membership.handle_state(body)

    def start_run(self) -> None:
        """Plan the first attempt as run.json says."""
        record, self.is_started = self.world.record, True
        attempt = record.attempt + 1 if record.run_id else 0
        plan, recorded = decisions.plan_first_attempt(
            record,
            attempt,
            self.world.ranks,
            self.pod.now,
            self.pod.rank,
            succeeds=self.pod.order is not None,
        )
        if self.pod.offers and plan.do == Action.WAIT:
            plan = replace(plan, since=self.pod.waits_since)
        self.membership.restore(recorded)
        if record.state == "complete":
            plan = replace(plan, attempt=record.attempt, incarnations=record.incarnations, do=Action.END)
        self._change(plan, "complete" if record.state == "complete" else "training")

    def _change(self, plan: Plan, state: str) -> None:
        self.plan = plan
        self.world.write_record(self.pod, plan, state)
        self._publish()

    def _publish(self) -> None:
        order = self.plan
        self.world.log_event(
            "%s orders attempt %d %s: %s", self.pod, order.attempt, order.do, order.cause_text
        )
        if order.do == Action.END and order.cause is not None and order.cause.code not in RUN_ENDS:
            self.world.fail(f"the run ends with exit code {order.cause.code}, which does not fail the Job")
        self.membership.publish(order)

    def step(self, own_state: MemberState, now: float) -> None:
        """Decide on the next plan."""
        self.membership.record_state(own_state, now)
        if not self.is_started:
            return
        before, found = self.plan, self.membership.members
        plan = decisions.decide_next_plan(before, found, now, self._limits)
        if plan == before:
            return
        if plan.save_after is not None and before.save_after is None:
            self.world.request_checkpoint(plan.attempt)
        ends = "complete" if plan.cause is None else "failed"
        self._change(plan, ends if plan.do == Action.END else "training")
        if plan.offers_lease:
            self.pod.offer_lease(plan)
            self.announce_exit(StoppedError("it may be cut off"))
        elif plan.do == Action.TRAIN:
            self.pod.offers = 0

    def announce_exit(self, error: LauncherError) -> None:
        """Order all ranks to stop, because this launcher exits."""
        attempt = self.plan.attempt - (self.plan.do == Action.WAIT and self.plan.attempt > 0)
        cause = Failure.from_error(error, self.pod.now, self.pod.rank)
        if error.exit_code in RUN_ENDS:
            self.plan = replace(self.plan, do=Action.END, cause=cause)
        else:
            self.plan = replace(self.plan, attempt=attempt, do=Action.STOP, cause=cause, since=self.pod.now)
        self._publish()

    def can_close(self, seconds: float, code: int) -> bool:
        """Return whether rank 0, which has waited for `seconds`, can exit; then write run.json and end the lease."""
        now, is_lost = self.pod.now, self.world.lease_age(self.pod) >= T.lock_lease
        others = [m for m in self.membership.members if m.state.rank != self.pod.rank]
        attempt = self.plan.attempt if self.plan.do == Action.STOP else -1
        stopped = not any(can_run_processes(m, now, self.world.limits.life, attempt) for m in others)
        informed = self.membership.all_have_newest_order(now, skip_absent=seconds >= T.late_rank_wait)
        if not (informed and (stopped or is_lost)) and seconds < T.farewell:
            return False
        if not is_lost:
            if code and code not in RUN_ENDS and stopped and self.is_started:
                self.world.write_record(self.pod, self.plan, "stopped")
            self.world.holder = None
        return True


class World:
    """Kubernetes, the network and the storage of one run; checks the invariants."""

    def __init__(
        self,
        seed: int,
        *,
        faults: bool = True,
        kinds: tuple[str, ...] = (),
        reliable: bool = False,
        is_elastic: bool = False,
    ) -> None:
        """Prepare a run, all of whose random choices follow from `seed`.

        Args:
            seed: determines the run.
            faults: whether faults happen.
            kinds: the only kinds of faults; empty: all kinds.
            reliable: no message is lost or late, and checkpoints are so far apart that SIGTERM may cause one.
            is_elastic: the run goes on with fewer ranks, and any pod may coordinate it.
        """
        self.rng = rng = random.Random(seed)  # noqa: S311 - one seed, one run
        self.seed, self.now, self._count = seed, 0.0, 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._log: list[tuple[float, str, tuple[Any, ...]]] = []
        self.mild = rng.random() < 0.5
        """No fault is final and the restart limit is high, so the run has to complete."""
        self.ranks = rng.choice((1, 2, 2, 3, 3, 4))
        passes, inside = rng.randint(1, 3), rng.choice((0, 0, 2))
        self.points = [
            at
            for number in range(passes)
            for at in (*(Position(number, 10 * (i + 1)) for i in range(inside)), Position(number + 1))
        ]
        self.seconds = rng.uniform(2, 12) * (4 if reliable or seed % 4 == 0 else 1)
        """Seconds of training between two checkpoints."""
        self.grace = (30, 60, 110)[seed % 3]
        """Seconds from a pod's SIGTERM to its SIGKILL."""
        self.granted: dict[int, int] = {}
        """Attempt → number of the checkpoint that was begun because a pod received SIGTERM."""
        self._saved_at = 0.0
        self.hurried: set[int] = set()
        """Attempts in which a pod received a second SIGTERM, so that it did not wait for the checkpoint."""
        self.reliable = reliable
        self.limits = GangLimits(
            T.silence, T.life, rendezvous=300, join=300 if rng.random() < 0.5 else 2100,
            serve=T.ready + T.stop + T.stuck, finish=T.pserver_exit + 2 * T.stop + T.stuck,
            restarts=1000 if self.mild else rng.randint(0, 5),
        )  # fmt: skip
        self.is_elastic = is_elastic and self.ranks > 1
        self.min_ranks = self.ranks
        if self.is_elastic:
            self.min_ranks = rng.randint(1, self.ranks - 1)
            self.limits = replace(
                self.limits,
                trainers=self.ranks,
                min_trainers=self.min_ranks,
                rank_wait=rng.choice((0, 20, 60)),
                grow=rng.choice((0, 10, 60)),
                offer=T.offer,
            )
        self.sizes: set[int] = set()
        """The numbers of ranks of the attempts that started."""
        self.bug: tuple[int, int] | None = None
        self.noise = self.killed_starts = self.storage_fails = 0.0
        self.record = RunFile()
        """run.json."""
        self._recorded = -1
        """The highest attempt that has been in run.json: an attempt that did not start gives its number back."""
        self.saved: list[Position] = []
        self.holder: Pod | None = None
        """The pod that holds the output lease."""
        self._renewed = 0.0
        self._newest_checkpoint, self._restarts_since_checkpoint = 0, 0
        self._failed_by: Pod | None = None
        """The pod that wrote to run.json that the run failed."""
        self.newest_attempt = -1
        self.requested_checkpoints = 0
        """Attempts that resumed from a checkpoint that was begun because a pod received SIGTERM."""
        self.failed: tuple[int, str] | None = None
        self._completed: set[int] = set()
        self._lost = [0] * self.ranks
        self._given_up: set[int] = set()
        self.pods: list[Pod] = []
        self.processes: list[Processes] = []
        self.current: list[Pod | None] = [None] * self.ranks
        for rank in range(self.ranks):
            self.create_pod(rank)
        if faults:
            Faults(self, kinds)

    def log_event(self, text: str, *values: Any) -> None:
        """Add a line to the event log."""
        self._log.append((self.now, text, values))

    def newest_events(self, lines: int = 60) -> str:
        """Return the newest lines of the event log as text."""
        return "\n".join(f"{at:8.2f}  {text % values}" for at, text, values in self._log[-lines:])

    def schedule(self, delay: float, then: Callable[[], None]) -> None:
        """Call `then` after `delay` seconds."""
        self._count += 1
        heapq.heappush(self._due, (self.now + max(0.0, delay), self._count, then))

    def run(self) -> str:
        """Run until the Job completes or fails, and return the outcome. Raise `InvariantBrokenError`."""
        while not self._is_over:
            self.now, _, then = heapq.heappop(self._due)
            if self.now > LIMIT * (2 if self.is_elastic else 1):
                self.fail(f"the run has not ended after {self.now:.0f} s")
            then()
        if self.failed is None:
            if max(self.saved) != self.points[-1] or self.record.state != "complete":
                self.fail(f"all ranks are done, but run.json has the state {self.record.state}")
            return "complete"
        code, why = self.failed
        if self.mild or not why or code not in RUN_ENDS:
            self.fail(f"the run failed without a final fault or a reason: {code} {why!r}")
        return f"failed with {code}: {why}"

    def fail(self, why: str) -> None:
        """Raise `InvariantBrokenError`."""
        self.log_event("BROKEN: %s", why)
        raise InvariantBrokenError(f"seed {self.seed} at {self.now:.2f} s: {why}")

    @property
    def _is_over(self) -> bool:
        """Return whether the Job has completed or failed and no pod runs."""
        if len(self._completed) + len(self._given_up) == self.ranks or len(self._completed) >= self.min_ranks:
            return True
        return self.failed is not None and not any(pod is not None and not pod.dead for pod in self.current)

    # Kubernetes.

    def create_pod(self, rank: int) -> None:
        """Create the pod of a rank, unless it has one or the Job has failed."""
        if self.failed is None and self.current[rank] is None:
            self.current[rank] = pod = Pod(self, rank)
            self.log_event("%s starts", pod)

    def replace_pod(self, rank: int, *, soon: bool) -> None:
        """Delete the pod of a rank, and create its replacement later (`soon`: within 3 s)."""
        self.forget_pod(rank)
        delay = self.rng.uniform(0.5, 3) if soon else self.rng.uniform(1, 20)
        self.schedule(delay, lambda: self.create_pod(rank))

    def forget_pod(self, rank: int) -> None:
        """Let the rank have no pod; the one that it has may still run."""
        if (pod := self.current[rank]) is not None:
            pod.is_deleted = True
        self.current[rank] = None

    def handle_exit(self, pod: Pod, code: int, why: str) -> None:
        """Apply the Job's podFailurePolicy to a container's exit code."""
        if self.current[pod.rank] is not pod:
            return
        if code == 0:
            self._completed.add(pod.rank)
            return
        self.current[pod.rank] = None
        self._lost[pod.rank] += code not in (69, 143)
        if self.failed is not None:
            return
        if code in RUN_ENDS:
            self.failed = code, why
            for other in self.current:
                if other is not None and not other.dead:
                    other.stop()
        elif self._lost[pod.rank] > 10 * self.limits.restarts:
            self._given_up.add(pod.rank)
            if len(self._completed) + len(self._given_up) == self.ranks:
                self.failed = 70, "Kubernetes does not restart it again"
        else:
            self.replace_pod(pod.rank, soon=False)

    # The network and the storage.

    def message_delays(self, source: Pod, target: Pod) -> list[float]:
        """Return the delays after which a message arrives: none, one or two, in seconds."""
        rng = self.rng
        cut = max(source.cut, target.cut, source.mute, target.deaf) - self.now
        if cut > 0:
            return [cut + rng.uniform(0, 15)] if rng.random() < 0.5 else []  # TCP retries
        if rng.random() >= self.noise:
            return [rng.uniform(0.001, 0.05)]
        return rng.choice(([], [rng.uniform(0, 0.1), rng.uniform(0, 25)], [rng.uniform(0, 15)]))

    def acquire_lease(self, pod: Pod) -> bool:
        """Acquire the output lease for `pod`, or renew it; return whether it holds the lease."""
        if self.holder in (None, pod) or self.now - self._renewed >= T.lock_stale + T.lock_settle:
            self.holder, self._renewed = pod, self.now
        return self.holder is pod

    def lease_age(self, pod: Pod) -> float:
        """Return the seconds since `pod` last renewed the lease; infinite if another pod holds it."""
        return self.now - self._renewed if self.holder is pod else float("inf")

    def write_record(self, pod: Pod, plan: Plan, state: str) -> None:
        """Write run.json, and check the limit of restarts independently of the decisions."""
        if self.lease_age(pod) >= T.lock_lease:
            self.fail(f"{pod} writes run.json, but the lease is that of {self.holder}")
        if len(plan.restarts) < len(self.record.restarts):
            self.fail("run.json lost restarts")
        if self._failed_by is not None and pod is not self._failed_by and self._failed_by.is_deleted:
            # Kubernetes did not see that the run failed: the pod that would have told it was deleted by force. Its
            # replacement starts the run again, as after a failure that a user has corrected, with all restarts.
            self._restarts_since_checkpoint, self._failed_by = 0, None
        if state == "failed":
            self._failed_by = pod
        if len(plan.restarts) > len(self.record.restarts):
            if len(self.saved) > self._newest_checkpoint:
                self._newest_checkpoint, self._restarts_since_checkpoint = len(self.saved), 0
            self._restarts_since_checkpoint += plan.cause is None or plan.cause.code != EXIT_STOPPED
            if self._restarts_since_checkpoint > self.limits.restarts:
                self.fail(f"more restarts without a new checkpoint than {self.limits.restarts}")
            if plan.cause is not None and plan.cause.code in FINAL:
                self.fail(f"the run restarts after the final exit code {plan.cause.code}")
        self._recorded = max(self._recorded, plan.attempt)
        record = RunFile(**plan.record, run_id="run", state=state)
        self.record = from_json(RunFile, json.loads(json.dumps(to_json(record))))

    def record_checkpoint(self, trainer: Processes) -> None:
        """Record the checkpoint that the gang of `trainer` has saved."""
        if trainer.attempt != self.newest_attempt:
            self.fail(f"attempt {trainer.attempt} saves a checkpoint after attempt {self.newest_attempt}")
        self._saved_at = self.now
        if self.points[trainer.at] not in self.saved:
            self.saved.append(self.points[trainer.at])
        self.log_event("saved %s (attempt %d)", self.points[trainer.at], trainer.attempt)

    def request_checkpoint(self, attempt: int) -> None:
        """Let the trainers of an attempt save a checkpoint soon, because a pod received SIGTERM.

        It has to be complete before that pod stops its processes, unless it is begun too late.
        """
        trainers = [each for each in self.processes if each.attempt == attempt]
        stops = [pod.leave_by - pod.offset for pod in self.pods if pod.leave_by is not None and not pod.dead]
        stops = stops or [self.now]  # requested for ranks that have joined
        delay = self.rng.uniform(0, 4 if self.seed % 2 else 20)
        is_early = self.now + delay < min(stops) - SAVE_SECONDS
        if is_early and self._saved_at < min(stops) - self.grace + EXIT_SECONDS:
            self.granted[attempt] = trainers[0].at
        for trainer in trainers:
            trainer.reach(trainer.at, delay)

    # The invariants.

    def check_is_recorded(self, attempt: int) -> None:
        """Check that this attempt, which a rank has received, has been in run.json."""
        if attempt > self._recorded:
            self.fail(f"attempt {attempt} was sent, but run.json has had no attempt after {self._recorded}")

    def check_start(self, started: Processes) -> None:
        """Check that no processes of another attempt or pod run, and that the checkpoint exists."""
        pod, attempt = started.pod, started.attempt
        self.sizes.add(started.ranks)
        if not self.min_ranks <= started.ranks <= self.ranks:
            self.fail(f"attempt {attempt} has {started.ranks} ranks")
        self.log_event("%s starts processes of attempt %d", pod, attempt)
        for other in self.processes:
            if other.attempt != attempt or other.pod.rank == pod.rank:
                self.fail(f"{pod} starts attempt {attempt} while {other.pod} runs attempt {other.attempt}")
        if attempt < self.newest_attempt:
            self.fail(f"attempt {attempt} starts after attempt {self.newest_attempt}")
        granted = self.granted.get(self.newest_attempt)
        expected = self.reliable and self.newest_attempt not in self.hurried
        if attempt > self.newest_attempt and granted is not None and expected:
            self.requested_checkpoints += 1
            if started.resume is None or self.points.index(started.resume) < granted:
                self.fail(f"the requested checkpoint at {self.points[granted]} was lost")
        if started.resume is not None and started.resume not in self.saved:
            self.fail(f"there is no checkpoint at {started.resume} to resume from")
        self.newest_attempt = attempt


class Faults:
    """Random faults of a run and their times."""

    END = 120.0
    MILD = (
        "child_killed", "child_hangs", "starts_fail", "device_fails", "launcher_killed", "drained", "forced",
        "frozen", "cut", "one_way", "node_lost", "lost_and_rank_0_drained", "storage_hangs", "storage_fails",
    )  # fmt: skip
    HARSH = ("child_fails", "program_bug")
    ELASTIC = (*MILD, "lost_for_good", "lost_for_good", "lost_for_good")

    def __init__(self, world: World, kinds: tuple[str, ...] = ()) -> None:
        """Schedule the faults; `kinds` are the only kinds, without harsh ones in a mild run; empty: any."""
        self.world, self.rng = world, world.rng
        rng = self.rng
        allowed = (
            *(self.ELASTIC if world.is_elastic else self.MILD),
            *(() if world.mild else self.HARSH),
        )
        all_kinds = [kind for kind in kinds or allowed if kind in allowed]
        chosen = rng.sample(all_kinds, rng.randint(1, len(all_kinds)))
        undisturbed = 10 + world.seconds * len(world.points)  # seconds that the run takes without faults
        for _ in range(3 if kinds else rng.choice((0, 1, 1, 2, 2, 3, 4))):
            around = rng.uniform(0, min(undisturbed, self.END - 15))
            for _ in range(rng.choice((1, 1, 2, 3))):  # faults come in groups
                rank = rng.choice((0, *[rng.randrange(world.ranks)] * (3 if kinds else 1)))
                world.schedule(around + rng.uniform(0, 15), self._fault(rng.choice(chosen), rank))
        if rng.random() < 0.4 and not world.reliable:
            world.noise = rng.choice((0.02, 0.1, 0.2, 0.4))
            world.schedule(self.END, lambda: setattr(world, "noise", 0.0))

    def _fault(self, kind: str, rank: int) -> Callable[[], None]:
        """Return a function that causes the fault `kind` at the current pod of `rank`, if it still runs."""

        def cause_fault() -> None:
            pod = self.world.current[rank]
            if pod is not None and not pod.dead and self.world.failed is None:
                self.world.log_event("FAULT %s of %s", kind, pod)
                getattr(self, f"_{kind}")(pod)

        return cause_fault

    def _exit_child(self, pod: Pod, code: int, *, ends_pod: bool = False) -> None:
        for each in self.world.processes:
            if each.pod is pod:
                each.exit(code, ends_pod=ends_pod)

    def _child_killed(self, pod: Pod) -> None:
        self._exit_child(pod, -9)

    def _child_fails(self, pod: Pod) -> None:
        self._exit_child(pod, self.rng.choice((1, 64, 65, 71, 75, 139)))

    def _device_fails(self, pod: Pod) -> None:
        self._exit_child(pod, 1, ends_pod=True)

    def _child_hangs(self, pod: Pod) -> None:
        for each in self.world.processes:
            if each.pod is pod:
                each.hung = self.world.now

    def _starts_fail(self, pod: Pod) -> None:
        """Let many processes of all pods be killed at their start, for some seconds, and restart the gang."""
        self.world.killed_starts = self.world.now + self.rng.uniform(10, 40)
        self._child_killed(pod)

    def _program_bug(self, pod: Pod) -> None:
        """Let the program fail from now on whenever this rank reaches a certain position."""
        self.world.bug = pod.rank, self.rng.randrange(len(self.world.points))

    def _lost_for_good(self, pod: Pod) -> None:
        """Lose a pod whose replacement comes after minutes or never, if enough pods are left."""
        left = [each for each in self.world.current if each is not None and not each.dead]
        if len(left) <= self.world.min_ranks:
            return
        self.world.forget_pod(pod.rank)
        if self.rng.random() < 0.5:
            pod.exit(137, "its node is gone")
        else:
            pod.cut = pod.storage_hangs = 1e6
        if self.rng.random() < 0.7 or not self.world.mild:
            self.world.schedule(self.rng.uniform(30, 300), lambda: self.world.create_pod(pod.rank))

    def _launcher_killed(self, pod: Pod) -> None:
        pod.exit(137, "killed")

    def _drained(self, pod: Pod) -> None:
        """Delete the pod with its grace period, or sometimes all pods."""
        all_pods = self.rng.random() < 0.2
        for other in [*self.world.current] if all_pods else [pod]:
            if other is not None and not other.dead:
                other.stop()

    def _forced(self, pod: Pod) -> None:
        """Delete the pod by force: a new pod starts at once, the kubelet stops the old one later or never.

        If the pod is frozen, kill its container instead.
        """
        if pod.frozen > self.world.now:
            pod.exit(137, "killed")
            return
        self.world.replace_pod(pod.rank, soon=True)
        if self.rng.random() < 0.5 or (self.world.mild and pod.rank == 0):
            self.world.schedule(self.rng.uniform(0, 20), pod.stop)

    def _node_lost(self, pod: Pod) -> None:
        """Cut off and delete the pod's node; the pod's processes keep running."""
        if pod.frozen > self.world.now:
            return
        # A pod 0 that still runs and reaches the storage, but no rank, keeps the lease: a run that is not elastic fails
        # with a reason, so a mild run must not contain it.
        replaced = self.rng.random() < 0.7
        pod.cut = self.world.now + self.rng.uniform(60, 400 if replaced or not self.world.mild else 240)
        if self.rng.random() < 0.5 or (self.world.mild and pod.rank == 0 and not self.world.is_elastic):
            pod.storage_hangs = pod.cut
        if replaced:
            self.world.replace_pod(pod.rank, soon=self.rng.random() < 0.7)

    def _lost_and_rank_0_drained(self, pod: Pod) -> None:
        """Lose and replace a rank, and drain rank 0 before the lost rank's processes must have exited."""
        rank_0 = self.world.current[0]
        if pod.rank and pod.frozen <= self.world.now and rank_0 is not None:
            pod.cut = pod.storage_hangs = self.world.now + 100
            self.world.replace_pod(pod.rank, soon=True)
            self.world.schedule(self.rng.uniform(0, 12), rank_0.stop)

    def _cut(self, pod: Pod) -> None:
        """Cut the pod's network for some seconds; half of the times its storage hangs too."""
        pod.cut = self.world.now + self.rng.choice((3, 8, 15, 40))
        if self.rng.random() < 0.5:
            pod.storage_hangs = pod.cut

    def _one_way(self, pod: Pod) -> None:
        """Break the pod's network in one direction, as with an asymmetric link or a half-open connection."""
        until = self.world.now + self.rng.uniform(5, 30 if self.world.is_elastic else 60)
        pod.deaf, pod.mute = (until, pod.mute) if self.rng.random() < 0.5 else (pod.deaf, until)

    def _frozen(self, pod: Pod) -> None:
        """Freeze the launcher but not its processes; after a long freeze the liveness probe kills it."""
        if self.world.is_elastic:  # `ProcessGuard`
            heard = self.world.now if pod.coordinator is not None else pod.heard - pod.offset
            until = heard + T.orphan + T.stop + 2

            def guard() -> None:
                if pod.frozen > until:
                    pod.kill_processes()

            self.world.schedule(until - self.world.now, guard)
        if self.rng.random() < 0.4:
            pod.frozen = max(pod.frozen, self.world.now + self.rng.uniform(1, 50))
            return
        pod.frozen = self.world.now + 1e6
        self.world.schedule(self.rng.uniform(60, 90), lambda: pod.exit(137, "its liveness probe failed"))

    def _storage_hangs(self, pod: Pod) -> None:
        """Let the storage not answer, in this pod or in all."""
        for each in [pod] if self.rng.random() < 0.6 else self.world.pods:
            each.storage_hangs = self.world.now + self.rng.uniform(1, 130)

    def _storage_fails(self, pod: Pod) -> None:
        """Let rank 0 fail to find the newest checkpoint, and end a process with a temporary error of the storage."""
        self.world.storage_fails = self.world.now + self.rng.uniform(1, 50)
        self._exit_child(pod, EXIT_UNFIT)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    world = World(int(sys.argv[1]), kinds=tuple(sys.argv[2:]), is_elastic="lost_for_good" in sys.argv)
    try:
        outcome = world.run()
    except InvariantBrokenError as violation:
        outcome = f"BROKEN {violation}"
    sys.stdout.write(f"{world.newest_events(10_000)}\n{world.ranks} ranks, {world.now:.0f} s: {outcome}\n")
