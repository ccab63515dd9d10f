"""Access to one job's folder on the shared storage: on this machine (`--path`) or in a pod that mounts it.

Both ways run the same reader commands (launcher/cli/reader_commands.py), so that a local folder and
a pod behave alike.

The pod is one of the run's pods, or a reader pod: a short-lived pod with the run's image that mounts the storage. So
the storage can be read after all pods of the run are gone. A reader pod runs under restricted Pod Security, has no
service account token and has a deadline; the command that creates it deletes it, unless the command is killed.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any

import typer

from launcher.cli import object_states, reader_commands
from launcher.cli.cluster_api import Cluster, CommandOutput, Object, release_labels
from launcher.cli.errors import CliError, UsageError, storage_failure
from launcher.cli.releases import SOURCES, ReleaseRun
from launcher.cli.terminal import report
from launcher.io.stop_signals import handle_signals
from launcher.io.tar_stream import read_tar

IDLE_SECONDS = 60.0  # a copy fails after this time without a byte
READ_SECONDS = 300  # deadline of a reader pod that reads small files
COPY_SECONDS = 3600  # deadline of a reader pod that copies data
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


Start = Callable[[Sequence[str], IO[bytes] | None, float], CommandOutput]
"""A function that starts a reader command. Its parameters are the command's arguments, the bytes for the command's
stdin (None: none), and the seconds without a byte after which the command fails."""


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

    @contextlib.contextmanager
    def run(
        self,
        command: str,
        *arguments: str,
        stdin: IO[bytes] | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> Iterator[io.BufferedReader[CommandOutput]]:
        """Run a subcommand of `launcher reader` on the job's folder; yield its stdout, which the block reads.

        The command fails after `idle_seconds` without a byte from or to a pod. If the command fails, this method raises
        CliError with the command's stderr. If the block has raised an error, too, such as an incomplete archive, the
        CliError replaces this error, because the failed command is its likely cause. A CliError or OSError of the block
        is not replaced.
        """
        argv = [command, "--root", str(self.job), *arguments]
        with contextlib.closing(self.start(argv, stdin, idle_seconds)) as output:
            reader = io.BufferedReader(output, 256 * 1024)
            try:
                yield reader
            except (CliError, OSError):  # of the connection or this machine: the rest of stdout is not read
                raise
            except Exception:
                output.result()
                raise
            output.result()

    def sibling(self, job: str) -> Storage:
        """Return the folder of another job on the same storage; the job "." means the folder that contains all jobs."""
        return replace(self, job=self.job.parent / job)


ClaimOption = Annotated[
    str | None,
    typer.Option(
        "--claim",
        metavar="NAME",
        help="Read the storage through this PersistentVolumeClaim, for a release that is uninstalled.",
    ),
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        "--image",
        help="Image of the pod that reads the storage; default: the image of a release of the namespace.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class StorageRequest:
    """Selects the job's folder that a command opens, how long it stays open, and whether it is opened for writing.

    Fields of type `Annotated` are options of commands. Without these options, the job, the claim and the image of the
    release are used.
    """

    job: Annotated[
        str | None,
        typer.Option("--job", metavar="NAME", help="Another job's folder on the same storage (its jobName)."),
    ] = None
    claim: ClaimOption = None
    image: ImageOption = None
    seconds: int = READ_SECONDS
    """The deadline of a reader pod, in seconds after its start."""
    writable: bool = False
    outlives_training: bool = False
    """Whether the folder must stay open when the training's pods exit."""


def storage_of_job(storage: Storage, job: str | None) -> Storage:
    """Return the folder of another `job` on the same storage; if `job` is None, return `storage` itself.

    Raises UsageError if `job` cannot be the name of a folder and a chart value.
    """
    if job is None:
        return storage
    if not _NAME.fullmatch(job):
        raise UsageError(
            f"the name '{job}' is invalid: it becomes a folder and a chart value, so it must have 1 to 63 "
            "letters, digits, dots, dashes or underscores and begin with a letter or digit",
            "give the jobName of a training with --job NAME",
        )
    return storage.sibling(job)


class _LocalReader(CommandOutput):
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
        with stdin, contextlib.suppress(OSError), out:
            self._problem = reader_commands.run(argv, stdin, out)

    def readinto(self, buffer: Any) -> int | None:
        return self._out.readinto(buffer)

    def result(self) -> None:
        while self._out.read(65536):
            pass
        self._thread.join(IDLE_SECONDS)
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

    def start(argv: Sequence[str], stdin: IO[bytes] | None, idle_seconds: float) -> CommandOutput:
        command = ["python3", "-m", "launcher", "reader", *argv]
        return cluster.exec(pod, container, command, stdin, idle_seconds)

    return Storage(job, start, f"(through pod {pod})")


