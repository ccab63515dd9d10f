"""Starts and stops one rank's processes as the coordinator's orders say; never waits and sends no message.

coordinator/decisions.py describes the orders and the phases of a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from launcher.errors import LauncherError
from launcher.supervisor.peers.messages import Failure, Order
from launcher.supervisor.process_group import ProcessGroup


class Report(NamedTuple):
    """What a rank reports about its processes: phase, number of the attempt, and failure if there was one."""

    phase: str
    attempt: int
    failure: Failure | None


class OrderExecutor:
    """Starts and stops one rank's processes as the coordinator's newest order says; rank 0 has one, too."""

    def __init__(self, start: Callable[[Order], ProcessGroup], rank: int, orphan_seconds: float) -> None:
        """Create the executor; it starts nothing before `step` receives an order.

        `start` starts the processes of an order's attempt; it may raise `LauncherError`. All processes are stopped if
        rank 0 has not confirmed the order for `orphan_seconds`.
        """
        self._start, self._rank, self._orphan_seconds = start, rank, orphan_seconds
        self.processes: ProcessGroup | None = None
        self.attempt = -1
        self.failure: Failure | None = None
        self.staged = False
        """Whether this rank's input is staged, so that processes can start."""
        self.address: str | None = None
        """This launcher's address: an order with another one is meant for an earlier pod of this rank."""
        self._stopped_early = False
        """Whether this rank stops, or has stopped, its processes before the attempt was complete."""
        self.report = Report("staging", -1, None)
        """Read by other threads; replaced as one object, and before the first process starts."""

    def step(self, order: Order | None, heard: float, now: float, stop_seconds: float = 0.0) -> None:
        """Do what the newest order says as far as possible without waiting; call this again and again.

        Args:
            order: the coordinator's newest order; None stops all processes.
            heard: monotonic time at which rank 0 last confirmed the order.
            stop_seconds: without an order, as `Order.stop_seconds`.
        """
        processes = self.processes
        if processes is not None:
            processes.poll(now)
            self.failure = self.failure or processes.failure
            self._stopped_early = self._stopped_early or self.failure is not None
        is_confirmed = order is not None and now - heard < self._orphan_seconds
        may_run = is_confirmed and order is not None and order.do in ("serve", "train", "finish")
        if order is not None:
            stop_seconds = order.stop_seconds if is_confirmed else 0.0
        is_current = processes is not None and order is not None and order.attempt == processes.attempt
        if processes is not None and order is not None and (order.do in {"stop", "wait"} or not is_current):
            # Also when all processes have exited by themselves: the coordinator waits for the phase `idle`.
            self._stopped_early = True
            processes.stop(now, stop_seconds)
        if processes is not None and order is not None and may_run and is_current and not self._stopped_early:
            if order.do == "train":
                processes.train()
            elif order.do == "finish":
                processes.finish(now)
        elif processes is not None and processes.running:
            self._stopped_early = True
            processes.stop(now, stop_seconds)
        elif order is not None and may_run and self._can_start(order):
            self._start_attempt(order, now)
        elif order is not None and order.do == "stop" and order.attempt > self.attempt:
            self.attempt, self.failure, self.processes = order.attempt, None, None
        self.report = Report(self.phase, self.attempt, self.failure)

    def _can_start(self, order: Order) -> bool:
        is_ours = self.address is None or order.addresses[self._rank] == self.address
        return order.do == "serve" and is_ours and self.staged and order.attempt > self.attempt

    def _start_attempt(self, order: Order, now: float) -> None:
        self.attempt, self.failure, self.processes, self._stopped_early = order.attempt, None, None, False
        self.report = Report("serving", order.attempt, None)
        try:
            self.processes = self._start(order)
        except LauncherError as error:
            self.failure = Failure.from_error(error, now, self._rank)

    @property
    def running(self) -> bool:
        """Return whether any process may still run."""
        return self.processes is not None and self.processes.running

    @property
    def phase(self) -> str:
        """Return the phase that this rank reports."""
        if not self.staged:
            return "staging"
        if self.processes is None or (self._stopped_early and not self.processes.running):
            return "idle"
        return self.processes.phase
