"""Access to one job's folder on the shared storage: on this machine (`--path`) or in a pod that mounts it.

Both ways run the same reader commands (launcher/cli/reader_commands.py), so that a local folder and
a pod behave alike.

The pod is one of the run's pods, or a reader pod: a short-lived pod with the run's image that mounts the storage. So
the storage can be read after all pods of the run are gone. A reader pod runs under restricted Pod Security, has no
service account token and has a deadline; the command that creates it always deletes it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from launcher.cli import object_states, reader_commands
from launcher.cli.cluster_api import (
    CHART,
    COMPONENT_LABEL,
    NAME_LABEL,
    RELEASE_LABEL,
    Cluster,
    Object,
    labels,
)
from launcher.cli.errors import CliError, UsageError, storage_failure
from launcher.cli.releases import ReleaseRun
from launcher.cli.terminal import report
from launcher.io.stop_signals import handle_signals
from launcher.io.tar_stream import read_tar

IDLE_SECONDS = 60.0  # a copy fails after so many seconds without a byte
SLOW_IDLE_SECONDS = 1800.0  # the same for commands that read 100 GB or millions of files before they answer
READ_SECONDS = 300  # deadline of a reader pod that reads small files
COPY_SECONDS = 3600  # deadline of a reader pod that copies data
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class ReaderStream(Protocol):
    """The stdout of a subcommand of `launcher reader` that runs in a pod or in this process."""

    def readinto(self, buffer: Any, /) -> int | None:
        """Read the next bytes into `buffer`; return their number, 0 at the end."""
        ...

    def result(self) -> None:
        """Read the command's stdout to its end. Raises CliError with its stderr if the command failed."""
        ...

    def close(self) -> None:
        """Stop the command whose stdout this stream is."""
        ...


Start = Callable[[Sequence[str], IO[bytes] | None, float], ReaderStream]
"""Starts a reader command with these arguments, bytes for its stdin, and seconds without a byte until it fails."""


