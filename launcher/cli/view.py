"""What a person sees of one run, as plain data made by pure functions from API objects and status files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from launcher.cli import reasons
from launcher.cli.cluster import COMPONENT_LABEL, RELEASE_LABEL
from launcher.cli.progress import Progress, figure

Object = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"
FINAL = ("complete", "failed")
DATA_FAILED = "the data Job failed: "


@dataclass(frozen=True)
class Run:
    """The key `run.json` of ConfigMap `<release>-run`; names as in docs/contracts.md."""

    release: str
    namespace: str
    job_name: str
    job_path: str
    claim: str
    image: str
    image_pull_policy: str
    image_pull_secrets: list[Any]
    service_account: str
    trainers: int
    passes: int
    k8s_job: str
    k8s_data_job: str
    data_digest: str
    uid: int
    gid: int

    @classmethod
    def of(cls, release: str, namespace: str, value: Mapping[str, Any]) -> Run:
        """Raises KeyError for a key that the chart must have written."""
        return cls(
            release=release,
            namespace=namespace,
            job_name=value["jobName"],
            job_path=value.get("jobPath") or "/home/jobpath",
            claim=value["claim"],
            image=value["image"],
            image_pull_policy=value.get("imagePullPolicy") or "IfNotPresent",
            image_pull_secrets=value.get("imagePullSecrets") or [],
            service_account=value.get("serviceAccount") or "default",
            trainers=int(value["trainers"]),
            passes=int(value["passes"]),
            k8s_job=value["k8sJob"],
            k8s_data_job=value.get("k8sDataJob") or "",
            data_digest=value.get("dataDigest") or "",
            uid=int(value.get("uid") or 10001),
            gid=int(value.get("gid") or 10001),
        )


@dataclass(frozen=True)
class JobView:
    """A Job.

    State is missing, suspended, waiting, running, complete, failed or none (not part of this run).
    """

    name: str
    state: str
    reason: str = ""
    succeeded: int = 0
    failed: int = 0
    active: int = 0
    queue: str = ""
    """The Kueue queue that decides when it runs; empty: none does."""


@dataclass(frozen=True)
class Rank:
    """One rank: its newest pod, and what its launcher last said."""

    rank: int
    pod: str | None = None
    node: str | None = None
    phase: str = "missing"
    reason: str = ""
    state: str | None = None
    number: int | None = None
    batch: int | None = None
    samples_per_second: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class View:
    """Everything that `status` shows.

    `state` is preparing, pending, a state of status.json, complete or failed.
    """

    where: str
    run_id: str | None
    state: str
    cause: str = ""
    data: JobView | None = None
    training: JobView | None = None
    ranks: tuple[Rank, ...] = ()
    progress: Progress | None = None
    notes: tuple[str, ...] = field(default=())
    exported: str = ""
    """Where the whole model lies besides the shared storage."""
    score: Mapping[str, Any] = field(default_factory=dict)
    """Of the whole model on the test set; empty before there is one."""
    passes: Sequence[Mapping[str, Any]] = ()
    """`curve.pass_table` of the passes so far; they count from 0."""
    best: Mapping[str, Any] = field(default_factory=dict)
    """`launcher.best.of_run`; empty without `training.keepBest`."""
    log: Sequence[str] = ()
    """The newest lines of who works just now."""
    log_of: str = ""
    """The pod or file that they are of."""

    @property
    def over(self) -> bool:
        return self.state in FINAL

    def as_json(self) -> Object:
        """The same as a JSON object; a pass is called `pass` there, as in status.json."""
        value = asdict(self)
        for entry in (*value["ranks"], value["progress"]):
            if entry:
                entry["pass"] = entry.pop("number")
        return value


def rank_of(pod: Object) -> int | None:
    """The completion index of a training pod."""
    meta = pod.get("metadata", {})
    value = (meta.get("labels") or {}).get(INDEX) or (meta.get("annotations") or {}).get(INDEX)
    return int(value) if value is not None and str(value).isdigit() else None


def owned_by(job: str) -> Any:
    """A test of whether a pod belongs to the Job of that name."""
    return lambda pod: any(
        owner.get("kind") == "Job" and owner.get("name") == job
        for owner in pod.get("metadata", {}).get("ownerReferences", [])
    )


def newest(pods: Sequence[Object]) -> Object | None:
    """The pod that was made last."""
    return max(pods, key=_made, default=None)


def _made(pod: Object) -> str:
    return str(pod.get("metadata", {}).get("creationTimestamp") or "")


def own_run(run: Mapping[str, Any] | None, run_id: str | None) -> Mapping[str, Any]:
    """run.json, or {} when it is absent or another run's; `run_id` None takes any."""
    return run if run and run_id in (None, run.get("runId")) else {}


