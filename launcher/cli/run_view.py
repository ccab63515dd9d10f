"""The view of a run: what `status`, `wait`, `run` and `sweep` show, built from Jobs, pods, events and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launcher import metrics
from launcher.cli import object_states
from launcher.cli.cluster_api import Object
from launcher.cli.reader_commands import FINAL_STATES
from launcher.cli.releases import ReleaseRun
from launcher.cli.run_files import JobFiles
from launcher.paths import OutputPaths, Position
from launcher.reporting.saved_runs import DATA_FAILED, MANIFEST
from launcher.schema import RankStatus, RunFile, StatusFile, describe_data, to_json
from launcher.settings import SCRIPT_RUNTIMES

INDEX = "batch.kubernetes.io/job-completion-index"
DATA_JOB_FAILED = "the data Job failed: "
TRAINING_PODS = "training pods"
"""Name of the data's view when there is no data Job, because the training pods prepare the data."""
PREPARE = "prepare"
"""The init container in which a training pod prepares data."""


@dataclass(frozen=True)
class RunProgress(StatusFile):
    """The progress of a run, from its status.json. `number` is the current pass from 0, None while no rank trains."""

    resume: Position | None = None
    """The checkpoint from which the newest planned attempt resumes; see `resumes_from`."""

    @property
    def resumes_from(self) -> Position | None:
        """The checkpoint from which the attempt that starts now resumes.

        None: no attempt starts now, the checkpoint is not decided yet, or the attempt starts from scratch.
        """
        restarted = bool(self.restarts) and self.restarts[-1].attempt == self.attempt - 1
        known = self.state == "starting" or (self.state == "rendezvous" and restarted)
        return self.resume if known else None

    @property
    def fraction(self) -> float:
        """How much of all batches of all passes is done, from 0 to 1."""
        if self.state in ("exporting", "complete"):
            return 1.0
        if not self.passes:
            return 0.0
        if self.number is None:
            return min(1.0, self.resume.passes / self.passes) if self.resume else 0.0
        within = (self.batch or 0) / self.batches if self.batches else 0.0
        return min(1.0, max(0.0, (self.number + min(within, 1.0)) / self.passes))


def build_progress(status: StatusFile | None, run: RunFile | None, run_id: str | None) -> RunProgress | None:
    """Return the progress of the run `run_id`; None if there is no status.json of this run.

    If `run_id` is None, return the progress of the run to which status.json belongs.
    """
    if status is None or (run_id is not None and status.run_id != run_id):
        return None
    resume = run.resume if run and run.run_id == status.run_id else None
    return RunProgress(**vars(status), resume=resume)


@dataclass(frozen=True)
class JobView:
    """The state of a Kubernetes Job.

    `state` is missing (the Job does not exist, although it is part of the release), suspended, waiting, running,
    complete, failed, or none (the release has no data Job, because data.enabled is false). If `name` is TRAINING_PODS,
    `state` describes the data that the training pods prepare, and the numbers count the init containers of these pods.

    In the view of a folder, `state` comes from the job's files: missing (the data is not complete), complete, failed,
    or unknown (a file is damaged).
    """

    name: str
    state: str
    reason: str = ""
    succeeded: int = 0
    failed: int = 0
    active: int = 0
    queue: str = ""
    """The Kueue queue that decides when the Job runs; empty if there is none."""


@dataclass(frozen=True)
class RankView(RankStatus):
    """One rank: its newest pod, and its entry in status.json."""

    phase: str = "missing"
    reason: str = ""
    """Why the pod waits or failed."""
    lost: str = ""
    """Why the previous pod of this rank failed."""


