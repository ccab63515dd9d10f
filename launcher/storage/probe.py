"""A probe of the shared storage: whether it answers at all."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from launcher.errors import UnfitError

PERIOD = 5.0  # seconds between an answer and the next question


class Probe:
    """Asks the storage every few seconds, from a thread of its own: a storage that hangs may keep it.

    An error is an answer too: whoever uses the storage sees it, and retries.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked: float | None = None
        """When the question was asked that has no answer yet."""
        threading.Thread(target=self._run, name="storage probe", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._asked = time.monotonic()
            with contextlib.suppress(OSError):
                os.statvfs(self._folder)  # NFS and FUSE ask the server for it each time
            self._asked = None
            time.sleep(PERIOD)

    def silence(self, least: float = 0.0) -> float:
        """Return the seconds for which the storage has given no answer; 0 below `least`."""
        asked = self._asked
        seconds = 0.0 if asked is None else round(time.monotonic() - asked, 1)
        return seconds if seconds >= least else 0.0

    def check(self, limit: float) -> None:
        """Raise `UnfitError` when the storage has given no answer for `limit` seconds."""
        if silence := self.silence(limit):
            raise UnfitError(
                f"the storage {self._folder} gave no answer to this pod for {silence:.0f} s. The pod ends, "
                "and Kubernetes replaces it. Fix: see whether the volume is mounted on its node, and whether "
                "the volume's server answers there"
            )