def read_small_files(storage: Storage, names: Sequence[str]) -> dict[str, bytes]:
    """Read files of the job's folder with one command; return their contents by name, without absent files.

    `names` are paths or glob patterns below the folder.
    """
    with storage.run("tar", "--optional", *names) as stream:
        return {
            name: b"".join(iter(functools.partial(content.read, 1 << 16), b""))
            for name, _, content in read_tar(stream)
        }


def list_jobs(storage: Storage) -> list[str]:
    """Return the names of all jobs' folders on the storage."""
    entries = run_json_command(storage.sibling("."), "ls")
    names = [str(entry["name"]) for entry in entries if entry["type"] == "folder"]
    return [name for name in names if name != SOURCES and not name.startswith(".")]


def run_json_command(storage: Storage, *argv: str, stdin: IO[bytes] | None = None) -> Any:
    """Run a command of `launcher reader` where the storage is mounted; return its answer, parsed from JSON."""
    with storage.run(*argv, stdin=stdin) as stream:
        answer = stream.read()
    return json.loads(answer)


READER = "reader"
START_SECONDS = 120.0
"""A reader pod starts in 2 s if the image is on the node; a pull of 900 MB takes about a minute."""
UNBOUND_SECONDS = 45.0
"""A pod that is unscheduled for longer stays so until somebody acts. The controller that binds claims retries
every 15 s (kube-controller-manager's --pvclaimbinder-sync-period)."""


class UnschedulableError(CliError):
    """No node can run the reader pod."""


def build_pod(run: ReleaseRun, name: str, *, seconds: int, writable: bool, template: Object | None) -> Object:
    """Return the Kubernetes object of a reader pod, with the run's image, user and claim.

    The pod gets the tolerations and the node selector of `template`, the training Job's pod spec; None: it has neither.
    """
    like = template or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": release_labels(run.release, READER)},
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


@contextlib.contextmanager
def open_reader_pod(
    cluster: Cluster, run: ReleaseRun, seconds: int, writable: bool = False
) -> Iterator[Storage]:
    """Create a reader pod, and yield the job's folder through it; then delete the pod.

    The pod is deleted however the block ends. A signal raises an exception in the block (main.py), so the pod is
    deleted after a signal, too. `seconds` is the pod's deadline.

    Before it creates the pod, this function deletes the release's reader pods that have exited: killed commands have
    left them.

    Raises:
        UnschedulableError: no node can run the pod.
        CliError: the claim does not exist, or the pod does not start for another reason.
    """
    require_claim(cluster, run)
    for pod in cluster.list_objects("pod", release_labels(run.release, READER)):
        if object_states.phase_of(pod) in object_states.ENDED:  # left by a killed command
            cluster.delete("pod", object_states.name_of(pod), grace_seconds=1)
    name = f"{run.release[:40]}-reader-{secrets.token_hex(3)}"
    template = None
    with contextlib.suppress(CliError):
        job = cluster.find("job", run.k8s_job)
        template = job["spec"]["template"]["spec"] if job else None
    pod = build_pod(run, name, seconds=seconds, writable=writable, template=template)
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
    """Return why the run's claim cannot be mounted; empty if it can be mounted, or if the claim cannot be read.

    For example, the user may not have the right to read claims.
    """
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
    started, last_reason = time.monotonic(), ""
    while True:
        pod = cluster.find("pod", name)
        if pod is None:
            raise CliError(f"the reader pod {name} was deleted before it ran", "run the same command again")
        phase = object_states.phase_of(pod)
        if phase == "Running":
            return
        if phase in object_states.ENDED:
            raise CliError(
                f"the reader pod {name} exited: {object_states.explain_failure(pod) or phase}",
                "correct this cause, then run the same command again",
            )
        waited = time.monotonic() - started
        why = object_states.explain_pending(pod, cluster.list_events(name) if waited > 3 else ())
        waiting = object_states.unusual_wait(pod)
        if waiting and waiting[0] in object_states.PERMANENT_WAITS:
            raise CliError(
                f"the reader pod {name} cannot start: {waiting[1]}",
                f"make the run's image {run.image} available to node {pod['spec'].get('nodeName')}",
            )
        scheduled = object_states.find_condition(pod, "PodScheduled")
        if waited > UNBOUND_SECONDS and scheduled.get("status") == "False":
            problems = (f"no node can run the reader pod {name}: {why}", claim_problem(cluster, run))
            raise UnschedulableError(
                ". ".join(filter(None, problems)),
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
