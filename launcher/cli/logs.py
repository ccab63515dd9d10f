"""`logs`: a pod's own log while it exists, and the logs of pservers and trainers from the shared storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from launcher.cli import reasons, view
from launcher.cli.problems import CliError
from launcher.cli.session import OUTPUT, STATUS_FILES, ClusterSession, Session
from launcher.cli.storage import stream_file

FOLLOW_SECONDS = 24 * 3600
ROLES = ("trainer", "pserver", "data")


def stored_name(role: str, rank: int, server: int, attempt: int | None) -> str:
    """Path of a log below the job's folder; `attempt` None is the present one."""
    current = OUTPUT.server_log(rank, server) if role == "pserver" else OUTPUT.train_log(rank)
    if attempt is None:
        return current.as_posix()
    return (OUTPUT.attempt(rank, attempt) / current.name).as_posix()


def pod_container(pod: dict[str, Any]) -> str | None:
    """The container whose log tells most: the main one once it has begun, before that the init container."""
    status = pod.get("status", {})
    for key in ("containerStatuses", "initContainerStatuses"):
        for entry in status.get(key, []):
            if {"running", "terminated"} & (entry.get("state") or {}).keys() or entry.get("lastState"):
                return str(entry["name"])
    return None


def read(
    session: Session,
    *,
    rank: int,
    role: str | None,
    server: int,
    attempt: int | None,
    following: bool,
    say: Callable[[str], None],
) -> Iterator[bytes]:
    """The asked log, from the pod without a role (or with `data`) and no attempt, else from the storage."""
    if isinstance(session, ClusterSession) and attempt is None and role in (None, "data"):
        run = session.run()
        job = run.k8s_data_job if role == "data" else run.k8s_job
        pods = [pod for pod in session.pods() if view.owned_by(job)(pod)]
        if role is None:
            pods = [pod for pod in pods if view.rank_of(pod) == rank]
        pod = view.newest(pods)
        if pod is not None:
            yield from _of_pod(session, pod, following)
            return
        if role is None and rank >= run.trainers:
            raise CliError(f"--rank {rank} does not exist: this run has ranks 0 to {run.trainers - 1}.")
        say(f"no pod of Job {job} is left; reading the storage")
    if role == "data":
        yield from _data_summary(session)
        return
    yield from _stored(session, stored_name(role or "trainer", rank, server, attempt), following)


def _of_pod(session: ClusterSession, pod: dict[str, Any], following: bool) -> Iterator[bytes]:
    name, container = reasons.name(pod), pod_container(pod)
    if container is None:
        why = reasons.pending_reason(pod, session.cluster.events(name))
        raise CliError(f"{name} has no log yet: {why}")
    yield from session.cluster.pod_log(name, container, following)


def _stored(session: Session, name: str, following: bool) -> Iterator[bytes]:
    seconds = FOLLOW_SECONDS if following else 0
    with session.storage(seconds=seconds or 300) as storage:
        try:
            yield from stream_file(storage, name, seconds, STATUS_FILES["status"])
        except CliError:
            if not following or not session.glance().over:
                raise  # else the pod that was read through has ended with the run


def _data_summary(session: Session) -> Iterator[bytes]:
    """What the data Job left on the storage: its log is not kept there."""
    looked = session.look()
    if looked.data is None or looked.data.state == "missing":
        raise CliError("the data Job left neither manifest.json nor data-failed.json; it has not finished.")
    yield f"{looked.data.name}: {looked.data.state}. {looked.data.reason}\n".encode()
