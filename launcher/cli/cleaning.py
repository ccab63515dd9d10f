"""`clean`: what would be removed from the storage, its size, and who uses it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml

from launcher.cli import leftovers, reasons, runs
from launcher.cli.cluster import CHART, NAME_LABEL
from launcher.cli.problems import UsageError
from launcher.cli.session import OUTPUT, ClusterSession, Session
from launcher.cli.storage import Storage, json_file, json_of, small_files
from launcher.cli.view import Run
from launcher.reporting import figures

SOURCES = "sources"
SCHEME = "file://"
LOCK_SECONDS = 8.0  # rank 0 changes run.lock every 2 s while a run writes there
LIVE = ("running", "suspended")
"""States of a Job whose run needs its folder."""
UNREADABLE = "unreadable"
YOUNG_SECONDS = 3600.0  # a source younger than that may be of a training whose release is not there yet


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
    """A release on the same storage, with its ConfigMap's run.json and the state of its Jobs.

    With the state UNREADABLE neither its job nor its sources are known.
    """

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
    there = [
        one["name"]
        for one in entries
        if one["type"] == "folder" and one["name"] != SOURCES and not one["name"].startswith(".")
    ]
    if name not in there:
        raise UsageError(f"--job {name}: there is no such job's folder, but: {', '.join(there) or 'none'}.")
    using = releases(session)
    users = [release for release in using if release.job == name]
    kept = ""
    if live := [release for release in users if release.state in LIVE]:
        kept = f"the run of {live[0].title} is {live[0].state}. Fix: let it end, or helm uninstall it first"
    elif pods := _pods(session, name):
        kept = f"pods use it: {', '.join(pods)}"
    elif unknown := _unreadable(using):
        kept = unknown
    elif _is_written(storage):
        kept = "a run writes there: its output/run.lock is renewed"
    return [Found(name, ", ".join(f"{one.title} ({one.state})" for one in users), kept)]


def sources(session: Session, storage: Storage, names: Sequence[str]) -> list[Found]:
    """Return the pushed data files of these names, or all. Raises UsageError for a name that is not there."""
    root = storage.sibling(".")
    entries = json_of(root, "ls", "--root", str(root.job), SOURCES)
    there = {one["name"]: time.time() - one["mtime"] for one in entries if not one["name"].startswith(".")}
    if wrong := [name for name in names if name not in there]:
        raise UsageError(f"sources/ has no {', '.join(wrong)}, but: {', '.join(there) or 'nothing'}.")
    using = releases(session)
    made: dict[str, list[str]] = {}
    for path, content in small_files(root, ["*/manifest.json"]).items():
        for name in _sources(json_file(content) or {}):
            made.setdefault(name, []).append(path.split("/", 1)[0])
    found = []
    for name in names or there:
        users = ", ".join(release.title for release in using if name in release.sources)
        kept = f"{users} trains on it. Fix: helm uninstall it first" if users else _unreadable(using)
        if not kept and there[name] < YOUNG_SECONDS:
            kept = f"it is younger than {YOUNG_SECONDS / 3600:g} h: a run may just be about to use it"
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
    """Remove these from the storage; return the bytes that they had."""
    return sum(json_of(root, "remove", "--root", str(root.job), *(one.path for one in found)).values())


def releases(session: Session) -> list[Release]:
    """Return the releases on the session's storage; none for a folder of this machine.

    Those of namespaces that this user may not list are not seen. Where it cannot be told which volume a
    release has, or which one the session's is on, the release counts.
    """
    if not isinstance(session, ClusterSession):
        return []
    cluster, claim = session.cluster, session.stored_run().claim
    selector = f"{NAME_LABEL}={CHART}"
    jobs = cluster.items_everywhere("job", "list the releases' Jobs", selector)
    states = {
        (one["metadata"].get("namespace"), reasons.name(one)): reasons.job_state(one)[0] for one in jobs
    }
    found, own = [], []
    for place, name, there in leftovers.release_maps(cluster):
        volume = _volume(there, place)
        release = Release(f"release {name} in namespace {place}", "", frozenset(), UNREADABLE)
        uses = False
        with suppress(KeyError, ValueError, TypeError, AttributeError):  # else it is another version's
            about = json.loads(there["run.json"])
            run = Run.of(name, place, about)
            its = [states.get((place, name), "") for name in (run.k8s_job, run.k8s_data_job)]
            state = next((state for state in LIVE if state in its), "over")
            named = frozenset(_sources(about.get("data") or {}))
            release = Release(release.title, run.job_name, named, state)
            uses = (place, run.claim) == (cluster.namespace, claim)
        found.append((release, uses, volume))
        own += [volume] if uses and volume else []
    return [release for release, uses, volume in found if uses or not own or not volume or volume in own]


def _volume(there: Mapping[str, str], namespace: str) -> Any:
    """Return what tells the release's volume from another; None when its ConfigMap does not say it."""
    with suppress(yaml.YAMLError, AttributeError, KeyError):
        return leftovers.storage_of(there["base.yaml"], namespace)
    return None


def _unreadable(using: Sequence[Release]) -> str:
    """Return why all stays because of releases whose run.json says nothing; empty without such ones."""
    titles = ", ".join(release.title for release in using if release.state == UNREADABLE)
    return titles and (
        f"{titles} may use it: its ConfigMap's run.json is of another version of the chart. Fix: helm "
        "upgrade it with this one, or helm uninstall it"
    )


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
    texts = (f"/{name}/", f'/{name}"', f'"{name}/', f'"{name}"')
    return [title for title, spec in runs.live_pods(session) if any(text in spec for text in texts)]