@dataclass(frozen=True)
class RunView:
    """Everything that `status` shows of a run.

    `state` is missing, preparing, pending, finishing, suspended, a state of status.json, complete or failed. In the
    view of a folder, it may also be unknown.
    """

    where: str
    run_id: str | None
    state: str
    cause: str = ""
    data: JobView | None = None
    training: JobView | None = None
    ranks: tuple[RankView, ...] = ()
    progress: RunProgress | None = None
    notes: tuple[str, ...] = field(default=())
    exported: str = ""
    """The address to which the model was exported; empty without an export."""
    score: Mapping[str, Any] = field(default_factory=dict)
    """The scores of the model on the test set; empty before the run is complete."""
    passes: Sequence[Mapping[str, Any]] = ()
    """One row for each pass so far (`launcher.metrics.pass_table`); passes count from 0."""
    best: Mapping[str, Any] = field(default_factory=dict)
    """The best pass and its score (`launcher.metrics.best_pass`); empty without `training.keepBest`."""
    log: Sequence[str] = ()
    """The newest log lines of the data Job, or of rank 0 once the data is complete or without a data Job."""
    log_of: str = ""
    """The pod or file that contains `log`."""
    damage: Mapping[str, str] = field(default_factory=dict)
    """A message for each damaged file of the run, by the file's path: what is wrong, and the fix."""

    @property
    def is_over(self) -> bool:
        """Whether the run is complete or failed."""
        return self.state in FINAL_STATES

    def as_json(self) -> Object:
        """Return the view as `status -o json` prints it. The key of a current pass is `pass`, as in status.json."""
        value = asdict(self)
        if progress := value["progress"]:
            for key in ("run_id", "trainers", "cause", "ranks"):  # they are in the view itself
                del progress[key]
            for restart in progress["restarts"]:
                del restart["signature"]  # only run.json has it
        for entry in filter(None, (*value["ranks"], progress)):
            entry["pass"] = entry.pop("number")
        return value


def rank_of(pod: Object) -> int | None:
    """Return the completion index of a pod, which is the rank of a training pod; None for a pod without an index.

    The pods of the data Job have an index, too.
    """
    meta = pod.get("metadata", {})
    value = (meta.get("labels") or {}).get(INDEX) or (meta.get("annotations") or {}).get(INDEX)
    return int(value) if value is not None and str(value).isdigit() else None


def pods_of(pods: Sequence[Object], job: str, rank: int | None = None) -> list[Object]:
    """Return the pods of the Job with the name `job`; with `rank`, only the pods of this rank."""
    return [
        pod
        for pod in pods
        if ("Job", job) in [(one["kind"], one["name"]) for one in pod["metadata"].get("ownerReferences", [])]
        and rank in (None, rank_of(pod))
    ]


def newest_pod(pods: Sequence[Object]) -> Object | None:
    """Return the pod that was created last; None if there are no pods."""
    return max(pods, key=_created, default=None)


def _created(pod: Object) -> str:
    return str(pod.get("metadata", {}).get("creationTimestamp") or "")


def build_ranks(
    trainers: int,
    pods: Sequence[Object],
    events: Mapping[str, Sequence[Object]],
    reported: Sequence[RankStatus],
) -> tuple[RankView, ...]:
    """Return the view of each rank.

    Args:
        trainers: the number of ranks.
        pods: the training pods of this run; empty if the pods are not known.
        events: the events about each pod, by the pod's name.
        reported: the `ranks` of status.json.
    """
    status = {entry.rank: entry for entry in reported if entry.rank >= 0}
    rows = []
    for rank in range(max(trainers, len(status))):
        *earlier, pod = [None, *sorted((pod for pod in pods if rank_of(pod) == rank), key=_created)]
        entry = status.get(rank, RankStatus())
        phase = _phase(pod) if pod else "missing" if pods else "-"
        reason = ""
        if pod and phase == "Pending":
            reason = object_states.explain_pending(pod, events.get(object_states.name_of(pod), ()))
        elif pod and phase in ("Failed", "Unknown", "Deleting"):
            reason = object_states.explain_failure(pod)
        name = object_states.name_of(pod) if pod else entry.pod
        node = (pod or {}).get("spec", {}).get("nodeName") or entry.node
        seen = {**vars(entry), "rank": rank, "pod": name, "node": node}
        lost = object_states.explain_failure(earlier[-1]) if earlier and earlier[-1] else ""
        rows.append(RankView(**seen, phase=phase, reason=reason, lost=lost))
    return tuple(rows)


