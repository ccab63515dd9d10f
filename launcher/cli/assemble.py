"""Puts Jobs, pods, events and the files on the storage together into one `View`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher import best
from launcher.cli import reasons
from launcher.cli.progress import Progress, progress_of
from launcher.cli.view import (
    DATA_FAILED,
    FINAL,
    JobView,
    Object,
    Run,
    View,
    exported_to,
    first_cause,
    job_view,
    own_run,
    owned_by,
    ranks_of,
)
from launcher.layout import Position, position
from launcher.storage.manifest import maker


@dataclass(frozen=True)
class Seen:
    """What was read of one release. `events` go by the name of the object that they are about."""

    run: Run
    jobs: Mapping[str, Object]
    pods: Sequence[Object]
    events: Mapping[str, Sequence[Object]] = field(default_factory=dict)
    claim: str = ""
    files: Mapping[str, Any] = field(default_factory=dict)
    ending: bool = False
    """Whether the namespace is being deleted."""
    log: Sequence[str] = ()
    log_of: str = ""


def of_cluster(seen: Seen) -> View:
    """The view of one release.

    `seen.files` has the parsed status, run, manifest and failure files, or None each.
    """
    run = seen.run
    status = seen.files.get("status")
    progress = progress_of(status, seen.files.get("run"), run.k8s_job)
    data_pods = [pod for pod in seen.pods if owned_by(run.k8s_data_job)(pod)]
    pods = [pod for pod in seen.pods if owned_by(run.k8s_job)(pod)]
    data = _data(seen, data_pods)
    training = job_view(run.k8s_job, seen.jobs.get(run.k8s_job), pods, seen.events)
    told = status.get("ranks") if status and progress else None
    ranks = ranks_of(run.trainers, pods, seen.events, told)
    state, cause = _state(seen, progress, data, training, pods)
    record = own_run(seen.files.get("run"), run.k8s_job) or own_run(seen.files.get("moved"), run.k8s_job)
    passes = (seen.files.get("passes") or ()) if progress else ()
    return View(
        where=f"release {run.release} in namespace {run.namespace}, job {run.job_name}",
        run_id=run.k8s_job,
        state=state,
        cause=cause,
        data=data,
        training=training,
        ranks=ranks,
        progress=progress,
        notes=tuple(_notes(seen, progress is not None, data, state)),
        exported=exported_to(record),
        score=record.get("score") or {},
        passes=passes,
        best=best.of_run(record, passes),
        log=seen.log,
        log_of=seen.log_of,
    )


def _data(seen: Seen, pods: Sequence[Object]) -> JobView:
    run, manifest = seen.run, seen.files.get("manifest") or {}
    if not run.k8s_data_job:
        return JobView("", "none", "this release has no data Job (data.enabled is false)")
    job = seen.jobs.get(run.k8s_data_job)
    if job is None and manifest.get("dataDigest") == run.data_digest:
        return JobView(run.k8s_data_job, "complete", "the Job is gone; its manifest is there")
    return job_view(run.k8s_data_job, job, pods, seen.events)


def _state(
    seen: Seen, progress: Progress | None, data: JobView, training: JobView, pods: Sequence[Object]
) -> tuple[str, str]:
    """(state, cause) of the run. What the Jobs say goes before what the files say: it is newer."""
    run = seen.run
    told = str((seen.files.get("status") or {}).get("cause") or "") if progress else ""
    said = progress.state if progress else ""
    if data.state == "failed" and training.state != "complete":
        failure = seen.files.get("failure") or {}
        reason = failure.get("reason") if failure.get("dataDigest") == run.data_digest else None
        state = "failed", f"{DATA_FAILED}{reason or data.reason}"
    elif training.state == "failed":
        state = "failed", told or first_cause(pods) or training.reason
    elif training.state == "missing":
        state = (said if said in FINAL else "missing"), told
    elif training.state == "complete" and not seen.files.get("moved") and (taker := _taker(seen)):
        state = (
            "failed",
            f"the Job is complete, but its output is lost: output/ holds {taker}, and runs/ has nothing of "
            f"{run.k8s_job}. Fix: give one of the two releases another jobName, and train again",
        )
    elif training.state in ("complete", "suspended"):
        state = training.state, training.reason
    elif said == "complete" or any(pod.get("status", {}).get("phase") == "Succeeded" for pod in pods):
        state = "finishing", ""  # between its pods' good end and the Job's own
    elif said and said not in FINAL:
        state = said, told
    else:
        state = ("preparing" if data.state in ("running", "waiting") else "pending"), ""
    return state


def _taker(seen: Seen) -> str:
    """Return the run of another release whose output lies where this run's was; empty: there is none."""
    run, there = seen.run, seen.files.get("run") or {}
    its = there.get("release"), there.get("namespace")
    if seen.files.get("stale") or not its[0] or its == (run.release, run.namespace):
        return ""
    return f"run {there.get('runId')} of release {its[0]} in namespace {its[1]}"


