"""Pservers and trainer of one simulated rank, supervised as in launcher/supervisor/process_group.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import DeadlineError, LauncherError, ProcessError
from launcher.supervisor.peers.messages import Failure, Order
from launcher.supervisor.timings import Timings

if TYPE_CHECKING:
    from tests.launcher.supervisor.simulated_pod import SimulatedPod

T = Timings(poll=1.0)  # a long period is enough: every event wakes a launcher
STALL = 60.0
SAVES = 600.0  # deadline for one checkpoint, from the deadlines of its barriers


class SimulatedProcesses:
    """Model the processes of one rank in one attempt."""

    def __init__(self, pod: SimulatedPod, order: Order) -> None:
        self.pod, self.world, self.attempt, self.order = pod, pod.world, order.attempt, order
        self.phase, self.failure = "serving", None
        self.starting, self.alive, self.hung, self.saving, self.done, self.accepts = (True, *[False] * 5)
        self.dead: ProcessError | None = None
        """The error of a process that exited while the others keep running."""
        self.dead_at = self.moved = self.kill_at = self.world.now
        self.stopping = False
        self.finish_by: float | None = None
        self.point = self.world.points.index(order.resume) + 1 if order.resume is not None else 0
        self.stubborn = self.world.rng.random() < 0.2

    @property
    def running(self) -> bool:
        return self.starting or self.alive

    @property
    def is_working(self) -> bool:
        return self.alive and self.dead is None and not self.hung and not self.stopping

    def start(self) -> None:
        """Start all processes; the pservers accept connections a little later."""
        self.starting, self.alive = False, True
        self.world.check_process_start(self)
        self.ready_by = self.world.now + T.ready
        slow = self.world.rng.random() < 0.003
        self.world.schedule(T.ready + 9 if slow else self.world.rng.uniform(0.5, 4), self.accept)

    def accept(self) -> None:
        """Let the pservers accept connections."""
        if self.is_working:
            self.accepts = True
            self.pod.wake()

    def train(self) -> None:
        """Start training if the pservers are ready."""
        if self.phase == "ready":
            self.phase, self.moved = "training", self.world.now
            self.continue_training()

    def continue_training(self) -> None:
        """Train until the next checkpoint, or end the training after the last one."""
        if self.point == len(self.world.points):
            self.world.schedule(self.world.rng.uniform(0, 2), self.finish_training)
        else:
            self.world.schedule(self.world.seconds, self.begin_checkpoint)

    def finish_training(self) -> None:
        """Mark this rank's training as done; trainer 0 also writes the model."""
        if not self.is_working:
            return
        self.done = True
        if self.pod.rank == 0:
            self.world.check_output_write(self.pod, "the model")
            self.world.model = True
        self.pod.wake()

    def begin_checkpoint(self) -> None:
        """Reach the position at which all ranks write their parts of a checkpoint."""
        if not self.is_working:
            return
        self.moved, self.saving = self.world.now, True
        if self.world.bug == (self.pod.rank, self.point):
            self.exit_one(1)
            return
        self.world.schedule(*self.world.next_write_of_part(self))

    def write_part(self) -> None:
        """Write this rank's part of a checkpoint; trainer 0 finishes it after the last rank's part."""
        if not self.is_working:
            return
        parts = self.world.parts.setdefault((self.point, self.attempt), set())
        parts.add(self.pod.rank)
        if len(parts) == self.world.ranks:
            leader = next(
                (c for c in self.world.alive if c.pod.rank == 0 and c.attempt == self.attempt), None
            )
            if leader is not None:
                self.world.schedule(self.world.rng.uniform(0.05, 1), leader.finish_checkpoint)

    def finish_checkpoint(self) -> None:
        """Write `done` as trainer 0, and let all ranks continue."""
        if not self.is_working:
            return
        self.world.record_checkpoint(self)
        for processes in self.world.alive:
            if (
                processes.attempt == self.attempt
                and processes.is_working
                and processes.point == self.point
                and processes is not self
            ):
                processes.pass_checkpoint()
        self.pass_checkpoint()

    def pass_checkpoint(self) -> None:
        """Continue training after a finished checkpoint."""
        self.point, self.saving, self.moved = self.point + 1, False, self.world.now
        self.continue_training()

    def exit_one(self, code: int) -> None:
        """Let one process exit with `code`; the others keep running."""
        if self.is_working or self.hung:
            self.dead = ProcessError(f"trainer exited with {code}", code, "trainer")
            self.dead_at = self.world.now
            self.world.log_event("%s: a process of attempt %d exits with %d", self.pod, self.attempt, code)
            self.pod.wake()

    def kill(self) -> None:
        """Kill all processes at once."""
        if self.alive:
            self.alive = False
            self.world.alive.remove(self)
            self.world.log_event("%s: all processes of attempt %d have exited", self.pod, self.attempt)
            self.dead = self.dead or ProcessError("trainer was killed", -9, "trainer")
            self.pod.wake()

    def poll(self, now: float) -> None:
        """Check the processes, as `ProcessGroup.poll` does, and set `phase` and `failure`."""
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
        error = self._find_error(now)
        if error is not None:
            at = self.world.points[min(self.point, len(self.world.points) - 1)]
            place = (at.passes, at.batches)
            self.failure = Failure.from_error(
                error, min(self.dead_at, now) if self.dead else now, self.pod.rank, place=place
            )
            self.stop(now)

    def _find_error(self, now: float) -> LauncherError | None:
        """Return the error of the processes, if any, and move `phase` forward."""
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
        return error

    def finish(self, now: float) -> None:
        """Let the pservers exit after the training."""
        if self.phase == "done" and self.finish_by is None:
            self.finish_by = now + T.pserver_exit
            late = T.pserver_exit + 9 if self.world.rng.random() < 0.02 else self.world.rng.uniform(0, 3)
            self.world.schedule(late, self.kill)

    def stop(self, now: float) -> None:
        """Send SIGTERM to all processes; those that ignore it are killed at the deadline."""
        if not self.stopping:
            self.stopping, self.kill_at = True, now + T.stop
            if not self.stubborn:
                self.world.schedule(self.world.rng.uniform(0, 1.5), self.kill)
