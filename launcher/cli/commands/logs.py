"""`logs`: print the log of a pod, or logs of pservers and trainers from the shared storage."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from launcher.cli import object_states
from launcher.cli.errors import CliError, UsageError
from launcher.cli.job_sessions import ClusterSession, Session
from launcher.cli.releases import ReleaseRun
from launcher.cli.run_files import STATUS, check_intact, read_job_files
from launcher.cli.run_view import PREPARE, newest_pod, pods_of
from launcher.cli.shared_options import open_session, with_options
from launcher.cli.storage import IDLE_SECONDS, READ_SECONDS, Storage, StorageRequest, run_json_command
from launcher.cli.terminal import print_blocks, report
from launcher.reporting.saved_runs import OUTPUT

FOLLOW_SECONDS = 24 * 3600
PAUSE_SECONDS = 2.0  # between two checks whether a new pod has replaced an old one
_ATTEMPT = re.compile(r"attempt-(\d+)")


@dataclass(frozen=True)
class LogRequest:
    """The options of `logs`, which select a log.

    If `role` is None, the log is the launcher's own log in the rank's pod; without that pod, and for a given attempt,
    it is the trainer's log on the storage. If `attempt` is None, the log is the one of the newest attempt.
    """

    rank: Annotated[int, typer.Option(min=0, help="The rank.")] = 0
    role: Annotated[
        Literal["trainer", "pserver", "data"] | None,
        typer.Option(
            help="trainer or pserver: that process's log; data: the log of the data Job, or of the rank's pod if "
            "training pods prepare the data. Default: the launcher's."
        ),
    ] = None
    server: Annotated[
        int,
        typer.Option(
            min=0,
            help="Which pserver of the rank, with --role pserver, or which trainer (runtime collective).",
        ),
    ] = 0
    attempt: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="K",
            help="The log of this attempt. Attempts count from 0, as in node_<rank>/attempt-<K>/; "
            "default: the newest.",
        ),
    ] = None
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Print new lines until the run is over, also after restarts."),
    ] = False

    @property
    def stored_path(self) -> str:
        """The path, relative to the job's folder, of the log of the rank's newest attempt."""
        if self.role == "pserver":
            return OUTPUT.server_log(self.rank, self.server).as_posix()
        return OUTPUT.train_log(self.rank, self.server).as_posix()

    def attempt_path(self, attempt: int) -> str:
        """Return the path, relative to the job's folder, to which an attempt's log is moved after the attempt."""
        return (OUTPUT.attempt(self.rank, attempt) / self.stored_path.rpartition("/")[2]).as_posix()


@with_options(session=open_session, request=LogRequest)
def logs(session: Session, request: LogRequest) -> None:
    """Print a log: the pod's log while the pod exists, else the file in output/node_<rank>/ on the shared storage.

    Control characters are printed as escapes if stdout is a terminal, and unchanged into a file or pipe.
    """
    print_blocks(read_log(session, request))


def read_log(session: Session, request: LogRequest) -> Iterator[bytes]:
    """Yield the bytes of the requested log.

    The log of a launcher or of the data Job is read from its pod while the pod exists. All other logs, and all logs of
    a given attempt, are read from files on the storage. The storage has no log of the data Job: without its pod, this
    function yields one line with the state of the data.

    Raises:
        UsageError: the run does not have this rank or attempt, or an attempt is given for the log of the data.
        CliError: there is no log yet, or the cluster or storage cannot be read.
        DataError: a file that describes the run or its data is damaged.
    """
    if request.role == "data" and request.attempt is not None:
        raise UsageError(
            "--attempt selects a log of training processes, and the preparation of the data has no attempts",
            "omit --attempt or --role data",
        )
    if isinstance(session, ClusterSession) and request.attempt is None and request.role in (None, "data"):
        run = session.run()
        is_data = request.role == "data"
        rank = request.rank if not is_data or run.is_prepared_in_training_pods else None
        pod = _find_pod(session, run, rank)
        if pod is not None:
            only = PREPARE if is_data and rank is not None else None
            yield from _stream_pod(session, pod, request.follow, only)
            if request.follow and not is_data and rank is not None:
                yield from _stream_replacements(session, pod, rank)
            return
        if rank is not None and rank >= run.trainers:
            raise UsageError(
                f"--rank {rank}: this run has {run.trainers} ranks",
                f"choose one from 0 to {run.trainers - 1}",
            )
        job = run.k8s_data_job if rank is None else run.k8s_job
        if job:
            report(f"Job {job} has no pods any more; reading the storage")
    if request.role == "data":
        yield from _describe_data(session)
        return
    yield from _stream_stored(session, request)


def has_attempt_folder(storage: Storage, rank: int, attempt: int) -> bool:
    """Return whether an attempt's logs were moved to `attempt-<k>/`.

    The launcher moves the logs when a later attempt starts. Raises UsageError if this rank has no logs of the attempt,
    and DataError if status.json is damaged.
    """
    entries = run_json_command(storage, "ls", "--optional", OUTPUT.node(rank).as_posix())
    moved = sorted(int(match[1]) for entry in entries if (match := _ATTEMPT.fullmatch(entry["name"])))
    if attempt in moved:
        return True
    files = read_job_files(storage)
    check_intact({key: why for key, why in files.damage.items() if key == STATUS}, storage.where)
    status = files.status
    newest = status.attempt if status else 0
    if status and status.state == "rendezvous":
        newest -= 1  # the current attempt has no logs yet, and the logs of the last attempt are not moved yet
    if attempt == newest:
        return False
    known = ", ".join(str(number) for number in [*moved, *([newest] if newest >= 0 else [])])
    raise UsageError(
        f"--attempt {attempt}: rank {rank} has no log of this attempt. Attempts count from 0; there are logs "
        f"of: {known or 'none'}",
        "choose one of these, or omit --attempt for the newest",
    )


def _log_container(pod: dict[str, Any], only: str | None = None) -> str | None:
    """Return the container with the log: the main one once it has started, before that the newest init container.

    With `only`, no other container is considered.
    """
    status = pod.get("status", {})
    for key in ("containerStatuses", "initContainerStatuses"):
        for entry in reversed(status.get(key, [])):
            if only not in (None, entry["name"]):
                continue
            if {"running", "terminated"} & (entry.get("state") or {}).keys() or entry.get("lastState"):
                return str(entry["name"])
    return None


def _find_pod(session: ClusterSession, run: ReleaseRun, rank: int | None) -> dict[str, Any] | None:
    """Return the newest pod of a rank, or for `rank` None the newest pod of the data Job."""
    job = run.k8s_data_job if rank is None else run.k8s_job
    return newest_pod(pods_of(session.pods(), job, rank))


def _stream_pod(
    session: ClusterSession, pod: dict[str, Any], follow: bool, only: str | None = None
) -> Iterator[bytes]:
    name, container = object_states.name_of(pod), _log_container(pod, only)
    if container is None:
        why = object_states.explain_pending(pod, session.cluster.list_events(name))
        raise CliError(f"pod {name} has no log yet: {why}", "run the same command again once the pod runs")
    yield from session.cluster.stream_log(name, container, follow)


def _stream_replacements(session: ClusterSession, pod: dict[str, Any], rank: int) -> Iterator[bytes]:
    """Yield the logs of the containers that run after the current one of `pod`, until the run is over.

    They are the main container, if `pod` was in its init container, and the containers of pods that replace `pod`.
    """
    last, deadline = (object_states.name_of(pod), _log_container(pod)), time.monotonic() + FOLLOW_SECONDS
    while time.monotonic() < deadline:
        view = session.peek_view()
        if view.is_over or view.state == "missing":
            return
        found = _find_pod(session, session.run(), rank)
        current = (object_states.name_of(found), _log_container(found)) if found is not None else last
        if found is not None and current != last and current[1] is not None:
            if current[0] != last[0]:
                report(f"pod {last[0]} has exited; continuing with {current[0]}, which replaces it")
            last = current
            yield from _stream_pod(session, found, follow=True)
        elif found is not None and object_states.phase_of(found) == "Succeeded":
            return
        else:
            time.sleep(PAUSE_SECONDS)


def _stream_stored(session: Session, request: LogRequest) -> Iterator[bytes]:
    seconds = FOLLOW_SECONDS if request.follow else 0
    with session.storage(StorageRequest(seconds=seconds or READ_SECONDS)) as storage:
        if request.attempt is not None and has_attempt_folder(storage, request.rank, request.attempt):
            path = request.attempt_path(request.attempt)
            yield from _stream_file(storage, path, 0)  # that attempt writes no more
            return
        try:
            yield from _stream_file(storage, request.stored_path, seconds)
        except CliError as error:
            if "No such file" in str(error):
                fix = "check with the command status which ranks have started, and choose one with --rank"
                why = str(error).partition(". Fix:")[0]
                raise CliError(f"the storage has no log of rank {request.rank} yet: {why}", fix) from error
            if not request.follow:
                raise
            view = session.read_view()
            check_intact(view.damage, view.where)
            if not isinstance(session, ClusterSession) or not view.is_over:
                raise  # else the pod through which the storage was read has exited with the run


def _stream_file(storage: Storage, name: str, follow_seconds: float) -> Iterator[bytes]:
    """Yield a file's bytes; with `follow_seconds` above 0 also what is appended during this time.

    Following ends earlier when status.json says that the run is over.
    """
    options = ["--follow", str(follow_seconds), "--until", STATUS] if follow_seconds else []
    with storage.run("cat", *options, name, idle_seconds=follow_seconds or IDLE_SECONDS) as stream:
        while block := stream.read1(64 * 1024):
            yield block


def _describe_data(session: Session) -> Iterator[bytes]:
    """Yield one line with the data Job's state, instead of the log: the storage has the state, but not the log."""
    view = session.read_view()
    if view.data is None or view.data.state == "missing":
        raise CliError(
            "the storage has neither manifest.json nor data-failed.json: the data Job has not finished",
            "run the same command again when it has finished",
        )
    state = f"{view.data.name}: {view.data.state}. " if view.data.name else ""  # else there is no data Job
    yield f"{state}{view.data.reason}\n".encode()
    check_intact(view.damage, view.where)
