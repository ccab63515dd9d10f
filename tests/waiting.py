"""How long tests wait for what they expect: one place, so that a slow machine needs one number."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

PATIENCE = 3.0
"""Deadlines are written for an idle machine; they are this many times as long. Beside the other tiers, on a
machine at half its usual speed, a test that takes 150 s alone was not done after 14 minutes."""


def until(
    seen: Callable[[], Seen | None],
    what: str = "what this test waits for",
    seconds: float = 20,
    every: float = 0.02,
    words: Callable[[], object] = str,
) -> Seen:
    """Waits until `seen()` is true and returns it, looking `every` so many seconds.

    Raises:
        AssertionError: Not within `seconds` times PATIENCE; says `what`, the last answer, and `words()`.
    """
    limit = seconds * PATIENCE
    deadline = time.monotonic() + limit
    while not (last := seen()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not seen within {limit:.0f} s: {what}; last: {last!r}\n{words()}")
        time.sleep(every)
    return last


def answers(url: str) -> bool:
    """Whether a server of this test's own answers there."""
    try:
        urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - our own
    except OSError:
        return False
    return True
