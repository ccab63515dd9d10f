"""What the states of pods, Jobs and claims mean: why a pod does not run, and why a container exited.

The functions take objects as the API server sends them. The argument `events` has the Event objects about the pod, Job
or claim, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher import errors
from launcher.cli.cluster_api import Object

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

PERMANENT_WAITS = ("ErrImageNeverPull", "InvalidImageName", "ImagePullBackOff", "CreateContainerConfigError")
"""Reasons of waiting containers; a container that waits for such a reason usually does not start until somebody
acts."""

ENDED = ("Succeeded", "Failed")
"""Phases of pods whose containers have exited for good."""

ABSENT = "does not exist"  # part of `explain_claim`

_ORDINARY_WAITS = ("ContainerCreating", "PodInitializing", "")
_EXPLAINING_EVENTS = (
    "FailedMount",
    "FailedAttachVolume",
    "FailedScheduling",
    "FailedCreatePodSandBox",
    "FailedCreate",
)
LOSSES = ("Evicted", "Preempted", "TaintManagerEviction")
"""Reasons of events about pods that Kubernetes removed; the pods themselves may be gone."""
_DISK_FIXES = {
    'EmptyDir volume "shared-memory"': "increase training.sharedMemory",
    'EmptyDir volume "work"': "increase workDir.sizeLimit",
    "ephemeral": "increase workDir.sizeLimit, which is also the pod's request for disk, or use nodes with more disk",
}
"""Text in the kubelet's message about an eviction → what avoids it."""
_DRIVER = "efs.csi.aws.com"
_UNBOUND = "unbound immediate PersistentVolumeClaims"
_CODES = {
    errors.EXIT_SETTINGS: "a setting is invalid",
    errors.EXIT_DATA: "the data is invalid or missing, or the loss is NaN or infinite",
    errors.EXIT_TWIN: "another pod of this rank has taken its place; not counted as a failure",
    errors.EXIT_GANG: "the run failed; it is not retried",
    errors.EXIT_UNFIT: "this pod cannot continue; it is replaced",
    errors.EXIT_STORAGE: "the storage is full or read-only",
    errors.EXIT_STOPPED: "stopped by SIGTERM",
}
_FINAL_CODES = (errors.EXIT_SETTINGS, errors.EXIT_DATA, errors.EXIT_GANG, errors.EXIT_STORAGE)
"""Exit codes whose termination message is the cause of the failure. With other codes it may be any last log line."""
_HARMLESS_CODES = (errors.EXIT_TWIN, errors.EXIT_STOPPED)  # the chart's podFailurePolicy ignores them
_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def is_started_by(job: Object, cron_job: str) -> bool:
    """Return whether the Job was created by this CronJob, or from it with `kubectl create job --from`.

    The result is False if `cron_job` is empty.
    """
    owners = job["metadata"].get("ownerReferences") or []
    return any((one["kind"], one["name"]) == ("CronJob", cron_job) for one in owners)


def name_of(thing: Object) -> str:
    """Return an object's metadata.name."""
    return str(thing.get("metadata", {}).get("name", ""))


def phase_of(pod: Object) -> str:
    """Return a pod's phase; `Unknown` if it has none yet."""
    return str(pod.get("status", {}).get("phase", "Unknown"))


def container_statuses(pod: Object) -> list[Object]:
    """Return the statuses of a pod's containers, first of the init containers, then of the others."""
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def state_of(container: Object, kind: str) -> Object:
    """Return the state `kind` (waiting, running or terminated) of a container's status; {} in another state."""
    return dict((container.get("state") or {}).get(kind) or {})


def running_container(pod: Object, or_init: bool = False) -> str | None:
    """Return the name of a pod's main container if it runs, else None.

    With `or_init`, a running init container counts, too.
    """
    main = pod.get("status", {}).get("containerStatuses", [])
    for status in container_statuses(pod) if or_init else main:
        if "running" in (status.get("state") or {}):
            return str(status["name"])
    return None


