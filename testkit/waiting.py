"""Wait for conditions in tests. One constant factor multiplies all deadlines, for slow machines."""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
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


@contextlib.contextmanager
def running_server(argv: Sequence[str], env: Mapping[str, str], url: str, log: Path) -> Iterator[None]:
    """Run a server, which writes its output to `log`, during the block, which begins when it answers at `url`."""
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, env=env)

    def is_there() -> bool:
        assert process.poll() is None, f"{argv} exited:\n{log.read_text(errors='replace')[-2000:]}"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - our own
            return True
        return False

    try:
        until(is_there, f"an answer of {url}", 60, 0.1, log.read_text)
        yield
    finally:
        process.terminate()
        process.wait(timeout=20)
