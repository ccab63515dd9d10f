"""`clean`: remove earlier runs, a job's folder or uploaded data files that nothing uses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from launcher.cli.cluster.releases import LIVE_STATES, SOURCES, Release, list_storage_users
from launcher.cli.cluster.run_lease import hold_lease
from launcher.cli.errors import UsageError
from launcher.cli.job_sessions import ClusterSession, Session
from launcher.cli.shared_options import ClaimOption, ImageOption, YesOption, with_session
from launcher.cli.storage.run_files import OUTPUT, check_intact
from launcher.cli.storage.run_history import CURRENT, SavedRun, best_run, read_runs
from launcher.cli.storage.storage_access import (
    COPY_SECONDS,
    Storage,
    StorageRequest,
    read_small_files,
    run_json_command,
)
from launcher.cli.terminal import confirm, print_line, report
from launcher.reporting import text_formats

LOCK_SECONDS = 8.0  # rank 0 renews run.lock every 2 s while a run writes to the output
YOUNG_SECONDS = 3600.0  # a release that does not exist yet may be about to train on a younger data file


@dataclass(frozen=True)
class Candidate:
    """A file or folder of the storage that `clean` would remove unless `kept` says why not."""

    path: str
    """The path below the storage's root."""
    about: str = ""
    """Which releases have the job, or the score of the run; for the message."""
    kept: str = ""
    """Why the path must stay; empty if the path may be removed."""
    size: int = 0
    """Bytes."""


@with_session
def clean(
    session: Session,
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME…", help="With --sources: which data files; default: all."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="NAME", help="Remove this job's folder with all its data and runs."),
    ] = None,
    sources: Annotated[
        bool, typer.Option("--sources", help="Remove uploaded data files that no release refers to.")
    ] = False,
    keep: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Never remove the newest N earlier runs, whatever their age."),
    ] = 5,
    older_than: Annotated[
        float,
        typer.Option(min=0, metavar="DAYS", help="Remove only runs that finished more than DAYS days ago."),
    ] = 0.0,
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Never remove the run with the best (first) score.")
    ] = False,
    yes: YesOption = False,
    claim: ClaimOption = None,
    image: ImageOption = None,
) -> None:
    """Remove earlier runs, a job's folder or data files from the storage; never what a live run uses."""
    if job is not None and sources:
        raise UsageError("--job and --sources exclude each other", "give one of them")
    if names and not sources:
        raise UsageError(
            f"{' '.join(names)}: names of data files need --sources",
            "add --sources, or give a job with --job",
        )
    request = StorageRequest(
        job=SOURCES if sources else job,
        claim=claim,
        image=image,
        seconds=COPY_SECONDS,
        writable=True,
    )
    lease: AbstractContextManager[Callable[[], None]] = nullcontext(lambda: None)
    if job is not None and isinstance(session, ClusterSession):
        lease = hold_lease(session.cluster, session.release, job)  # so that no `run` starts to use this name
    with session.storage(request) as storage, lease as check_lease:

        def find() -> list[Candidate]:
            if sources:
                return find_sources(session, storage, names or [])
            if job is not None:
                return find_job_folder(session, storage)
            return find_earlier_runs(session, storage, keep, older_than, keep_best)

        root = storage.sibling(".")
        candidates = _choose(root, find(), all_or_nothing=bool(job or names))
        if not candidates:
            report("nothing to remove")
            return
        paths = ", ".join(one.path for one in candidates)
        if not yes and not confirm(f"Remove permanently: {paths}?"):
            raise UsageError(
                f"nothing was removed: the removal of {paths} was not confirmed", "confirm it with --yes"
            )
        now = {one.path: one.kept for one in find()}
        changed = [
            f"{one.path}: {why}"
            for one in candidates
            if (why := now.get(one.path, "it does not exist any more"))
        ]
        if changed:
            raise UsageError(
                f"nothing was removed, because this changed in the meantime: {'; '.join(changed)}",
                "run the same command again",
            )
        check_lease()
        removed = run_json_command(root, "remove", *(one.path for one in candidates))
    print_line(f"removed {paths}: {sum(removed.values()):,} bytes")


