"""One `run` at a time changes a release, and a job's name: Leases in the release's namespace."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from launcher.cli.cluster import CHART, NAME_LABEL, RELEASE_LABEL, Cluster, ConflictError, NotThereError
from launcher.cli.problems import CliError, OtherRunError

RENEW_SECONDS = 3.0
EXPIRED_SECONDS = 15.0
"""A lease that nobody renewed for so long, by the clock of who waits for it, is taken over."""
POLL_SECONDS = 0.5


def person() -> str:
    """`user@host`, for others who meet this process in the cluster."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


@contextlib.contextmanager
def held(
    cluster: Cluster,
    release: str,
    job: str = "",
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Callable[[], None]]:
    """Hold the Lease `<release>-run`, or `<job>.job`, inside the block; a thread renews it. Then delete it.

    Yields a check that raises OtherRunError once another process has taken the lease over, as after a long
    sleep of this machine. Raises OtherRunError, with its holder, when another process renews the lease; one
    that nobody renews is taken over after EXPIRED_SECONDS. Raises CliError when the cluster refuses.
    """
    cluster = cluster.for_another_thread()
    lease = _acquire(cluster, release, job, clock, sleep)
    renewer = _Renewer(cluster, lease, clock)
    try:
        yield renewer.check
    finally:
        renewer.release()


def _acquire(
    cluster: Cluster, release: str, job: str, clock: Callable[[], float], sleep: Callable[[float], None]
) -> dict[str, Any]:
    name = f"{job}.job" if job else f"{release}-run"
    meta = {"name": name, "labels": {NAME_LABEL: CHART, RELEASE_LABEL: release}}
    seen, since = "", clock()
    while True:
        with contextlib.suppress(ConflictError, NotThereError):  # another process was faster: look again
            there = cluster.find("lease", name, "look for another `run` at work")
            if there is None:
                return cluster.create("lease", {"metadata": meta, "spec": _spec()})
            version = str(there["metadata"]["resourceVersion"])
            if version != seen and seen:
                raise _busy(f"job {job}" if job else f"release {release}", there["spec"])
            if seen and clock() - since >= EXPIRED_SECONDS:
                return cluster.replace("lease", {**there, "spec": _spec()})
            seen = version
        sleep(POLL_SECONDS)


def _spec() -> dict[str, Any]:
    now = _now()
    return {
        "holderIdentity": f"{person()}:{os.getpid()}",
        "acquireTime": now,
        "renewTime": now,
        "leaseDurationSeconds": int(EXPIRED_SECONDS),
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _busy(what: str, spec: dict[str, Any]) -> OtherRunError:
    who, _, pid = str(spec.get("holderIdentity")).rpartition(":")
    since = str(spec.get("acquireTime")).partition(".")[0].replace("T", " ")
    return OtherRunError(
        f"{who} (process {pid}) is starting a training of {what} since {since}Z; nothing of yours "
        "was sent. Fix: run the same command again when that training is over, or now with a release and job "
        "of its own: --release NAME --set jobName=NAME"
    )


class _Renewer:
    """The thread that renews a lease."""

    def __init__(self, cluster: Cluster, lease: dict[str, Any], clock: Callable[[], float]) -> None:
        self._cluster, self._lease, self._clock = cluster, lease, clock
        self._renewed, self._lost = clock(), False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise OtherRunError unless the lease is surely held."""
        if self._lost or self._clock() - self._renewed >= EXPIRED_SECONDS:
            raise OtherRunError(
                f"the lease {self._lease['metadata']['name']} was not renewed for {EXPIRED_SECONDS:.0f} s or "
                "taken by another `run`; the release was not changed. Fix: run the same command again."
            )

    def release(self) -> None:
        """Stop renewing, and delete the lease unless another process has it; it expires where that fails."""
        self._end.set()
        self._thread.join()
        meta = self._lease["metadata"]
        with contextlib.suppress(CliError):
            if not self._lost:
                self._cluster.delete("lease", meta["name"], version=meta["resourceVersion"])

    def _run(self) -> None:
        while not self._end.wait(RENEW_SECONDS):
            asked = self._clock()
            try:
                spec = {**self._lease["spec"], "renewTime": _now()}
                self._lease = self._cluster.replace("lease", {**self._lease, "spec": spec})
                self._renewed = asked
            except (ConflictError, NotThereError):
                self._lost = True
                return
            except CliError:
                continue  # `check` decides how long the cluster may be out of reach
