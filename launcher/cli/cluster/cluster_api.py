"""The Kubernetes API for the commands: objects go in and come out as plain JSON.

All other modules of `launcher.cli` work on dicts as the API server sends them, so that tests need no server.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from launcher.cli.cluster.exec_stream import ExecStream
from launcher.cli.errors import CliError, UsageError, api_error

NAME_LABEL = "app.kubernetes.io/name"
RELEASE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
NAMESPACE_LABEL = "paddle-training/namespace"  # on persistent volumes, which belong to no namespace
CHART = "paddle-training"  # the chart's name, and the default name of a release
NAMESPACE = "paddle"  # the default namespace
FOLLOW_SECONDS = 24 * 3600.0  # a followed log may stay without a new line for so long
TIMEOUT = (5.0, 30.0)  # seconds to connect; seconds between two reads of an answer

Object = dict[str, Any]


def connect(kubeconfig: Path | None, context: str | None, namespace: str) -> Cluster:
    """Return a client for the cluster that the kubeconfig selects.

    The usual rules apply: `kubeconfig`, else $KUBECONFIG, else ~/.kube/config, else the service account of
    the pod that this process runs in. Raises UsageError if the file or the context does not exist or cannot be read.
    """
    import kubernetes
    from kubernetes.config import ConfigException

    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its retry warnings would mix with our output
    if kubeconfig is not None and not kubeconfig.is_file():
        raise UsageError(f"--kubeconfig {kubeconfig}: no such file", "give the path of a kubeconfig file")
    configuration = kubernetes.client.Configuration()
    given = str(kubeconfig) if kubeconfig else None
    used = given or os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        contexts, current = kubernetes.config.list_kube_config_contexts(config_file=given)
    except ConfigException as error:
        try:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        except ConfigException:
            raise UsageError(
                f"no usable kubeconfig at {used} ({error})",
                "give one with --kubeconfig FILE, or read a job's folder directly with --path DIR",
            ) from error
        return Cluster(kubernetes.client.ApiClient(configuration), namespace, "this pod's cluster")
    except Exception as error:  # YAML errors of many kinds
        raise UsageError(
            f"{used} cannot be read as a kubeconfig: {error}", "give another file with --kubeconfig FILE"
        ) from error
    names = [entry["name"] for entry in contexts]
    if context is not None and context not in names:
        raise UsageError(
            f"--context {context}: {used} has no such context",
            f"choose one of: {', '.join(sorted(names)) or '(the file has none)'}",
        )
    try:
        kubernetes.config.load_kube_config(
            config_file=given, context=context, client_configuration=configuration, persist_config=False
        )
    except (ConfigException, OSError) as error:
        raise UsageError(
            f"{used} cannot be used: {error}", "give another file with --kubeconfig FILE"
        ) from error
    configuration.retries = False  # the commands decide themselves which calls are retried
    chosen = context or (current or {}).get("name", "")
    options = [*(["--kubeconfig", given] if given else []), *(["--context", context] if context else [])]
    title = f"context {chosen} ({configuration.host})"
    return Cluster(kubernetes.client.ApiClient(configuration), namespace, title, options)


def labels(release: str, component: str | None = None) -> str:
    """Return the label selector for the objects of a release, or of one component of it."""
    selector = f"{NAME_LABEL}={CHART},{RELEASE_LABEL}={release}"
    return selector + (f",{COMPONENT_LABEL}={component}" if component else "")


class Cluster:
    """A client for the objects in one namespace of a cluster; every method raises CliError if it fails.

    `kind` is a kind as the Kubernetes client spells it in names of methods: pod, job, config_map,
    persistent_volume_claim.
    """

    def __init__(self, api: Any, namespace: str, name: str, options: Sequence[str] = ()) -> None:
        """Store the client; `options` are the options that selected the cluster, for suggested commands."""
        self.api, self.options = api, options
        self.namespace = namespace
        self.name = name

    def _call(self, method: str, action: str, *arguments: Any, **options: Any) -> Any:
        """Call one of the client's API methods, such as `list_namespaced_pod`; return the raw HTTP response.

        `action` is the attempt as an infinitive, for the message `cannot ACTION: …`.
        """
        import urllib3
        from kubernetes import client
        from kubernetes.client.rest import ApiException

        kind = method.removesuffix("_for_all_namespaces").rpartition("_")[2]
        group = {"job": "BatchV1Api", "lease": "CoordinationV1Api", "object": "CustomObjectsApi"}.get(
            kind, "CoreV1Api"
        )
        api = getattr(client, group)(self.api)
        try:
            answer = getattr(api, method)(
                *arguments, **{"_preload_content": False, "_request_timeout": TIMEOUT, **options}
            )
            status, body = answer.status, b"" if answer.status < 400 else answer.read()
        except ApiException as error:
            status, body = int(error.status or 0), error.body or str(error.reason).encode()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnreachableError(
                f"cannot {action}: {self.name} cannot be reached ({_short_reason(error)})",
                "check that the cluster runs and that --kubeconfig and --context are right",
            ) from error
        if 200 <= status < 300:
            return answer
        text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
        failure = api_error(status, text, action, self.name)
        specific = {403: ForbiddenError, 404: NotFoundError, 409: ConflictError}.get(status)
        raise specific(str(failure)) if specific else failure

    @contextlib.contextmanager
    def _without_error(self) -> Iterator[None]:
        """Suppress the error of a call whose answer only explains a state, such as a missing right."""
        try:
            yield
        except UnreachableError:
            raise
        except CliError:
            pass

    def _call_json(self, method: str, action: str, *arguments: Any, **options: Any) -> Object:
        import urllib3

        answer = self._call(method, action, *arguments, **options)
        try:
            return cast(Object, json.loads(answer.read()))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise UnreachableError(
                f"cannot {action}: the connection to {self.name} was closed before the answer was complete",
                "run the same command again",
            ) from error
        finally:
            answer.release_conn()

    def list_objects(self, kind: str, selector: str = "") -> list[Object]:
        """Return this namespace's objects of a kind that match the label selector."""
        return self._list(f"list_namespaced_{kind}", kind, selector, self.namespace)

    def list_in_all_namespaces(self, kind: str, selector: str = "") -> list[Object]:
        """Return the objects of all namespaces; of this one only if the user may not list the others."""
        try:
            return self._list(f"list_{kind}_for_all_namespaces", kind, selector)
        except ForbiddenError:
            return self.list_objects(kind, selector)

    def _list(self, method: str, kind: str, selector: str, *arguments: str) -> list[Object]:
        options = {"label_selector": selector} if selector else {}
        found = self._call_json(method, f"list every {_words(kind)}", *arguments, **options)
        return cast(list[Object], found.get("items", []))

    def find(self, kind: str, name: str) -> Object | None:
        """Return one object of this namespace, or None if it does not exist."""
        try:
            return self._call_json(
                f"read_namespaced_{kind}", f"read {_words(kind)} {name}", name, self.namespace
            )
        except NotFoundError:
            return None

    def list_events(self, name: str) -> list[Object]:
        """Return the events about one object, oldest first.

        A user who may not read events gets an empty list and no error: events only explain a state.
        """
        selector = f"involvedObject.name={name}"
        found: Object = {}
        with self._without_error():
            found = self._call_json(
                "list_namespaced_event", "read events", self.namespace, field_selector=selector
            )
        events = cast(list[Object], found.get("items") or [])
        return sorted(events, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")

    def list_workloads(self) -> list[Object]:
        """Return the Workloads of Kueue, which say why a queue holds a Job back.

        A user who may not read them gets an empty list and no error, as for events.
        """
        for version in ("v1beta2", "v1beta1"):  # Kueue from 0.15 on serves the first
            with self._without_error():
                arguments = ("kueue.x-k8s.io", version, self.namespace, "workloads")
                return self._list("list_namespaced_custom_object", "workload", "", *arguments)
        return []

    def list_volumes(self, release: str) -> list[Object]:
        """Return the persistent volumes that a release of this namespace created."""
        selector = f"{labels(release)},{NAMESPACE_LABEL}={self.namespace}"
        return self._list("list_persistent_volume", "persistent_volume", selector)

    def is_namespace_terminating(self) -> bool:
        """Return whether the namespace is being deleted; False if the user may not read it."""
        found: Object = {}
        with self._without_error():
            found = self._call_json("read_namespace", "read the namespace", self.namespace)
        return (found.get("status") or {}).get("phase") == "Terminating"

    def create(self, kind: str, thing: Object) -> Object:
        """Create an object in this namespace, and return it as stored. Raises ConflictError if its name is taken."""
        action = f"create {_words(kind)} {thing['metadata']['name']}"
        return self._call_json(f"create_namespaced_{kind}", action, self.namespace, thing)

    def replace(self, kind: str, thing: Object) -> Object:
        """Replace an object, and return it as stored. Raises ConflictError if it has changed since `thing` was read."""
        name = thing["metadata"]["name"]
        return self._call_json(
            f"replace_namespaced_{kind}", f"update {_words(kind)} {name}", name, self.namespace, thing
        )

    def delete(
        self, kind: str, name: str, version: str | None = None, grace_seconds: int | None = None
    ) -> None:
        """Delete an object and the objects that it owns. Does nothing if it does not exist.

        Raises ConflictError if `version` is given, and the object has another resourceVersion.
        """
        options: dict[str, Any] = {"propagation_policy": "Background"}
        if version:
            options["body"] = {"preconditions": {"resourceVersion": version}}
        if grace_seconds is not None:
            options["grace_period_seconds"] = grace_seconds
        namespaced = () if kind == "persistent_volume" else (self.namespace,)
        method = f"delete_namespaced_{kind}" if namespaced else f"delete_{kind}"
        with contextlib.suppress(NotFoundError):
            self._call_json(method, f"delete {_words(kind)} {name}", name, *namespaced, **options)

    def suspend_job(self, name: str, suspended: bool) -> None:
        """Suspend a Job, which deletes its pods; or resume it, which creates them again."""
        action = f"{'suspend' if suspended else 'resume'} job {name}"
        body = {"spec": {"suspend": suspended}}
        self._call_json("patch_namespaced_job", action, name, self.namespace, body)

    def stream_log(self, pod: str, container: str, follow: bool, lines: int | None = None) -> Iterator[bytes]:
        """Yield a container's log in blocks of bytes: all of it, or only its last `lines`.

        With `follow`, also yield what is appended until the container exits.
        """
        import urllib3

        action = f"read the log of {pod}"
        options: dict[str, Any] = {"_request_timeout": (TIMEOUT[0], FOLLOW_SECONDS)} if follow else {}
        options |= {"tail_lines": lines} if lines is not None else {}
        answer = self._call(
            "read_namespaced_pod_log",
            action,
            pod,
            self.namespace,
            container=container,
            follow=follow,
            **options,
        )
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
        place = (self.namespace, pod, container)
        return ExecStream(
            self.api.configuration, self.name, place, argv, stdin=stdin, idle_seconds=idle_seconds
        )


class ForbiddenError(CliError):
    """HTTP 403: the user lacks the right, or an admission rule rejects the object."""


class NotFoundError(CliError):
    """HTTP 404: the object does not exist."""


class ConflictError(CliError):
    """HTTP 409: the object exists already, or has changed since it was read."""


class UnreachableError(CliError):
    """The API server did not answer. `wait` and `run` retry for some time; other commands fail."""


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _short_reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    text = str(reason)
    return text.split(": ", 1)[1] if text.startswith("<urllib3") and ": " in text else text
