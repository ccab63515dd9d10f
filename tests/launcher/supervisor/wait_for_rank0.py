"""Wait for rank 0's pod as a launcher's link does, with an optional fake clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher.errors import DeadlineError
from launcher.io.kubernetes_api import PodApi
from launcher.settings import TrainSettings
from launcher.supervisor.peers.rank0_pod_watch import Rank0PodWatch


def wait_for_rank_0(
    settings: TrainSettings,
    api: PodApi,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Wait until the pod of rank 0 is found, and return its address.

    Raises:
        DeadlineError: rank 0's pod did not run within `rendezvousSeconds`; the message says why.
        LauncherError: the API server rejected the request (see `Rank0PodWatch.find_address`).
    """
    deadline = clock() + settings.rendezvous_seconds
    rank_0 = Rank0PodWatch(settings, api)
    try:
        while True:
            try:
                return rank_0.find_address()
            except OSError as error:
                if clock() >= deadline:
                    after = f"after {settings.rendezvous_seconds} s (rendezvousSeconds)"
                    raise DeadlineError(f"{after} {error}") from None
            pause(0.1)
    finally:
        rank_0.close()
