"""Finds the address of rank 0's pod through the Kubernetes API, for the setting `rendezvous: api`.

The watch covers rank 0's pod only. Every pod's rank is its completion index: ranks by sorted addresses, as in
the tutorial of 2017, would change with every replaced pod.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any

from launcher.io.kubernetes_api import ApiRejectedError, PodApi
from launcher.io.retry import backoff_seconds
from launcher.log import log
from launcher.settings import TrainSettings

RETRY_SECONDS = 2.0  # after a failed request; doubled after further failures up to 8 times
WATCH_SECONDS = 3600.0
REJECTED_SECONDS = 30.0  # an API server that has just started rejects requests until it has read its roles


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
