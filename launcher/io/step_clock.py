"""Measure how long a process itself takes for a step, without the time in which it waits for other processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LEAST_STEPS, LEAST_SECONDS = 20, 10.0
"""A mean covers at least so many steps and seconds (including waits), because single steps vary."""


class StepClock:
    """Measures how many seconds a process itself takes per step, as a mean over the newest steps.

    Attributes:
        step_seconds: the newest mean; None before the first mean, or if the newest mean is 0.
    """

    def __init__(
        self, own: Callable[[], float] = time.monotonic, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the clock, paused. `resume` starts it.

        Args:
            own: returns a number of seconds that grows while the process works; its growth is measured. It is
                `time.monotonic` or `processor_seconds`.
            clock: returns the time in seconds, including waits.
        """
        self._own, self._clock = own, clock
        self._began, self._resumed, self._runs = clock(), 0.0, False
        self._seconds, self._steps = 0.0, 0
        self.step_seconds: float | None = None

    def resume(self) -> None:
        """Start to measure, because from now on the process works on its own steps."""
        self._resumed, self._runs = self._own(), True

    def pause(self) -> None:
        """Stop measuring, because from now on the process waits, or does something other than its steps."""
        if self._runs:
            self._seconds += self._own() - self._resumed
        self._runs = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the clock during the `with` block. If it was paused before the block, it stays paused afterwards."""
        ran = self._runs
        self.pause()
        try:
            yield
        finally:
            if ran:
                self.resume()

    def add_step(self) -> None:
        """Record that a step has ended, and update `step_seconds` if there are enough steps for a new mean.

        The caller need not pause the clock.
        """
        self._steps += 1
        if self._steps >= LEAST_STEPS and self._clock() - self._began >= LEAST_SECONDS:
            with self.paused():
                self.step_seconds = round(self._seconds / self._steps, 6) or None
                self._began, self._seconds, self._steps = self._clock(), 0.0, 0


def processor_seconds() -> float:
    """Return for how many seconds the threads of this process ran on a processor or waited for a free processor.

    The seconds of all threads are added. Waits for messages and disks do not count. So a step needs more of these
    seconds on a busy node, with a CPU limit or on a slow processor. The result is 0 on a kernel that does not measure
    them (CONFIG_SCHED_INFO).
    """
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            ran, waited, _ = path.read_text().split()
            total += int(ran) + int(waited)
    return total / 1e9
