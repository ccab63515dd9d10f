"""Retry requests that may fail temporarily (S3, HTTPS, webhooks, Kubernetes API) with exponential backoff."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from launcher.errors import DataError, LauncherError
from launcher.log import log

T = TypeVar("T")


class TransientError(Exception):
    """A request failed temporarily: a later attempt may succeed.

    `wait` is the number of seconds for which the server asked the client to wait before the next attempt.
    """

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


def backoff_seconds(failures: int, base: float, cap: float) -> float:
    """Return how many seconds to wait after this number of failures in a row.

    The wait is `base` after the first failure, doubles with each further failure, and is at most `cap`.
    """
    return min(cap, base * 2.0 ** min(failures - 1, 100))  # a float overflows after a thousand failures


@dataclass
class Retry:
    """Retries one kind of request, with waits that double and vary randomly.

    `call` retries a function; `wait_or_raise` and `reset` are for callers that retry in their own loop.
    """

    tries: int = 8
    """Number of attempts in a row without progress after which `error` is raised."""
    base: float = 0.5
    """Seconds to wait before the second attempt. The wait doubles before each later attempt."""
    cap: float = 30.0
    """Longest backoff between two attempts, in seconds. If the server asks for a longer wait, the wait is at most twice
    as long as `cap`."""
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = field(default=random.random)
    """Returns a number from 0 to 1, by which the wait varies from half of the backoff to all of it."""
    doing: str = "read"
    """Verb for messages: `URL could not be <doing>`."""
    error: type[LauncherError] = DataError
    """Type of the exception that is raised after the last attempt."""
    fix: str = "Check that the server can be reached from the cluster's nodes, then start the Job again."
    """What the user can do: the text after `Fix:` in the message of that exception."""
    failures: int = 0
    """Failed attempts in a row so far."""

    def reset(self) -> None:
        """Set the number of failures to 0, because the request made progress."""
        self.failures = 0

    def wait_or_raise(self, name: str, error: TransientError) -> None:
        """Record a failed attempt, and wait before the next attempt; after the last attempt raise `self.error`.

        `name` is what was requested, such as an address, for messages.
        """
        self.failures += 1
        if self.failures >= self.tries:
            raise self.error(
                f"{name} could not be {self.doing} after {self.failures} attempts in a row: {error}. "
                f"Fix: {self.fix}"
            ) from error
        wait = backoff_seconds(self.failures, self.base, self.cap) * (0.5 + self.jitter() / 2)
        wait = max(wait, min(error.wait, 2 * self.cap))
        log.info(
            "%s: %s; attempt %d of %d follows in %.1f s", name, error, self.failures + 1, self.tries, wait
        )
        self.sleep(wait)

    def call(self, name: str, work: Callable[[], T]) -> T:
        """Call `work` until it does not raise `TransientError`, and return its result.

        Between two calls, `wait_or_raise` waits; after the last attempt it raises `self.error`. `name` is what `work`
        requests, for messages.
        """
        while True:
            try:
                result = work()
            except TransientError as error:
                self.wait_or_raise(name, error)
                continue
            self.reset()
            return result
