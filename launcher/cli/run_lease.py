"""Leases in the cluster: only one `run` at a time changes a release, and only one uses a job's name.

The lock of helm covers only the upgrade itself. The lease also covers what comes before it: the check whether a
training runs, and the upload, which would replace the program of a training that another `run` starts meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

from launcher.cli import cluster_api
from launcher.cli.cluster_api import Cluster, Object, release_labels, user_and_host
from launcher.cli.errors import CliError, OtherRunError

RENEW_SECONDS = 3.0
EXPIRED_SECONDS = 15.0
"""A lease that was not renewed for this time, by the waiting process's own clock, has expired."""
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
    name = f"{job}.job" if job else f"{release}-run"
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    holder = f"{user_and_host()}:{os.getpid()}"
    owner = {"holderIdentity": holder, "acquireTime": now}
    spec = {**owner, "leaseDurationSeconds": int(EXPIRED_SECONDS)}
    what = f"job {job}" if job else f"release {release}"
    metadata = {"name": name, "labels": release_labels(release)}
    lease = _create(cluster, {"metadata": metadata, "spec": spec}, what)
    ended, renewed, is_lost = threading.Event(), time.monotonic(), False

    def renew() -> None:
        nonlocal lease, renewed, is_lost
        while not ended.wait(RENEW_SECONDS) and not is_lost:
            sent = time.monotonic()
            renewal = {"spec": {"renewTime": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
            try:
                lease, renewed = cluster.patch("lease", name, renewal, f"renew lease {name}"), sent
                is_lost = any(lease["spec"].get(key) != value for key, value in owner.items())
            except cluster_api.NotFoundError:
                is_lost = True
            except CliError:
                continue  # `check` decides how long the cluster may be unreachable

    def check() -> None:
        if is_lost or time.monotonic() - renewed >= EXPIRED_SECONDS:
            raise OtherRunError(
                f"lost the lease {name}: it was not renewed for {EXPIRED_SECONDS:.0f} s, or another command took it "
                "over. The release was not changed",
                "run the same command again",
            )

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield check
    finally:
        ended.set()
        thread.join()
        if not is_lost:
            with contextlib.suppress(CliError):  # then it expires
                cluster.delete("lease", name, version=lease["metadata"]["resourceVersion"])


def _create(cluster: Cluster, lease: Object, what: str) -> Object:
    """Create the lease, and return it as stored. If another process has left an expired lease, delete that lease first.

    `what` is the release or job, for the message. Raises OtherRunError if another process renews its lease.
    """
    name, seen, since = lease["metadata"]["name"], "", time.monotonic()
    while True:
        with contextlib.suppress(cluster_api.ConflictError):  # another process holds it, or was faster
            return cluster.create("lease", lease)
        other = cluster.find("lease", name)
        version = str(other["metadata"]["resourceVersion"]) if other else ""
        if other and seen and version != seen:
            holder, _, pid = str(other["spec"].get("holderIdentity")).rpartition(":")
            acquired = str(other["spec"].get("acquireTime")).partition(".")[0].replace("T", " ")
            raise OtherRunError(
                f"{holder} (process {pid}) has been using {what} since {acquired}Z and holds its lease; nothing was "
                "sent",
                "run the same command again when that command has finished; or start another release and job now: "
                "--release NAME --set jobName=NAME",
            )
        if other and seen and time.monotonic() - since >= EXPIRED_SECONDS:
            with contextlib.suppress(cluster_api.ConflictError):
                cluster.delete("lease", name, version=version)
                continue
        seen = version
        time.sleep(POLL_SECONDS)