def find_condition(thing: Object, kind: str) -> Object:
    """Return the condition `kind` of a pod or Job; {} if it does not have this condition."""
    conditions = thing.get("status", {}).get("conditions") or []
    return next((dict(entry) for entry in conditions if entry.get("type") == kind), {})


def unusual_wait(pod: Object) -> tuple[str, str] | None:
    """Return why a container of a pod waits, as (Kubernetes' reason, the reason with image and message).

    Return None if no container waits, or all wait for a reason that is part of every normal start.
    """
    for status in container_statuses(pod):
        waiting = state_of(status, "waiting")
        reason = waiting.get("reason", "")
        if reason in _ORDINARY_WAITS:
            continue
        message = waiting.get("message", "")
        image = f" (image {status['image']})" if "Image" in reason and status.get("image") else ""
        return reason, f"{reason}{image}: {message}" if message else f"{reason}{image}"
    return None


def explain_pending(pod: Object, events: Sequence[Object] = ()) -> str:
    """Return why a pod does not run yet.

    If the reason mentions the EFS driver or an untolerated taint, the result also has the fix for a node on which the
    driver does not become ready.
    """
    reason = _pending_reason(pod, events)
    if _DRIVER not in reason and "untolerated taint" not in reason:
        return reason
    # Drivers remove the taint once, when they start, and it may remain (aws-efs-csi-driver #1320, #1613).
    return (
        f"{reason.rstrip('.')}. Fix: if this lasts more than 5 minutes and `kubectl describe nodes` shows the taint "
        f"{_DRIVER}/agent-not-ready, restart the driver of that node: kubectl delete pod -n kube-system "
        "-l app=efs-csi-node --field-selector spec.nodeName=NODE"
    )


def _pending_reason(pod: Object, events: Sequence[Object]) -> str:
    scheduled = find_condition(pod, "PodScheduled")
    if scheduled and scheduled.get("status") == "False":
        message = scheduled.get("message") or "no suitable node"
        if _UNBOUND not in message:
            return f"{scheduled.get('reason', 'Unschedulable')}: {message}"
        events = ()  # every first start reports this; a note about the claim says why it lasts
    waiting = unusual_wait(pod)
    if waiting:
        return waiting[1]
    # Events of the scheduler are outdated once the pod has a node.
    warning = newest_warning(e for e in events if not scheduled or e.get("reason") != "FailedScheduling")
    if warning:
        return warning
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return "it is being deleted"
    if not scheduled or scheduled.get("status") == "False":
        return "its storage claim is not bound yet" if scheduled else "not scheduled yet"
    running = running_container(pod, or_init=True)
    return f"init container {running} is running" if running else "its containers are starting"


def newest_warning(events: Iterable[Object]) -> str:
    """Return the newest warning that explains a delay as `reason: message`; empty if there is none."""
    for event in reversed(list(events)):
        if event.get("type") == "Warning" and event.get("reason") in _EXPLAINING_EVENTS:
            return f"{event['reason']}: {str(event.get('message', '')).strip()}"
    return ""


def is_harmless_failure(pod: Object) -> bool:
    """Return whether a failed pod does not fail its Job: it was disrupted, stopped or replaced."""
    if find_condition(pod, "DisruptionTarget").get("status") == "True":
        return True
    ends = [state_of(status, "terminated") for status in container_statuses(pod)]
    codes = [end["exitCode"] for end in ends if end.get("exitCode")]
    return bool(codes) and all(code in _HARMLESS_CODES for code in codes)


def explain_disruption(pod: Object) -> str:
    """Return why Kubernetes ended a pod, such as `Evicted: …` with the fix; empty if Kubernetes did not end it.

    The kubelet writes the reason to the pod's status. The scheduler and the controllers that delete pods write it to a
    condition of the pod.
    """
    status = pod.get("status", {})
    source = status if status.get("reason") else find_condition(pod, "DisruptionTarget")
    text = ": ".join(filter(None, (source.get("reason"), str(source.get("message") or "").strip())))
    fix = next((fix for mark, fix in _DISK_FIXES.items() if mark in text), "")
    return f"{text.rstrip('.')}. Fix: {fix}" if fix else text


