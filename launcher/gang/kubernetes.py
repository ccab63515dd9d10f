"""The API server, by the pod's service account: where rank 0 is (`rendezvous: api`), and Events on the Job.

`rendezvous: api` is the seeds' way to find the peers, by asking for this Job's pods. It asks for rank 0's pod
only: the rank itself is the completion index, since an order by address changes with every replaced pod.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from launcher.errors import DeadlineError, GangError, SettingsError
from launcher.gang.log import log
from launcher.settings import TrainSettings

if TYPE_CHECKING:
    import http.client

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SELECTOR = "batch.kubernetes.io/job-name={job},batch.kubernetes.io/job-completion-index=0"
POLL_SECONDS = 0.2  # how late a stop or an answer may be noticed
RETRY_SECONDS = 2.0  # between a failed request and the next one
REQUEST_SECONDS = 15.0
REFUSED_SECONDS = 30.0  # an API server that has just started may refuse for a while: it reads its roles first
MESSAGE_BYTES = 1024  # of an Event: more is for the log


class ApiRefusedError(GangError):
    """The API server says no."""


class PodApi:
    """Pods and Events of one namespace."""

    def __init__(self, environ: Mapping[str, str], namespace: str, account: Path = ACCOUNT) -> None:
        host = environ.get("KUBERNETES_SERVICE_HOST", "")
        port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (account / "token").exists():
            raise SettingsError(
                "rendezvous 'api' and notify.events need the API server, but this pod has no service account "
                f"(no token in {account}, or no KUBERNETES_SERVICE_HOST). Set rendezvous to dns and "
                "notify.events to false, or let the chart make the service account (serviceAccount.create)."
            )
        self._host, self._port, self._namespace, self._account = host, int(port), namespace, account
        self._socket: socket.socket | None = None

    def _ask(
        self,
        method: str,
        kind: str,
        query: Mapping[str, str],
        body: object = None,
        seconds: float = REQUEST_SECONDS,
    ) -> http.client.HTTPResponse:
        import http.client
        import ssl

        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=REQUEST_SECONDS, context=context
        )
        # The kubelet renews the token's file: read it for every request.
        token = (self._account / "token").read_text().strip()
        connection.connect()
        self._socket = connection.sock
        # A server that vanishes in the middle of a watch is noticed without asking it again.
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
            self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket.settimeout(seconds)
        connection.request(
            method,
            f"/api/v1/namespaces/{self._namespace}/{kind}?{urllib.parse.urlencode(query)}",
            json.dumps(body) if body is not None else None,
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Connection": "close"},
        )
        response = connection.getresponse()
        if response.status in (401, 403):
            raise ApiRefusedError(
                f"the API server refuses {method} of {kind} in namespace {self._namespace} "
                f"({response.status}): {_message(response.read())}. The pods' service account needs a role: "
                "list and watch on pods for rendezvous 'api', create on events for notify.events "
                "(the chart makes it with serviceAccount.create)."
            )
        if response.status >= 300:
            raise OSError(f"the API server answers {response.status}: {_message(response.read())}")
        return response

    def list(self, job: str) -> tuple[list[dict[str, Any]], str]:
        """(the pods of rank 0, resource version of the list)."""
        answer = json.loads(self._ask("GET", "pods", {"labelSelector": SELECTOR.format(job=job)}).read())
        return answer.get("items") or [], str(answer.get("metadata", {}).get("resourceVersion", ""))

    def watch(self, job: str, version: str, seconds: float) -> Iterator[dict[str, Any]]:
        """Changes of rank 0's pods behind `version`, for at most `seconds`."""
        query = {
            "labelSelector": SELECTOR.format(job=job),
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        response = self._ask("GET", "pods", query, seconds=seconds + REQUEST_SECONDS)
        while line := response.readline():
            yield json.loads(line)

    def create(self, kind: str, body: Mapping[str, Any]) -> None:
        """Makes one object. That it is there already is no error: an earlier try did it, unheard."""
        try:
            self._ask("POST", kind, {}, body).read()
        except OSError as error:
            if "answers 409" not in str(error):
                raise

    def close(self) -> None:
        """Ends a request that another thread waits for."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


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


Pods = dict[str, dict[str, Any]]


class _Follower(threading.Thread):
    """Asks in a thread of its own, so that nothing that the API server does keeps a stop from being noticed.

    `said` gets all of rank 0's pods whenever one changes, or the error of a request. In the good case this is
    one request, or two when the pod does not run yet; after an error or a watch's end the list is read anew.
    """

    def __init__(self, api: PodApi, job: str, seconds: float) -> None:
        super().__init__(name="find rank 0", daemon=True)
        self._api, self._job, self._seconds = api, job, seconds
        self.said: queue.SimpleQueue[Pods | Exception] = queue.SimpleQueue()
        self._end = threading.Event()

    def run(self) -> None:
        import http.client

        failures = 0
        while not self._end.is_set():
            try:
                self._follow()
                failures = 0
            except (OSError, ValueError, http.client.HTTPException, ApiRefusedError) as error:
                self.said.put(error)
                failures += 1
            self._end.wait(RETRY_SECONDS * min(max(1, failures), 8))

    def _follow(self) -> None:
        listed, version = self._api.list(self._job)
        pods = {pod["metadata"]["uid"]: pod for pod in listed}
        self.said.put(dict(pods))
        if any(address(pod) for pod in listed) or self._end.is_set():
            return
        for event in self._api.watch(self._job, version, self._seconds):
            pod = event.get("object") or {}
            uid = (pod.get("metadata") or {}).get("uid")
            if event.get("type") == "ERROR" or uid is None:
                return
            pods.pop(uid, None)
            if event.get("type") != "DELETED":
                pods[uid] = pod
            self.said.put(dict(pods))

    def end(self) -> None:
        """Ends the request under way, without waiting for it."""
        self._end.set()
        self._api.close()


def find_rank_0(
    settings: TrainSettings,
    api: PodApi,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """The IPv4 address of rank 0's pod: of those that run and are to stay, the newest.

    `pause(seconds)` is called a few times a second and may raise, which ends the wait. Raises `DeadlineError`
    with what rank 0's pod waits for, and `ApiRefusedError` when rights are missing.
    """
    deadline, refused, trouble = clock() + settings.rendezvous_seconds, None, ""
    pods: Pods = {}
    follower = _Follower(api, settings.k8s_job, settings.rendezvous_seconds)
    follower.start()
    try:
        while True:
            while not follower.said.empty():
                said = follower.said.get()
                if isinstance(said, dict):
                    pods, refused, trouble = said, None, ""
                    log.info("rank 0: %s", _state(pods))
                else:
                    trouble = f"; the API server: {said}"
                    log.warning("cannot look for rank 0's pod: %s", said)
                    if not isinstance(said, ApiRefusedError):
                        refused = None
                    elif refused is None:
                        refused = clock()
                    elif clock() - refused >= REFUSED_SECONDS:
                        raise said
            if running := sorted(filter(address, pods.values()), key=_made):
                return str(address(running[-1]))
            if clock() >= deadline:
                raise DeadlineError(
                    f"after {settings.rendezvous_seconds} s (rendezvousSeconds) the pod of rank 0 of Job "
                    f"{settings.k8s_job} does not run: {_state(pods)}{trouble}"
                )
            pause(POLL_SECONDS)
    finally:
        follower.end()


def _made(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _state(pods: Pods) -> str:
    if not pods:
        return "no such pod is made yet (a quota, a back-off after failures, or the Job is suspended)"
    return "; ".join(
        f"{pod['metadata'].get('name', '?')} runs at {address(pod)}" if address(pod) else why_not(pod)
        for pod in sorted(pods.values(), key=_made)
    )


def post_event(
    settings: TrainSettings,
    api: PodApi,
    reason: str,
    message: str,
    kind: Literal["Normal", "Warning"] = "Normal",
    *,
    name: str,
    at: float,
) -> None:
    """Writes one Event on the training Job, which `kubectl describe job` shows.

    name: the same for each try of one Event. at: unix seconds. Raises OSError, `ApiRefusedError`.
    """
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    api.create(
        "events",
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": settings.namespace},
            # `kubectl describe` asks for Events of this very uid; the pod knows it without any right on Jobs.
            "involvedObject": {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "namespace": settings.namespace,
                "name": settings.k8s_job,
                **({"uid": settings.k8s_job_uid} if settings.k8s_job_uid else {}),
            },
            "reason": reason,
            "message": message.encode()[:MESSAGE_BYTES].decode(errors="ignore"),
            "type": kind,
            "count": 1,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "source": {"component": "paddle-launcher", "host": settings.node_name},
            "reportingComponent": "paddle-launcher",
            "reportingInstance": settings.pod_name,
        },
    )
