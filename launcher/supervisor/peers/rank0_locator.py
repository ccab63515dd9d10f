"""Finds rank 0: the address of its pod, and the secret with which the other ranks authenticate to it.

Rank 0 writes its address to the output lease, run.lock, and the secret to a file that only the user of the pods can
read. Both change with every pod of rank 0, and every other rank needs the secret, so it reads run.lock in any case: DNS
could find a new pod no earlier. With `rendezvous: api` the address comes from the Kubernetes API, as in the tutorial of
2017. There too a pod's rank is its completion index: ranks by sorted addresses would change with every replaced pod.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launcher.io import files
from launcher.io.kubernetes_api import ApiRejectedError, PodApi
from launcher.io.retry import backoff_seconds
from launcher.log import log
from launcher.paths import OutputPaths
from launcher.settings import TrainSettings
from launcher.supervisor.shared_storage.output_lease import read_lease_holder

RETRY_SECONDS = 2.0  # after a failed request; doubled after further failures up to 8 times
WATCH_SECONDS = 3600.0
REJECTED_SECONDS = 30.0  # an API server that has just started rejects requests until it has read its roles


def build_credential(settings: TrainSettings, secret: str) -> str:
    """Return the credential with which ranks of this run authenticate to rank 0's HTTP server.

    It contains the random secret that rank 0 writes to `JobPaths.run_secret`, which only the user of the pods can read.
    """
    return f"{settings.namespace}/{settings.run_id}/{secret}"


def hash_credential(credential: str) -> str:
    """Return the token of the output lease in run.lock and run.json, which everybody may read."""
    return hashlib.sha256(credential.encode()).hexdigest()[:32]


def write_secret(path: Path, secret: str) -> None:
    """Write the secret of the run that holds the output lease, unless the file contains it already.

    The file is overwritten in place: NFS clients may cache its name, and then open an earlier file, for up to a minute.
    A write of a pod that lost the lease may arrive late, so the holder calls this again and again.
    """
    if files.read_bytes(path) == secret.encode():
        return
    with files.storage_errors(path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)  # of a file that somebody else created
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())


class Rank0(NamedTuple):
    """Where rank 0 is, and the credential for its HTTP server."""

    address: str
    credential: str


class Rank0Locator:
    """Finds the pod of rank 0 that holds the output lease of this run."""

    def __init__(self, settings: TrainSettings) -> None:
        """Start to watch rank 0's pod with `rendezvous: api`; raise `SettingsError` without a service account."""
        self._settings = settings
        self._pod_watch: Rank0PodWatch | None = None
        if settings.rendezvous == "api":
            self._pod_watch = Rank0PodWatch(settings, PodApi(settings.environ, settings.namespace))

    def find(self) -> Rank0:
        """Return where rank 0 is.

        Raises:
            OSError: no rank 0 of this run holds the lease, its pod does not run, or its secret is not visible yet.
            LauncherError: the storage fails, or the API server rejects the requests.
        """
        s = self._settings
        lock = OutputPaths(s.layout.output).lock
        holder = read_lease_holder(lock)
        if (holder.get("runId"), holder.get("namespace")) != (s.run_id, s.namespace):
            raise OSError(
                f"no rank 0 of this run holds {lock} (its pod is not scheduled, or waits for the lease)"
            )
        secret = files.read_bytes(s.layout.run_secret)
        credential = build_credential(s, (secret or b"").decode(errors="replace"))
        if hash_credential(credential) != holder.get("token"):
            raise OSError(
                f"{s.layout.run_secret} is not that of the pod {holder.get('pod')}, which holds {lock}"
            )
        if self._pod_watch is not None:
            return Rank0(self._pod_watch.find_address(), credential)
        return Rank0(str(holder.get("address")), credential)

    def close(self) -> None:
        """Stop watching rank 0's pod through the Kubernetes API, if this locator does."""
        if self._pod_watch is not None:
            self._pod_watch.close()


def find_pod_address(pod: Mapping[str, Any]) -> str | None:
    """Return the IPv4 address of a pod that runs and is not being deleted; else None."""
    status = pod.get("status") or {}
    if (pod.get("metadata") or {}).get("deletionTimestamp") or status.get("phase") != "Running":
        return None
    known = [status.get("podIP"), *(entry.get("ip") for entry in status.get("podIPs") or [])]
    return next((ip for ip in known if ip and ":" not in ip), None)