def explain_failure(pod: Object) -> str:
    """Return why a pod failed: the termination messages and exit codes of its containers, or why Kubernetes ended it.

    If Kubernetes ended the pod, a container counts only if its exit code is in _FINAL_CODES: with another exit code,
    the container failed because the pod was ended.
    """
    causes, disruption = list[str](), explain_disruption(pod)
    for status in container_statuses(pod):
        ended = state_of(status, "terminated") or (status.get("lastState") or {}).get("terminated") or {}
        if ended.get("exitCode", 0) == 0 or (disruption and ended["exitCode"] not in _FINAL_CODES):
            continue
        code, message = ended["exitCode"], str(ended.get("message") or "").strip()
        if not message or code not in _FINAL_CODES:
            reason = ended.get("reason", "Error")
            extra = "" if reason in ("Error", "Completed") else f", {reason}"
            if reason == "OOMKilled":
                extra += ": it used more memory than its limit"
            meaning = _CODES.get(code) or _SIGNALS.get(code - 128)  # of the launcher, or 128 + a signal
            shown = f"exit code {code} ({meaning})" if meaning else f"exit code {code}"
            what = f"container {status.get('name')} exited with {shown}{extra}"
            message = f"{what}: {message}" if message else what
        causes.append(message)
    return "\n".join(causes) or disruption


def job_state(job: Object | None) -> tuple[str, str]:
    """Return (state, reason) of a Job: missing (`job` is None), suspended, running, complete or failed."""
    if job is None:
        return "missing", ""
    failed = find_condition(job, "Failed") or find_condition(job, "FailureTarget")
    if failed.get("status") == "True":
        return "failed", ": ".join(part for part in (failed.get("reason"), failed.get("message")) if part)
    if find_condition(job, "Complete").get("status") == "True":
        return "complete", ""
    if job.get("spec", {}).get("suspend"):
        return "suspended", f"spec.suspend is true{_describe_setter(job)}"
    return "running", ""


def _describe_setter(job: Object) -> str:
    """Return which client set spec.suspend of a Job, and when; empty if the API server does not say it."""
    for entry in job["metadata"].get("managedFields") or []:
        if "f:suspend" in (entry.get("fieldsV1") or {}).get("f:spec", {}):
            return f" (set by {entry.get('manager')} at {entry.get('time')})"
    return ""


def queue_of(job: Object | None) -> str:
    """Return the Kueue queue that suspends and resumes a Job; empty if there is none."""
    return str(((job or {}).get("metadata", {}).get("labels") or {}).get(QUEUE_LABEL) or "")


def explain_queue(queue: str) -> str:
    """Return why Kueue keeps a Job of this LocalQueue suspended, and the fix."""
    return (
        f"queue {queue} (Kueue) has not admitted it. Fix: wait until the queue has free quota, or ask its owner for "
        "more; `kubectl describe workloads` has the reason"
    )


def explain_claim(claim: Object | None, claim_name: str, events: Sequence[Object] = ()) -> str:
    """Return why a claim cannot be mounted; empty if it is bound, or is bound as soon as a pod uses it."""
    if claim is None:
        return f"the claim {claim_name} {ABSENT}"
    phase = claim.get("status", {}).get("phase")
    if phase == "Bound":
        return ""
    newest = next((event for event in reversed(list(events)) if event.get("message")), None)
    if newest and newest.get("reason") == "WaitForFirstConsumer":
        return ""
    why = f"{newest.get('reason')}: {newest.get('message')}" if newest else "no event says why"
    spec = claim.get("spec", {})
    wanted = spec.get("volumeName") or spec.get("storageClassName") or "any volume"
    return f"the claim {claim_name} is {phase or 'Pending'}, not Bound (it requests {wanted}); {why}"
