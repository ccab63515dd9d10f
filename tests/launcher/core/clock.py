"""Time for tests."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """Time that passes only when somebody waits; `at` runs things at their second: `s5=…`."""

    def __init__(self, **at: Callable[[], object]) -> None:
        self.now = 0.0
        self.at = sorted(((float(k.removeprefix("s")), v) for k, v in at.items()), key=lambda item: item[0])

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        end = self.now + max(seconds, 0.01)
        while self.at and self.at[0][0] <= end:
            second, happen = self.at.pop(0)
            self.now = max(self.now, second)
            happen()
        self.now = max(self.now, end)
