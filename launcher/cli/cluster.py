"""The Kubernetes API as this command line uses it: plain JSON objects in, plain JSON objects out.

Everything above this module works on dicts as the API server sends them, so that it is tested by value.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from launcher.cli.problems import CliError, UsageError, api_problem

NAME_LABEL = "app.kubernetes.io/name"
RELEASE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
NAMESPACE_LABEL = "paddle-training/namespace"  # of volumes, which are cluster-wide
CHART = "paddle-training"  # a release's name too, where none is given
NAMESPACE = "paddle"  # where none is given
FOLLOW_SECONDS = 24 * 3600.0  # without a line before following a log is given up
TIMEOUT = (5.0, 30.0)  # seconds to connect, seconds between two answers of one call

Object = dict[str, Any]


def connect(kubeconfig: Path | None, context: str | None, namespace: str) -> Cluster:
    """A client by the usual kubeconfig rules ($KUBECONFIG, ~/.kube/config, else the pod's own account).

    Raises UsageError for a file or context that is not there or cannot be read.
    """
    import kubernetes
    from kubernetes.config import ConfigException

    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its retry warnings would go between our lines
    if kubeconfig is not None and not kubeconfig.is_file():
        raise UsageError(f"--kubeconfig {kubeconfig} is not there. Name an existing kubeconfig file.")
    configuration = kubernetes.client.Configuration()
    named = str(kubeconfig) if kubeconfig else None
    used = named or os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        contexts, current = kubernetes.config.list_kube_config_contexts(config_file=named)
    except ConfigException as error:
        try:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        except ConfigException:
            raise UsageError(
                f"no usable kubeconfig at {used} ({error}). Name one with --kubeconfig FILE, or read a job's "
                "folder directly with --path DIR."
            ) from error
        return Cluster(kubernetes.client.ApiClient(configuration), namespace, "this pod's cluster")
    except Exception as error:  # YAML errors of many kinds
        raise UsageError(f"{used} cannot be read as a kubeconfig: {error}") from error
    names = [entry["name"] for entry in contexts]
    if context is not None and context not in names:
        raise UsageError(
            f"--context {context} is not in {used}, which has: {', '.join(sorted(names)) or 'no contexts'}."
        )
    try:
        kubernetes.config.load_kube_config(
            config_file=named, context=context, client_configuration=configuration, persist_config=False
        )
    except (ConfigException, OSError) as error:
        raise UsageError(f"{used} cannot be used: {error}") from error
    configuration.retries = False  # a wait of ours decides what is tried again
    chosen = context or (current or {}).get("name", "")
    given = [*(["--kubeconfig", named] if named else []), *(["--context", context] if context else [])]
    title = f"context {chosen} ({configuration.host})"
    return Cluster(kubernetes.client.ApiClient(configuration), namespace, title, given)


def labels(release: str, component: str | None = None) -> str:
    """A label selector for one release's objects."""
    selector = f"{NAME_LABEL}={CHART},{RELEASE_LABEL}={release}"
    return selector + (f",{COMPONENT_LABEL}={component}" if component else "")


class Cluster:
    """One namespace of one cluster.

    Every method raises CliError with a clear message instead of a traceback.
    """

    def __init__(self, api: Any, namespace: str, name: str, given: Sequence[str] = ()) -> None:
        """`given`: the options that named the cluster, as they can be typed again."""
        self.api, self.given = api, given
        self.namespace = namespace
        self.name = name

    def _call(self, method: str, doing: str, *arguments: Any, **options: Any) -> Any:
        """The raw answer of one of the client's API methods, whose errors become messages."""
        import urllib3
        from kubernetes import client
        from kubernetes.client.rest import ApiException

        kind = method.removesuffix("_for_all_namespaces").rpartition("_")[2]
        group = {"job": "BatchV1Api", "lease": "CoordinationV1Api"}.get(kind, "CoreV1Api")
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
                f"cannot {doing}: {self.name} cannot be reached ({_short(error)}). Is the cluster running, "
                "and is this the right --kubeconfig and --context?"
            ) from error
        if 200 <= status < 300:
            return answer
        text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
        if status == 404:
            raise NotThereError(f"cannot {doing}: {self.name} answered 404: {text}")
        if status == 409:
            raise ConflictError(str(api_problem(status, text, doing, self.name)))
        raise api_problem(status, text, doing, self.name)

    def _json(self, method: str, doing: str, *arguments: Any, **options: Any) -> Object:
        import urllib3

        answer = self._call(method, doing, *arguments, **options)
        try:
            return cast(Object, json.loads(answer.read()))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise UnreachableError(f"cannot {doing}: the answer of {self.name} broke off") from error
        finally:
            answer.release_conn()

    def items(self, kind: str, doing: str, selector: str = "") -> list[Object]:
        """Return this namespace's objects of a kind, by the client's name for it (pod, job, config_map)."""
        return self._list(f"list_namespaced_{kind}", doing, selector, self.namespace)

    def items_everywhere(self, kind: str, doing: str, selector: str = "") -> list[Object]:
        """As `items`, of all namespaces; of this one only when this user may not list the others'."""
        try:
            return self._list(f"list_{kind}_for_all_namespaces", doing, selector)
        except CliError:
            return self.items(kind, doing, selector)

    def _list(self, method: str, doing: str, selector: str, *arguments: str) -> list[Object]:
        options = {"label_selector": selector} if selector else {}
        return cast(list[Object], self._json(method, doing, *arguments, **options).get("items", []))

    def find(self, kind: str, name: str, doing: str) -> Object | None:
        """One object of this namespace, or None."""
        try:
            return self._json(f"read_namespaced_{kind}", doing, name, self.namespace)
        except NotThereError:
            return None

    def events(self, name: str) -> list[Object]:
        """Events about one object, oldest first; none when they may not be read, for they only explain."""
        selector = f"involvedObject.name={name}"
        try:
            found = self._json(
                "list_namespaced_event", "read events", self.namespace, field_selector=selector
            )
        except UnreachableError:
            raise
        except CliError:
            return []
        events = cast(list[Object], found.get("items") or [])
        return sorted(events, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")

    def volumes(self, release: str) -> list[Object]:
        """The volumes that a release of this namespace made."""
        selector = f"{labels(release)},{NAMESPACE_LABEL}={self.namespace}"
        found = self._json("list_persistent_volume", "list the release's volumes", label_selector=selector)
        return cast(list[Object], found.get("items", []))

    def ending(self) -> bool:
        """Whether the namespace is being deleted; False when that may not be asked."""
        try:
            found = self._json("read_namespace", "look at the namespace", self.namespace)
        except UnreachableError:
            raise
        except CliError:
            return False
        return (found.get("status") or {}).get("phase") == "Terminating"

    def create(self, kind: str, thing: Object) -> Object:
        """Create an object of this namespace. Raises ConflictError when its name is taken."""
        return self._json(f"create_namespaced_{kind}", f"create a {kind}", self.namespace, thing)

    def replace(self, kind: str, thing: Object) -> Object:
        """Replace an object. Raises ConflictError when it has changed since `thing` was read."""
        name = thing["metadata"]["name"]
        return self._json(f"replace_namespaced_{kind}", f"update {kind} {name}", name, self.namespace, thing)

    def for_another_thread(self) -> Cluster:
        """The same with a client of its own: `exec` changes its client while it connects."""
        return Cluster(type(self.api)(self.api.configuration), self.namespace, self.name, self.given)

    def delete(self, kind: str, name: str, version: str | None = None) -> None:
        """Delete an object, by the client's name for its kind, and what belongs to it; gone already is
        well. With `version`: only that resourceVersion of it, else ConflictError."""
        only = {"body": {"preconditions": {"resourceVersion": version}}} if version else {}
        inside = () if kind == "persistent_volume" else (self.namespace,)
        method = f"delete_namespaced_{kind}" if inside else f"delete_{kind}"
        with contextlib.suppress(NotThereError):
            doing = f"delete {kind.replace('_', ' ')} {name}"
            self._json(method, doing, name, *inside, propagation_policy="Background", **only)

    def create_job(self, job: Object) -> None:
        """Make a Job in this namespace."""
        self._json("create_namespaced_job", "make the Job again", self.namespace, job)

    def suspend_job(self, name: str, suspended: bool) -> None:
        """Stop a Job's pods, or let it make them again."""
        doing = f"{'suspend' if suspended else 'resume'} job {name}"
        self._json("patch_namespaced_job", doing, name, self.namespace, {"spec": {"suspend": suspended}})

    def create_pod(self, pod: Object) -> None:
        """Make a pod in this namespace."""
        self._json("create_namespaced_pod", "start the reader pod", self.namespace, pod)

    def delete_pod(self, name: str) -> None:
        """Delete a pod of ours; nothing happens when it is gone already."""
        with contextlib.suppress(NotThereError):
            doing = f"delete the reader pod {name}"
            self._json("delete_namespaced_pod", doing, name, self.namespace, grace_period_seconds=1)

    def pod_log(self, pod: str, container: str, follow: bool, lines: int | None = None) -> Iterator[bytes]:
        """A container's log as it comes, or its newest `lines`."""
        import urllib3

        doing = f"read the log of {pod}"
        more: dict[str, Any] = {"_request_timeout": (TIMEOUT[0], FOLLOW_SECONDS)} if follow else {}
        more |= {"tail_lines": lines} if lines is not None else {}
        answer = self._call(
            "read_namespaced_pod_log",
            doing,
            pod,
            self.namespace,
            container=container,
            follow=follow,
            **more,
        )
        try:
            while block := answer.read1(65536):
                yield block
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise CliError(f"the log of {pod} broke off: {_short(error)}") from error
        finally:
            answer.close()

    def exec(self, pod: str, container: str, argv: list[str], stdin: IO[bytes] | None, idle: float) -> Any:
        """Start `argv` in a container; see `launcher.cli.execstream.ExecStream`."""
        from launcher.cli.execstream import ExecStream

        return ExecStream(self, pod, container, argv, stdin=stdin, idle=idle)


class NotThereError(CliError):
    """404."""


class ConflictError(CliError):
    """409: the object exists already, or has changed since it was read."""


class UnreachableError(CliError):
    """No answer at all: `wait` tries again for a while, everything else says so."""


def _short(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    text = str(reason)
    return text.split(": ", 1)[1] if text.startswith("<urllib3") and ": " in text else text