def _phase(pod: Object) -> str:
    phase = object_states.phase_of(pod)
    return "Deleting" if pod.get("metadata", {}).get("deletionTimestamp") and phase == "Running" else phase


def build_job(
    name: str, job: Object | None, pods: Sequence[Object], events: Mapping[str, Sequence[Object]]
) -> JobView:
    """Return the view of a Job, with the reason that explains its state best.

    The reason is the failure of a pod, what a pod waits for, an event of the Job, or why the Kueue queue suspends the
    Job. `events` has the events about each pod and about the Job, by name.
    """
    state, reason = object_states.job_state(job)
    status = (job or {}).get("status", {})
    counts = {key: int(status.get(key) or 0) for key in ("succeeded", "failed", "active")}
    queue = object_states.queue_of(job)
    if state == "failed":
        culprit = find_culprit(pods)
        reason = (object_states.explain_failure(culprit) if culprit else "") or reason
    elif state == "running":
        pending = [pod for pod in pods if object_states.phase_of(pod) == "Pending"]
        if pending:
            name_of_pod = object_states.name_of(pending[0])
            reason = object_states.explain_pending(pending[0], events.get(name_of_pod, ()))
            state = "waiting"
        elif not pods:
            reason = object_states.newest_warning(events.get(name, ())) or "its pods are not created yet"
            state = "waiting"
    elif state == "suspended" and queue:
        reason = object_states.explain_queue(queue)
    return JobView(name, state, reason, **counts, queue=queue)


def build_preparation(
    training: JobView, trainers: int, pods: Sequence[Object], is_published: bool
) -> JobView:
    """Return the view of the data that the pods of the training Job prepare in their init containers.

    `is_published` is whether the storage has the manifest of this data, so that the data is complete.
    """
    every = (container for pod in pods for container in object_states.container_statuses(pod))
    containers = [container for container in every if container.get("name") == PREPARE]
    running = sum("running" in (container.get("state") or {}) for container in containers)
    ends = [object_states.state_of(container, "terminated") for container in containers]
    done = sum(end.get("exitCode") == 0 for end in ends)  # a container ends so when all data is published
    state, reason = training.state, training.reason
    if is_published or done or state == "complete":
        state, reason = "complete", ""
    elif running:
        state, reason = "running", f"{running} of {trainers} prepare it"
    failed = sum(bool(end.get("exitCode")) for end in ends)
    return JobView(TRAINING_PODS, state, reason, succeeded=done, failed=failed, active=running)


def find_culprit(pods: Sequence[Object]) -> Object | None:
    """Return the pod that made the Job fail: among the newest pods of all ranks, the pod that failed first.

    Pods without a known reason are skipped. Older pods of a rank were replaced, and the run continued. A pod that was
    stopped, disrupted or replaced does not fail the Job: it is returned only if no other pod failed.
    """
    last = {rank_of(pod): pod for pod in sorted(pods, key=_created)}
    failed = [pod for pod in last.values() if object_states.phase_of(pod) == "Failed"]
    explained = [pod for pod in failed if object_states.explain_failure(pod)]
    return min(
        explained, key=lambda pod: (object_states.is_harmless_failure(pod), _failed_at(pod)), default=None
    )


def _failed_at(pod: Object) -> str:
    times = [
        ended.get("finishedAt") or "~"
        for status in object_states.container_statuses(pod)
        if (ended := object_states.state_of(status, "terminated")).get("exitCode")
    ]
    return min(times, default="~")


@dataclass(frozen=True)
class ClusterSnapshot:
    """A snapshot of the objects and files of one release.

    `events` has the events by the name of their pod or Job. The key "" has the events about pods that Kubernetes
    removed (`object_states.LOSSES`).
    """

    run: ReleaseRun
    jobs: Mapping[str, Object]
    pods: Sequence[Object]
    events: Mapping[str, Sequence[Object]] = field(default_factory=dict)
    claim: str = ""
    """Why the claim cannot be mounted; empty if it can be, or if no pod is pending."""
    files: JobFiles = field(default_factory=lambda: JobFiles(was_read=False))
    log: Sequence[str] = ()
    log_of: str = ""


