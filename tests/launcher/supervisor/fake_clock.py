"""A clock for tests that waits without real time."""

from __future__ import annotations

from collections.abc import Callable


class FakeClock:
    """A clock whose time passes only in `pause`.

    Functions given as `s5=function` run when the clock reaches that second.
    """

    def __init__(self, **at: Callable[[], object]) -> None:
        self.now = 0.0
        self.at = sorted(((float(k.removeprefix("s")), v) for k, v in at.items()), key=lambda item: item[0])

    def __call__(self) -> float:
        """Return the current time in seconds."""
        return self.now

    def pause(self, seconds: float) -> None:
        """Advance the time, and run the functions that are due until then."""
        end = self.now + max(seconds, 0.01)
        while self.at and self.at[0][0] <= end:
            second, callback = self.at.pop(0)
            self.now = max(self.now, second)
            callback()
        self.now = max(self.now, end)
