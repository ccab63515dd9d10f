"""Log the progress of the data Job every few seconds with percent and rate, and enforce its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.errors import DeadlineError
from launcher.log import log

LOG_SECONDS = 5.0
SLOWEST_RATE = 5e6
"""Lowest speed that is expected of one pod, in bytes per second, with any source and storage. The deadline follows from
this speed."""
LEAST_SECONDS = 3600.0
UNKNOWN_SIZE_SECONDS = 86400.0  # the deadline for a source that does not report its size


@dataclass
class DataProgress:
    """Counts bytes and lines, logs them every few seconds, and checks the deadline of the data Job."""

    deadline_seconds: float | None
    """data.deadlineSeconds; None until `set_deadline` derives it from the size of the source."""
    clock: Callable[[], float] = time.monotonic
    read: int = 0
    """Bytes of the current part that were read."""
    total: int | None = None
    """Size of the current part in bytes; None when it is unknown."""
    lines: int = 0
    unit: str = "lines"
    """What `lines` counts, for the log."""
    touch: Callable[[], None] = lambda: None
    """Called with each log line. It touches a file that shows waiting training pods that this data Job still works."""
    started: float = field(init=False)
    part_started: float = field(init=False)
    _log_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.part_started = self.clock()
        self._log_at = self.started + LOG_SECONDS

    def set_deadline(self, size: int | None, pods: int) -> None:
        """Set the deadline for `pods` pods that together read `size` bytes (None: unknown).

        A deadline in the settings (data.deadlineSeconds) stays as it is.
        """
        if self.deadline_seconds is None:
            self.deadline_seconds = (
                UNKNOWN_SIZE_SECONDS if size is None else LEAST_SECONDS + size / (SLOWEST_RATE * pods)
            )

    def start_part(self, size: int | None) -> None:
        """Reset the counters for a part of `size` bytes (None: unknown)."""
        self.read, self.lines, self.total, self.part_started = 0, 0, size, self.clock()

    def report(self, activity: str = "reading the source") -> None:
        """Log `activity` and the counters, and call `touch`, if the previous line is at least `LOG_SECONDS` old.

        Raises:
            DeadlineError: the deadline has passed.
        """
        now = self.clock()
        if self.deadline_seconds is not None and now - self.started > self.deadline_seconds:
            raise DeadlineError(
                f"data.deadlineSeconds: the data was not ready after {self.deadline_seconds:.0f} s, while "
                f"{activity}: {self.describe()}. Fix: set data.deadlineSeconds higher, or use a faster source."
            )
        if now >= self._log_at:
            self._log_at = now + LOG_SECONDS
            self.touch()
            log.info("%s: %s", activity, self.describe())

    def describe(self) -> str:
        """Return text such as `42 % (420.0 of 1000.0 MB), 180.0 MB/s, 4,200,000 lines, about 3 s left`."""
        seconds = max(self.clock() - self.part_started, 1e-9)
        rate = self.read / seconds
        tail = f"{rate / 1e6:.1f} MB/s, {self.lines:,} {self.unit}"
        if not self.total:
            return f"{self.read / 1e6:.1f} MB, {tail}"
        percent = 100 * self.read / self.total
        text = f"{percent:.0f} % ({self.read / 1e6:.1f} of {self.total / 1e6:.1f} MB), {tail}"
        if 0 < self.read < self.total:
            text += f", about {(self.total - self.read) / rate:.0f} s left"
        return text
