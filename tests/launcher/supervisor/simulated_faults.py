"""Random faults of a simulated run and their times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.launcher.supervisor.simulated_pod import SimulatedPod

if TYPE_CHECKING:
    from tests.launcher.supervisor.simulation import World

FAULTS_END = 120.0
_STORAGE_FAULTS = {
    "storage_slow": ("slow", 60),
    "storage_hangs": ("hang", 130),
    "storage_fails": ("fail", 50),
    "storage_full": ("full", 30),
}
"""Fault → (kind of `World.storage_faults`, longest duration in seconds)."""


class Faults:
    """Schedule random faults in `world`, on its clock."""

    def __init__(self, world: World, kinds: tuple[str, ...] = ()) -> None:
        """Schedule the faults; `kinds` are the only kinds, without harsh ones in a mild run; empty: any."""
        self.world = world
        self.rng = rng = world.rng
        allowed = (*self._mild_kinds, *(() if world.mild else self._harsh_kinds))
        all_kinds = [kind for kind in kinds or allowed if kind in allowed]
        chosen = rng.sample(all_kinds, rng.randint(1, len(all_kinds)))
        undisturbed = 10 + world.seconds * len(world.points)  # seconds that the run takes without faults
        for _ in range(3 if kinds else rng.choice((0, 1, 1, 2, 2, 3, 4))):
            around = rng.uniform(0, min(undisturbed, FAULTS_END - 15))
            for _ in range(rng.choice((1, 1, 2, 3))):  # faults come in groups
                rank = rng.choice((0, *[rng.randrange(world.ranks)] * (3 if kinds else 1)))
                self.world.clock.schedule(around + rng.uniform(0, 15), self._fault(rng.choice(chosen), rank))
        if rng.random() < 0.4 and not world.reliable:
            self.world.noise = rng.choice((0.02, 0.1, 0.2, 0.4))
            self.world.clock.schedule(FAULTS_END, lambda: setattr(world, "noise", 0.0))

    def _fault(self, kind: str, rank: int) -> Callable[[], None]:
        """Return a function that causes the fault `kind` at the current pod of `rank`, if it still runs."""

        def cause_fault() -> None:
            pod = self.world.current[rank]
            if pod is None or pod.dead or self.world.failed is not None:
                return
            self.world.log_event("FAULT %s of %s", kind, pod)
            if kind in _STORAGE_FAULTS:
                self._storage(pod, *_STORAGE_FAULTS[kind])
            else:
                getattr(self, "_" + kind)(pod)

        return cause_fault

    _mild_kinds = (
        "child_killed",
        "child_hangs",
        "starts_fail",
        "launcher_killed",
        "drained",
        "forced",
        "frozen",
        "cut",
        "one_way",
        "node_lost",
        "lost_and_rank_0_drained",
        "storage_slow",
        "storage_hangs",
        "storage_fails",
    )
    _harsh_kinds = ("child_fails", "storage_full", "program_bug")

    def _child_killed(self, pod: SimulatedPod) -> None:
        """Kill a random process of the pod."""
        self._exit_child(pod, -9)

    def _child_fails(self, pod: SimulatedPod) -> None:
        """Let one process of the pod exit with a random error code."""
        self._exit_child(pod, self.rng.choice((1, 64, 65, 71, 75, 139)))

    def _exit_child(self, pod: SimulatedPod, code: int) -> None:
        if pod.children:
            self.rng.choice(pod.children).exit(code)

    def _child_hangs(self, pod: SimulatedPod) -> None:
        """Let the pod's processes hang."""
        for child in pod.children:
            child.hung = True

    def _starts_fail(self, pod: SimulatedPod) -> None:
        """Let many processes of all pods be killed at their start, for some seconds, and restart the gang."""
        self.world.killed_starts = self.world.now + self.rng.uniform(10, 40)
        self._child_killed(pod)

    def _launcher_killed(self, pod: SimulatedPod) -> None:
        """Kill the pod's launcher."""
        pod.exit_container(137, "killed")

    def _drained(self, pod: SimulatedPod) -> None:
        """Delete the pod with its grace period, or sometimes all pods."""
        all_pods = self.rng.random() < 0.2
        for other in [*self.world.current] if all_pods else [pod]:
            if other is not None and not other.dead:
                other.stop()

    def _forced(self, pod: SimulatedPod) -> None:
        """Delete the pod by force: a new pod starts at once, the kubelet stops the old one later or never.

        If the pod is frozen, kill its container instead.
        """
        if pod.frozen > self.world.now:
            pod.exit_container(137, "killed")
            return
        self.world.replace_pod(pod.rank, soon=True)
        if self.rng.random() < 0.5 or (self.world.mild and pod.rank == 0):
            self.world.clock.schedule(self.rng.uniform(0, 20), pod.stop)

    def _node_lost(self, pod: SimulatedPod) -> None:
        """Cut off and delete the pod's node; the pod's processes keep running."""
        if pod.frozen > self.world.now:
            return
        # A replaced rank 0 that still runs and reaches the storage keeps the lease while the other ranks look
        # for the new rank 0: such a run fails with a reason, so a mild run must not contain it.
        pod.cut_storage = self.rng.random() < 0.5 or (self.world.mild and pod.rank == 0)
        replaced = self.rng.random() < 0.7
        longest = 400 if replaced or not self.world.mild else self.world.rendezvous - 60
        pod.cut = self.world.now + self.rng.uniform(60, longest)
        if replaced:
            self.world.replace_pod(pod.rank, soon=self.rng.random() < 0.7)

    def _lost_and_rank_0_drained(self, pod: SimulatedPod) -> None:
        """Lose and replace a rank, and drain rank 0 before the lost rank's processes must have exited."""
        rank_0 = self.world.current[0]
        if pod.rank == 0 or pod.frozen > self.world.now or rank_0 is None:
            return
        pod.cut, pod.cut_storage = self.world.now + 100, True
        self.world.replace_pod(pod.rank, soon=True)
        self.world.clock.schedule(self.rng.uniform(0, 12), rank_0.stop)

    def _cut(self, pod: SimulatedPod) -> None:
        """Cut the pod's network for some seconds; half of the times its storage hangs too."""
        pod.cut = self.world.now + self.rng.choice((3, 8, 15, 40))
        pod.cut_storage = self.rng.random() < 0.5

    def _one_way(self, pod: SimulatedPod) -> None:
        """Break the pod's network in one direction, as with an asymmetric link or a half-open connection."""
        until = self.world.now + self.rng.uniform(5, 60)
        pod.deaf, pod.mute = (until, pod.mute) if self.rng.random() < 0.5 else (pod.deaf, until)

    def _frozen(self, pod: SimulatedPod) -> None:
        """Freeze the launcher but not its processes; after a long freeze the liveness probe kills it."""
        if self.world.current[pod.rank] is not pod or self.rng.random() < 0.4:
            pod.frozen = self.world.now + self.rng.uniform(1, 50)
            return
        pod.frozen = self.world.now + 1e6
        self.world.clock.schedule(
            self.rng.uniform(60, 90), lambda: pod.exit_container(137, "its liveness probe failed")
        )

    def _storage(self, pod: SimulatedPod, kind: str, longest: float) -> None:
        """Let the storage of this pod, or of all pods, have a fault of this kind for at most `longest` seconds."""
        whose = pod if self.rng.random() < 0.6 else None
        now = self.world.now
        self.world.storage_faults.append((now, now + self.rng.uniform(1, longest), kind, whose))

    def _program_bug(self, pod: SimulatedPod) -> None:
        """Let the program fail from now on whenever this rank reaches a certain position."""
        self.world.bug = pod.rank, self.rng.randrange(len(self.world.points))
