"""A launcher on the simulation's clock: its main thread is a generator that yields how long it waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from launcher.errors import (
    EXIT_UNFIT,
    LauncherError,
    StoppedError,
    StorageError,
    StorageFailedError,
)
from launcher.gang.control import Hub
from launcher.gang.follower import Follower
from launcher.gang.machine import Plan
from launcher.gang.messages import Failure, Order, State
from tests.launcher.core.simulated_children import Children, T

if TYPE_CHECKING:
    from tests.launcher.core.simulation import World

PATIENCE = 20.0  # of files.patient
GRACE = 30.0  # from a pod's TERM to its KILL
Wait = Iterator[float]


class Launcher(ABC):
    """What all ranks share: the main thread's ways to wait, the guard, and the container's end."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        world.made += 1
        self.incarnation = f"{rank}-{world.made}"
        self.follower = Follower(self._start, rank, T.orphan)
        self.follower.address = self.incarnation
        self.dead, self.frozen, self.cut, self.cut_storage = False, 0.0, 0.0, False
        self.deaf = self.mute = 0.0
        """Until then nothing reaches it, or nothing that it sends arrives."""
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
        self.target: Launcher | None = None
        # Rank 0.
        self.hub: Hub | None = None
        self.plan, self.began, self.complete = Plan(-1), False, False
        self.renewed = world.now
        self.waiting: list[Callable[[], None]] = []
        self._main = self._run()
        self.at(world.rng.uniform(0.5, 3), lambda: self._resume(0))
        self.at(2, self._guard)

    @abstractmethod
    def _run(self) -> Iterator[Any]:
        """The main thread: gives (exit code, cause)."""

    @abstractmethod
    def _start(self, order: Order) -> Children:
        """This rank's children."""

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

    def state(self) -> State:
        phase, attempt, failure = self.meanwhile or self.follower.told
        phase = "leaving" if self.gone else phase
        return State(self.rank, self.incarnation, phase, attempt, self.leaving or failure, self.incarnation)

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