def _choose(root: Storage, found: Sequence[Candidate], *, all_or_nothing: bool) -> list[Candidate]:
    """Return the candidates that may be removed, with their sizes; print which stay and which will be removed.

    `root` is the folder that the candidates' paths are relative to. With `all_or_nothing`, because the user specified
    each candidate, raise UsageError if one of them must stay.
    """
    for one in found:
        if one.kept:
            report(f"kept: {one.path}: {one.kept}")
    unused = [one for one in found if not one.kept]
    if all_or_nothing and len(unused) < len(found):
        raise UsageError(
            "nothing was removed: some of it must be kept; the lines `kept: …` above say why",
            "do what these lines say, or with --sources give only names that nothing uses",
        )
    sizes = run_json_command(root, "sizes", *(one.path for one in unused)) if unused else {}
    unused = [replace(one, size=sizes[one.path]) for one in unused]
    for one in unused:
        report(f"to remove: {one.path}: {one.size:,} bytes" + (f" ({one.about})" if one.about else ""))
    return unused


def find_earlier_runs(
    session: Session, storage: Storage, keep: int, older_than: float, keep_best: bool
) -> list[Candidate]:
    """Return the earlier runs of the storage's job as candidates, with the reasons why some must stay.

    The other parameters are the options of `clean`.
    """
    runs, pods = read_runs(storage), _live_pods(session)
    for run in runs:
        if run.folder == CURRENT and run.is_unknown:  # it may have started from the model of an earlier run
            check_intact(run.damage, f"nothing was removed, because of damage in {storage.where}")
    used = [run.name for run in runs if _names_using(pods, run.folder)]
    best = best_run(runs) if keep_best else None
    return [
        Candidate(f"{storage.job.name}/{run.folder}", text_formats.scores(run.record.score), reason)
        for run, reason in explain_kept_runs(runs, keep, older_than, used, best)
    ]


def explain_kept_runs(
    runs: Sequence[SavedRun],
    keep: int,
    older_than: float,
    used: Collection[str],
    best: SavedRun | None = None,
) -> list[tuple[SavedRun, str]]:
    """Return each earlier run with the reason why it stays, which is empty if it may be removed.

    `runs` are the runs of a job, newest first, `used` the names of those that pods use. `keep` and `older_than` are
    the options of `clean`; the run `best` stays because of its score.
    """
    current = next((run for run in runs if run.folder == CURRENT), None)
    fingerprint = current.record.fingerprint if current else {}
    # init_model is the run that `training.initModelPath: previous` referred to
    initial_model = str((current and current.record.init_model) or fingerprint.get("initModelPath") or "")
    found = []
    for place, run in enumerate(run for run in runs if run.folder != CURRENT):
        days = (time.time() - (run.record.finished or run.record.started)) / 86400
        rules = (
            (run.is_locked, "a run writes to it (it has a run.lock)"),
            (run.is_unknown, f"its age and score are unknown: {' '.join(run.damage.values())}"),
            (run.name in used, "a pod uses it"),
            (run.folder in initial_model, "the current run started from its model (training.initModelPath)"),
            (run is best, "it has the best score (--keep-best)"),
            (place < keep, f"it is one of the newest {keep} (--keep)"),
            (days < older_than, f"it is {days:.1f} days old, less than {older_than:g} (--older-than)"),
        )
        found.append((run, next((reason for holds, reason in rules if holds), "")))
    return found


