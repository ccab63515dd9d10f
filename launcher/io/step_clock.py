"""Measure how long a step takes a process itself, without the time in which it waits for other processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LEAST_STEPS, LEAST_SECONDS = 20, 10.0
"""A mean is taken over at least this many steps and this time, waits included: single steps vary."""


class StepClock:
    """Measures the mean of a process' own seconds per step, again and again.

    Attributes:
        step_seconds: the newest mean; None before the first one.
    """

    def __init__(
        self, own: Callable[[], float] = time.monotonic, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the clock; it stands still before `resume`.

        Args:
            own: returns the seconds that are measured: `time.monotonic` or `processor_seconds`.
            clock: returns the time, waits included.
        """
        self._own, self._clock = own, clock
        self._began, self._resumed, self._runs = clock(), 0.0, False
        self._seconds, self._steps = 0.0, 0
        self.step_seconds: float | None = None

    def resume(self) -> None:
        """From now on the process works on its own steps."""
        self._resumed, self._runs = self._own(), True

    def pause(self) -> None:
        """From now on the process waits, or does something else than steps."""
        if self._runs:
            self._seconds += self._own() - self._resumed
        self._runs = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the block, if the clock runs."""
        ran = self._runs
        self.pause()
        try:
            yield
        finally:
            if ran:
                self.resume()

    def add_step(self) -> None:
        """Record that a step has ended, while the clock runs."""
        self._steps += 1
        if self._steps >= LEAST_STEPS and self._clock() - self._began >= LEAST_SECONDS:
            with self.paused():
                self.step_seconds = round(self._seconds / self._steps, 6) or None
                self._began, self._seconds, self._steps = self._clock(), 0.0, 0


def processor_seconds() -> float:
    """Return for how many seconds threads of this process ran on a processor or waited for a free one.

    Waits for messages and disks do not count, but a busy node, a limit of the processor and a slow processor do. The
    result is 0 on a kernel without these numbers (CONFIG_SCHED_INFO).
    """
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            ran, waited, _ = path.read_text().split()
            total += int(ran) + int(waited)
    return total / 1e9
