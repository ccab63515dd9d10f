"""Where rank 0's pod is, by `rendezvous: api`: the seeds' way to find the peers, asking for this Job's pods.

It asks for rank 0's pod only: the rank itself is the completion index, since an order by address changes with
every replaced pod.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any

from launcher.podapi import ApiRefusedError, PodApi
from launcher.reporting.log import log
from launcher.settings import TrainSettings

RETRY_SECONDS = 2.0  # between a failed request and the next one
WATCH_SECONDS = 3600.0
REFUSED_SECONDS = 30.0  # an API server that has just started may refuse for a while: it reads its roles first


def address(pod: Mapping[str, Any]) -> str | None:
    """The pod's IPv4 address, if it runs and is to stay; else None."""
    status = pod.get("status") or {}
    if (pod.get("metadata") or {}).get("deletionTimestamp") or status.get("phase") != "Running":
        return None
    known = [status.get("podIP"), *(entry.get("ip") for entry in status.get("podIPs") or [])]
    return next((ip for ip in known if ip and ":" not in ip), None)


def why_not(pod: Mapping[str, Any]) -> str:
    """One pod that does not count yet, and why, as far as its status tells."""
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
    if status.get("phase") == "Running":
        reasons.append(f"it has no IPv4 address, only {status.get('podIP') or 'none at all'}")
    return f"{name} is {status.get('phase', 'unknown')}" + (f" ({'; '.join(reasons)})" if reasons else "")


class Rank0:
    """Where rank 0's pod is, for as long as a launcher lives: one list and one watch, in a thread of its own.

    So nothing that the API server does keeps a stop from being noticed, a replaced pod is known without one
    more request, and the last address stays known while the API server is away. After an error or a
    watch's end the list is read anew.
    """

    def __init__(self, settings: TrainSettings, api: PodApi) -> None:
        self._api, self._job = api, settings.k8s_job
        self._pods: dict[str, dict[str, Any]] = {}
        self._known = self._trouble = ""
        self._refused: tuple[float, ApiRefusedError] | None = None
        self._end = threading.Event()
        threading.Thread(target=self._run, name="find rank 0", daemon=True).start()

    def address(self) -> str:
        """The newest IPv4 address of rank 0, at once.

        Raises OSError with what its pod waits for, and `ApiRefusedError` when rights are missing for good.
        """
        if self._known:
            return self._known
        if self._refused is not None and time.monotonic() - self._refused[0] >= REFUSED_SECONDS:
            raise self._refused[1]
        raise OSError(f"the pod of rank 0 of Job {self._job} does not run: {self._state()}{self._trouble}")

    def close(self) -> None:
        """Ends the request under way, without waiting for it."""
        self._end.set()
        self._api.close()

    def _run(self) -> None:
        import http.client

        failures = 0
        while not self._end.is_set():
            try:
                self._follow()
                failures = 0
            except (OSError, ValueError, http.client.HTTPException, ApiRefusedError) as error:
                failures += 1
                if not self._end.is_set():
                    log.warning("cannot look for rank 0's pod: %s", error)
                self._trouble = f"; the API server: {error}"
                if not isinstance(error, ApiRefusedError):
                    self._refused = None
                else:
                    self._refused = self._refused[0] if self._refused else time.monotonic(), error
            self._end.wait(RETRY_SECONDS * min(max(1, failures), 8))

    def _follow(self) -> None:
        listed, version = self._api.list(self._job)
        self._refused, self._trouble = None, ""
        self._note({pod["metadata"]["uid"]: pod for pod in listed})
        with contextlib.closing(self._api.watch(self._job, version, WATCH_SECONDS)) as events:
            for event in events:
                pod = event.get("object") or {}
                uid = (pod.get("metadata") or {}).get("uid")
                if event.get("type") == "ERROR" or uid is None:
                    return
                pods = {key: value for key, value in self._pods.items() if key != uid}
                self._note(pods if event.get("type") == "DELETED" else {**pods, uid: pod})

    def _note(self, pods: dict[str, dict[str, Any]]) -> None:
        before, self._pods = self._state(), pods
        running = sorted(filter(address, pods.values()), key=_made)
        self._known = str(address(running[-1])) if running else ""
        if self._state() != before:
            log.info("rank 0: %s", self._state())

    def _state(self) -> str:
        if not self._pods:
            return "no such pod is made yet (a quota, a back-off after failures, or the Job is suspended)"
        return "; ".join(
            f"{pod['metadata'].get('name', '?')} runs at {address(pod)}" if address(pod) else why_not(pod)
            for pod in sorted(self._pods.values(), key=_made)
        )


def _made(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))
