"""Wait for conditions in tests. One constant factor multiplies all deadlines, for slow machines."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

PATIENCE = 3.0
"""Factor of all deadlines, which are written for an idle machine. While other groups of tests ran at the same time on
a slow machine, a test that takes 150 s alone took more than 14 minutes."""


def until(
    seen: Callable[[], Seen | None],
    what: str = "what this test waits for",
    seconds: float = 20,
    every: float = 0.02,
    words: Callable[[], object] = str,
) -> Seen:
    """Wait until `seen()` returns a true value and return that value.

    Args:
        seen: The condition, called without arguments until its result is true.
        what: What is waited for, for the error message.
        seconds: Timeout on an idle machine; multiplied by PATIENCE.
        every: Seconds between two calls of `seen`.
        words: Returns further text for the error message, such as logs.

    Raises:
        AssertionError: The timeout expired.
    """
    limit = seconds * PATIENCE
    deadline = time.monotonic() + limit
    while not (last := seen()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not seen within {limit:.0f} s: {what}; last: {last!r}\n{words()}")
        time.sleep(every)
    return last


def answers(url: str) -> bool:
    """Return whether a server that this test has started answers at `url`."""
    try:
        urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - our own
    except OSError:
        return False
    return True
