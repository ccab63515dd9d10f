"""What goes wrong in a simulated run, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.launcher.core.simulated_children import Children
from tests.launcher.core.simulated_pod import Pod

if TYPE_CHECKING:
    from tests.launcher.core.simulation import World

FAULTS_END = 120.0


class Faults:
    """Random faults of `world`, on its clock."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = rng = world.rng
        kinds = [*self._mild_kinds, *(() if world.mild else self._harsh_kinds)]
        kinds = rng.sample(kinds, rng.randint(1, len(kinds)))
        for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
            about = rng.uniform(0, FAULTS_END - 15)
            for _ in range(rng.choice((1, 1, 2, 3))):  # troubles come together
                rank = rng.choice((0, rng.randrange(self.world.ranks)))
                self.world.at(about + rng.uniform(0, 15), self._fault(rng.choice(kinds), rank))
        if rng.random() < 0.4:
            self.world.noise = rng.choice((0.02, 0.1, 0.2, 0.4))
            self.world.at(FAULTS_END, lambda: setattr(world, "noise", 0.0))

    def _fault(self, kind: str, rank: int) -> Callable[[], None]:
        def happens() -> None:
            pod = self.world.current[rank]
            if pod is None or pod.dead or self.world.failed is not None:
                return
            self.world.note("FAULT %s of %s", kind, pod)
            getattr(self, "_" + kind)(pod)

        return happens

    _mild_kinds = (
        "child_killed",
        "child_hangs",
        "launcher_killed",
        "drained",
        "forced",
        "frozen",
        "cut",
        "one_way",
        "node_lost",
        "lost_beside_drained",
        "storage_slow",
        "storage_hangs",
        "storage_fails",
    )
    _harsh_kinds = ("child_fails", "storage_full", "program_bug")

    def _crews(self, pod: Pod) -> list[Children]:
        return [crew for crew in self.world.alive if crew.pod is pod]

    def _child_killed(self, pod: Pod) -> None:
        for crew in self._crews(pod):
            crew.die(-9)

    def _child_fails(self, pod: Pod) -> None:
        for crew in self._crews(pod):
            crew.die(self.rng.choice((1, 64, 65, 71, 75, 139)))

    def _child_hangs(self, pod: Pod) -> None:
        for crew in self._crews(pod):
            crew.hung = True

    def _launcher_killed(self, pod: Pod) -> None:
        pod.ends(137, "killed")

    def _drained(self, pod: Pod) -> None:
        everybody = self.rng.random() < 0.2
        for other in [*self.world.current] if everybody else [pod]:
            if other is not None and not other.dead:
                other.stop()

    def _forced(self, pod: Pod) -> None:
        """Deleted by force: its successor comes at once. The kubelet ends it later, or never sees it."""
        if pod.frozen > self.world.now:
            pod.ends(137, "killed")
            return
        self.world.replaces(pod.rank, soon=True)
        if self.rng.random() < 0.5 or (self.world.mild and pod.rank == 0):
            self.world.at(self.rng.uniform(0, 20), pod.stop)

    def _node_lost(self, pod: Pod) -> None:
        """Its node is cut off and deleted; its processes live on."""
        if pod.frozen > self.world.now:
            return
        # A rank 0 that is replaced, lives on and reaches the storage keeps the lease, and the others look for
        # its successor: that ends with a reason, but does not heal by itself.
        pod.cut_storage = self.rng.random() < 0.5 or (self.world.mild and pod.rank == 0)
        replaced = self.rng.random() < 0.7
        longest = 400 if replaced or not self.world.mild else self.world.rules.rendezvous - 60
        pod.cut = self.world.now + self.rng.uniform(60, longest)
        if replaced:
            self.world.replaces(pod.rank, soon=self.rng.random() < 0.7)

    def _lost_beside_drained(self, pod: Pod) -> None:
        """A rank is lost and replaced, and rank 0 is told to stop before its children must have ended."""
        leader = self.world.current[0]
        if pod.rank == 0 or pod.frozen > self.world.now or leader is None:
            return
        pod.cut, pod.cut_storage = self.world.now + 100, True
        self.world.replaces(pod.rank, soon=True)
        self.world.at(self.rng.uniform(0, 12), leader.stop)

    def _cut(self, pod: Pod) -> None:
        pod.cut = self.world.now + self.rng.choice((3, 8, 15, 40))
        pod.cut_storage = self.rng.random() < 0.5

    def _one_way(self, pod: Pod) -> None:
        """An asymmetric link, or connections that are open on one side only."""
        until = self.world.now + self.rng.uniform(5, 60)
        pod.deaf, pod.mute = (until, pod.mute) if self.rng.random() < 0.5 else (pod.deaf, until)

    def _frozen(self, pod: Pod) -> None:
        """SIGSTOP: its children go on, and its liveness probe ends the pod, should it last."""
        if self.world.current[pod.rank] is not pod or self.rng.random() < 0.4:
            pod.frozen = self.world.now + self.rng.uniform(1, 50)
            return
        pod.frozen = self.world.now + 1e6
        self.world.at(self.rng.uniform(60, 90), lambda: pod.ends(137, "its liveness probe failed"))

    def _trouble(self, kind: str, pod: Pod, longest: float) -> None:
        whose = pod if self.rng.random() < 0.6 else None
        now = self.world.now
        self.world.troubles.append((now, now + self.rng.uniform(1, longest), kind, whose))

    def _storage_slow(self, pod: Pod) -> None:
        self._trouble("slow", pod, 60)

    def _storage_hangs(self, pod: Pod) -> None:
        self._trouble("hang", pod, 130)

    def _storage_fails(self, pod: Pod) -> None:
        self._trouble("fail", pod, 50)

    def _storage_full(self, pod: Pod) -> None:
        self._trouble("full", pod, 30)

    def _program_bug(self, pod: Pod) -> None:
        """From now on the program fails wherever this rank comes to this point."""
        self.world.bug = pod.rank, self.rng.randrange(len(self.world.points))