def describe_pod_without_address(pod: Mapping[str, Any]) -> str:
    """Return a text with the name of a pod and why it has no usable address yet, according to its status."""
    meta, status = pod.get("metadata") or {}, pod.get("status") or {}
    name = meta.get("name", "?")
    if meta.get("deletionTimestamp"):
        return f"{name} is being deleted"
    reasons = [
        f"{condition.get('reason')}: {condition.get('message', '')}".strip(": ")
        for condition in status.get("conditions") or []
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
    ]
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            reasons.append(f"{waiting['reason']} {waiting.get('message', '')}".strip())
    if status.get("reason"):  # of a pod that the kubelet evicted, or whose node was lost
        reasons.append(f"{status['reason']}: {str(status.get('message', '')).strip()}".rstrip(": "))
    if status.get("phase") == "Running":
        reasons.append(f"it has no IPv4 address, only {status.get('podIP') or 'none'}")
    return f"{name} is {status.get('phase', 'unknown')}" + (f" ({'; '.join(reasons)})" if reasons else "")


class Rank0PodWatch:
    """Watches rank 0's pod while the launcher runs, with one list request and one watch in a thread.

    The launcher therefore never waits for the API server, learns of a replaced pod without a further request,
    and knows the last address while the API server is unavailable. After an error, and at the end of a watch,
    the thread lists the pods again.
    """

    def __init__(self, settings: TrainSettings, api: PodApi) -> None:
        self._api, self._job = api, settings.k8s_job
        self._pods: dict[str, dict[str, Any]] = {}
        self._address = self._api_error = ""
        self._rejected: tuple[float, ApiRejectedError] | None = None
        self._end = threading.Event()
        threading.Thread(target=self._run, name="find rank 0", daemon=True).start()

    def find_address(self) -> str:
        """Return the newest known IPv4 address of rank 0, without waiting.

        Raises:
            OSError: rank 0's pod does not run; the message contains the reason.
            ApiRejectedError: the API server has rejected the requests for `REJECTED_SECONDS`.
        """
        if self._address:
            return self._address
        if self._rejected is not None and time.monotonic() - self._rejected[0] >= REJECTED_SECONDS:
            raise self._rejected[1]
        raise OSError(
            f"the pod of rank 0 of Job {self._job} does not run: {self._describe_pods()}{self._api_error}"
        )

    def close(self) -> None:
        """Stop watching: cancel the current request, without waiting for the end of the thread."""
        self._end.set()
        self._api.close()

    def _run(self) -> None:
        import http.client

        failures = 0
        while not self._end.is_set():
            try:
                self._list_and_watch()
                failures = 0
            except (OSError, ValueError, http.client.HTTPException, ApiRejectedError) as error:
                failures += 1
                if not self._end.is_set():
                    log.warning(
                        "cannot find rank 0's pod through the Kubernetes API, trying again: %s", error
                    )
                self._api_error = f"; the API server: {error}"
                if not isinstance(error, ApiRejectedError):
                    self._rejected = None
                else:
                    self._rejected = self._rejected[0] if self._rejected else time.monotonic(), error
            self._end.wait(backoff_seconds(max(1, failures), RETRY_SECONDS, 8 * RETRY_SECONDS))

    def _list_and_watch(self) -> None:
        listed, version = self._api.list(self._job)
        self._rejected, self._api_error = None, ""
        self._update({pod["metadata"]["uid"]: pod for pod in listed})
        with contextlib.closing(self._api.watch(self._job, version, WATCH_SECONDS)) as events:
            for event in events:
                pod = event.get("object") or {}
                uid = (pod.get("metadata") or {}).get("uid")
                if event.get("type") == "ERROR" or uid is None:
                    return
                pods = {key: value for key, value in self._pods.items() if key != uid}
                self._update(pods if event.get("type") == "DELETED" else {**pods, uid: pod})

    def _update(self, pods: dict[str, dict[str, Any]]) -> None:
        before, self._pods = self._describe_pods(), pods
        running = sorted(filter(find_pod_address, pods.values()), key=_created)
        self._address = str(find_pod_address(running[-1])) if running else ""
        if self._describe_pods() != before:
            log.info("rank 0: %s", self._describe_pods())

    def _describe_pods(self) -> str:
        if not self._pods:
            return (
                "Kubernetes has not created it yet (a quota, a back-off after failures, or a suspended Job)"
            )
        return "; ".join(
            f"{pod['metadata'].get('name', '?')} runs at {find_pod_address(pod)}"
            if find_pod_address(pod)
            else describe_pod_without_address(pod)
            for pod in sorted(self._pods.values(), key=_created)
        )


def _created(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))
