"""Leases in the cluster: only one `run` at a time changes a release, and only one uses a job's name."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

from launcher.cli.cluster_api import (
    CHART,
    NAME_LABEL,
    RELEASE_LABEL,
    Cluster,
    ConflictError,
    NotFoundError,
    user_and_host,
)
from launcher.cli.errors import CliError, OtherRunError

RENEW_SECONDS = 3.0
EXPIRED_SECONDS = 15.0
"""A lease that was not renewed for so long, by the waiting process's own clock, has expired."""
POLL_SECONDS = 0.5


@contextlib.contextmanager
def hold_lease(cluster: Cluster, release: str, job: str = "") -> Iterator[Callable[[], None]]:
    """Hold the Lease `<release>-run`, or with `job` the Lease `<job>.job`, inside the block; then delete it.

    A thread renews the Lease inside the block.

    Yields:
        A check that raises OtherRunError once the lease is lost, for example after this machine slept.

    Raises:
        OtherRunError: another process holds and renews the lease. An expired lease is taken over.
        CliError: the cluster cannot be reached or rejects the request.
    """
    renewer = _Renewer(cluster, _acquire(cluster, release, job))
    try:
        yield renewer.check
    finally:
        renewer.release()


def _acquire(cluster: Cluster, release: str, job: str) -> dict[str, Any]:
    name = f"{job}.job" if job else f"{release}-run"
    meta = {"name": name, "labels": {NAME_LABEL: CHART, RELEASE_LABEL: release}}
    seen, since = "", time.monotonic()
    while True:
        with contextlib.suppress(ConflictError):  # another process was faster: try again
            lease = cluster.find("lease", name)
            if lease is None:
                return cluster.create("lease", {"metadata": meta, "spec": _spec()})
            version = str(lease["metadata"]["resourceVersion"])
            if version != seen and seen:
                raise _held_error(f"job {job}" if job else f"release {release}", lease["spec"])
            if seen and time.monotonic() - since >= EXPIRED_SECONDS:
                with contextlib.suppress(NotFoundError):  # its holder deleted it in the meantime
                    return cluster.replace("lease", {**lease, "spec": _spec()})
            seen = version
        time.sleep(POLL_SECONDS)


def _spec() -> dict[str, Any]:
    now = _now()
    return {
        "holderIdentity": f"{user_and_host()}:{os.getpid()}",
        "acquireTime": now,
        "renewTime": now,
        "leaseDurationSeconds": int(EXPIRED_SECONDS),
    }


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _held_error(what: str, spec: dict[str, Any]) -> OtherRunError:
    holder, _, pid = str(spec.get("holderIdentity")).rpartition(":")
    since = str(spec.get("acquireTime")).partition(".")[0].replace("T", " ")
    return OtherRunError(
        f"{holder} (process {pid}) has been using {what} since {since}Z and holds its lease; nothing was sent",
        "run the same command again when that command has finished; or start another release and job now: "
        "--release NAME --set jobName=NAME",
    )


class _Renewer:
    """A thread that renews a lease until `release` is called."""

    def __init__(self, cluster: Cluster, lease: dict[str, Any]) -> None:
        self._cluster, self._lease = cluster, lease
        self._renewed, self._lost = time.monotonic(), False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise OtherRunError if the lease is lost or may have expired."""
        if self._lost or time.monotonic() - self._renewed >= EXPIRED_SECONDS:
            raise OtherRunError(
                f"lost the lease {self._lease['metadata']['name']}: it was not renewed for "
                f"{EXPIRED_SECONDS:.0f} s, or another command took it over. The release was not changed",
                "run the same command again",
            )

    def release(self) -> None:
        """Stop renewing the lease, and delete it unless another process holds it; if that fails, it expires."""
        self._end.set()
        self._thread.join()
        meta = self._lease["metadata"]
        with contextlib.suppress(CliError):
            if not self._lost:
                self._cluster.delete("lease", meta["name"], version=meta["resourceVersion"])

    def _run(self) -> None:
        while not self._end.wait(RENEW_SECONDS):
            sent = time.monotonic()
            try:
                spec = {**self._lease["spec"], "renewTime": _now()}
                self._lease = self._cluster.replace("lease", {**self._lease, "spec": spec})
                self._renewed = sent
            except (ConflictError, NotFoundError):
                if not self._is_still_held():
                    self._lost = True
                    return
            except CliError:
                continue  # `check` decides how long the cluster may be unreachable

    def _is_still_held(self) -> bool:
        """Return whether the lease is still this command's, although its version is another one.

        So it is after a renewal whose answer was lost. The next renewal then continues from the new version.
        """
        with contextlib.suppress(CliError):
            current = self._cluster.find("lease", self._lease["metadata"]["name"])
            mine, found = self._lease["spec"], (current or {}).get("spec", {})
            if current and all(found.get(key) == mine[key] for key in ("holderIdentity", "acquireTime")):
                self._lease = current
                return True
        return False
