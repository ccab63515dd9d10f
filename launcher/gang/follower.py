"""A rank's side of the plan (the picture is in machine.py). It neither waits for anything nor sends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from launcher.errors import LauncherError
from launcher.gang.messages import Failure, Order


class Crew(Protocol):
    """One rank's children in one attempt. Nothing here waits; `poll` is called again and again."""

    attempt: int
    phase: str
    """serving, ready, training, done, and ended once all have ended as they should."""
    failure: Failure | None

    @property
    def running(self) -> bool:
        """Whether any child may still run."""

    def poll(self, now: float) -> None:
        """Looks at the children, and takes the next step of what was ordered."""

    def train(self) -> None: ...

    def finish(self, now: float) -> None: ...

    def stop(self, now: float) -> None: ...


class Follower:
    """One rank: does what the newest order says. The same on rank 0 as elsewhere."""

    def __init__(self, start: Callable[[Order], Crew], rank: int, orphan: float) -> None:
        self._start, self._rank, self._orphan = start, rank, orphan
        self.crew: Crew | None = None
        self.attempt = -1
        self.failure: Failure | None = None
        self.staged = False
        self.address: str | None = None
        """This launcher's own: an order that names another one is meant for an earlier pod of this rank."""
        self._halted = False
        """Whether its children were told to end before their time."""
        self.told: tuple[str, int, Failure | None] = ("staging", -1, None)
        """(phase, attempt, failure) for other threads: exchanged whole, and before the first child starts."""

    def step(self, order: Order | None, heard: float, now: float) -> None:
        """Takes one step. `heard`: when `order` was last confirmed; older than `orphan` it counts no more."""
        crew = self.crew
        if crew is not None:
            crew.poll(now)
            self.failure = self.failure or crew.failure
            self._halted = self._halted or self.failure is not None
        wanted = order is not None and order.do in ("serve", "train", "finish") and now - heard < self._orphan
        if (
            crew is not None
            and order is not None
            and wanted
            and not self._halted
            and order.attempt == crew.attempt
        ):
            if order.do == "train":
                crew.train()
            elif order.do == "finish":
                crew.finish(now)
        elif crew is not None and crew.running:
            self._halted = True
            crew.stop(now)
        elif wanted and order is not None and self._begins(order):
            self.attempt, self.failure, self.crew, self._halted = order.attempt, None, None, False
            self.told = "serving", order.attempt, None
            try:
                self.crew = self._start(order)
            except LauncherError as error:
                self.failure = Failure.of(error, now, self._rank)
        elif order is not None and order.do == "stop" and order.attempt > self.attempt:
            self.attempt, self.failure, self.crew = order.attempt, None, None
        self.told = self.phase, self.attempt, self.failure

    def _begins(self, order: Order) -> bool:
        ours = self.address is None or order.addresses[self._rank] == self.address
        return order.do == "serve" and ours and self.staged and order.attempt > self.attempt

    @property
    def running(self) -> bool:
        return self.crew is not None and self.crew.running

    @property
    def phase(self) -> str:
        """What rank 0 is told."""
        if not self.staged:
            return "staging"
        if self.crew is None or (self._halted and not self.crew.running):
            return "idle"
        return self.crew.phase
