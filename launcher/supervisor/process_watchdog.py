"""The watchdog thread: kills a rank's processes when the agent's main thread cannot do so in time.

The thread never uses the storage, which may be what the main thread is stuck in. `StorageProbe` detects, in a thread
of its own, a storage that does not respond at all.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from launcher.errors import EXIT_UNFIT, UnfitError
from launcher.reporting.failure_messages import write_termination_message
from launcher.settings import TrainSettings
from launcher.supervisor import child_processes
from launcher.supervisor.coordinator.membership import Membership
from launcher.supervisor.peers.coordinator_link import CoordinatorLink
from launcher.supervisor.timings import Timings

WATCHDOG_SECONDS = 0.5  # between two checks

PROBE_SECONDS = 5.0  # between a response of the storage and the next request


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
            time.sleep(PROBE_SECONDS)

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


class ProcessWatchdog:
    """Kills this rank's processes when the agent's main thread is stuck or rank 0 is unreachable.

    Attributes:
        link: this rank's connection to rank 0. The watchdog kills the processes if rank 0 has not answered on it for
            too long. None on rank 0.
        membership: rank 0's record of all ranks. The watchdog closes it while the main thread is stuck, so that states
            of ranks are rejected. None on other ranks.
        is_lease_lost: whether this pod lost the output lease. If so, the watchdog waits `Timings.stop` instead of
            `Timings.stuck` seconds for a stuck main thread.
    """

    def __init__(self, settings: TrainSettings, timings: Timings, probe: StorageProbe) -> None:
        """Create the watchdog; it checks nothing before `start`."""
        self._settings, self._timings, self._probe = settings, timings, probe
        self.link: CoordinatorLink | None = None
        self.membership: Membership | None = None
        self.is_lease_lost = False
        self._last_turn = time.monotonic()

    def start(self) -> None:
        """Start the watchdog thread."""
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def record_turn(self) -> float:
        """Record that the main thread runs; return the present monotonic time in seconds."""
        self._last_turn = time.monotonic()
        return self._last_turn

    def seconds_stuck(self) -> float:
        """Return the seconds since the main thread last called `record_turn`."""
        return time.monotonic() - self._last_turn

    def serve_healthz(self) -> tuple[int, str, bytes]:
        """Return the page of the liveness probe (HTTP status, content type, body)."""
        stuck, silence = self.seconds_stuck(), self._probe.silence()
        text = f"main thread last ran {stuck:.1f} s ago; storage has not answered for {silence} s\n"
        healthy = stuck < 2 * self._timings.stuck and silence < self._timings.storage
        return 200 if healthy else 503, "text/plain", text.encode()

    def _run(self) -> None:
        while True:
            time.sleep(WATCHDOG_SECONDS)
            self._check_limits(time.monotonic())

    def _check_limits(self, now: float) -> None:
        """Kill the processes if rank 0 has been silent, or the main thread stuck, for too long at monotonic time `now`.

        After the loss of the output lease, the main thread has less time. If it stays stuck after the kill, exit
        the launcher.
        """
        t, stuck = self._timings, self.seconds_stuck()
        if self.link is not None and now - self.link.heard >= t.orphan + t.stop + 2:
            child_processes.kill_all_children()
        if stuck >= t.stuck or (self.is_lease_lost and stuck >= t.stop):
            child_processes.kill_all_children()
            if self.membership is not None:
                self.membership.close()
        if stuck >= 2 * t.stuck:
            text = (
                f"the launcher's main thread did not run for {stuck:.0f} s, most likely because a volume "
                "does not respond. This pod exits, and Kubernetes replaces it. Fix: check that the volume is "
                f"mounted on node {self._settings.node_name} and that its server responds."
            )
            write_termination_message(self._settings.termination_log, text)
            os._exit(EXIT_UNFIT)
