"""Detect a shared storage that does not respond at all."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from launcher.errors import UnfitError

PERIOD = 5.0  # seconds between a response and the next request


class StorageProbe:
    """Requests the storage's status every few seconds in a thread, which a hung storage may block.

    An error counts as a response: the code that uses the storage reports and retries it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked: float | None = None
        """When the pending request was sent; None if there is none."""
        threading.Thread(target=self._run, name="storage probe", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._asked = time.monotonic()
            with contextlib.suppress(OSError):
                os.statvfs(self._folder)  # NFS and FUSE send a request to the server each time
            self._asked = None
            time.sleep(PERIOD)

    def silence(self, least: float = 0.0) -> float:
        """Return for how many seconds the storage has not responded; 0 if that is less than `least`."""
        asked = self._asked
        seconds = 0.0 if asked is None else round(time.monotonic() - asked, 1)
        return seconds if seconds >= least else 0.0

    def check(self, limit: float) -> None:
        """Raise `UnfitError` if the storage has not responded for `limit` seconds."""
        if silence := self.silence(limit):
            raise UnfitError(
                f"the storage {self._folder} gave no answer to this pod for {silence:.0f} s. The pod exits, "
                "and Kubernetes replaces it. Fix: see whether the volume is mounted on its node, and whether "
                "the volume's server responds there"
            )
