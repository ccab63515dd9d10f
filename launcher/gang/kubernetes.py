"""The API server, by the pod's service account: where rank 0 is (`rendezvous: api`), and Events on the Job.

`rendezvous: api` is the seeds' way to find the peers, by asking for this Job's pods. It asks for rank 0's pod
only: the rank itself is the completion index, since an order by address changes with every replaced pod.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from launcher.errors import GangError, SettingsError
from launcher.gang.log import log
from launcher.settings import TrainSettings

if TYPE_CHECKING:
    import http.client

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SELECTOR = "batch.kubernetes.io/job-name={job},batch.kubernetes.io/job-completion-index=0"
POLL_SECONDS = 0.2  # how late a stop or an answer is noticed
RETRY_SECONDS = 2.0  # between a failed request and the next one
REQUEST_SECONDS = 15.0
WATCH_SECONDS = 3600.0
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
        self._closed = False

    @contextlib.contextmanager
    def _ask(
        self,
        method: str,
        kind: str,
        query: Mapping[str, str],
        body: object = None,
        seconds: float = REQUEST_SECONDS,
    ) -> Iterator[http.client.HTTPResponse]:
        import http.client
        import ssl

        # The kubelet renews the token's file: read it for every request.
        token = (self._account / "token").read_text().strip()
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=REQUEST_SECONDS, context=context
        )
        with contextlib.closing(connection):
            connection.connect()
            self._socket = connection.sock
            if self._closed:
                raise OSError("closed")
            # A server that vanishes in the middle of a watch is noticed without asking it again.
            for option, value in (
                (socket.TCP_KEEPIDLE, 10),
                (socket.TCP_KEEPINTVL, 5),
                (socket.TCP_KEEPCNT, 3),
            ):
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.settimeout(seconds)
            connection.request(
                method,
                f"/api/v1/namespaces/{self._namespace}/{kind}?{urllib.parse.urlencode(query)}",
                json.dumps(body) if body is not None else None,
                {
                    "Authorization": f"Bearer {token}",
                    "Content-Type": "application/json",
                    "Connection": "close",
                },
            )
            with connection.getresponse() as response:
                self._check(response, f"{method} of {kind}")
                yield response

    def _check(self, response: http.client.HTTPResponse, doing: str) -> None:
        if response.status in (401, 403):
            raise ApiRefusedError(
                f"the API server refuses {doing} in namespace {self._namespace} "
                f"({response.status}): {_message(response.read())}. The pods' service account needs a role: "
                "list and watch on pods for rendezvous 'api', create on events for notify.events "
                "(the chart makes it with serviceAccount.create)."
            )
        if response.status >= 300:
            raise OSError(f"the API server answers {response.status}: {_message(response.read())}")

    def list(self, job: str) -> tuple[list[dict[str, Any]], str]:
        """(the pods of rank 0, resource version of the list)."""
        with self._ask("GET", "pods", {"labelSelector": SELECTOR.format(job=job)}) as response:
            answer = json.loads(response.read())
        return answer.get("items") or [], str(answer.get("metadata", {}).get("resourceVersion", ""))

    def watch(self, job: str, version: str, seconds: float) -> Generator[dict[str, Any], None, None]:
        """Changes of rank 0's pods behind `version`, for at most `seconds`."""
        query = {
            "labelSelector": SELECTOR.format(job=job),
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        with self._ask("GET", "pods", query, seconds=seconds + REQUEST_SECONDS) as response:
            while line := response.readline():
                yield json.loads(line)

    def create(self, kind: str, body: Mapping[str, Any]) -> None:
        """Makes one object. That it is there already is no error: an earlier try did it, unheard."""
        try:
            with self._ask("POST", kind, {}, body) as response:
                response.read()
        except OSError as error:
            if "answers 409" not in str(error):
                raise

    def close(self) -> None:
        """Ends a request that another thread waits for, and lets it begin no other."""
        self._closed = True
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
