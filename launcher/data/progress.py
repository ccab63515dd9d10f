"""How far a preparation is: one line every few seconds, with percent and rate; and its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.errors import DeadlineError
from launcher.reporting.log import log

SAY_EVERY = 5.0  # seconds


@dataclass
class Progress:
    """Counters that the stages fill, and the clock that is looked at between them."""

    deadline_seconds: float
    clock: Callable[[], float] = time.monotonic
    read: int = 0
    """Bytes of the source read so far."""
    total: int | None = None
    """Bytes of the source, when known."""
    lines: int = 0
    started: float = field(init=False)
    _say_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()
        self._say_at = self.started + SAY_EVERY

    def tick(self, doing: str = "reading the source") -> None:
        """Says how far it is when it is time. Raises `DeadlineError` when the Job's time is over."""
        now = self.clock()
        if now - self.started > self.deadline_seconds:
            raise DeadlineError(
                f"the data was not ready after {self.deadline_seconds:.0f} s (data.deadlineSeconds), "
                f"while {doing}: {self.describe()}. Set data.deadlineSeconds higher, or name a nearer "
                "source."
            )
        if now >= self._say_at:
            self._say_at = now + SAY_EVERY
            log.info("%s: %s", doing, self.describe())

    def describe(self) -> str:
        """Such as `42 % (420 of 1000 MB), 180 MB/s, 4,200,000 lines, 3 s left`."""
        seconds = max(self.clock() - self.started, 1e-9)
        rate = self.read / seconds
        tail = f"{rate / 1e6:.1f} MB/s, {self.lines:,} lines"
        if not self.total:
            return f"{self.read / 1e6:.1f} MB, {tail}"
        percent = 100 * self.read / self.total
        text = f"{percent:.0f} % ({self.read / 1e6:.1f} of {self.total / 1e6:.1f} MB), {tail}"
        if 0 < self.read < self.total:
            text += f", about {(self.total - self.read) / rate:.0f} s left"
        return text
