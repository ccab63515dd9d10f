"""`clean`: remove earlier runs or a job's folder; also remove data and packages that nothing refers to."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.cli.errors import UsageError
from launcher.cli.job_sessions import ClusterSession, Session
from launcher.cli.object_states import name_of, phase_of
from launcher.cli.releases import LIVE_STATES, SOURCES, Release, list_storage_users
from launcher.cli.run_files import best_run, check_intact, read_runs
from launcher.cli.run_lease import hold_lease
from launcher.cli.shared_options import YesOption, with_session
from launcher.cli.storage import (
    COPY_SECONDS,
    ClaimOption,
    ImageOption,
    Storage,
    StorageRequest,
    list_jobs,
    read_small_files,
    run_json_command,
)
from launcher.cli.terminal import confirm, print_line, report
from launcher.dataprep.prepared_data import unused_data
from launcher.io import files
from launcher.paths import JobPaths
from launcher.reporting import text_formats
from launcher.reporting.saved_runs import CURRENT, OUTPUT, SavedRun

LOCK_SECONDS = 8.0  # rank 0 renews run.lock every 2 s while a run writes to the output
YOUNG_SECONDS = 24 * 3600.0  # a release that does not exist yet may be about to train on younger data

Pod = tuple[str, str]
"""A pod: its name with its namespace, and its spec as JSON."""


@dataclass(frozen=True)
class Candidate:
    """A file or folder of the storage that `clean` would remove unless `kept` says why not."""

    path: str
    """The path below the storage's root."""
    about: str = ""
    """Text for the message: which releases have the job, or the score of the run."""
    kept: str = ""
    """Why the path must stay; empty if the path may be removed."""


@with_session
def clean(
    session: Session,
    *,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="NAME", help="Remove this job's folder with all its data and runs."),
    ] = None,
    keep: Annotated[
        int, typer.Option(min=0, metavar="N", help="Never remove the newest N earlier runs.")
    ] = 5,
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Never remove the run with the best (first) score.")
    ] = False,
    yes: YesOption = False,
    claim: ClaimOption = None,
    image: ImageOption = None,
) -> None:
    """Remove earlier runs or a job's folder; also remove data and packages that nothing refers to.

    Nothing that a live run may use is removed. The command lists what it keeps and what it would remove, and asks.
    """
    request = StorageRequest(job=job, claim=claim, image=image, seconds=COPY_SECONDS, writable=True)
    lease: AbstractContextManager[Callable[[], None]] = nullcontext(lambda: None)
    if job is not None and isinstance(session, ClusterSession):
        lease = hold_lease(session.cluster, session.release, job)  # so that no `run` starts to use this name
    with session.storage(request) as storage, lease as check_lease:
        root = storage.sibling(".")

        def find() -> list[Candidate]:
            pods, releases = list[Pod](), list[Release]()
            if isinstance(session, ClusterSession):
                pods, releases = _live_pods(session), list_storage_users(session.cluster, storage.claim)
            if job is None:
                found, removed = find_earlier_runs(storage, pods, keep, keep_best), ""
            else:
                found = [find_job_folder(storage, pods, releases)]
                removed = "" if found[0].kept else job
            return [*found, *find_unused_data(session, storage, releases, removed)]

        found = find()
        for one in found:
            if one.kept:
                report(f"kept: {one.path}: {one.kept}")
        if job is not None and found[0].kept:
            raise UsageError(
                f"nothing was removed: {job} must be kept; the line `kept: {job}: …` above says why",
                "do what this line says",
            )
        unused = {one.path: one.about for one in found if not one.kept}
        if not unused:
            report("nothing to remove")
            return
        for path, size in run_json_command(root, "sizes", *unused).items():
            report(f"to remove: {path}: {size:,} bytes" + (f" ({unused[path]})" if unused[path] else ""))
        paths = ", ".join(unused)
        if not yes and not confirm(f"Remove permanently: {paths}?"):
            raise UsageError(
                f"nothing was removed: the removal of {paths} was not confirmed", "confirm it with --yes"
            )
        now = {one.path: one.kept for one in find()}
        changed = [
            f"{path}: {why}" for path in unused if (why := now.get(path, "it does not exist any more"))
        ]
        if changed:
            raise UsageError(
                f"nothing was removed, because this changed in the meantime: {'; '.join(changed)}",
                "run the same command again",
            )
        check_lease()
        removed = run_json_command(root, "remove", *unused)
    print_line(f"removed {paths}: {sum(removed.values()):,} bytes")


