"""A launcher on the simulation's clock. Its main thread is a generator that yields the seconds to wait."""

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
from launcher.supervisor.coordinator.decisions import AttemptPlan
from launcher.supervisor.coordinator.membership import Membership
from launcher.supervisor.order_executor import OrderExecutor
from launcher.supervisor.peers.messages import Failure, MemberState, Order
from tests.launcher.supervisor.simulated_processes import SimulatedProcesses, T

if TYPE_CHECKING:
    from tests.launcher.supervisor.simulation import World

PATIENCE = 20.0  # deadline of files.retry_storage
GRACE = 30.0  # from a pod's TERM to its KILL
Waits = Iterator[float]


class SimulatedLauncher(ABC):
    """Model what the launchers of all ranks have in common: the main thread, its guard and the container."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        world.pods_created += 1
        self.incarnation = f"{rank}-{world.pods_created}"
        self.executor = OrderExecutor(self._build_processes, rank, T.orphan)
        self.executor.address = self.incarnation
        self.dead, self.frozen, self.cut, self.cut_storage = False, 0.0, 0.0, False
        self.deaf = self.mute = 0.0
        """Until these times no message reaches the pod (deaf), or none that it sends arrives (mute)."""
        self.blocked, self.turn = False, 0
        self.stop_requested = self.has_left = False
        self.leaving: Failure | None = None
        self.lost: LauncherError | None = None
        self.last_step = self.heard = self.last_silence_check = world.now
        self.report_during_start: tuple[str, int, Failure | None] | None = None
        """What the link's thread reports while the main thread starts processes."""
        # The link.
        self.order: Order | None = None
        self.rejection: tuple[bool, float] | None = None
        self.seen_version, self.requests, self.pending, self.token = 0, 0, 0, ""
        self.target: SimulatedLauncher | None = None
        # Rank 0.
        self.membership: Membership | None = None
        self.plan, self.began, self.complete = AttemptPlan(-1), False, False
        self.renewed = world.now
        self.waiting: list[Callable[[], None]] = []
        self._main = self._run()
        self.schedule(world.rng.uniform(0.5, 3), lambda: self._resume(0))
        self.schedule(2, self._guard)

    @abstractmethod
    def _run(self) -> Iterator[Any]:
        """Run the main thread, and return (exit code, cause)."""

    @abstractmethod
    def _build_processes(self, order: Order) -> SimulatedProcesses:
        """Return this rank's processes for an order."""

    def __str__(self) -> str:
        return f"pod {self.incarnation}"

    def schedule(self, delay: float, then: Callable[[], None]) -> None:
        """Run `then` after `delay` seconds: later if the launcher is frozen, never after its exit."""

        def event() -> None:
            if self.dead:
                return
            if self.world.now < self.frozen:
                self.schedule(self.frozen - self.world.now + self.world.rng.uniform(0, 0.3), then)
            else:
                then()

        self.world.schedule(delay, event)

    # The main thread.

    def wake(self) -> None:
        """Interrupt the pause of the main thread."""
        if not self.blocked and self.turn > 0 and not self.dead:
            turn = self.turn
            self.schedule(0.0, lambda: self._resume(turn))

    def _resume(self, turn: int) -> None:
        """Continue the main thread until its next pause, unless it has continued since `turn`."""
        if turn != self.turn:
            return
        self.turn += 1
        turn = self.turn
        try:
            delay = next(self._main)
        except StopIteration as ended:
            self.exit_container(ended.value[0], ended.value[1])
        else:
            self.schedule(delay, lambda: self._resume(turn))

    def _block(self, seconds: float) -> Waits:
        """Wait as in a system call, which `wake` does not interrupt."""
        self.blocked = True
        yield seconds
        self.blocked = False

    def _use_storage(self, *, write: bool = False) -> Waits:
        """Wait for one storage operation, and raise the errors of `files.retry_storage`.

        Args:
            write: whether the operation fails on a full storage.
        """
        give_up = self.world.now + PATIENCE
        while True:
            storage_fault, until = self.world.find_storage_fault(self)
            if storage_fault == "full" and write:
                raise StorageError("no space left")
            if storage_fault == "slow":
                yield from self._block(self.world.rng.uniform(0.5, 6))
                return
            if storage_fault == "hang":
                yield from self._block(until - self.world.now + 0.01)
            elif storage_fault == "fail":
                if self.world.now >= give_up:
                    raise StorageFailedError("the storage fails: EIO")
                yield from self._block(3)
            else:
                yield from self._block(self.world.rng.uniform(0, 0.05))
                return

    def _pause(self, seconds: float) -> Waits:
        """Wait until `wake` or for some seconds; raise an error after a lost lease or a stop signal."""
        self.last_step = self.world.now
        if self.lost is not None:
            raise self.lost
        if self.stop_requested and self.leaving is None:
            raise StoppedError("received a stop signal")
        yield seconds

    def state(self) -> MemberState:
        """Return what this launcher reports to rank 0."""
        phase, attempt, failure = self.report_during_start or self.executor.report
        phase = "leaving" if self.has_left else phase
        return MemberState(
            self.rank, self.incarnation, phase, attempt, self.leaving or failure, self.incarnation
        )

    # The guard's thread, and what Kubernetes and the faults do to the pod.

    def _guard(self) -> None:
        """Kill the processes if the main thread is stuck or rank 0 is not reached; repeat after 2 s."""
        now = self.world.now
        stuck = now - self.last_step
        if self.membership is None and now - self.heard >= T.orphan + T.stop + 2:
            self.kill_processes()
        if stuck >= T.stuck or (self.lost is not None and stuck >= T.stop):
            self.kill_processes()
        if stuck >= 2 * T.stuck and self.turn > 0:
            self.exit_container(EXIT_UNFIT, "the launcher was stuck")
            return
        self.schedule(2, self._guard)

    def kill_processes(self) -> None:
        """Kill all processes of this pod."""
        for processes in [processes for processes in self.world.alive if processes.pod is self]:
            processes.kill()

    def exit_container(self, code: int, why: str) -> None:
        """Exit the container, which kills all its processes."""
        if self.dead:
            return
        self.dead = True
        self.kill_processes()
        self.world.log_event("%s exits with %d: %s", self, code, why)
        self.world.handle_container_exit(self, code, why)

    def stop(self) -> None:
        """Send SIGTERM to the launcher, and SIGKILL after the grace period."""
        self.stop_requested = True
        self.wake()
        self.world.schedule(GRACE, lambda: self.exit_container(137, "killed after its grace period"))
