"""A client of the Kubernetes API for pods: it uses the pod's service account and only the standard library."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.parse
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import GangError, SettingsError

if TYPE_CHECKING:
    import http.client

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SELECTOR = "batch.kubernetes.io/job-name={job},batch.kubernetes.io/job-completion-index=0"
REQUEST_SECONDS = 15.0


class ApiRejectedError(GangError):
    """The API server denied a request (401 or 403)."""


class ObjectExistsError(OSError):
    """The API server has an object with this name already (409)."""


class PodApi:
    """Lists and watches the pods of rank 0, and creates objects such as Events, in one namespace."""

    def __init__(self, environ: Mapping[str, str], namespace: str, account: Path = ACCOUNT) -> None:
        host = environ.get("KUBERNETES_SERVICE_HOST", "")
        port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (account / "token").exists():
            raise SettingsError(
                "rendezvous 'api' and notify.events need the API server, but this pod has no service account "
                f"(no token in {account}, or no KUBERNETES_SERVICE_HOST). Fix: let the chart create one "
                "(serviceAccount.create: true), or set rendezvous to lease and notify.events to false."
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
            # Keepalive detects a server that disappears in the middle of a watch.
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
            raise ApiRejectedError(
                f"the API server denied {doing} in namespace {self._namespace} "
                f"({response.status}): {_message(response.read())}. Fix: set serviceAccount.create to true, so "
                "that the chart creates the role, or give the pods' service account a role with list and "
                "watch on pods (for rendezvous 'api') and create on events (for notify.events)."
            )
        if response.status >= 300:
            kind = ObjectExistsError if response.status == 409 else OSError
            raise kind(f"the API server answered {response.status}: {_message(response.read())}")

    def list(self, job: str) -> tuple[list[dict[str, Any]], str]:
        """Return (Pod objects of rank 0 of the Job named `job`, resource version from which `watch` can continue)."""
        with self._ask("GET", "pods", {"labelSelector": SELECTOR.format(job=job)}) as response:
            answer = json.loads(response.read())
        return answer.get("items") or [], str(answer.get("metadata", {}).get("resourceVersion", ""))

    def watch(self, job: str, version: str, seconds: float) -> Generator[dict[str, Any], None, None]:
        """Yield the changes of rank 0's pods as watch events, for at most `seconds`.

        `version` is the resource version that `list` returned; changes before this version are not yielded.
        """
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
        """Create an object in the namespace; do nothing if an object with its name exists (a retried request).

        `kind` is the plural name of the resource in the API, such as `events`.
        """
        with contextlib.suppress(ObjectExistsError), self._ask("POST", kind, {}, body) as response:
            response.read()

    def close(self) -> None:
        """Abort the request that another thread is waiting for, and make all later requests fail."""
        self._closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
