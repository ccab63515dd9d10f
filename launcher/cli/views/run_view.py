"""Data classes of what `status`, `wait` and `run` show of a run, and pure functions that build them from pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from launcher.cli.cluster import object_states
from launcher.cli.cluster.cluster_api import Object
from launcher.cli.storage.reader_commands import FINAL_STATES
from launcher.paths import Position
from launcher.schema import RankStatus, RunFile, StatusFile

INDEX = "batch.kubernetes.io/job-completion-index"
DATA_JOB_FAILED = "the data Job failed: "
TRAINING_PODS = "training pods"
"""Name of the data's view when there is no data Job, because the training pods prepare the data."""
PREPARE = "prepare"
"""The init container in which a training pod prepares data."""


def first_line(cause: str) -> str:
    """Return the first line of a failure's cause, up to `; the last lines of …`, which introduces log lines."""
    line = cause.strip().partition("\n")[0].partition("; the last lines of ")[0]
    return line or "cause unknown"


@dataclass(frozen=True)
class RunProgress(StatusFile):
    """How far a run is, by its status.json. `number` is the current pass from 0, None while no rank trains."""

    resume: Position | None = None
    """The checkpoint from which the newest planned attempt resumes; see `resumes_from`."""

    @property
    def resumes_from(self) -> Position | None:
        """The checkpoint from which the next attempt resumes; None if that is not decided yet."""
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
    """Return the progress of a run (None: of any run); None without a status.json of that run."""
    if status is None or (run_id is not None and status.run_id != run_id):
        return None
    resume = run.resume if run and run.run_id == status.run_id else None
    return RunProgress(**vars(status), resume=Position(*resume) if resume else None)


@dataclass(frozen=True)
class JobView:
    """The state of a Kubernetes Job.

    `state` is missing (it does not exist although the release has it), suspended, waiting, running, complete,
    failed, or none (the release has no data Job, because data.enabled is false). If `name` is
    TRAINING_PODS, `state` describes the data that the training pods prepare, and the numbers count the init
    containers of these pods.
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

    `state` is missing, preparing, pending, finishing, suspended, a state of status.json, complete or failed.
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
    """The pod or file with that log."""
    damage: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with each damaged file of the run, with the fix, by its path."""

    @property
    def is_over(self) -> bool:
        """Whether the run is complete or failed."""
        return self.state in FINAL_STATES

    def as_json(self) -> Object:
        """Return the view as `status -o json` prints it; there a pass is called `pass`, as in status.json."""
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
    """Return the completion index of a training pod; None for another pod."""
    meta = pod.get("metadata", {})
    value = (meta.get("labels") or {}).get(INDEX) or (meta.get("annotations") or {}).get(INDEX)
    return int(value) if value is not None and str(value).isdigit() else None


def owned_by(job: str) -> Callable[[Object], bool]:
    """Return a function that returns whether a pod or Workload belongs to the Job with the name `job`."""
    return lambda thing: any(
        owner.get("kind") == "Job" and owner.get("name") == job
        for owner in thing.get("metadata", {}).get("ownerReferences", [])
    )


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

    `pods` are the training pods of this run (empty if they are not known), `events` are by pod name, and
    `reported` are the `ranks` of status.json.
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
    phase = str(pod.get("status", {}).get("phase", "Unknown"))
    return "Deleting" if pod.get("metadata", {}).get("deletionTimestamp") and phase == "Running" else phase


def build_job(
    name: str,
    job: Object | None,
    pods: Sequence[Object],
    events: Mapping[str, Sequence[Object]],
    workloads: Sequence[Object] = (),
) -> JobView:
    """Return the view of a Job, with the reason that explains its state best.

    That is the failure of a pod, what a pod waits for, an event of the Job, or why its queue holds it back.
    `events` are by object name; `workloads` are those of Kueue in the Job's namespace.
    """
    state, reason = object_states.job_state(job)
    counts = (job or {}).get("status", {})
    queue = object_states.queue_of(job)
    if state == "failed":
        culprit = find_culprit(pods)
        reason = (object_states.explain_failure(culprit) if culprit else "") or reason
    elif state == "running":
        pending = [pod for pod in pods if pod.get("status", {}).get("phase") == "Pending"]
        if pending:
            name_of_pod = object_states.name_of(pending[0])
            reason = object_states.explain_pending(pending[0], events.get(name_of_pod, ()))
            state = "waiting"
        elif not pods:
            reason = object_states.newest_warning(events.get(name, ())) or "its pods are not created yet"
            state = "waiting"
    elif state == "suspended" and queue:
        reason = object_states.explain_queue(queue, next(filter(owned_by(name), workloads), None))
    return JobView(
        name=name,
        state=state,
        reason=reason,
        succeeded=int(counts.get("succeeded") or 0),
        failed=int(counts.get("failed") or 0),
        active=int(counts.get("active") or 0),
        queue=queue,
    )


def build_preparation(
    training: JobView, trainers: int, pods: Sequence[Object], is_published: bool
) -> JobView:
    """Return the view of the data that the pods of the training Job prepare in their init containers.

    `is_published`: the storage has the manifest of this data.
    """
    containers = [
        container
        for pod in pods
        for container in object_states.container_statuses(pod)
        if container.get("name") == PREPARE
    ]
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
    """Return the pod that failed the Job: of the ranks' newest pods, the first that failed with a reason.

    Older pods of a rank were replaced, after which the run continued. A pod that was stopped, disrupted or
    replaced does not fail the Job: it is returned only if there is no other.
    """
    last = {rank_of(pod): pod for pod in sorted(pods, key=_created)}
    failed = [pod for pod in last.values() if pod.get("status", {}).get("phase") == "Failed"]
    explained = [pod for pod in failed if object_states.explain_failure(pod)]
    return min(
        explained,
        key=lambda pod: (object_states.is_harmless_failure(pod), _failed_at(pod)),
        default=None,
    )


def describe_culprit(pods: Sequence[Object]) -> str:
    """Return text such as `POD (rank 0): CAUSE` about the pod that failed the Job; empty if there is none."""
    pod = find_culprit(pods)
    if pod is None:
        return ""
    rank = rank_of(pod)
    pod_name = object_states.name_of(pod) + ("" if rank is None else f" (rank {rank})")
    return f"{pod_name}: {object_states.explain_failure(pod)}"


def _failed_at(pod: Object) -> str:
    times = [
        ended.get("finishedAt") or "~"
        for status in object_states.container_statuses(pod)
        if (ended := object_states.state_of(status, "terminated")).get("exitCode")
    ]
    return min(times, default="~")
