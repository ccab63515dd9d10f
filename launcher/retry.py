"""Another try where it may help: exponential back-off, a bounded number of tries, one clear end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from launcher.errors import DataError, LauncherError
from launcher.reporting.log import log

T = TypeVar("T")


class TransientError(Exception):
    """A failure of the moment: a try later may succeed. `wait`: seconds that the server asked for."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass
class Retry:
    """Exponential back-off with jitter: at most `tries` in a row without any progress."""

    tries: int = 8
    base: float = 0.5
    """Seconds before the second try, doubled for each one after it."""
    cap: float = 30.0
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = field(default=random.random)
    """From 0 to 1; the wait is between half of the back-off and all of it."""
    doing: str = "read"
    """What is tried, as a participle for messages."""
    error: type[LauncherError] = DataError
    """What is raised after the last try."""
    mend: str = "See whether the server can be reached from the cluster's nodes, then start the Job again."
    failures: int = 0

    def moved(self) -> None:
        """A byte came: the count begins again."""
        self.failures = 0

    def failed(self, name: str, error: TransientError) -> None:
        """Waits before the next try, or raises `self.error` after the last."""
        self.failures += 1
        if self.failures >= self.tries:
            raise self.error(
                f"{name} could not be {self.doing}, {self.failures} tries in a row: {error}. {self.mend}"
            ) from error
        wait = min(self.cap, self.base * 2 ** (self.failures - 1)) * (0.5 + self.jitter() / 2)
        wait = max(wait, min(error.wait, 2 * self.cap))
        log.info("%s: %s; try %d of %d in %.1f s", name, error, self.failures + 1, self.tries, wait)
        self.sleep(wait)

    def call(self, name: str, work: Callable[[], T]) -> T:
        """What `work` gives, tried again after each `TransientError` that it raises."""
        while True:
            try:
                result = work()
            except TransientError as error:
                self.failed(name, error)
                continue
            self.moved()
            return result
