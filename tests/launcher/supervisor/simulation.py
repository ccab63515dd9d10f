"""Simulate a run on a virtual clock: pods, Kubernetes, network, storage, processes and random faults.

The launchers are the product: each pod runs a real `Agent`, with its threads, and rank 0's also the real
coordinator, lease and run record, on real files. What they use of the machine is replaced in
simulated_machine.py. A seed determines a run. `InvariantBrokenError` is raised by the first event that breaks
an invariant of docs/explanation/decisions.md.
run_simulation.py runs it from the command line.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from launcher.errors import EXIT_GANG, FINAL, RUN_ENDS
from launcher.io import checkpoints
from launcher.paths import JobPaths, OutputPaths, Position
from launcher.supervisor.peers.messages import Plan
from tests.launcher.supervisor.simulated_faults import Faults
from tests.launcher.supervisor.simulated_pod import EXIT_SECONDS, SimulatedPod
from tests.launcher.supervisor.simulated_processes import SimulatedChild
from tests.launcher.supervisor.virtual_time import ThreadKilledError, VirtualClock

SAVE_SECONDS = 15.0  # every simulated checkpoint is complete within this time without faults
LIMIT = 4000.0  # every run ends within this many seconds
MEMORY = Path("/dev/shm")  # noqa: S108 - files in memory; each run has its own folder there


class InvariantBrokenError(AssertionError):
    """A run broke an invariant."""


class World:
    """Model Kubernetes, the network and the storage of one run, and check the invariants.

    Create and run it inside of `simulated_machine()`.
    """

    def __init__(
        self, seed: int, *, faults: bool = True, kinds: tuple[str, ...] = (), reliable: bool = False
    ) -> None:
        """Prepare a run, all of whose random choices follow from `seed`.

        Args:
            seed: determines the run.
            faults: whether faults happen.
            kinds: the only kinds of faults; empty: all kinds.
            reliable: no message is lost or late, and checkpoints are so far apart that SIGTERM may cause one.
        """
        self.rng = rng = random.Random(seed)  # noqa: S311 - one seed, one run
        self.seed, self.clock, self.pods_created = seed, VirtualClock(rng), 0
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
        self.ask = 4.0 if seed % 2 else 20.0
        """Seconds of training between two questions of a trainer whether to save a checkpoint."""
        self.granted: dict[int, int] = {}
        """Attempt → number of the position of a checkpoint that was begun because a pod received SIGTERM."""
        self._saved_at = 0.0
        self.hurried: set[int] = set()
        """Attempts in which a pod received a second SIGTERM, so that it did not wait for the checkpoint."""
        self.reliable = reliable
        self.restarts, self.rendezvous = 1000 if self.mild else rng.randint(0, 5), 300.0
        self.rank_wait_hours = 0.0
        self.loose_barriers = rng.random() < 0.3
        self.bug: tuple[int, int] | None = None
        self.parts: dict[tuple[int, int], set[int]] = {}
        """(number of the position, attempt) → ranks that have written their parts of the checkpoint."""
        self.done: dict[int, set[int]] = {}
        """Attempt → ranks whose training is done."""
        self.storage_faults: list[tuple[float, float, str, SimulatedPod | None]] = []
        self.lease_holders: list[tuple[float, dict[str, Any]]] = []
        self.noise = self.killed_starts = 0.0
        self._published: Plan | None = None
        self._recorded = -1, 0
        """Attempt and number of restarts in run.json."""
        self._newest_checkpoint, self._restarts_since_checkpoint, self._restarted = -1, 0, 0
        self.newest_attempt = -1
        self.requested_checkpoints = 0
        """Attempts that resumed from a checkpoint that was begun because a pod received SIGTERM."""
        self.failed: tuple[int, str] | None = None
        self.completed: set[int] = set()
        self._lost = [0] * self.ranks
        self.given_up: set[int] = set()
        self.pods: list[SimulatedPod] = []
        self.current: list[SimulatedPod | None] = [None] * self.ranks
        for rank in range(self.ranks):
            self._create_pod(rank)
        if faults:
            Faults(self, kinds)

    @property
    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self.clock.now

    @property
    def children(self) -> list[SimulatedChild]:
        """Return all pservers and trainers that run, also those in pods that were replaced."""
        return [child for pod in self.pods for child in pod.children]

    def log_event(self, text: str, *values: Any) -> None:
        """Add a line to the event log."""
        self._log.append((self.now, text, values))

    def newest_events(self, lines: int = 60) -> str:
        """Return the newest lines of the event log as text."""
        shown = "\n".join(f"{at:8.2f}  {text % values}" for at, text, values in self._log[-lines:])
        return shown.replace(str(self.root), "")

    def run(self) -> str:
        """Run until the Job completes or fails, and return the outcome. Raise `InvariantBrokenError`."""
        self.root = Path(tempfile.mkdtemp(prefix="simulation-", dir=MEMORY if MEMORY.is_dir() else None))
        self.shared, self.storage_prefix = self.root / "shared", str(self.root / "shared")
        self.output = JobPaths(self.shared, "quick-start").output
        self.output.mkdir(parents=True)
        self.config_file = self.root / "trainer_config.py"
        self.config_file.touch()
        try:
            self.clock.run(LIMIT)
            return self._describe_end()
        finally:
            shutil.rmtree(self.root)

    def _describe_end(self) -> str:
        if not self._is_over:
            raise InvariantBrokenError(f"seed {self.seed}: the run has not ended after {LIMIT:.0f} s")
        if self.failed is None:
            self.run_record = json.loads(OutputPaths(self.output).run_json.read_text())
            if (
                checkpoints.newest_checkpoint(self.output) != self.points[-1]
                or not (self.output / "model").is_dir()
            ):
                self._fail("all ranks are done, but the last checkpoint or the model is missing")
            if self.run_record["state"] != "complete":
                self._fail(f"all ranks are done, but run.json has the state {self.run_record['state']}")
            return "complete"
        code, why = self.failed
        if not why or code not in RUN_ENDS:
            self._fail(f"it failed without a reason: {code} {why!r}")
        if self.mild:
            self._fail(f"no fault was final, but it failed with {code}: {why}")
        return f"failed with {code}: {why}"

    def _fail(self, why: str) -> None:
        self.log_event("BROKEN: %s", why)
        raise InvariantBrokenError(f"seed {self.seed} at {self.now:.2f} s: {why}")

    def report_broken_invariant(self, why: str) -> None:
        """End the run with `InvariantBrokenError`, from a callback or from any thread of a launcher."""
        try:
            self._fail(why)
        except InvariantBrokenError as error:
            self.clock.stop(error)
        raise ThreadKilledError  # no code of the launcher catches it

    @property
    def _is_over(self) -> bool:
        """Return whether the Job has completed or failed and no pod runs."""
        if len(self.completed) + len(self.given_up) == self.ranks:
            return True
        return self.failed is not None and not any(pod is not None and not pod.dead for pod in self.current)

    # Kubernetes.

    def _create_pod(self, rank: int) -> None:
        """Create the pod of a rank, unless it has one or the Job has failed."""
        if self.failed is None and self.current[rank] is None:
            pod = self.current[rank] = SimulatedPod(self, rank)
            self.pods.append(pod)
            self.log_event("%s starts", pod)

    def replace_pod(self, rank: int, *, soon: bool) -> None:
        """Delete the pod of a rank, and create its replacement later (`soon`: within 3 s)."""
        self.current[rank] = None
        self.clock.schedule(
            self.rng.uniform(0.5, 3) if soon else self.rng.uniform(1, 20), lambda: self._create_pod(rank)
        )

    def handle_container_exit(self, pod: SimulatedPod, code: int, why: str) -> None:
        """Apply the Job's podFailurePolicy to a container's exit code."""
        if "internal error" in why:
            self.report_broken_invariant(why)
        if self.current[pod.rank] is not pod:
            return
        self._apply_failure_policy(pod, code, why)
        if self.given_up and len(self.completed) + len(self.given_up) == self.ranks:
            self.failed = self.failed or (EXIT_GANG, "Kubernetes does not restart it again")
        if self._is_over:
            self.clock.stop()

    def _apply_failure_policy(self, pod: SimulatedPod, code: int, why: str) -> None:
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

    # The network.

    def is_cut(self, source: SimulatedPod, target: SimulatedPod) -> bool:
        """Return whether no connection can be opened now."""
        blocked = max(source.cut, target.cut, source.mute, target.mute, source.deaf, target.deaf)
        return blocked > self.now and source is not target

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
        for start, end, kind, whose in self.storage_faults:
            if start <= self.now < end and whose in (None, pod):
                return kind, end
        return None, 0.0

    # The invariants.

    def check_output_write(self, pod: SimulatedPod, what: str) -> None:
        """Check that the pod that writes to the output holds the lease."""
        try:
            holder = json.loads(OutputPaths(self.output).lock.read_text())["pod"]
        except FileNotFoundError:
            return
        if holder != pod.name:
            self.report_broken_invariant(f"{pod} writes {what}, but the output is that of pod {holder}")

    def check_checkpoint(self, number: int, attempt: int) -> None:
        """Check that a checkpoint that is done has the parts of all ranks."""
        if len(parts := self.parts[number, attempt]) < self.ranks:
            self.report_broken_invariant(
                f"a checkpoint of attempt {attempt} has only the parts {sorted(parts)}"
            )
        self._saved_at = self.now
        self.log_event("saved %s (attempt %d)", self.points[number], attempt)

    def read_run_record(self, pod: SimulatedPod) -> None:
        """Read run.json, which rank 0 has written: what it contains may be sent now."""
        record = json.loads(OutputPaths(self.output).run_json.read_text())
        if len(record["restarts"]) < self._recorded[1]:
            self.report_broken_invariant("run.json lost restarts")
        self._recorded = record["attempt"], len(record["restarts"])
        self.log_event("%s writes attempt %d (%s)", pod, record["attempt"], record["state"])

    def check_restart_limit(self, plan: Plan) -> None:
        """Count restarts without a new checkpoint independently of the launcher, and check the limit."""
        if len(plan.restarts) == self._restarted:
            return
        self._restarted += 1
        newest = max(
            (self.points.index(at) for at in checkpoints.finished_checkpoints(self.output)), default=-1
        )
        if newest > self._newest_checkpoint:
            self._newest_checkpoint, self._restarts_since_checkpoint = newest, 0
        self._restarts_since_checkpoint += plan.cause is None or plan.cause.code != 143
        if self._restarts_since_checkpoint > self.restarts:
            self.report_broken_invariant(
                f"{self._restarts_since_checkpoint} restarts without a new checkpoint (limit {self.restarts})"
            )
        if plan.cause is not None and plan.cause.code in FINAL:
            self.report_broken_invariant(f"the run restarts after the final exit code {plan.cause.code}")

    def check_published_order(self, pod: SimulatedPod, order: Plan) -> None:
        """Check an order that rank 0 publishes."""
        if order == self._published:
            return
        self._published = order
        self.log_event("%s orders attempt %d %s: %s", pod, order.attempt, order.do, order.cause_text)
        if order.do == "end" and order.cause is not None and order.cause.code not in RUN_ENDS:
            self.report_broken_invariant(
                f"the order is to exit with {order.cause.code}, which does not fail the Job: {order.cause.text}"
            )
        coordinator = pod.coordinator
        self._check_is_recorded(
            order.attempt, len(coordinator.plan.restarts) if coordinator is not None else 0
        )

    def check_received_order(self, order: dict[str, Any]) -> None:
        """Check an order that a rank receives."""
        self._check_is_recorded(order["attempt"], 0)

    def _check_is_recorded(self, attempt: int, restarts: int) -> None:
        """Check that run.json has this attempt and this number of restarts."""
        if attempt > self._recorded[0] or restarts > self._recorded[1]:
            self.report_broken_invariant(
                f"attempt {attempt} and {restarts} restarts were sent, but run.json has {self._recorded}"
            )

    def check_requested_checkpoint(self, attempt: int, number: int) -> None:
        """Record that a requested checkpoint is begun, unless that is so late that it may be incomplete."""
        leave_by = min(
            (pod.leave_by for pod in self.current if pod is not None and not pod.dead), default=0.0
        )
        if (
            self.now < leave_by - SAVE_SECONDS and self._saved_at < leave_by - self.grace + EXIT_SECONDS
        ):  # else an earlier one answers the request
            self.granted[attempt] = number

    def check_process_start(self, child: SimulatedChild) -> None:
        """Check that no processes of another attempt or pod run, and that the checkpoint exists."""
        self.log_event("%s: %s of attempt %d starts", child.pod, child.spec.name, child.attempt)
        for other in self.children:
            if other.attempt != child.attempt or (other.rank == child.rank and other.pod is not child.pod):
                self.report_broken_invariant(
                    f"{child.pod} starts a process of attempt {child.attempt} while one of attempt "
                    f"{other.attempt} runs on {other.pod}"
                )
        if child.attempt < self.newest_attempt:
            self.report_broken_invariant(
                f"attempt {child.attempt} starts after attempt {self.newest_attempt}"
            )
        granted = self.granted.get(self.newest_attempt)
        expected = self.reliable and self.newest_attempt not in self.hurried
        if child.attempt > self.newest_attempt and granted is not None and expected:
            self.requested_checkpoints += 1
            if child.resume is None or self.points.index(child.resume) < granted:
                self.report_broken_invariant(f"the requested checkpoint at {self.points[granted]} was lost")
        self.newest_attempt = child.attempt
        if child.resume is not None and child.resume not in checkpoints.finished_checkpoints(self.output):
            self.report_broken_invariant(f"there is no checkpoint at {child.resume} to resume from")