@dataclass(frozen=True)
class Storage:
    """Access to one job's folder on the shared storage, through subcommands of `launcher reader`."""

    job: PurePosixPath
    """The job's folder, as the reader commands see it."""
    start: Start
    through: str = ""
    """How the folder is reached, for messages; empty for a folder of this machine."""
    claim: str = ""
    """The PersistentVolumeClaim of the storage; empty for a folder of this machine."""

    @property
    def where(self) -> str:
        """The job's folder and how it is reached (on this machine, or through which pod), for messages."""
        return f"{self.job} {self.through}".rstrip()

    def run(
        self,
        command: str,
        *arguments: str,
        stdin: IO[bytes] | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> ReaderStream:
        """Start a subcommand of `launcher reader` on the job's folder; return its stdout as a stream.

        The command fails after `idle_seconds` without a byte from a pod.
        """
        return self.start([command, "--root", str(self.job), *arguments], stdin, idle_seconds)

    def sibling(self, job: str) -> Storage:
        """Return the folder of another job on the same storage; ".": the folder that contains all jobs."""
        return replace(self, job=self.job.parent / job)


@dataclass(frozen=True, kw_only=True)
class StorageRequest:
    """Selects the job's folder that a command opens, and for how long and how it is opened."""

    job: str | None = None
    """The jobName; None: that of the release."""
    claim: str | None = None
    """The PersistentVolumeClaim of the storage; None: that of the release."""
    image: str | None = None
    """The image of the reader pod of a release that is gone; None: that of another release."""
    seconds: int = READ_SECONDS
    """The deadline of a reader pod, in seconds after its start."""
    writable: bool = False
    outlives_training: bool = False
    """Whether the folder must stay open when the training's pods exit."""


def check_name(name: str, fix: str) -> str:
    """Return `name` if it can be a folder and a chart value. Raises UsageError with `fix` otherwise."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"the name '{name}' is invalid: it becomes a folder and a chart value, so it must have 1 to 63 "
            "letters, digits, dots, dashes or underscores and begin with a letter or digit",
            fix,
        )
    return name


def storage_of_job(storage: Storage, job: str | None) -> Storage:
    """Return the folder of another `job` on the same storage; for None `storage` itself."""
    if job is None:
        return storage
    return storage.sibling(check_name(job, "give the jobName of a training with --job NAME"))


class _LocalReader(io.RawIOBase):
    """Runs a subcommand of `launcher reader` in a thread of this process.

    After `close`, the subcommand ends when it writes to stdout the next time.
    """

    def __init__(self, argv: Sequence[str], stdin: IO[bytes] | None) -> None:
        reading_end, writing_end = os.pipe()
        self._out = os.fdopen(reading_end, "rb", buffering=0)
        self._problem = (
            f"the reader command {argv[0]} did not finish. Fix: check that the folder's disk responds"
        )
        arguments = (argv, stdin or io.BytesIO(), os.fdopen(writing_end, "wb"))
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self._thread.start()

    def _run(self, argv: Sequence[str], stdin: IO[bytes], out: IO[bytes]) -> None:
        with stdin, suppress(OSError), out:
            self._problem = reader_commands.run(argv, stdin, out)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return self._out.readinto(buffer)

    def result(self) -> None:
        while self._out.read(65536):
            pass
        self._thread.join(IDLE_SECONDS)
        self.close()
        if self._problem:
            raise storage_failure(self._problem)

    def close(self) -> None:
        self._out.close()
        super().close()


def folder_storage(folder: Path) -> Storage:
    """Return access to a job's folder on this machine."""
    return Storage(PurePosixPath(folder.resolve()), lambda argv, stdin, _: _LocalReader(argv, stdin))


def pod_storage(cluster: Cluster, pod: str, container: str, job: PurePosixPath) -> Storage:
    """Return access to a job's folder through a container of a pod; `job` is its path in the container."""

    def start(argv: Sequence[str], stdin: IO[bytes] | None, idle_seconds: float) -> ReaderStream:
        return cluster.exec(
            pod, container, ["python3", "-m", "launcher", "reader", *argv], stdin, idle_seconds
        )

    return Storage(job, start, f"(through pod {pod})")


class _KeepOpen(io.RawIOBase):
    """Wrapper of a stream. Closing the wrapper does not close the stream, whose `result()` is called later."""

    def __init__(self, stream: ReaderStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return self._stream.readinto(buffer)


def buffered_reader(stream: ReaderStream) -> io.BufferedReader:
    """Return a file object on the stream, whose `read(n)` returns n bytes unless the stream ends."""
    return io.BufferedReader(_KeepOpen(stream), buffer_size=256 * 1024)


def read_small_files(storage: Storage, names: Sequence[str]) -> dict[str, bytes]:
    """Read files of the job's folder with one command; return their contents by name, without absent files.

    `names` are paths or glob patterns below the folder.
    """
    stream = storage.run("tar", "--optional", *names)
    found: dict[str, bytes] = {}
    try:
        for name, _, content in read_tar(buffered_reader(stream)):
            found[name] = b"".join(iter(functools.partial(content.read, 1 << 16), b""))
    except Exception:
        stream.result()  # raises the sender's own message, if there is one
        raise
    stream.result()
    return found


def list_folder(storage: Storage, folder: str) -> list[str]:
    """Return the names in a folder below the job's; an empty list if the folder does not exist."""
    return [str(entry["name"]) for entry in run_json_command(storage, "ls", "--optional", folder)]


def run_json_command(storage: Storage, *argv: str, stdin: IO[bytes] | None = None) -> Any:
    """Run a command of `launcher reader` where the storage is mounted; return its answer, parsed from JSON.

    Without `stdin` the command may be silent for SLOW_IDLE_SECONDS before the connection counts as lost.
    """
    stream = storage.run(
        *argv, stdin=stdin, idle_seconds=SLOW_IDLE_SECONDS if stdin is None else IDLE_SECONDS
    )
    answer = buffered_reader(stream).read()
    stream.result()
    return json.loads(answer)


def stream_file(storage: Storage, name: str, follow_seconds: float, until: str | None) -> Iterator[bytes]:
    """Yield a file's bytes; with `follow_seconds` above 0 also what is appended, for at most so long.

    Following ends when the status file `until` says that the run is over.
    """
    options = (
        ["--follow", str(follow_seconds), *(["--until", until] if until else [])] if follow_seconds else []
    )
    stream = storage.run("cat", *options, name, idle_seconds=follow_seconds or IDLE_SECONDS)
    buffer = bytearray(64 * 1024)
    try:
        while size := stream.readinto(buffer):
            yield bytes(buffer[:size])
        stream.result()
    finally:
        stream.close()


READER = "reader"
OWNER = "paddle-training/reader-owner"  # annotation: host:pid of the command that created the pod
START_SECONDS = 120.0  # it starts in 2 s if the image is on the node; a pull of 900 MB takes about a minute
UNBOUND_SECONDS = 45.0
"""A pod that is unscheduled for longer stays so until somebody acts. The controller that binds claims retries
every 15 s (kube-controller-manager's --pvclaimbinder-sync-period)."""


class UnschedulableError(CliError):
    """No node can run the reader pod."""


def build_pod(
    run: ReleaseRun, name: str, owner: str, *, seconds: int, writable: bool, template: Object | None
) -> Object:
    """Return the Kubernetes object of a reader pod, with the run's image, user and claim.

    `owner` is the `host:pid` of the command that creates the pod, `template` the training Job's pod spec, whose
    tolerations and node selector the pod has, too.
    """
    like = template or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {NAME_LABEL: CHART, RELEASE_LABEL: run.release, COMPONENT_LABEL: READER},
            "annotations": {OWNER: owner},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": seconds,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "serviceAccountName": run.service_account,
            "imagePullSecrets": run.image_pull_secrets,
            **{key: like[key] for key in ("tolerations", "nodeSelector") if like.get(key)},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": run.uid,
                "runAsGroup": run.gid,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": READER,
                    "image": run.image,
                    "imagePullPolicy": run.image_pull_policy,
                    "command": ["python3", "-m", "launcher", "reader", "--seconds", str(seconds)],
                    # It requests nothing, so that it starts on a full cluster, too. Without the zeros the
                    # limit would be the request, and a quota could reject the pod.
                    "resources": {"requests": {"cpu": "0", "memory": "0"}, "limits": {"memory": "128Mi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "jobs", "mountPath": run.job_path, "readOnly": not writable}],
                }
            ],
            "volumes": [
                {"name": "jobs", "persistentVolumeClaim": {"claimName": run.claim, "readOnly": not writable}}
            ],
        },
    }