def find_earlier_runs(storage: Storage, pods: Sequence[Pod], keep: int, keep_best: bool) -> list[Candidate]:
    """Return the earlier runs of the storage's job as candidates, with the reasons why some must stay.

    `pods` are the pods that may use a run; `keep` and `keep_best` are the options of `clean`. Raises DataError if the
    record of the current run is damaged.
    """
    runs = read_runs(storage)
    for run in runs:
        if run.folder == CURRENT and run.is_unknown:  # it may have started from the model of an earlier run
            check_intact(run.damage, f"nothing was removed, because of damage in {storage.where}")
    used = [run.name for run in runs if _names_using(pods, run.folder)]
    best = best_run(runs) if keep_best else None
    return [
        Candidate(f"{storage.job.name}/{run.folder}", text_formats.scores(run.record.score), reason)
        for run, reason in explain_kept_runs(runs, keep, used, best)
    ]


def explain_kept_runs(
    runs: Sequence[SavedRun], keep: int, used: Collection[str], best: SavedRun | None = None
) -> list[tuple[SavedRun, str]]:
    """Return (run, reason why it must stay) of each earlier run; the reason is empty if the run may be removed.

    Args:
        runs: the runs of a job, newest first.
        keep: the option of `clean`: the number of newest earlier runs that stay.
        used: the names of the runs that pods use.
        best: the run that stays because of its score; None: no run stays for this reason.
    """
    current = next((run for run in runs if run.folder == CURRENT), None)
    fingerprint = current.record.fingerprint if current else {}
    # init_model is the run that `training.initModelPath: previous` referred to
    initial_model = str((current and current.record.init_model) or fingerprint.get("initModelPath") or "")
    found = []
    for place, run in enumerate(run for run in runs if run.folder != CURRENT):
        rules = (
            (run.is_locked, "a run writes to it (it has a run.lock)"),
            (run.is_unknown, f"its age and score are unknown: {' '.join(run.damage.values())}"),
            (run.name in used, "a pod uses it"),
            (run.folder in initial_model, "the current run started from its model (training.initModelPath)"),
            (run is best, "it has the best score (--keep-best)"),
            (place < keep, f"it is one of the newest {keep} (--keep)"),
        )
        found.append((run, next((reason for holds, reason in rules if holds), "")))
    return found


def find_job_folder(storage: Storage, pods: Sequence[Pod], releases: Sequence[Release]) -> Candidate:
    """Return the job's folder as a candidate for removal, with the reason if it must stay.

    Args:
        pods: the pods that may use the folder.
        releases: the releases that use the storage.

    Raises:
        UsageError: the storage has no folder of this job.
    """
    name = storage.job.name
    if name not in (jobs := list_jobs(storage)):
        raise UsageError(
            f"--job {name}: the storage has no such job", f"choose one of: {', '.join(jobs) or '(none)'}"
        )
    users = [release for release in releases if release.run and release.run.job_name == name]
    if live := [release for release in users if release.state in LIVE_STATES]:
        kept = f"the run of {live[0]} is {live[0].state}. Fix: wait until it is over, or helm uninstall it"
    elif names := _names_using(pods, name):
        kept = f"these pods use it: {', '.join(names)}. Fix: wait until they have exited, or kubectl delete pod them"
    else:
        kept = _explain_unreadable(releases)
    if not kept and _is_lock_renewed(storage):
        kept = "a run writes to it: its output/run.lock is renewed. Fix: wait until the run is over"
    return Candidate(name, ", ".join(f"{release} ({release.state})" for release in users), kept)


