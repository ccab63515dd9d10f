"""A whole run on a virtual clock: pods, Kubernetes, network, storage and children, with faults, by a seed.

The launcher's own `decide`, `admit` (in `Hub`), `Follower` and `again` run; what is around them is modelled
here and in simulated_*.py. `BrokenError` is raised by the first event that breaks an invariant of
docs/adr/0004-the-gang-restarts-in-place.md.

    python -m tests.launcher.core.simulation SEED       prints one run's events
    python -m tests.launcher.core.simulation FROM TO    looks for seeds that fail
"""

from __future__ import annotations

import heapq
import logging
import random
import sys
from collections.abc import Callable
from typing import Any

from launcher.errors import EXIT_GANG, FINAL
from launcher.gang.lead import RUN_ENDS
from launcher.gang.machine import Plan, Rules
from launcher.gang.messages import Failure, Order
from launcher.layout import Position
from tests.launcher.core.simulated_children import Children, T
from tests.launcher.core.simulated_faults import Faults
from tests.launcher.core.simulated_pod import Pod

LIMIT = 4000.0  # by then every run has ended


class BrokenError(AssertionError):
    """An invariant is broken."""


class World:
    """The clock, Kubernetes, the network, the storage, and what must always hold."""

    def __init__(self, seed: int, *, faults: bool = True) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311 - one seed, one run
        self.seed, self.now, self.made, self._count = seed, 0.0, 0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._log: list[tuple[float, str, tuple[Any, ...]]] = []
        self.mild = rng.random() < 0.5
        """No fault is final and the budget is large: the run has to complete."""
        self.ranks = rng.choice((1, 2, 2, 3, 3, 4))
        passes, inside = rng.randint(1, 3), rng.choice((0, 0, 2))
        self.points = [
            at
            for number in range(passes)
            for at in (*(Position(number, 10 * (i + 1)) for i in range(inside)), Position(number + 1))
        ]
        self.seconds = rng.uniform(2, 12)
        """Of training between two saves."""
        self.restarts = 1000 if self.mild else rng.randint(0, 5)
        self.rules = Rules(
            silence=T.silence,
            life=T.life,
            rendezvous=300.0,
            serve=T.ready + T.stop + T.stuck,
            finish=T.servers_end + 2 * T.stop + T.stuck,
            restarts=self.restarts,
        )
        self.bug: tuple[int, int] | None = None
        self.lock: tuple[str, int] | None = None
        self._tokens: list[tuple[float, str]] = []
        self.run_json: dict[str, Any] = {}
        self.saves: dict[int, int] = {}
        self.parts: dict[tuple[int, int], set[int]] = {}
        self.model = False
        self.troubles: list[tuple[float, float, str, Pod | None]] = []
        self.noise = 0.0
        self.alive: list[Children] = []
        self._best, self._fruitless, self._restarted, self._newest = -1, 0, 0, -1
        self.failed: tuple[int, str] | None = None
        self.completed: set[int] = set()
        self._lost = [0] * self.ranks
        self.given_up: set[int] = set()
        self.current: list[Pod | None] = [None] * self.ranks
        self.before: tuple[float, Pod | None] = (0.0, None)
        """(until when DNS may give it, an earlier pod of rank 0)."""
        for rank in range(self.ranks):
            self._make(rank)
        if faults:
            Faults(self)

    # The clock.

    def at(self, delay: float, then: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, then))

    def note(self, text: str, *values: Any) -> None:
        self._log.append((self.now, text, values))

    def tail(self, lines: int = 60) -> str:
        """The newest events."""
        return "\n".join(f"{at:8.2f}  {text % values}" for at, text, values in self._log[-lines:])

    def run(self) -> str:
        """How the run ended. Raises `BrokenError`."""
        while self._events and self.now < LIMIT:
            self.now, _, then = heapq.heappop(self._events)
            then()
            if self._over():
                break
        else:
            self.breaks(f"the run has not ended after {LIMIT:.0f} s")
        if self.failed is None:
            if self.points[-1] not in [self.points[i] for i in self.saves] or not self.model:
                self.breaks("all ranks are done, but not all passes are there")
            return "complete"
        code, why = self.failed
        if not why or code not in RUN_ENDS:
            self.breaks(f"it failed without a reason: {code} {why!r}")
        if self.mild:
            self.breaks(f"no fault was final, but it failed with {code}: {why}")
        return f"failed with {code}: {why}"

    def breaks(self, why: str) -> None:
        """Raises `BrokenError`."""
        self.note("BROKEN: %s", why)
        raise BrokenError(f"seed {self.seed} at {self.now:.2f} s: {why}")

    def _over(self) -> bool:
        if len(self.completed) + len(self.given_up) == self.ranks:
            self.failed = self.failed or (EXIT_GANG, "Kubernetes gave it up") if self.given_up else None
            return True
        return self.failed is not None and not any(pod is not None and not pod.dead for pod in self.current)

    # Kubernetes.

    def _make(self, rank: int) -> None:
        if self.failed is None and self.current[rank] is None:
            pod = self.current[rank] = Pod(self, rank)
            self.note("%s is there", pod)

    def replaces(self, rank: int, *, soon: bool) -> None:
        if rank == 0:
            self.before = self.now + self.rng.choice((0, 10, 30)), self.current[0]
        self.current[rank] = None
        self.at(self.rng.uniform(0.5, 3) if soon else self.rng.uniform(1, 20), lambda: self._make(rank))

    def ended(self, pod: Pod, code: int, why: str) -> None:
        """A container ended: what the Job's podFailurePolicy says."""
        if self.current[pod.rank] is not pod:
            return
        if code == 0:
            self.completed.add(pod.rank)
        elif self.failed is not None:
            self.current[pod.rank] = None
        elif code in RUN_ENDS:
            self.current[pod.rank] = None
            self.failed = code, why
            self.note("the Job fails")
            for other in self.current:
                if other is not None:
                    other.stop()
        elif code not in (69, 143) and self._counts(pod.rank):
            self.current[pod.rank] = None
            self.given_up.add(pod.rank)
            self.note("Kubernetes gives rank %d up", pod.rank)
        else:
            self.replaces(pod.rank, soon=False)

    def _counts(self, rank: int) -> bool:
        self._lost[rank] += 1
        return self._lost[rank] > 10 * self.restarts

    def resolve(self) -> Pod | None:
        """Rank 0's pod, as DNS gives it."""
        until, before = self.before
        return before if self.now < until and self.rng.random() < 0.3 else self.current[0]

    # The network.

    def delays(self, source: Pod, target: Pod) -> list[float]:
        """When one message arrives: never, once or twice, and maybe late."""
        rng = self.rng
        cut = max(source.cut, target.cut, source.mute, target.deaf) - self.now
        if cut > 0 and source is not target:
            return [cut + rng.uniform(0, 15)] if rng.random() < 0.5 else []  # TCP tries on
        if rng.random() >= self.noise:
            return [rng.uniform(0.001, 0.05)]
        kind = rng.random()
        if kind < 0.3:
            return []
        if kind < 0.6:
            return [rng.uniform(0, 0.1), rng.uniform(0, 25)]
        return [rng.uniform(0, 15)]

    # The storage.

    def storage(self, pod: Pod) -> tuple[str | None, float]:
        """(what is wrong with it for this pod now, until when)."""
        if pod.cut_storage and self.now < pod.cut:
            return "hang", pod.cut
        for begin, end, kind, whose in self.troubles:
            if begin <= self.now < end and whose in (None, pod):
                return kind, end
        return None, 0.0

    def child_io(self, crew: Children) -> tuple[float, Callable[[], None]]:
        """(how long a part of a save takes, what is then)."""
        trouble, until = self.storage(crew.pod)
        if trouble in ("full", "fail"):
            return 1.0, lambda: crew.die(75 if trouble == "full" else 71)
        if trouble == "hang":
            return until - self.now + 0.1, crew.part
        return self.rng.uniform(0.5, 6) if trouble == "slow" else self.rng.uniform(0.05, 1), crew.part

    def visible_token(self) -> str:
        """The lock's token as another node sees it: NFS keeps names for up to a minute."""
        token = self.lock[0] if self.lock is not None else ""
        if not self._tokens or self._tokens[-1][1] != token:
            self._tokens.append((self.now, token))
        old = [token for at, token in self._tokens[:-1] if self.now - self._tokens[-1][0] < 60]
        return old[-1] if old and self.rng.random() < 0.3 else token

    def writes(self, pod: Pod, what: str) -> None:
        """Something is written to the output for this rank 0."""
        if self.lock is not None and self.lock[0] != pod.incarnation:
            self.breaks(f"{pod} writes {what}, but the output is {self.lock[0]}'s")

    def saved(self, crew: Children) -> None:
        """`done` of a save."""
        self.writes(crew.pod, "a save")
        parts = self.parts.get((crew.point, crew.attempt), set())
        if len(parts) < self.ranks:
            self.breaks(f"a save of attempt {crew.attempt} is done with the parts {sorted(parts)} alone")
        self.note("saved %s (attempt %d)", self.points[crew.point], crew.attempt)
        self.saves[crew.point] = crew.attempt
        for old in sorted(self.saves)[:-3]:
            del self.saves[old]

    def persisted(self, pod: Pod, plan: Plan, state: str, cause: Failure | None) -> None:
        """run.json is written."""
        self.writes(pod, "run.json")
        self.note("%s writes attempt %d %s (%s)", pod, plan.attempt, plan.do, state)
        self._budget(plan)
        self.run_json = {
            "attempt": plan.attempt,
            "restarts": [
                {"attempt": r.attempt, "cause": r.cause, "at": r.at, "signature": r.signature}
                for r in plan.restarts
            ],
            "crew": plan.crew,
            "fruitless": plan.fruitless,
            "resume": (plan.resume.passes, plan.resume.batches) if plan.resume is not None else None,
            "state": state,
            "holder": pod.incarnation,
            "cause": cause.text if cause is not None else None,
            "exitCode": cause.code if cause is not None else None,
        }

    # What must hold.

    def _budget(self, plan: Plan) -> None:
        """Restarts without a new save in between, counted apart from the launcher's own books."""
        if len(plan.restarts) < self._restarted:
            self.breaks("restarts were forgotten")
        if len(plan.restarts) == self._restarted:
            return
        self._restarted += 1
        newest = max(self.saves, default=-1)
        if newest > self._best:
            self._best, self._fruitless = newest, 0
        self._fruitless += plan.cause is None or plan.cause.code != 143
        if self._fruitless > self.restarts:
            self.breaks(f"{self._fruitless} restarts without a new save, of {self.restarts}")
        if plan.cause is not None and plan.cause.code in FINAL:
            self.breaks(f"it restarts after {plan.cause.code}")

    def published(self, pod: Pod, plan: Plan) -> None:
        self.note("%s orders attempt %d %s: %s", pod, plan.attempt, plan.do, plan.cause and plan.cause.text)
        if plan.do == "end" and plan.cause is not None and plan.cause.code not in RUN_ENDS:
            self.breaks(
                f"everybody is told to end with {plan.cause.code}, which ends no Job: {plan.cause.text}"
            )
        self._known(plan.attempt, len(plan.restarts))

    def receives(self, pod: Pod, order: Order) -> None:
        self._known(order.attempt, 0)

    def _known(self, attempt: int, restarts: int) -> None:
        known = self.run_json.get("attempt", -1), len(self.run_json.get("restarts", ()))
        if attempt > known[0] or restarts > known[1]:
            self.breaks(f"attempt {attempt} and {restarts} restarts were told, but run.json has {known}")

    def child_starts(self, crew: Children) -> None:
        self.note("%s: children of attempt %d start", crew.pod, crew.attempt)
        for other in self.alive:
            if other.attempt != crew.attempt or other.pod.rank == crew.pod.rank:
                self.breaks(
                    f"{crew.pod} starts children of attempt {crew.attempt} while those of attempt "
                    f"{other.attempt} live on {other.pod}"
                )
        if crew.attempt < self._newest:
            self.breaks(f"attempt {crew.attempt} starts after {self._newest}")
        self._newest = crew.attempt
        if crew.point and crew.point - 1 not in self.saves:
            self.breaks(f"there is no save at {crew.order.resume} to go on from")
        self.alive.append(crew)


def main(arguments: list[str]) -> int:
    """0, or 1 when an invariant is broken."""
    logging.disable(logging.CRITICAL)
    first = int(arguments[0])
    broken = 0
    for seed in range(first, int(arguments[1]) if len(arguments) > 1 else first + 1):
        world = World(seed)
        try:
            how = world.run()
        except BrokenError as violation:
            how, broken = f"BROKEN {violation}", broken + 1
        if len(arguments) == 1:
            sys.stdout.write(world.tail(10_000) + "\n")
        if len(arguments) == 1 or how.startswith("BROKEN"):
            sys.stdout.write(f"seed {seed}, {world.ranks} ranks, {world.now:.0f} s: {how}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