def is_stale(pod: Object, host: str, alive: Callable[[int], bool]) -> bool:
    """Return whether the pod has finished, or was created by a process of this `host` that is gone."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return True
    made_on, _, pid = str((pod["metadata"].get("annotations") or {}).get(OWNER, "")).rpartition(":")
    return made_on == host and pid.isdigit() and not alive(int(pid))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_stale(cluster: Cluster, release: str) -> None:
    """Delete the reader pods of commands that were killed before they could delete them."""
    for pod in cluster.list_objects("pod", labels(release, READER)):
        if is_stale(pod, socket.gethostname(), _alive):
            cluster.delete("pod", object_states.name_of(pod), grace_seconds=1)


def _training_template(cluster: Cluster, run: ReleaseRun) -> Object | None:
    with contextlib.suppress(CliError):
        job = cluster.find("job", run.k8s_job)
        return dict(job["spec"]["template"]["spec"]) if job else None
    return None


@contextlib.contextmanager
def open_reader_pod(
    cluster: Cluster,
    run: ReleaseRun,
    seconds: int,
    writable: bool = False,
) -> Iterator[Storage]:
    """Create a reader pod, and yield the job's folder through it; then delete the pod.

    The pod is deleted on every way out of the block: an exception or a signal, which is an exception, too (main.py).
    `seconds` is the pod's deadline.

    Raises:
        UnschedulableError: no node can run the pod.
        CliError: the claim does not exist, or the pod does not start for another reason.
    """
    require_claim(cluster, run)
    remove_stale(cluster, run.release)
    name = f"{run.release[:40]}-reader-{secrets.token_hex(3)}"
    owner, template = f"{socket.gethostname()}:{os.getpid()}", _training_template(cluster, run)
    pod = build_pod(run, name, owner, seconds=seconds, writable=writable, template=template)
    try:
        cluster.create("pod", pod)
        _await_running(cluster, run, name)
        yield pod_storage(cluster, name, READER, PurePosixPath(run.job_path) / run.job_name)
    except BaseException:
        with contextlib.suppress(CliError):  # the first error is the one to report
            _delete(cluster, name)
        raise
    _delete(cluster, name)


def _delete(cluster: Cluster, name: str) -> None:
    with handle_signals(lambda _: None):  # a second Ctrl-C must not leave the pod behind
        for pause in (0.5, 2.0, None):
            try:
                cluster.delete("pod", name, grace_seconds=1)
            except CliError:
                if pause is None:
                    raise
                time.sleep(pause)
            else:
                return


def claim_problem(cluster: Cluster, run: ReleaseRun) -> str:
    """Return why the run's claim cannot be mounted; empty if it can be, or if the user may not read it."""
    try:
        claim = cluster.find("persistent_volume_claim", run.claim)
    except CliError:
        return ""  # without that right, the pod's own state explains the problem
    return object_states.explain_claim(claim, run.claim, cluster.list_events(run.claim) if claim else ())


