"""`clean`: what would be removed from the storage, its size, and who uses it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from launcher.cli import leftovers, reasons, runs
from launcher.cli.cluster import CHART, NAME_LABEL
from launcher.cli.problems import CliError, UsageError
from launcher.cli.session import OUTPUT, ClusterSession, Session
from launcher.cli.storage import Storage, json_file, json_of, small_files
from launcher.cli.view import Object, Run
from launcher.reporting import figures

SOURCES = "sources"
SCHEME = "file://"
LOCK_SECONDS = 8.0  # rank 0 changes run.lock every 2 s while a run writes there
LIVE = ("running", "suspended")
"""States of a Job whose run needs its folder."""


@dataclass(frozen=True)
class Found:
    """A file or folder of the storage that may be removed."""

    path: str
    """Below the storage's root."""
    about: str = ""
    """Who uses it, or its score."""
    kept: str = ""
    """Why it must stay; empty: it may go."""
    size: int = 0
    """Bytes."""


@dataclass(frozen=True)
class Release:
    """A release on the same storage, with its ConfigMap's run.json and the state of its Jobs."""

    title: str
    job: str
    sources: frozenset[str]
    state: str


def old_runs(
    session: Session, storage: Storage, keep: int, older_than: float, best_by: str | None
) -> list[Found]:
    """Return the runs of the storage's job that were moved aside.

    `best_by`: the score whose best run stays, "" for the first one; None: no run stays for its score. Raises
    UsageError for a score that no run has.
    """
    pasts = runs.load(storage)
    best = None if best_by is None else runs.best(pasts, best_by)
    going, staying = runs.unused(pasts, keep, older_than, runs.read_by_pods(session, pasts), best=best)
    return [
        Found(f"{storage.job.name}/{past.folder}", figures.scores(dict(past.run.get("score") or {})), kept)
        for past, kept in [*((past, "") for past in going), *staying]
    ]


def job(session: Session, storage: Storage) -> list[Found]:
    """Return the whole folder of the storage's job. Raises UsageError when it is not there."""
    name, root = storage.job.name, storage.sibling(".")
    entries = json_of(root, "ls", "--root", str(root.job))
    there = [one["name"] for one in entries if one["type"] == "folder" and one["name"] != SOURCES]
    if name not in there:
        raise UsageError(f"--job {name}: there is no such job's folder, but: {', '.join(there) or 'none'}.")
    users = [release for release in releases(session) if release.job == name]
    kept = ""
    if live := [release for release in users if release.state in LIVE]:
        kept = f"the run of {live[0].title} is {live[0].state}. Fix: let it end, or helm uninstall it first"
    elif pods := _pods(session, name):
        kept = f"pods use it: {', '.join(pods)}"
    elif _is_written(storage):
        kept = "a run writes there: its output/run.lock is renewed"
    return [Found(name, ", ".join(f"{one.title} ({one.state})" for one in users), kept)]


def sources(session: Session, storage: Storage, names: Sequence[str]) -> list[Found]:
    """Return the pushed data files of these names, or all. Raises UsageError for a name that is not there."""
    root = storage.sibling(".")
    there = [one["name"] for one in json_of(root, "ls", "--root", str(root.job), SOURCES)]
    if wrong := [name for name in names if name not in there]:
        raise UsageError(f"sources/ has no {', '.join(wrong)}, but: {', '.join(there) or 'nothing'}.")
    using = releases(session)
    made: dict[str, list[str]] = {}
    for path, content in small_files(root, ["*/manifest.json"]).items():
        for name in _sources(json_file(content) or {}):
            made.setdefault(name, []).append(path.split("/", 1)[0])
    found = []
    for name in names or there:
        users = [release.title for release in using if name in release.sources]
        kept = f"{', '.join(users)} trains on it. Fix: helm uninstall it first" if users else ""
        jobs = (
            f"jobs that were prepared from it keep their data: {', '.join(made[name])}"
            if name in made
            else ""
        )
        found.append(Found(f"{SOURCES}/{name}", jobs, kept))
    return found


def with_sizes(root: Storage, found: Sequence[Found]) -> list[Found]:
    """Return those that may go, each with its size."""
    going = [one for one in found if not one.kept]
    sizes = json_of(root, "sizes", "--root", str(root.job), *(one.path for one in going)) if going else {}
    return [Found(one.path, one.about, "", sizes[one.path]) for one in going]


def remove(root: Storage, found: Sequence[Found]) -> int:
    """Remove these from the storage; return the bytes that became free."""
    return sum(json_of(root, "remove", "--root", str(root.job), *(one.path for one in found)).values())


def releases(session: Session) -> list[Release]:
    """Return the releases on the session's storage; none for a folder of this machine.

    Those of namespaces that this user may not list are not seen.
    """
    if not isinstance(session, ClusterSession):
        return []
    cluster, claim = session.cluster, session.stored_run().claim
    selector = f"{NAME_LABEL}={CHART}"
    try:
        jobs = cluster.items("job", "list the releases' Jobs", selector, everywhere=True)
    except CliError:
        jobs = cluster.items("job", "list the releases' Jobs", selector)
    states = {
        (one["metadata"].get("namespace"), reasons.name(one)): reasons.job_state(one)[0] for one in jobs
    }
    maps = leftovers.release_maps(cluster)
    runs_of = []
    for place, name, there in maps:
        with suppress(KeyError, ValueError, TypeError):  # another version's, which says no job and no claim
            runs_of.append((Run.of(name, place, json.loads(there["run.json"])), there))

    def volume(run: Run, there: Object) -> Any:
        return leftovers.storage_of(there.get("base.yaml") or "", run.namespace)

    own = [volume(*one) for one in runs_of if (one[0].namespace, one[0].claim) == (cluster.namespace, claim)]
    found = []
    for run, there in runs_of:
        if (run.namespace, run.claim) != (cluster.namespace, claim) and volume(run, there) not in own:
            continue
        its = [states.get((run.namespace, name), "") for name in (run.k8s_job, run.k8s_data_job)]
        state = next((state for state in LIVE if state in its), "over")
        data = json.loads(there["run.json"]).get("data") or {}
        title = f"release {run.release} in namespace {run.namespace}"
        found.append(Release(title, run.job_name, frozenset(_sources(data)), state))
    return found


def _sources(data: Any) -> list[str]:
    """Names below sources/ that a data section, or a manifest, refers to."""
    told = [str(data.get(key) or "") for key in ("source", "testSource")]
    return [text.removeprefix(SCHEME).split("/")[0] for text in told if text.startswith(SCHEME)]


def _is_written(storage: Storage) -> bool:
    """Whether somebody renews the lock of the job's output."""
    lock = [OUTPUT.lock.as_posix()]
    before = small_files(storage, lock)
    if not before:
        return False
    time.sleep(LOCK_SECONDS)
    return small_files(storage, lock) not in ({}, before)


def _pods(session: Session, name: str) -> list[str]:
    """Names of pods that wait or run and were given the job's folder, or its name in a variable."""
    if not isinstance(session, ClusterSession):
        return []
    texts = (f"/{name}/", f'/{name}"', f'"{name}/', f'"{name}"')
    pods = session.cluster.items("pod", "see which pods use the folder")
    return [
        reasons.name(pod)
        for pod in pods
        if (pod.get("status") or {}).get("phase") in ("Pending", "Running")
        and any(text in json.dumps(pod.get("spec") or {}) for text in texts)
    ]