def find_job_folder(session: Session, storage: Storage) -> list[Candidate]:
    """Return the job's folder as a candidate, with the reason if it must stay. Raises UsageError if absent."""
    name, root = storage.job.name, storage.sibling(".")
    entries = run_json_command(root, "ls")
    jobs = [
        one["name"]
        for one in entries
        if one["type"] == "folder" and one["name"] != SOURCES and not one["name"].startswith(".")
    ]
    if name not in jobs:
        raise UsageError(
            f"--job {name}: the storage has no such job", f"choose one of: {', '.join(jobs) or '(none)'}"
        )
    releases = _storage_users(session, storage)
    users = [release for release in releases if release.run and release.run.job_name == name]
    if live := [release for release in users if release.state in LIVE_STATES]:
        kept = f"the run of {live[0]} is {live[0].state}. Fix: wait until it is over, or helm uninstall it"
    elif pods := _names_using(_live_pods(session), name):
        kept = f"these pods use it: {', '.join(pods)}. Fix: wait until they have exited, or kubectl delete pod them"
    else:
        kept = _explain_unreadable(releases)
    if not kept and _is_lock_renewed(storage):
        kept = "a run writes to it: its output/run.lock is renewed. Fix: wait until the run is over"
    return [Candidate(name, ", ".join(f"{release} ({release.state})" for release in users), kept)]


def find_sources(session: Session, storage: Storage, names: Sequence[str]) -> list[Candidate]:
    """Return the uploaded data files with these names, or all. Raises UsageError for an unknown name."""
    root = storage.sibling(".")
    entries = run_json_command(root, "ls", "--optional", SOURCES)
    ages = {one["name"]: time.time() - one["mtime"] for one in entries if not one["name"].startswith(".")}
    if wrong := [name for name in names if name not in ages]:
        raise UsageError(
            f"{', '.join(wrong)}: {SOURCES}/ has no such file", f"choose from: {', '.join(ages) or '(none)'}"
        )
    releases = _storage_users(session, storage)
    found = []
    for name in names or ages:
        users = ", ".join(str(one) for one in releases if one.run and name in one.run.source_files)
        kept = f"{users} trains on it. Fix: helm uninstall that release first" if users else ""
        kept = kept or _explain_unreadable(releases)
        if not kept and ages[name] < YOUNG_SECONDS:
            kept = f"it is younger than {YOUNG_SECONDS / 3600:g} h: a run may be about to use it"
        found.append(Candidate(f"{SOURCES}/{name}", kept=kept))
    return found


def _storage_users(session: Session, storage: Storage) -> list[Release]:
    """Return the releases on this storage; none for a folder of this machine."""
    return list_storage_users(session.cluster, storage.claim) if isinstance(session, ClusterSession) else []


def _explain_unreadable(releases: Sequence[Release]) -> str:
    """Return a sentence with the releases whose run is unknown: they may use any file. Empty for none."""
    unknown = ", ".join(str(release) for release in releases if release.run is None)
    return unknown and (
        f"{unknown} may use it: another version of the chart wrote its ConfigMap. Fix: helm upgrade it with "
        "this version, or helm uninstall it"
    )


def _is_lock_renewed(storage: Storage) -> bool:
    """Return whether a process renews the lock of the job's output."""
    lock = [OUTPUT.lock.as_posix()]
    before = read_small_files(storage, lock)
    if not before:
        return False
    time.sleep(LOCK_SECONDS)
    return read_small_files(storage, lock) not in ({}, before)


def _live_pods(session: Session) -> list[tuple[str, str]]:
    """Return (name and namespace, spec as JSON) of each pod of the cluster that is pending or runs.

    Pods in namespaces that this user may not list are missing. A folder of this machine has no pods.
    """
    if not isinstance(session, ClusterSession):
        return []
    return [
        (
            f"{pod['metadata']['name']} in namespace {pod['metadata'].get('namespace')}",
            json.dumps(pod.get("spec") or {}),
        )
        for pod in session.cluster.list_in_all_namespaces("pod")
        if (pod.get("status") or {}).get("phase") in ("Pending", "Running")
    ]


def _names_using(pods: Sequence[tuple[str, str]], folder: str) -> list[str]:
    """Return the names of the pods whose spec has the folder in an argument, a variable or a mount."""
    pattern = re.compile(rf'["/]{re.escape(folder)}["/]')
    return [name for name, spec in pods if pattern.search(spec)]