def _notes(seen: Seen, has_progress: bool, data: JobView, state: str) -> list[str]:
    run, notes = seen.run, []
    if seen.ending:
        notes.append(
            f"namespace {run.namespace} is being deleted, which waits for ever for pods that their "
            f"Jobs would replace. To end it: kubectl delete jobs --all -n {run.namespace}"
        )
    if seen.claim:
        notes.append(seen.claim)
    if has_progress and state == "complete":
        notes += _more_passes(seen.files, run.passes)
    if data.state == "complete":
        notes += _lost_data(seen, data, state)
    if seen.files.get("moved") and (taker := _taker(seen)):
        notes.append(f"{taker} has the same jobName and moved this run's output to runs/{run.k8s_job}")
    if data.state in ("running", "waiting"):
        notes.append(f"data job still running: {data.name}" + (f" ({data.reason})" if data.reason else ""))
    if state == "missing":
        notes.append(f"the training Job {run.k8s_job} does not exist; it was deleted, or has expired")
    status = seen.files.get("status")
    if status and not has_progress and state not in FINAL:
        notes.append(
            f"output/ still belongs to run {status.get('runId')}; this run moves it aside when it starts"
        )
    for name, job in sorted(seen.jobs.items()):
        if name not in (run.k8s_job, run.k8s_data_job):
            going = (
                "being removed"
                if job.get("metadata", {}).get("deletionTimestamp")
                else reasons.job_state(job)[0]
            )
            notes.append(
                f"a Job that this release's values do not name is there: {name} ({going}). Is it of a failed "
                f"upgrade? python -m launcher leftovers -n {run.namespace} --release {run.release}"
            )
    if seen.files.get("unreadable"):
        notes.append(f"no progress shown: {seen.files['unreadable']}")
    return notes


def _more_passes(files: Mapping[str, Any], asked: int) -> list[str]:
    """Return what is said of a complete run whose output had more passes than it was asked for.

    A checkpoint of a later pass than metrics.csv has was copied there by hand, and is left out.
    """
    rows, record = files.get("passes") or (), files.get("run") or {}
    last = max((row["pass"] + 1 for row in rows), default=None)
    saves = [at for name in files.get("checkpoints") or () if (at := position(name))]
    trained = max((at.passes for at in saves if last is None or at.passes <= last), default=0)
    if trained <= asked:
        return []
    model_pass = record.get("modelPass")
    of = trained if model_pass is None else model_pass + 1
    earlier = Position(asked)
    kept = f"is {earlier.folder} in output/" if earlier in saves else "is no longer kept (training.keepSaves)"
    return [
        f"training.passes is {asked}, but output/ already has {trained} passes: nothing was trained. Model "
        f"and score are of pass {of}. The checkpoint of pass {asked} {kept}. Fix: for a model of {asked} "
        f"pass{'' if asked == 1 else 'es'}, train from scratch: the same command with --set fresh=TEXT (any "
        "new text)"
    ]


def _lost_data(seen: Seen, data: JobView, state: str) -> list[str]:
    """What is wrong when the data Job is complete, but the storage does not hold what it made."""
    run, manifest = seen.run, seen.files.get("manifest")
    again = f"python -m launcher leftovers --remove -n {run.namespace} --release {run.release} makes it again"
    if "manifest" not in seen.files or (manifest or {}).get("dataDigest") == run.data_digest:
        return []
    if not manifest:
        return [] if state in FINAL else [f"the data that {data.name} made is gone from the storage: {again}"]
    by = manifest.get("madeBy") or {}
    if by.get("release") and (by["release"], by.get("namespace")) != (run.release, run.namespace):
        return [
            f"{maker(manifest)} has the same jobName {run.job_name!r} and replaced the data of {data.name}. "
            f"Fix: give one of the two another jobName; or uninstall that release, then {again}"
        ]
    return [f"the storage holds other data than {data.name} made: {again}"]


def of_folder(folder: str, files: Mapping[str, Any]) -> View:
    """The view of a job's folder, from its files alone."""
    status, manifest, failure = files.get("status"), files.get("manifest"), files.get("failure")
    digest = (manifest or failure or {}).get("dataDigest", "")
    if failure:
        data = JobView(f"data {digest[:8]}", "failed", str(failure.get("reason", "")))
    elif manifest:
        shards = f"{manifest.get('splitCount')} shards, {manifest.get('lines', 0):,} lines"
        data = JobView(f"data {digest[:8]}", "complete", shards)
    else:
        data = JobView("data", "missing", "no manifest.json yet: the data Job has not finished")
    progress = progress_of(status, files.get("run"), None)
    notes: list[str] = []
    if progress:
        state, cause = progress.state, str((status or {}).get("cause") or "")
        notes += _more_passes(files, progress.passes) if state == "complete" else []
    elif failure:
        state, cause = "failed", f"{DATA_FAILED}{failure.get('reason')}"
    else:
        state, cause = ("pending" if manifest else "preparing"), ""
        notes.append("no output/status.json: the training has not started here")
    return View(
        where=folder,
        run_id=(status or files.get("run") or {}).get("runId"),
        state=state,
        cause=cause,
        data=data,
        ranks=ranks_of((status or {}).get("trainers") or 0, [], {}, (status or {}).get("ranks")),
        progress=progress,
        notes=tuple(notes),
        exported=exported_to(files.get("run") or {}),
        score=(files.get("run") or {}).get("score") or {},
        passes=files.get("passes") or (),
        best=best.of_run(files.get("run") or {}, files.get("passes") or ()),
        log=files.get("log") or (),
        log_of="node_0/train.log",
    )