def find_unused_data(
    session: Session, storage: Storage, releases: Sequence[Release], removed_job: str
) -> list[Candidate]:
    """Return data, packages and journals on the storage as candidates for removal, with the reasons why some must stay.

    The candidates are all uploaded data, packages that no release uses, what interrupted uploads left, prepared data
    that nothing refers to (`unused_data`), and the journal of each sweep of which no trial has a folder any more.

    Args:
        session: the session of the command.
        storage: the storage of a job.
        releases: the releases that use the storage.
        removed_job: the name of the job that the same call of `clean` removes, or empty. The folder and the manifest of
            this job are treated as if they were gone.
    """
    root, paths = storage.sibling("."), JobPaths(Path(), "")
    prepared, packages, sweeps = paths.all_data.name, paths.all_packages.name, paths.all_sweeps.name
    sources, data, archives, journals = (
        {one["name"]: one for one in run_json_command(root, "ls", "--optional", folder)}
        for folder in (SOURCES, prepared, packages, sweeps)
    )
    doubt = _explain_doubt(session, releases)
    users = {name: str(one) for one in releases if one.run for name in one.run.source_files}
    is_linked = any(one["type"] == "other" and one["name"] in users for one in sources.values())
    link = "a release trains on a link in this folder, which may lead to it" if is_linked else ""
    found = []
    for name, entry in sources.items():
        user = f"{users[name]} trains on it. Fix: helm uninstall that release first" if name in users else ""
        found.append(Candidate(f"{SOURCES}/{name}", kept=user or doubt or link or _explain_age(entry)))
    wanted = {paths.packages(release.run.packages).name for release in releases if release.run}
    found += [
        Candidate(f"{packages}/{name}", kept=doubt or _explain_age(entry))
        for name, entry in archives.items()
        if name not in wanted
    ]
    trials = (
        {name.rpartition("-")[0] for name in list_jobs(storage) if name != removed_job} if journals else set()
    )
    found += [
        Candidate(f"{sweeps}/{name}") for name in journals if name.removesuffix(".journal") not in trials
    ]
    if data:
        manifests = read_small_files(root, ["*/manifest.json"])
        manifests.pop(f"{removed_job}/manifest.json", None)
        digests = {_read_field(content, "dataDigest") for content in manifests.values()}
        digests |= {release.run.data_digest for release in releases if release.run}
        contents = read_small_files(storage.sibling(prepared), ["*.json"])
        records = {name: _read_field(content, "content") for name, content in contents.items()}
        found += [
            Candidate(f"{prepared}/{name}", kept=doubt or _explain_age(data[name]))
            for name in unused_data(data, records, digests)
        ]
    return found


def _read_field(content: bytes, key: str) -> str:
    """Return the text of `key` in the JSON object of a file; empty if the file is damaged or has no such text."""
    try:
        value = files.parse_json_object(key, content).get(key)
    except files.UnreadableError:
        return ""
    return value if isinstance(value, str) else ""


def _explain_age(entry: Mapping[str, Any]) -> str:
    """Return why a file or folder to which nothing refers must stay: it is too young. Empty if it is old enough."""
    if time.time() - entry["mtime"] >= YOUNG_SECONDS:
        return ""
    return f"it is younger than {YOUNG_SECONDS / 3600:g} h: a run may be about to use it"


def _explain_doubt(session: Session, releases: Sequence[Release]) -> str:
    """Return why it is uncertain which data the releases on this storage use; empty if it is certain."""
    if not isinstance(session, ClusterSession):
        return "only the cluster knows which releases train on it. Fix: use --release and --namespace, not --path"
    if session.cluster.has_hidden_namespaces:
        return "a release in a namespace that this user may not list may train on it"
    return _explain_unreadable(releases)


def _explain_unreadable(releases: Sequence[Release]) -> str:
    """Return a sentence about the releases whose run is unknown: they may use any file. Empty if there are none."""
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


def _live_pods(session: ClusterSession) -> list[Pod]:
    """Return all pods of the cluster that are pending or running.

    Pods in namespaces that this user may not list are missing.
    """
    pods = session.cluster.list_in_all_namespaces("pod")
    live = [pod for pod in pods if phase_of(pod) in ("Pending", "Running")]
    names = [f"{name_of(pod)} in namespace {pod['metadata'].get('namespace')}" for pod in live]
    return [(name, json.dumps(pod.get("spec") or {})) for name, pod in zip(names, live, strict=True)]


def _names_using(pods: Sequence[Pod], folder: str) -> list[str]:
    """Return the names of the pods whose spec has the folder in an argument, a variable or a mount."""
    pattern = re.compile(rf'["/]{re.escape(folder)}["/]')
    return [name for name, spec in pods if pattern.search(spec)]
