"""Simulate a run on a virtual clock: pods, Kubernetes, network, storage, processes and random faults.

The launcher's own `decide_next_plan`, `Membership` and `OrderExecutor` run; everything around them is
modelled in simulated_*.py and here. A seed determines a run. `InvariantBrokenError` is raised by the first
event that breaks an invariant of docs/adr/0004-the-gang-restarts-in-place.md.

    python -m tests.launcher.supervisor.simulation SEED       print the events of one run
    python -m tests.launcher.supervisor.simulation FROM TO    search these seeds for broken invariants
"""

from __future__ import annotations

import heapq
import logging
import random
import sys
from collections.abc import Callable
from typing import Any

from launcher.errors import EXIT_GANG, FINAL
from launcher.paths import Position
from launcher.supervisor.coordinator.coordinator import RUN_ENDS
from launcher.supervisor.coordinator.decisions import AttemptPlan, GangLimits
from launcher.supervisor.peers.messages import Failure, Order
from tests.launcher.supervisor.simulated_faults import Faults
from tests.launcher.supervisor.simulated_pod import SimulatedPod
from tests.launcher.supervisor.simulated_processes import SimulatedProcesses, T

LIMIT = 4000.0  # every run ends within this many seconds


class InvariantBrokenError(AssertionError):
    """A run broke an invariant."""