def exported_to(run: Mapping[str, Any]) -> str:
    """What run.json says of the export; empty when there was none."""
    return str((run.get("exported") or {}).get("to") or "")


def ranks_of(
    trainers: int, pods: Sequence[Object], events: Mapping[str, Sequence[Object]], said: Any
) -> tuple[Rank, ...]:
    """One row a rank.

    `pods` are this run's training pods, `events` go by pod name, `said` is status.json's `ranks`.
    """
    told = {entry["rank"]: entry for entry in said or [] if isinstance(entry, dict) and "rank" in entry}
    rows = []
    for rank in range(max(trainers, len(told))):
        pod = newest([pod for pod in pods if rank_of(pod) == rank])
        entry = told.get(rank, {})
        phase = _phase(pod) if pod else "missing" if pods else "-"
        reason = ""
        if pod and phase == "Pending":
            reason = reasons.pending_reason(pod, events.get(reasons.name(pod), ()))
        elif pod and phase in ("Failed", "Unknown"):
            reason = reasons.termination(pod)
        rows.append(
            Rank(
                rank=rank,
                pod=reasons.name(pod) if pod else entry.get("pod"),
                node=(pod or {}).get("spec", {}).get("nodeName") or entry.get("node"),
                phase=phase,
                reason=reason,
                state=entry.get("state"),
                number=entry.get("pass"),
                batch=entry.get("batch"),
                samples_per_second=figure(entry.get("samplesPerSecond")),
                loss=figure(entry.get("loss")),
            )
        )
    return tuple(rows)


def _phase(pod: Object) -> str:
    phase = str(pod.get("status", {}).get("phase", "Unknown"))
    return "Deleting" if pod.get("metadata", {}).get("deletionTimestamp") and phase == "Running" else phase


def job_view(
    name: str, job: Object | None, pods: Sequence[Object], events: Mapping[str, Sequence[Object]]
) -> JobView:
    """A Job with the reason that explains it best.

    Its pods' last words, what they wait for, its own events.
    """
    state, reason = reasons.job_state(job)
    counts = (job or {}).get("status", {})
    if state == "failed":
        guilty = culprit(pods)
        reason = (reasons.termination(guilty) if guilty else "") or reason
    elif state == "running":
        pending = [pod for pod in pods if pod.get("status", {}).get("phase") == "Pending"]
        if pending:
            reason = reasons.pending_reason(pending[0], events.get(reasons.name(pending[0]), ()))
            state = "waiting"
        elif not pods:
            reason = reasons.event_reason(events.get(name, ())) or "its pods are not made yet"
            state = "waiting"
    return JobView(
        name=name,
        state=state,
        reason=reason,
        succeeded=int(counts.get("succeeded") or 0),
        failed=int(counts.get("failed") or 0),
        active=int(counts.get("active") or 0),
        queue=reasons.queue(job),
    )


def culprit(pods: Sequence[Object]) -> Object | None:
    """The pod that failed the Job: of each rank's newest, the one that failed first and left a reason.

    Earlier pods were replaced and the run went on. One that was told to stop, or that another pod replaced,
    fails nothing: it is the answer only when there is no other.
    """
    last = {rank_of(pod): pod for pod in sorted(pods, key=_made)}
    failed = [pod for pod in last.values() if pod.get("status", {}).get("phase") == "Failed"]
    telling = [pod for pod in failed if reasons.termination(pod)]
    return min(telling, key=lambda pod: (reasons.harmless(pod), _ended(pod)), default=None)


def first_cause(pods: Sequence[Object]) -> str:
    """The last words of the pod that failed the Job; empty when there is none."""
    pod = culprit(pods)
    if pod is None:
        return ""
    rank = rank_of(pod)
    who = reasons.name(pod) + ("" if rank is None else f" (rank {rank})")
    return f"{who}: {reasons.termination(pod)}"


def _ended(pod: Object) -> str:
    times = [
        ((status.get("state") or {}).get("terminated") or {}).get("finishedAt") or "~"
        for status in reasons.container_statuses(pod)
        if ((status.get("state") or {}).get("terminated") or {}).get("exitCode")
    ]
    return min(times, default="~")


def known_runs(maps: Sequence[Object]) -> list[tuple[str, str]]:
    """(namespace, release) of every run ConfigMap among `maps`, sorted."""
    found = set()
    for entry in maps:
        meta = entry.get("metadata", {})
        release = (meta.get("labels") or {}).get(RELEASE_LABEL)
        if release and meta.get("name") == f"{release}-run":
            found.add((str(meta.get("namespace")), str(release)))
    return sorted(found)


def component(pods: Sequence[Object], kind: str) -> list[Object]:
    """The pods whose component label is `kind`."""
    return [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(COMPONENT_LABEL) == kind]
