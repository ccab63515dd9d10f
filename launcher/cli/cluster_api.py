"""The Kubernetes API for the commands: objects as plain JSON, logs, and commands in containers.

All other modules of `launcher.cli` work on dicts as the API server sends them, so that tests need no server.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import getpass
import io
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import quote, urlencode

from launcher.cli.errors import CliError, UsageError, storage_failure

NAME_LABEL = "app.kubernetes.io/name"
RELEASE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
CHART = "paddle-training"  # the chart's name, and the default name of a release
NAMESPACE = "paddle"  # the default namespace
FOLLOW_SECONDS = 24 * 3600.0  # a followed log may stay without a new line for this time
CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0  # between two reads of an answer
GROUPS = {"job": "apis/batch/v1", "lease": "apis/coordination.k8s.io/v1"}
"""API group and version of each kind that is not in `api/v1`."""
_STDIN, _STDOUT, _STDERR, _ERROR = b"\0", 1, 2, 3  # channels of an exec stream
_SEND_BYTES = 32 * 1024
READ_PAUSE_SECONDS = 1.0  # one read waits so long; then a thread that sends may use the connection
_STDERR_KEPT = 8 * 1024

Object = dict[str, Any]
Labels = Mapping[str, str]


def connect(kubeconfig: Path | None, context: str | None, namespace: str) -> Cluster:
    """Return a client for the cluster that the kubeconfig selects.

    The kubeconfig is `kubeconfig`, else the files of $KUBECONFIG, merged as kubectl and helm merge them, else
    ~/.kube/config. If no file and no context is given and ~/.kube/config does not exist, the client uses the service
    account of the pod in which this process runs. Raises UsageError if the file, the context or its cluster does not
    exist or cannot be read.
    """
    from kubernetes import client, config
    from kubernetes.config import kube_config

    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its retry warnings would mix with our output
    given = str(kubeconfig or os.environ.get("KUBECONFIG") or "")
    used = given or "~/.kube/config"
    configuration = client.Configuration()
    configuration.host = ""  # the library's default is localhost
    names: list[str] = []

    def load() -> str | None:
        """Load the kubeconfig; return the name of its chosen context, or None for the service account of this pod."""
        merger = kube_config.KubeConfigMerger(used)
        if merger.config is None:
            if given or context or os.path.lexists(Path(used).expanduser()):
                raise FileNotFoundError("no such file")
            config.load_incluster_config(client_configuration=configuration)
            return None
        names.extend(sorted(str(entry.value["name"]) for entry in merger.config.value["contexts"]))
        current = (file.get("current-context") for file in merger.config_files.values())
        chosen = context or next(filter(None, current), None)  # the first file wins, as for kubectl
        if chosen not in names:
            raise ValueError(f"it has no context {chosen}" if chosen else "it has no current context")
        kube_config.KubeConfigLoader(merger.config, chosen, config_base_path=None).load_and_set(configuration)
        if not configuration.host:
            raise ValueError(f"the cluster of context {chosen} has no server address")
        return chosen

    try:
        chosen = load()
    except Exception as error:  # YAML errors of many kinds
        choice = f"--context: {', '.join(names)}" if names else "--kubeconfig FILE"
        raise UsageError(
            f"the kubeconfig {used} cannot be used: {error}",
            f"choose another one with {choice}; or read a job's folder directly with --path DIR",
        ) from error
    configuration.retries = False  # the commands decide themselves which calls are retried
    if chosen is None:
        return Cluster(configuration, namespace, "this pod's cluster")
    cluster = Cluster(configuration, namespace, f"context {chosen} ({configuration.host})", chosen)
    cluster.kubeconfig_options = ["--kubeconfig", given] if kubeconfig else []
    cluster.options = [*cluster.kubeconfig_options, *(["--context", context] if context else [])]
    return cluster


def release_labels(release: str, component: str | None = None) -> dict[str, str]:
    """Return the labels of the objects of a release, or of one component of it."""
    found = {NAME_LABEL: CHART, RELEASE_LABEL: release}
    return found | ({COMPONENT_LABEL: component} if component else {})


def user_and_host() -> str:
    """Return `user@host`, which identifies the holder of a lease to other users."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


