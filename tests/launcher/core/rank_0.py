"""Waits for rank 0's pod as a launcher's link does, but with a clock that a test may give."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher.errors import DeadlineError
from launcher.gang.rank0 import Rank0
from launcher.podapi import PodApi
from launcher.settings import TrainSettings


def find_rank_0(
    settings: TrainSettings,
    api: PodApi,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Its address. Raises `DeadlineError` with what its pod waits for, and what `Rank0.address` raises
    for good."""
    deadline = clock() + settings.rendezvous_seconds
    rank_0 = Rank0(settings, api)
    try:
        while True:
            try:
                return rank_0.address()
            except OSError as error:
                if clock() >= deadline:
                    after = f"after {settings.rendezvous_seconds} s (rendezvousSeconds)"
                    raise DeadlineError(f"{after} {error}") from None
            pause(0.1)
    finally:
        rank_0.close()