def require_claim(cluster: Cluster, run: ReleaseRun) -> None:
    """Raise CliError if the claim in the release's values does not exist."""
    problem = claim_problem(cluster, run)
    if object_states.ABSENT in problem:
        raise CliError(
            f"{problem} in namespace {run.namespace}, so the storage of release {run.release} cannot be reached",
            "create the claim, or set an existing one in the release's values (storage) and run helm upgrade",
        )


def _await_running(cluster: Cluster, run: ReleaseRun, name: str) -> None:
    started = time.monotonic()
    last_reason = ""
    while True:
        pod = cluster.find("pod", name)
        if pod is None:
            raise CliError(f"the reader pod {name} was deleted before it ran", "run the same command again")
        phase = pod.get("status", {}).get("phase")
        if phase == "Running":
            return
        waited = time.monotonic() - started
        events: Sequence[Any] = cluster.list_events(name) if waited > 3 else ()
        why = object_states.explain_pending(pod, events)
        if phase in ("Succeeded", "Failed"):
            raise CliError(
                f"the reader pod {name} exited: {object_states.explain_failure(pod) or phase}",
                "correct this cause, then run the same command again",
            )
        waiting = object_states.unusual_wait(pod)
        if waiting and waiting[0] in object_states.PERMANENT_WAITS:
            raise CliError(
                f"the reader pod {name} cannot start: {waiting[1]}",
                f"make the run's image {run.image} available to node {pod['spec'].get('nodeName')}",
            )
        scheduled = object_states.find_condition(pod, "PodScheduled")
        if waited > UNBOUND_SECONDS and scheduled and scheduled.get("status") == "False":
            problem = claim_problem(cluster, run)
            raise UnschedulableError(
                f"no node can run the reader pod {name}: {why}" + (f". {problem}" if problem else ""),
                "free a node or bind the claim (kubectl describe pod, pvc), then run the same command again",
            )
        if waited > START_SECONDS:
            raise CliError(
                f"the reader pod {name} did not start within {START_SECONDS:.0f} s: {why}",
                "remove that cause, then run the same command again",
            )
        if waited > 3 and why != last_reason:
            report(f"waiting for the reader pod {name}: {why}")
            last_reason = why
        time.sleep(0.25 if waited < 5 else 1.0)