class World:
    """Model the clock, Kubernetes, the network and the storage of one run, and check the invariants."""

    def __init__(self, seed: int, *, faults: bool = True) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311 - one seed, one run
        self.seed, self.now, self.pods_created, self._count = seed, 0.0, 0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
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
        self.seconds = rng.uniform(2, 12)
        """Seconds of training between two checkpoints."""
        self.restarts = 1000 if self.mild else rng.randint(0, 5)
        self.rules = GangLimits(
            silence=T.silence,
            life=T.life,
            rendezvous=300.0,
            serve=T.ready + T.stop + T.stuck,
            finish=T.pserver_exit + 2 * T.stop + T.stuck,
            restarts=self.restarts,
        )
        self.bug: tuple[int, int] | None = None
        self.lock: tuple[str, int] | None = None
        self._tokens: list[tuple[float, str]] = []
        self.run_json: dict[str, Any] = {}
        self.checkpoints: dict[int, int] = {}
        self.parts: dict[tuple[int, int], set[int]] = {}
        self.model = False
        self.storage_faults: list[tuple[float, float, str, SimulatedPod | None]] = []
        self.noise = 0.0
        self.alive: list[SimulatedProcesses] = []
        self._newest_checkpoint, self._restarts_since_checkpoint, self._restarted, self._newest_attempt = (
            -1,
            0,
            0,
            -1,
        )
        self.failed: tuple[int, str] | None = None
        self.completed: set[int] = set()
        self._lost = [0] * self.ranks
        self.given_up: set[int] = set()
        self.current: list[SimulatedPod | None] = [None] * self.ranks
        self.before: tuple[float, SimulatedPod | None] = (0.0, None)
        """(time until which DNS may resolve to it, the earlier pod of rank 0)."""
        for rank in range(self.ranks):
            self._create_pod(rank)
        if faults:
            Faults(self)

    # The clock.

    def schedule(self, delay: float, then: Callable[[], None]) -> None:
        """Run `then` after `delay` seconds of the virtual clock."""
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, then))

    def log_event(self, text: str, *values: Any) -> None:
        """Add a line to the event log."""
        self._log.append((self.now, text, values))

    def newest_events(self, lines: int = 60) -> str:
        """Return the newest lines of the event log as text."""
        return "\n".join(f"{at:8.2f}  {text % values}" for at, text, values in self._log[-lines:])

    def run(self) -> str:
        """Run until the Job completes or fails, and return how. Raise `InvariantBrokenError`."""
        while self._events and self.now < LIMIT:
            self.now, _, then = heapq.heappop(self._events)
            then()
            if self._is_over():
                break
        else:
            self.report_broken_invariant(f"the run has not ended after {LIMIT:.0f} s")
        if self.failed is None:
            if self.points[-1] not in [self.points[i] for i in self.checkpoints] or not self.model:
                self.report_broken_invariant(
                    "all ranks are done, but the last checkpoint or the model is missing"
                )
            return "complete"
        code, why = self.failed
        if not why or code not in RUN_ENDS:
            self.report_broken_invariant(f"it failed without a reason: {code} {why!r}")
        if self.mild:
            self.report_broken_invariant(f"no fault was final, but it failed with {code}: {why}")
        return f"failed with {code}: {why}"

    def report_broken_invariant(self, why: str) -> None:
        """Raise `InvariantBrokenError`."""
        self.log_event("BROKEN: %s", why)
        raise InvariantBrokenError(f"seed {self.seed} at {self.now:.2f} s: {why}")

    def _is_over(self) -> bool:
        """Return whether the Job has completed or failed and no pod runs."""
        if len(self.completed) + len(self.given_up) == self.ranks:
            self.failed = (
                self.failed or (EXIT_GANG, "Kubernetes does not restart it again") if self.given_up else None
            )
            return True
        return self.failed is not None and not any(pod is not None and not pod.dead for pod in self.current)

    # Kubernetes.

    def _create_pod(self, rank: int) -> None:
        """Create the pod of a rank, unless it has one or the Job has failed."""
        if self.failed is None and self.current[rank] is None:
            pod = self.current[rank] = SimulatedPod(self, rank)
            self.log_event("%s starts", pod)

    def replace_pod(self, rank: int, *, soon: bool) -> None:
        """Delete the pod of a rank, and create its replacement later (`soon`: within 3 s)."""
        if rank == 0:
            self.before = self.now + self.rng.choice((0, 10, 30)), self.current[0]
        self.current[rank] = None
        self.schedule(
            self.rng.uniform(0.5, 3) if soon else self.rng.uniform(1, 20), lambda: self._create_pod(rank)
        )

    def handle_container_exit(self, pod: SimulatedPod, code: int, why: str) -> None:
        """Apply the Job's podFailurePolicy to a container's exit code."""
        if self.current[pod.rank] is not pod:
            return
        if code == 0:
            self.completed.add(pod.rank)
        elif self.failed is not None:
            self.current[pod.rank] = None
        elif code in RUN_ENDS:
            self.current[pod.rank] = None
            self.failed = code, why
            self.log_event("the Job fails")
            for other in self.current:
                if other is not None:
                    other.stop()
        elif code not in (69, 143) and self._exceeds_backoff_limit(pod.rank):
            self.current[pod.rank] = None
            self.given_up.add(pod.rank)
            self.log_event("Kubernetes does not restart rank %d again", pod.rank)
        else:
            self.replace_pod(pod.rank, soon=False)

    def _exceeds_backoff_limit(self, rank: int) -> bool:
        """Count a failure of the rank, and return whether Kubernetes gives the rank up."""
        self._lost[rank] += 1
        return self._lost[rank] > 10 * self.restarts

    def resolve(self) -> SimulatedPod | None:
        """Return rank 0's pod as DNS resolves it, which may be the one before."""
        until, before = self.before
        return before if self.now < until and self.rng.random() < 0.3 else self.current[0]

    # The network.

    def message_delays(self, source: SimulatedPod, target: SimulatedPod) -> list[float]:
        """Return the delays after which a message arrives: none, one or two, in seconds."""
        rng = self.rng
        cut = max(source.cut, target.cut, source.mute, target.deaf) - self.now
        if cut > 0 and source is not target:
            return [cut + rng.uniform(0, 15)] if rng.random() < 0.5 else []  # TCP retries
        if rng.random() >= self.noise:
            return [rng.uniform(0.001, 0.05)]
        kind = rng.random()
        if kind < 0.3:
            return []
        if kind < 0.6:
            return [rng.uniform(0, 0.1), rng.uniform(0, 25)]
        return [rng.uniform(0, 15)]

    # The storage.

    def find_storage_fault(self, pod: SimulatedPod) -> tuple[str | None, float]:
        """Return the fault that this pod's storage has now, and the time of its end."""
        if pod.cut_storage and self.now < pod.cut:
            return "hang", pod.cut
        for begin, end, kind, whose in self.storage_faults:
            if begin <= self.now < end and whose in (None, pod):
                return kind, end
        return None, 0.0

    def next_write_of_part(self, processes: SimulatedProcesses) -> tuple[float, Callable[[], None]]:
        """Return how long a part of a checkpoint takes to write, and the function to call then."""
        storage_fault, until = self.find_storage_fault(processes.pod)
        if storage_fault in ("full", "fail"):
            return 1.0, lambda: processes.exit_one(75 if storage_fault == "full" else 71)
        if storage_fault == "hang":
            return until - self.now + 0.1, processes.write_part
        return self.rng.uniform(0.5, 6) if storage_fault == "slow" else self.rng.uniform(
            0.05, 1
        ), processes.write_part

    def visible_token(self) -> str:
        """Return the lease's token as another node sees it: NFS caches names for up to a minute."""
        token = self.lock[0] if self.lock is not None else ""
        if not self._tokens or self._tokens[-1][1] != token:
            self._tokens.append((self.now, token))
        old = [token for at, token in self._tokens[:-1] if self.now - self._tokens[-1][0] < 60]
        return old[-1] if old and self.rng.random() < 0.3 else token

    def check_output_write(self, pod: SimulatedPod, what: str) -> None:
        """Check that the pod that writes to the output holds the lease."""
        if self.lock is not None and self.lock[0] != pod.incarnation:
            self.report_broken_invariant(f"{pod} writes {what}, but the output is {self.lock[0]}'s")

    def record_checkpoint(self, processes: SimulatedProcesses) -> None:
        """Record a finished checkpoint, and check that it has the parts of all ranks."""
        self.check_output_write(processes.pod, "a checkpoint")
        parts = self.parts.get((processes.point, processes.attempt), set())
        if len(parts) < self.ranks:
            self.report_broken_invariant(
                f"a checkpoint of attempt {processes.attempt} is done with only the parts {sorted(parts)}"
            )
        self.log_event("saved %s (attempt %d)", self.points[processes.point], processes.attempt)
        self.checkpoints[processes.point] = processes.attempt
        for old in sorted(self.checkpoints)[:-3]:
            del self.checkpoints[old]

    def record_run_json(
        self, pod: SimulatedPod, plan: AttemptPlan, state: str, cause: Failure | None
    ) -> None:
        """Replace run.json, and check the lease and the number of restarts."""
        self.check_output_write(pod, "run.json")
        self.log_event("%s writes attempt %d %s (%s)", pod, plan.attempt, plan.do, state)
        self._check_restart_limit(plan)
        self.run_json = {
            "attempt": plan.attempt,
            "restarts": [
                {"attempt": r.attempt, "cause": r.cause, "at": r.at, "signature": r.signature}
                for r in plan.restarts
            ],
            "incarnations": plan.incarnations,
            "countedRestarts": plan.counted_restarts,
            "resume": (plan.resume.passes, plan.resume.batches) if plan.resume is not None else None,
            "state": state,
            "holder": pod.incarnation,
            "cause": cause.text if cause is not None else None,
            "exitCode": cause.code if cause is not None else None,
        }

    # The invariants.

    def _check_restart_limit(self, plan: AttemptPlan) -> None:
        """Count restarts without a new checkpoint independently of the launcher, and check the limit."""
        if len(plan.restarts) < self._restarted:
            self.report_broken_invariant("run.json lost restarts")
        if len(plan.restarts) == self._restarted:
            return
        self._restarted += 1
        newest = max(self.checkpoints, default=-1)
        if newest > self._newest_checkpoint:
            self._newest_checkpoint, self._restarts_since_checkpoint = newest, 0
        self._restarts_since_checkpoint += plan.cause is None or plan.cause.code != 143
        if self._restarts_since_checkpoint > self.restarts:
            self.report_broken_invariant(
                f"{self._restarts_since_checkpoint} restarts without a new checkpoint (limit {self.restarts})"
            )
        if plan.cause is not None and plan.cause.code in FINAL:
            self.report_broken_invariant(f"the run restarts after the final exit code {plan.cause.code}")

    def check_published_plan(self, pod: SimulatedPod, plan: AttemptPlan) -> None:
        """Check a plan that rank 0 publishes."""
        self.log_event(
            "%s orders attempt %d %s: %s", pod, plan.attempt, plan.do, plan.cause and plan.cause.text
        )
        if plan.do == "end" and plan.cause is not None and plan.cause.code not in RUN_ENDS:
            self.report_broken_invariant(
                f"the order is to exit with {plan.cause.code}, which does not fail the Job: {plan.cause.text}"
            )
        self._check_plan_is_recorded(plan.attempt, len(plan.restarts))

    def check_received_order(self, pod: SimulatedPod, order: Order) -> None:
        """Check an order that a rank receives."""
        self._check_plan_is_recorded(order.attempt, 0)

    def _check_plan_is_recorded(self, attempt: int, restarts: int) -> None:
        """Check that run.json has this attempt and this number of restarts."""
        known = self.run_json.get("attempt", -1), len(self.run_json.get("restarts", ()))
        if attempt > known[0] or restarts > known[1]:
            self.report_broken_invariant(
                f"attempt {attempt} and {restarts} restarts were sent, but run.json has {known}"
            )

    def check_process_start(self, processes: SimulatedProcesses) -> None:
        """Check that no processes of another attempt or pod run, and that the checkpoint exists."""
        self.log_event("%s: processes of attempt %d start", processes.pod, processes.attempt)
        for other in self.alive:
            if other.attempt != processes.attempt or other.pod.rank == processes.pod.rank:
                self.report_broken_invariant(
                    f"{processes.pod} starts processes of attempt {processes.attempt} while those of attempt "
                    f"{other.attempt} run on {other.pod}"
                )
        if processes.attempt < self._newest_attempt:
            self.report_broken_invariant(
                f"attempt {processes.attempt} starts after attempt {self._newest_attempt}"
            )
        self._newest_attempt = processes.attempt
        if processes.point and processes.point - 1 not in self.checkpoints:
            self.report_broken_invariant(f"there is no checkpoint at {processes.order.resume} to resume from")
        self.alive.append(processes)


def main(arguments: list[str]) -> int:
    """Run one seed or a range of seeds; return 1 if an invariant is broken, else 0."""
    logging.disable(logging.CRITICAL)
    first = int(arguments[0])
    broken = 0
    for seed in range(first, int(arguments[1]) if len(arguments) > 1 else first + 1):
        world = World(seed)
        try:
            how = world.run()
        except InvariantBrokenError as violation:
            how, broken = f"BROKEN {violation}", broken + 1
        if len(arguments) == 1:
            sys.stdout.write(world.newest_events(10_000) + "\n")
        if len(arguments) == 1 or how.startswith("BROKEN"):
            sys.stdout.write(f"seed {seed}, {world.ranks} ranks, {world.now:.0f} s: {how}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
