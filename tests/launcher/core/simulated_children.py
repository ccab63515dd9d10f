"""One rank's pservers and trainer on the simulation's clock, looked after as crew.py does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import DeadlineError, LauncherError, ProcessError
from launcher.gang.messages import Failure, Order
from launcher.timings import Timings

if TYPE_CHECKING:
    from tests.launcher.core.simulated_pod import Pod

T = Timings(poll=1.0)  # whatever happens wakes a launcher anyway
STALL = 60.0
SAVES = 600.0  # for one save, by the deadline of its barriers


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
        error = self._judge(now)
        if error is not None:
            at = self.world.points[min(self.point, len(self.world.points) - 1)]
            place = (at.passes, at.batches)
            self.failure = Failure.of(
                error, min(self.dead_at, now) if self.dead else now, self.pod.rank, place=place
            )
            self.stop(now)

    def _judge(self, now: float) -> LauncherError | None:
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
        if self.phase == "done" and self.finish_by is None:
            self.finish_by = now + T.servers_end
            late = T.servers_end + 9 if self.world.rng.random() < 0.02 else self.world.rng.uniform(0, 3)
            self.world.at(late, self.kill)

    def stop(self, now: float) -> None:
        if not self.stopping:
            self.stopping, self.kill_at = True, now + T.stop
            if not self.stubborn:
                self.world.at(self.world.rng.uniform(0, 1.5), self.kill)
