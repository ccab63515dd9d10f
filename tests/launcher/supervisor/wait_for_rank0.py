"""Wait for rank 0's pod as a launcher's link does."""

from __future__ import annotations

import time

from launcher.errors import DeadlineError
from launcher.io.kubernetes_api import PodApi
from launcher.settings import TrainSettings
from launcher.supervisor.peers.coordinator_link import Rank0PodWatch


def wait_for_rank_0(settings: TrainSettings, api: PodApi) -> str:
    """Wait until the pod of rank 0 is found, and return its address.

    Raises:
        DeadlineError: rank 0's pod did not run within `rendezvousSeconds`; the message says why.
        LauncherError: the API server rejected the request (see `Rank0PodWatch.find_address`).
    """
    deadline = time.monotonic() + settings.rendezvous_seconds
    rank_0 = Rank0PodWatch(settings, api)
    try:
        while True:
            try:
                return rank_0.find_address()
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise DeadlineError(str(error)) from None
            time.sleep(0.1)
    finally:
        rank_0.close()
