"""`rendezvous: api`: the seeds' way to find the peers, by asking the API server for this Job's pods.

Of the seeds' way it keeps the idea (all pods of the Job, sorted by address, the place is the rank) and waits
for the expected number of this run's own pods, in numeric order, with a deadline, over verified TLS.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.errors import DeadlineError, GangError, SettingsError
from launcher.gang.log import log
from launcher.gang.network import sort_addresses
from launcher.settings import TrainSettings

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
JOB_LABEL = "batch.kubernetes.io/job-name"
WATCH_SECONDS = (
    30  # one watch; between two the list is read anew, so that a lost event costs no more than this
)


class ApiRefusedError(GangError):
    """The API server says no."""


class PodApi:
    """Reads pods of one namespace with the pod's service account."""

    def __init__(self, environ: Mapping[str, str], namespace: str, account: Path = ACCOUNT) -> None:
        host = environ.get("KUBERNETES_SERVICE_HOST", "")
        port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (account / "token").exists():
            raise SettingsError(
                "rendezvous is 'api', but this pod has no service account (no token in "
                f"{account}, or no KUBERNETES_SERVICE_HOST). Set rendezvous to dns, or let the chart "
                "make the "
                "service account (serviceAccount.create) and mount its token."
            )
        self._host, self._port, self._namespace, self._account = host, int(port), namespace, account

    def _get(self, query: dict[str, str], timeout: float) -> Any:
        import http.client
        import ssl

        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=context)
        # The kubelet renews the token's file: read it for every request.
        token = (self._account / "token").read_text().strip()
        path = f"/api/v1/namespaces/{self._namespace}/pods?{urllib.parse.urlencode(query)}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        if response.status in (401, 403):
            raise ApiRefusedError(
                f"the API server refuses to list pods in namespace {self._namespace} ({response.status}): "
                f"{_message(response.read())}. rendezvous: api needs a role with get, list and watch on pods "
                "for the pods' service account (the chart makes it with serviceAccount.create)."
            )
        if response.status != 200:
            raise OSError(f"the API server answers {response.status}: {_message(response.read())}")
        return response

    def list(self, job: str) -> tuple[list[dict[str, Any]], str]:
        """(pods of the Job, resource version of the list)."""
        pods: list[dict[str, Any]] = []
        more = ""
        while True:
            query = {"labelSelector": f"{JOB_LABEL}={job}", "limit": "500"}
            if more:
                query["continue"] = more
            answer = json.loads(self._get(query, timeout=15).read())
            pods.extend(answer.get("items") or [])
            more = answer.get("metadata", {}).get("continue", "")
            if not more:
                return pods, str(answer.get("metadata", {}).get("resourceVersion", ""))

    def watch(self, job: str, version: str, seconds: float) -> Iterator[dict[str, Any]]:
        """Changes behind `version`, for at most `seconds`."""
        query = {
            "labelSelector": f"{JOB_LABEL}={job}",
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        response = self._get(query, timeout=seconds + 5)
        while line := response.readline():
            yield json.loads(line)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def usable(pod: Mapping[str, Any]) -> str | None:
    """The pod's address, if it runs and is to stay; else None."""
    status = pod.get("status") or {}
    if (pod.get("metadata") or {}).get("deletionTimestamp") or status.get("phase") != "Running":
        return None
    return status.get("podIP") or None


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
    return f"{name} is {status.get('phase', 'unknown')}" + (f" ({'; '.join(reasons)})" if reasons else "")


def wait_for_pods(
    settings: TrainSettings,
    api: PodApi,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """All trainers' addresses in rank order. Raises `DeadlineError` with who is missing and why."""
    deadline = clock() + settings.rendezvous_seconds
    trouble = ""
    pods: dict[str, dict[str, Any]] = {}
    while True:
        try:
            listed, version = api.list(settings.k8s_job)
            pods = {pod["metadata"]["uid"]: pod for pod in listed}
            trouble = ""
            if found := _ready(pods, settings):
                return found
            log.info("waiting for pods: %s", _missing(pods, settings))
            for event in api.watch(
                settings.k8s_job, version, min(WATCH_SECONDS, max(1.0, deadline - clock()))
            ):
                _apply(pods, event)
                if found := _ready(pods, settings):
                    return found
                if event.get("type") == "ERROR" or clock() >= deadline:
                    break
        except (OSError, ValueError) as error:
            trouble = f"; the API server: {error}"
            log.warning("cannot list pods: %s", error)
        if clock() >= deadline:
            raise DeadlineError(
                f"after {settings.rendezvous_seconds} s (rendezvousSeconds) not all of "
                f"{settings.trainers} pods of Job "
                f"{settings.k8s_job} run: {_missing(pods, settings)}{trouble}"
            )
        pause(1.0)


def _apply(pods: dict[str, dict[str, Any]], event: Mapping[str, Any]) -> None:
    pod = event.get("object") or {}
    uid = (pod.get("metadata") or {}).get("uid")
    if uid is None:
        return
    if event.get("type") == "DELETED":
        pods.pop(uid, None)
    elif event.get("type") in ("ADDED", "MODIFIED"):
        pods[uid] = pod


def _ready(pods: Mapping[str, dict[str, Any]], settings: TrainSettings) -> list[str] | None:
    addresses = [address for pod in pods.values() if (address := usable(pod))]
    return sort_addresses(addresses) if len(set(addresses)) == settings.trainers else None


def _missing(pods: Mapping[str, dict[str, Any]], settings: TrainSettings) -> str:
    running = sum(1 for pod in pods.values() if usable(pod))
    others = "; ".join(why_not(pod) for pod in pods.values() if not usable(pod))
    made = f"{len(pods)} made" if others else f"only {len(pods)} made (quota, or the Job is suspended?)"
    return f"{running} of {settings.trainers} run, {made}" + (f": {others}" if others else "")
