"""How far a preparation is: one line every few seconds, with percent and rate; and its deadline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from launcher.errors import DeadlineError
from launcher.reporting.log import log

SAY_EVERY = 5.0  # seconds
SLOWEST = 5e6
"""Bytes a second of one pod: slower than this something is wrong, whatever the source and the storage."""
LEAST_SECONDS = 3600.0
UNKNOWN_SECONDS = 86400.0  # for a source that does not say how large it is


@dataclass
class Progress:
    """Counters that the stages fill, and the clock that is looked at between them."""

    deadline_seconds: float | None
    """None: as `fit` finds it."""
    clock: Callable[[], float] = time.monotonic
    read: int = 0
    """Bytes of the source read so far."""
    total: int | None = None
    """Bytes of the source, when known."""
    lines: int = 0
    alive: Path | None = None
    """A file that is touched whenever there is something to say: training pods wait for as long as it is."""
    started: float = field(init=False)
    began: float = field(init=False)
    """When the part at work was begun."""
    _say_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.began = self.clock()
        self._say_at = self.started + SAY_EVERY

    def fit(self, size: int | None, pods: int) -> None:
        """A deadline that suits the size, when none was given."""
        if self.deadline_seconds is None:
            self.deadline_seconds = (
                UNKNOWN_SECONDS if size is None else LEAST_SECONDS + size / (SLOWEST * pods)
            )

    def begin(self, size: int | None) -> None:
        """A new part, of so many bytes."""
        self.read, self.lines, self.total, self.began = 0, 0, size, self.clock()

    def tick(self, doing: str = "reading the source") -> None:
        """Says how far it is when it is time. Raises `DeadlineError` when the Job's time is over."""
        now = self.clock()
        if self.deadline_seconds is not None and now - self.started > self.deadline_seconds:
            raise DeadlineError(
                f"the data was not ready after {self.deadline_seconds:.0f} s (data.deadlineSeconds), "
                f"while {doing}: {self.describe()}. Set data.deadlineSeconds higher, or name a nearer "
                "source."
            )
        if now >= self._say_at:
            self._say_at = now + SAY_EVERY
            if self.alive is not None:
                with contextlib.suppress(OSError):  # it is only a sign
                    self.alive.touch()
            log.info("%s: %s", doing, self.describe())

    def describe(self) -> str:
        """Such as `42 % (420 of 1000 MB), 180 MB/s, 4,200,000 lines, 3 s left`."""
        seconds = max(self.clock() - self.began, 1e-9)
        rate = self.read / seconds
        tail = f"{rate / 1e6:.1f} MB/s, {self.lines:,} lines"
        if not self.total:
            return f"{self.read / 1e6:.1f} MB, {tail}"
        percent = 100 * self.read / self.total
        text = f"{percent:.0f} % ({self.read / 1e6:.1f} of {self.total / 1e6:.1f} MB), {tail}"
        if 0 < self.read < self.total:
            text += f", about {(self.total - self.read) / rate:.0f} s left"
        return text