class Cluster:
    """A client for the objects in one namespace of a cluster; every method raises CliError if it fails.

    The argument `kind` of the methods is a kind of object in lower case, with underscores between its words: pod, job,
    config_map, persistent_volume_claim.

    The Kubernetes client library reads the kubeconfig and gets the user's token. Its classes for requests are not used,
    because importing them takes half a second.
    """

    def __init__(self, configuration: Any, namespace: str, name: str, context: str = "") -> None:
        """Store how to reach the cluster; no request is sent.

        Args:
            configuration: the configuration of the Kubernetes client library.
            namespace: the namespace of the objects.
            name: the cluster's name in messages.
            context: the context of the kubeconfig; empty for the cluster of the pod in which this process runs.
        """
        self.configuration, self.context = configuration, context
        self.namespace = namespace
        self.name = name
        self.options: Sequence[str] = ()
        """The options of a command that select the cluster."""
        self.kubeconfig_options: Sequence[str] = ()
        """The part of `options` that helm accepts, too."""
        self.has_hidden_namespaces = False
        """Whether the user was not allowed to list all namespaces in `list_in_all_namespaces`."""

    @functools.cached_property
    def _pool(self) -> Any:
        """The urllib3 pool with the certificates, proxy and retries of the configuration."""
        from kubernetes.client.rest import RESTClientObject

        return RESTClientObject(self.configuration).pool_manager

    def path(self, kind: str, name: str = "", all_namespaces: bool = False) -> str:
        """Return the path of one object on the API server, or of all objects of a kind."""
        place = "" if all_namespaces else f"/namespaces/{quote(self.namespace, safe='')}"
        path = f"/{GROUPS.get(kind, 'api/v1')}{place}/{kind.replace('_', '')}s"
        return f"{path}/{quote(name, safe='')}" if name else path

    def _call(
        self,
        method: str,
        path: str,
        action: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        read_seconds: float = READ_SECONDS,
    ) -> Any:
        """Send an HTTP request; return the response, whose body is not read yet.

        `action` is what the request does, as an infinitive, for the message `cannot ACTION: …`.
        """
        import urllib3

        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            answer = self._pool.request(
                method,
                f"{self.configuration.host}{path}" + (f"?{urlencode(query)}" if query else ""),
                body=None if body is None else json.dumps(body),
                headers={
                    "Accept": "application/json",
                    "Content-Type": kind,
                    "User-Agent": "paddle-launcher",  # the field manager that Helm 4 and audit logs name
                    **token_header(self.configuration),
                },
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds),
                preload_content=False,
            )
            status = answer.status
            text = "" if status < 400 else answer.read().decode(errors="replace")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnreachableError(
                f"cannot {action}: {self.name} cannot be reached ({_short_reason(error)})",
                "check that the cluster runs and that --kubeconfig and --context are right",
            ) from error
        if 200 <= status < 300:
            return answer
        raise api_error(status, text, action, self.name)

    def _call_json(self, method: str, path: str, action: str, **options: Any) -> Object:
        import urllib3

        answer = self._call(method, path, action, **options)
        try:
            return cast(Object, json.loads(answer.read()))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise UnreachableError(
                f"cannot {action}: the connection to {self.name} was closed before the answer was complete",
                "run the same command again",
            ) from error
        finally:
            answer.release_conn()

    def list_objects(self, kind: str, labels: Labels | None = None) -> list[Object]:
        """Return this namespace's objects of a kind that have these labels."""
        return self._list(kind, self.path(kind), labels)

    def list_in_all_namespaces(self, kind: str, labels: Labels | None = None) -> list[Object]:
        """Return the objects of a kind in all namespaces.

        If the user may not list all namespaces, return the objects in this namespace, and set `has_hidden_namespaces`.
        """
        try:
            return self._list(kind, self.path(kind, all_namespaces=True), labels)
        except ForbiddenError:
            self.has_hidden_namespaces = True
            return self.list_objects(kind, labels)

    def _list(self, kind: str, path: str, labels: Labels | None) -> list[Object]:
        selector = ",".join(f"{name}={value}" for name, value in (labels or {}).items())
        query = {"labelSelector": selector} if selector else {}
        found = self._call_json("GET", path, f"list every {_words(kind)}", query=query)
        return cast(list[Object], found.get("items", []))

    def find(self, kind: str, name: str) -> Object | None:
        """Return one object of this namespace, or None if it does not exist."""
        try:
            return self._call_json("GET", self.path(kind, name), f"read {_words(kind)} {name}")
        except NotFoundError:
            return None

    def list_events(self, name: str = "", reason: str = "") -> list[Object]:
        """Return the events about the object `name`, or with `reason` the pods' events with this reason; oldest first.

        If the API server rejects the request, for example because the user may not read events, return an empty list:
        events only explain a state.
        """
        selector = f"involvedObject.name={name}" if name else f"involvedObject.kind=Pod,reason={reason}"
        try:
            query = {"fieldSelector": selector}
            found = self._call_json("GET", self.path("event"), "read events", query=query)
        except UnreachableError:
            raise
        except CliError:
            return []
        events = cast(list[Object], found.get("items") or [])
        return sorted(events, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")

    def create(self, kind: str, thing: Object) -> Object:
        """Create an object in this namespace, and return it as stored. Raises ConflictError if its name is taken."""
        action = f"create {_words(kind)} {thing['metadata']['name']}"
        return self._call_json("POST", self.path(kind), action, body=thing)

    def patch(self, kind: str, name: str, changes: Object, action: str) -> Object:
        """Merge `changes` into an object, and return it as stored."""
        query = {"fieldManager": f"{CHART}:{user_and_host()}"[:128]}  # the API server keeps who did it
        return self._call_json("PATCH", self.path(kind, name), action, query=query, body=changes)

    def delete(
        self, kind: str, name: str, version: str | None = None, grace_seconds: int | None = None
    ) -> None:
        """Delete an object and the objects that it owns. Do nothing if the object does not exist.

        With `grace_seconds`, the containers of a pod get this time between SIGTERM and SIGKILL. Raises ConflictError if
        `version` is given and is not the object's current resourceVersion.
        """
        options: Object = {"propagationPolicy": "Background"}
        if version:
            options["preconditions"] = {"resourceVersion": version}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        with contextlib.suppress(NotFoundError):
            self._call_json("DELETE", self.path(kind, name), f"delete {_words(kind)} {name}", body=options)

    def suspend_job(self, name: str, suspended: bool) -> None:
        """Suspend a Job, so that Kubernetes deletes its pods; with `suspended` False, resume the Job with new pods."""
        action = f"{'suspend' if suspended else 'resume'} job {name}"
        self.patch("job", name, {"spec": {"suspend": suspended}}, action)

    def stream_log(self, pod: str, container: str, follow: bool, lines: int | None = None) -> Iterator[bytes]:
        """Yield a container's log in blocks of bytes: the whole log, or only the last `lines` lines.

        With `follow`, also yield the lines that the container writes until it exits.
        """
        import urllib3

        action = f"read the log of {pod}"
        query = {"container": container, "follow": "true" if follow else "false"}
        query |= {"tailLines": str(lines)} if lines is not None else {}
        read_seconds = FOLLOW_SECONDS if follow else READ_SECONDS
        path = f"{self.path('pod', pod)}/log"
        answer = self._call("GET", path, action, query=query, read_seconds=read_seconds)
        try:
            while block := answer.read1(65536):
                yield block
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise CliError(
                f"cannot {action}: the connection was closed ({_short_reason(error)})",
                "run the same command again",
            ) from error
        finally:
            answer.close()

    def exec(
        self, pod: str, container: str, argv: list[str], stdin: IO[bytes] | None, idle_seconds: float
    ) -> ExecStream:
        """Start the command `argv` in a container; return its stdout as a stream (see `ExecStream`)."""
        return ExecStream(self, pod, container, argv, stdin=stdin, idle_seconds=idle_seconds)


class ForbiddenError(CliError):
    """HTTP 403: the user lacks the right, or an admission rule rejects the object."""


class NotFoundError(CliError):
    """HTTP 404: the object does not exist."""


class ConflictError(CliError):
    """HTTP 409: the object exists already, or has changed since it was read."""


class UnreachableError(CliError):
    """The API server did not answer, answered with HTTP 429 or 5xx, or closed the connection to a command.

    While `wait`, `run`, `sweep` and `resume --follow` follow a run, they retry for some time. Most other commands fail.
    """


_ERRORS = {403: ForbiddenError, 404: NotFoundError, 409: ConflictError, 429: UnreachableError}
_FIXES = {
    401: "log in again (the credentials may have expired), or choose another cluster with --kubeconfig or --context",
    403: "ask the owner of the cluster for this right",
}


def api_error(status: int, body: str, action: str, cluster: str) -> CliError:
    """Return the error for an API call that failed with this HTTP status and answer (a Status as JSON, or text).

    `action` is what was attempted, as an infinitive ("start the reader pod"); `cluster` is the cluster's name.
    """
    try:
        answer = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        answer = body.strip()[:1000] or "(no message)"
    # HTTP 500 may be temporary, for example while etcd elects a leader.
    kind = UnreachableError if status >= 500 else _ERRORS.get(status, CliError)
    fix = "correct what the API server reports; for a status from 500 on, run the same command again later"
    problem = f"cannot {action}: {cluster} answered with HTTP status {status}: {answer}"
    return kind(problem, _FIXES.get(status, fix))


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _short_reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    text = str(reason)
    return text.split(": ", 1)[1] if text.startswith("<urllib3") and ": " in text else text


def token_header(configuration: Any) -> dict[str, str]:
    """Return the HTTP header with the user's token, which is renewed if it has expired; empty without a token."""
    token = configuration.auth_settings().get("BearerToken")
    return {token["key"]: token["value"]} if token else {}


class CommandOutput(io.RawIOBase):
    """The stdout of a command that may still run."""

    def readable(self) -> bool:
        """Return True; `io.BufferedReader` calls this before it accepts the stream."""
        return True

    @abc.abstractmethod
    def result(self) -> None:
        """Read stdout to its end. Raises CliError with the command's stderr unless the command succeeded."""


class ExecStream(CommandOutput):
    """The stdout of a command in a container, readable while the command runs, in constant memory.

    `result()` raises an error if the command failed.

    The Kubernetes client's own reader (`WSClient.update`) reads every available frame before it returns, so a sender
    that is faster than its receiver fills the memory. Here the Kubernetes client only opens the websocket (with its
    authentication, TLS and proxy rules), and this class reads one frame at a time.

    Two threads must not read and write a TLS connection at the same time: OpenSSL forbids it, and Python's module ssl
    does not prevent it. Without a lock, 11 of 2,000 small uploads on a busy machine ended with "connection was closed".
    So both threads share one lock. The reading thread takes the lock only when data has arrived. If only a part of a
    frame has arrived, the thread waits for the rest while it holds the lock, at most READ_PAUSE_SECONDS.
    """

    def __init__(
        self,
        cluster: Cluster,
        pod: str,
        container: str,
        argv: list[str],
        *,
        stdin: IO[bytes] | None,
        idle_seconds: float,
    ) -> None:
        """Start the command `argv` in a container.

        Raises CliError if the API server cannot be reached or rejects the command.

        A thread sends `stdin` while stdout is read. A read fails after `idle_seconds` in which no byte was received or
        sent.
        """
        from kubernetes.client.rest import ApiException
        from kubernetes.stream.ws_client import websocket_call

        self._action = f"run '{' '.join(argv[:5])}' in pod {pod}"
        self._idle_seconds = idle_seconds
        self._last_byte = time.monotonic()
        self._using = threading.Lock()
        self._rest = memoryview(b"")
        self._stderr = b""
        self._status: dict[str, Any] | None = None
        self._ended = False
        self._failure: BaseException | None = None
        try:
            streams = {"stdin": stdin is not None, "stdout": True, "stderr": True, "tty": False}
            query = [("container", container), ("command", argv)]
            query += [(name, str(wanted).lower()) for name, wanted in streams.items()]
            client = websocket_call(
                cluster.configuration,
                "GET",
                f"{cluster.configuration.host}{cluster.path('pod', pod)}/exec",
                query_params=query,
                headers=token_header(cluster.configuration),
                binary=True,
                _preload_content=False,
            )
        except ApiException as error:
            reason = str(error.reason)
            if rejected := re.match(r"Handshake status (\d{3})", reason):  # STATUS -+-+- HEADERS -+-+- BODY
                body = reason.rpartition(" -+-+- ")[2]
                raise api_error(int(rejected[1]), body, self._action, cluster.name) from error
            raise CliError(
                f"cannot {self._action}: {reason}", "check that the pod runs, then run your command again"
            ) from error
        self._socket = client.sock
        if stdin is not None:
            threading.Thread(target=self._send, args=(stdin,), daemon=True).start()

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes of stdout into `buffer`; return their number, 0 at the end."""
        while not self._rest and not self._ended:
            self._read_frame()
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _read_frame(self) -> None:
        from urllib3.util import wait_for_read
        from websocket import ABNF, WebSocketException, WebSocketTimeoutException

        connection, has_failed = self._socket.sock, self._failure is not None
        # A TLS connection may have decrypted more than was read.
        is_buffered = getattr(connection, "pending", int)()
        if not is_buffered and not wait_for_read(connection, READ_PAUSE_SECONDS):
            if has_failed:  # it had failed before the wait, so an answer that came until then is read
                self._ended = True
            elif time.monotonic() - self._last_byte > self._idle_seconds:
                raise CliError(
                    f"cannot {self._action}: no byte was received or sent for {self._idle_seconds:.0f} s",
                    "check that the pod and its node still run, then run your command again",
                )
            return
        try:
            with self._using:
                self._socket.settimeout(READ_PAUSE_SECONDS)  # only a part of a frame may have arrived
                opcode, frame = self._socket.recv_data_frame(True)
        except WebSocketTimeoutException:
            return
        except (WebSocketException, OSError) as error:
            self._ended, self._failure = True, self._failure or error
            return
        self._last_byte = time.monotonic()
        if opcode == ABNF.OPCODE_CLOSE:
            self._ended = True
        elif opcode in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and frame.data:
            channel, payload = frame.data[0], frame.data[1:]
            if channel == _STDOUT:
                self._rest = memoryview(payload)
            elif channel == _STDERR:
                self._stderr = (self._stderr + payload)[-_STDERR_KEPT:]
            elif channel == _ERROR:
                self._status = json.loads(payload)

    def _send(self, source: IO[bytes]) -> None:
        try:
            while block := source.read(_SEND_BYTES):
                with self._using:
                    self._socket.settimeout(self._idle_seconds)
                    self._socket.send_binary(_STDIN + block)
                self._last_byte = time.monotonic()
        except BaseException as error:  # result() raises it in the thread that can report it to the user
            self._failure = error

    def result(self) -> None:
        """Read stdout to its end. Raises CliError with the command's stderr unless the command succeeded."""
        while not self._ended:
            self._read_frame()
            self._rest = memoryview(b"")
        stderr = self._stderr.decode(errors="replace").strip()
        if (self._status or {}).get("status") == "Success":
            return  # also if the end of stdin, which the command did not need, could not be sent any more
        if stderr:
            raise storage_failure(stderr.splitlines()[-1] if "Traceback" in stderr else stderr)
        if isinstance(self._failure, CliError):
            raise self._failure
        if self._status is None:
            cause = f"the connection was closed ({self._failure or 'before the command had ended'})"
            raise UnreachableError(f"cannot {self._action}: {cause}", "run your command again")
        raise CliError(f"cannot {self._action}: {self._status.get('message')}", "run your command again")

    def close(self) -> None:
        """Close the websocket.

        Kubernetes does not always kill a command that still runs (kubernetes/kubernetes#89031). The command may run on
        until it writes to stdout or ends by itself.
        """
        if not self.closed and hasattr(self, "_socket"):
            self._socket.shutdown()
        super().close()
