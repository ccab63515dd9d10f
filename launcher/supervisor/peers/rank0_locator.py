"""Finds the address of rank 0's pod and the credential for its peer server.

Kubernetes may replace rank 0's pod at any time, so every other rank looks up both whenever it reconnects.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.io import files
from launcher.paths import OutputPaths
from launcher.settings import TrainSettings
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.shared_storage.output_lease import read_lease_holder

if TYPE_CHECKING:
    from launcher.supervisor.peers.rank0_pod_watch import Rank0PodWatch


def build_credential(settings: TrainSettings, secret: str) -> str:
    """Return the credential with which ranks of this run authenticate to rank 0's HTTP server.

    It contains the random secret that rank 0 writes to `JobPaths.run_secret`, which only the user of the pods can read.
    """
    return f"{settings.namespace}/{settings.run_id}/{secret}"


def hash_credential(credential: str) -> str:
    """Return the token of the output lease in run.lock and run.json, which everybody may read."""
    return hashlib.sha256(credential.encode()).hexdigest()[:32]


def write_secret(path: Path, secret: str) -> None:
    """Write the secret of a run that has just acquired the output lease.

    The file is overwritten in place: NFS clients may cache its name, and then open an earlier file, for up to a minute.
    """
    with files.storage_errors(path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())


class Rank0Locator:
    """Finds rank 0's address and credential; `read_…` and `find_…` raise OSError or `LauncherError`."""

    def __init__(self, settings: TrainSettings, network: PodNetwork) -> None:
        """Start to watch rank 0's pod with `rendezvous: api`; raise `SettingsError` without a service account."""
        self._settings, self._network = settings, network
        self._lock_path = OutputPaths(settings.layout.output).lock
        self._holder_address = ""
        """Address of the lease holder, as run.lock contains it."""
        self._lookups = -1
        self._pod_watch: Rank0PodWatch | None = None
        if settings.rendezvous == "api":
            from launcher.io.kubernetes_api import PodApi
            from launcher.supervisor.peers.rank0_pod_watch import Rank0PodWatch

            self._pod_watch = Rank0PodWatch(settings, PodApi(settings.environ, settings.namespace))

    def read_credential(self) -> str | None:
        """Return the credential of this run; None while no rank 0 of this run holds the lease."""
        holder, s = read_lease_holder(self._lock_path), self._settings
        if (holder.get("runId"), holder.get("namespace")) != (s.run_id, s.namespace):
            return None
        self._holder_address = str(holder.get("address") or "")
        secret = files.read_bytes(s.layout.run_secret)
        credential = build_credential(s, (secret or b"").decode(errors="replace"))
        return credential if hash_credential(credential) == holder.get("token") else None

    def find_address(self) -> str:
        """Return the next address of rank 0 to try.

        Two pods of rank 0 may exist for a while, and DNS may be unavailable: repeated calls return the
        addresses from DNS and from run.lock in turn.
        """
        s = self._settings
        if self._pod_watch is not None:
            return self._pod_watch.find_address()
        name = f"{s.k8s_job}-0.{s.service}"
        found = [address for address in self._network.resolve(name) if ":" not in address]
        found += [self._holder_address] if self._holder_address and self._holder_address not in found else []
        if not found:
            raise OSError(f"{name} does not resolve (rank 0's pod is not scheduled, or DNS does not respond)")
        self._lookups += 1
        return found[self._lookups % len(found)]

    def close(self) -> None:
        """Stop watching rank 0's pod through the Kubernetes API, if this locator does."""
        if self._pod_watch is not None:
            self._pod_watch.close()
