"""`logs`: a pod's own log while it exists, and the logs of pservers and trainers from the shared storage."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from launcher.cli import reasons, view
from launcher.cli.problems import CliError
from launcher.cli.session import OUTPUT, STATUS_FILES, ClusterSession, Session, status_files
from launcher.cli.storage import Storage, entries, stream_file

FOLLOW_SECONDS = 24 * 3600
PAUSE_SECONDS = 2.0  # between two looks for the pod that replaces another
_ATTEMPT = re.compile(r"attempt-(\d+)")


def stored_name(role: str, rank: int, server: int, attempt: int | None) -> str:
    """Path of a log below the job's folder; `attempt` None is the newest, of which the rank has a log."""
    current = OUTPUT.server_log(rank, server) if role == "pserver" else OUTPUT.train_log(rank)
    if attempt is None:
        return current.as_posix()
    return (OUTPUT.attempt(rank, attempt) / current.name).as_posix()


def is_kept(storage: Storage, rank: int, attempt: int) -> bool:
    """Whether this attempt's logs were moved to a folder of their own; False: they are the newest ones.

    Raises CliError for an attempt of which this rank has none.
    """
    found = [_ATTEMPT.fullmatch(name) for name in entries(storage, OUTPUT.node(rank).as_posix())]
    kept = sorted(int(match[1]) for match in found if match)
    if attempt in kept:
        return True
    status = status_files(storage)["status"] or {}
    newest = int(status.get("attempt") or 0)
    if status.get("state") == "rendezvous":
        newest -= 1  # the present attempt has started nothing, and the last one's logs are where they were
    if attempt == newest:
        return False
    there = ", ".join(str(number) for number in [*kept, *([newest] if newest >= 0 else [])])
    raise CliError(
        f"rank {rank} has no log of attempt {attempt}: it has {there or 'none'} (attempts count from 0, as "
        "the folders attempt-<K> do). Without --attempt the newest is shown."
    )


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
    role = role if attempt is None else role or "trainer"
    if isinstance(session, ClusterSession) and role in (None, "data"):
        run = session.run()
        pod = _pod(session, run, None if role else rank)
        if pod is not None:
            yield from _of_pod(session, pod, following)
            if following and role is None:
                yield from _of_successors(session, pod, rank, say)
            return
        if role is None and rank >= run.trainers:
            raise CliError(f"--rank {rank} does not exist: this run has ranks 0 to {run.trainers - 1}.")
        say(f"no pod of Job {run.k8s_data_job if role else run.k8s_job} is left; reading the storage")
    if role == "data":
        yield from _data_summary(session)
        return
    yield from _stored(session, role or "trainer", rank, server, attempt, following=following)


def _pod(session: ClusterSession, run: view.Run, rank: int | None) -> dict[str, Any] | None:
    """The newest pod of that rank, or for None of the data Job."""
    job = run.k8s_data_job if rank is None else run.k8s_job
    pods = [pod for pod in session.pods() if view.owned_by(job)(pod)]
    return view.newest([pod for pod in pods if rank is None or view.rank_of(pod) == rank])


def _of_pod(session: ClusterSession, pod: dict[str, Any], following: bool) -> Iterator[bytes]:
    name, container = reasons.name(pod), pod_container(pod)
    if container is None:
        why = reasons.pending_reason(pod, session.cluster.events(name))
        raise CliError(f"{name} has no log yet: {why}")
    yield from session.cluster.pod_log(name, container, following)


def _of_successors(
    session: ClusterSession, pod: dict[str, Any], rank: int, say: Callable[[str], None]
) -> Iterator[bytes]:
    """The logs of the pods that take the place of `pod`, until the run is over."""
    last, deadline = reasons.name(pod), time.monotonic() + FOLLOW_SECONDS
    while time.monotonic() < deadline:
        looked = session.glance()
        if looked.over or looked.state == "missing":
            return
        found = _pod(session, session.run(), rank)
        if found is not None and reasons.name(found) != last and pod_container(found) is not None:
            say(f"pod {last} has ended; going on with {reasons.name(found)}, which took its place")
            last = reasons.name(found)
            yield from _of_pod(session, found, following=True)
        elif found is not None and found.get("status", {}).get("phase") == "Succeeded":
            return
        else:
            time.sleep(PAUSE_SECONDS)


def _stored(
    session: Session, role: str, rank: int, server: int, attempt: int | None, *, following: bool
) -> Iterator[bytes]:
    seconds = FOLLOW_SECONDS if following else 0
    with session.storage(seconds=seconds or 300) as storage:
        if attempt is not None and is_kept(storage, rank, attempt):
            yield from stream_file(storage, stored_name(role, rank, server, attempt), 0, None)  # it is over
            return
        try:
            name = stored_name(role, rank, server, None)
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