def build_cluster_view(seen: ClusterSnapshot) -> RunView:
    """Return the view of one release."""
    run, files = seen.run, seen.files
    progress = build_progress(files.status, files.run, run.k8s_job)
    pods = pods_of(seen.pods, run.k8s_job)
    training = build_job(run.k8s_job, seen.jobs.get(run.k8s_job), pods, seen.events)
    data = _build_data_view(seen, training, pods)
    reported = files.status.ranks if files.status and progress else ()
    state, cause = _state_and_cause(seen, progress, data, training, pods)
    record = files.run if files.run and files.run.run_id == run.k8s_job else RunFile()
    passes = files.passes if progress else ()
    return RunView(
        where=f"release {run.release} in namespace {run.namespace}, job {run.job_name}",
        run_id=run.k8s_job,
        state=state,
        cause=cause,
        data=data,
        training=training,
        ranks=build_ranks(run.trainers, pods, seen.events, reported),
        progress=progress,
        notes=tuple(_notes(seen, progress is not None, data, state)),
        **_results(record, passes),
        log=seen.log,
        log_of=seen.log_of,
        damage=files.damage,
    )


def _results(record: RunFile, passes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of RunView that come from the run record and its passes: name of the field → value."""
    best = metrics.best_pass(record.content, passes)
    return {"exported": record.exported_to, "score": record.score, "passes": passes, "best": best}


def _build_data_view(seen: ClusterSnapshot, training: JobView, training_pods: Sequence[Object]) -> JobView:
    run, manifest = seen.run, seen.files.manifest
    is_published = manifest is not None and manifest.data_digest == run.data_digest
    if run.is_prepared_in_training_pods:
        return build_preparation(training, run.trainers, training_pods, is_published)
    if not run.k8s_data_job:
        return JobView("", "none", "this release has no data Job (data.enabled is false)")
    job = seen.jobs.get(run.k8s_data_job)
    if job is None and is_published:
        return JobView(run.k8s_data_job, "complete", "the Job was deleted; its manifest exists")
    return build_job(run.k8s_data_job, job, pods_of(seen.pods, run.k8s_data_job), seen.events)


def _state_and_cause(
    seen: ClusterSnapshot,
    progress: RunProgress | None,
    data: JobView,
    training: JobView,
    pods: Sequence[Object],
) -> tuple[str, str]:
    """Return (state, cause) of the run. A Job's state has precedence over status.json, which may be out of date."""
    run, files = seen.run, seen.files
    reported = progress.state if progress else ""
    cause = (files.status.cause if files.status and progress else None) or ""
    if data.state == "failed" and training.state != "complete" and run.k8s_data_job:
        failure = files.data_failure
        reason = failure.reason if failure and failure.data_digest == run.data_digest else ""
        state = "failed", f"{DATA_JOB_FAILED}{reason or data.reason}"
    elif training.state == "failed":
        culprit = find_culprit(pods)
        if culprit and not cause:
            name, rank = object_states.name_of(culprit), rank_of(culprit)
            name += "" if rank is None else f" (rank {rank})"
            cause = f"{name}: {object_states.explain_failure(culprit)}"
        state = "failed", cause or training.reason
    elif training.state == "missing":
        state = (reported if reported in FINAL_STATES else "missing"), cause
    elif training.state in ("complete", "suspended"):
        # A queue's reason is in describe_wait.
        state = training.state, "" if training.queue else training.reason
    elif reported == "complete" or any(object_states.phase_of(pod) == "Succeeded" for pod in pods):
        state = "finishing", ""  # its pods have exited, and the Job is not complete yet
    elif reported and reported not in FINAL_STATES:
        state = reported, cause
    else:
        state = ("preparing" if data.state in ("running", "waiting") else "pending"), ""
    return state


def _note_replaced_output(seen: ClusterSnapshot) -> str:
    """Return a note if a run of another release has replaced the `output/` of this complete run; else empty."""
    run, other = seen.run, seen.files.run
    if other is None or not other.release or (other.release, other.namespace) == (run.release, run.namespace):
        return ""
    return (
        f"run {other.run_id} of release {other.release} in namespace {other.namespace} has the same jobName, and "
        f"output/ belongs to it; this run's output was moved to runs/{run.k8s_job} (`runs` lists it). Fix: give one of "
        "the two releases another jobName"
    )


def _notes(seen: ClusterSnapshot, has_progress: bool, data: JobView, state: str) -> list[str]:
    """Return sentences that users must know in addition to state and cause, such as a lost data set with its fix."""
    run, files = seen.run, seen.files
    notes = [_note_script(files)] if has_progress else []
    if seen.claim:
        notes.append(
            f"{seen.claim.rstrip('.')}. Fix: run `kubectl describe pvc {run.claim} -n {run.namespace}`, and correct "
            "the cause that it shows"
        )
    if has_progress and state == "complete":
        notes.append(_note_surplus_passes(files, run.passes))
    if data.state == "complete" and run.k8s_data_job:
        notes.append(_note_lost_data(seen, data, state))
    if state == "complete":
        notes.append(_note_replaced_output(seen))
    if data.state in ("running", "waiting"):
        notes.append(describe_running_data(data))
    if state == "missing" and run.cron_job == run.k8s_job:
        notes.append(
            f"CronJob {run.cron_job} has started no run yet, or its Jobs were deleted. To start one now: kubectl "
            f"create job {run.cron_job}-1 --from=cronjob/{run.cron_job} -n {run.namespace}"
        )
    elif state == "missing":
        notes.append(
            f"the training Job {run.k8s_job} does not exist: it was deleted, or its TTL expired. Fix: to train "
            "again, run helm upgrade with --reset-then-reuse-values --set-string runId=TEXT (any new text)"
        )
    if files.status and not has_progress and state not in FINAL_STATES:
        notes.append(
            f"output/ still contains run {files.status.run_id}; this run moves it to runs/ when it starts"
        )
    notes += _note_removed_pods(seen) if state not in ("training", *FINAL_STATES) else []
    for name, job in sorted(seen.jobs.items()):
        earlier = object_states.is_started_by(job, run.cron_job)
        if name not in (run.k8s_job, run.k8s_data_job) and not earlier:
            deleted = job.get("metadata", {}).get("deletionTimestamp")
            job_state = "being deleted" if deleted else object_states.job_state(job)[0]
            notes.append(
                f"the namespace has a Job that is not in this release's values: {name} ({job_state}). A "
                "failed upgrade may have left it, or prevented its replacement. Fix: repeat the upgrade; if the "
                f"Job stays, delete it: kubectl delete job {name} -n {run.namespace}"
            )
    if files.problem:
        notes.append(f"the progress cannot be read: {files.problem}")
    return [note for note in notes if note]


def _note_removed_pods(seen: ClusterSnapshot) -> list[str]:
    """Return a note for each pod of the run that no longer exists because Kubernetes removed it, with the reason.

    The reasons, such as an eviction, are in events (`object_states.LOSSES`). Kubernetes deletes the status of a pod
    together with the pod, so only the events have the reasons.
    """
    known = {object_states.name_of(pod) for pod in seen.pods}
    found = [(str(event["involvedObject"]["name"]), event) for event in seen.events.get("", ())]
    return [
        f"pod {name} was removed: {event['reason']}: {event.get('message')}"
        for name, event in found
        if name.startswith(f"{seen.run.k8s_job}-") and name not in known
    ]


def describe_running_data(data: JobView) -> str:
    """Return a sentence that says who prepares the data, such as `data job still running: NAME`, and the reason."""
    text = (
        "the training pods prepare the data"
        if data.name == TRAINING_PODS
        else f"data job still running: {data.name}"
    )
    return text + (f" ({data.reason})" if data.reason else "")


def _note_surplus_passes(files: JobFiles, requested: int) -> str:
    """Return a note if the output of a complete run has more passes than were requested; else empty."""
    resumed = files.run.resume.passes if files.run and files.run.resume else 0
    trained = max([resumed, *(row["pass"] + 1 for row in files.passes)])
    if trained <= requested:
        return ""
    return (
        f"training.passes is {requested}, but output/ already has {trained} passes: nothing was trained, and model and "
        "score come from the longer training. Fix: train from scratch: run the same command with "
        "--set startFromScratch=TEXT (any new text)"
    )


def _note_script(files: JobFiles) -> str:
    """Return the warning in status.json, or else a note if a user's script reported no step; else empty."""
    runtime = files.run.fingerprint.get("runtime") if files.run else ""
    status = files.status
    if status is None:
        return ""
    if status.warning:
        return f"warning: {status.warning}"
    if runtime not in SCRIPT_RUNTIMES or status.state != "training" or status.number is not None:
        return ""
    return (
        "the script has not reported a step yet. If it never does (launcher.program.ScriptRun), its position, speed "
        "and remaining time are unknown, there is no curve, and it counts as hung when none of its processes logs "
        "anything for training.progressDeadlineSeconds"
    )


def _note_lost_data(seen: ClusterSnapshot, data: JobView, state: str) -> str:
    """Return a note if the data Job is complete, but the manifest in the job's folder is not that of its data.

    Then the storage does not contain the data, or another release with the same jobName has replaced the links to it.
    Return an empty text if all is well, if the manifest could not be read, or if it is absent after the run is over.
    """
    run, manifest = seen.run, seen.files.manifest
    was_read = seen.files.was_read and MANIFEST not in seen.files.damage
    is_intact = manifest and manifest.data_digest == run.data_digest
    if not was_read or is_intact or (not manifest and state in FINAL_STATES):
        return ""
    by = manifest.made_by if manifest else {}
    if by.get("release") and (by["release"], by.get("namespace")) != (run.release, run.namespace):
        return (
            f"release {by['release']} in namespace {by.get('namespace')} has the same jobName {run.job_name!r}: the "
            "job's folder has links to its data. The data of this release stays. Fix: give one of the two another "
            "jobName"
        )
    return (
        f"the storage does not contain the data of Job {data.name}. Fix: delete that Job, so that the same "
        f"`run` or helm upgrade creates it again: kubectl delete job {data.name} -n {run.namespace}"
    )


def build_folder_view(folder: str, files: JobFiles, log: Sequence[str] = ()) -> RunView:
    """Return the view of a job's folder, from its files alone."""
    status, manifest, failure = files.status, files.manifest, files.data_failure
    digest = (manifest or failure).data_digest if manifest or failure else ""  # type: ignore[union-attr]
    if failure:
        data = JobView(f"data {digest[:8]}", "failed", failure.reason)
    elif manifest:
        data = JobView(f"data {digest[:8]}", "complete", describe_data(to_json(manifest)))
    elif damaged := files.damage.keys() & {MANIFEST, DATA_FAILED}:
        data = JobView("data", "unknown", f"{min(damaged)} is damaged")
    else:
        data = JobView("data", "missing", "no manifest.json yet: the data Job has not finished")
    progress = build_progress(status, files.run, None)
    notes: list[str] = []
    record = files.run or RunFile()
    if status and progress:
        state, cause = progress.state, status.cause or ""
        notes.append(_note_script(files))
        if state == "complete":
            notes.append(_note_surplus_passes(files, progress.passes))
    elif failure:
        state, cause = "failed", f"{DATA_JOB_FAILED}{failure.reason}"
    elif record.state or files.damage:
        state, cause = record.state or "unknown", record.cause or ""
    else:
        state, cause = ("pending" if manifest else "preparing"), ""
        notes.append("no output/status.json: no training has started in this folder")
    return RunView(
        where=folder,
        run_id=(status.run_id if status else None) or record.run_id,
        state=state,
        cause=cause,
        data=data,
        ranks=build_ranks(status.trainers, [], {}, status.ranks) if status else (),
        progress=progress,
        notes=tuple(filter(None, notes)),
        **_results(record, files.passes),
        log=log,
        log_of=OutputPaths(Path()).train_log(0).as_posix(),
        damage=files.damage,
    )
