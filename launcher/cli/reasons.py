"""Why a pod does not run, and why one ended: pure functions over objects as the API server sends them.

`pod` is a Pod object, `events` Event objects about it (or about its Job or claim), oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from launcher import errors

Object = dict[str, Any]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

HOPELESS = ("ErrImageNeverPull", "InvalidImageName", "ImagePullBackOff", "CreateContainerConfigError")
"""Waiting reasons that do not pass by themselves."""

ABSENT = "does not exist"  # in `claim_reason`

_PLAIN_WAITING = ("ContainerCreating", "PodInitializing", "")
_TELLING_EVENTS = (
    "FailedMount",
    "FailedAttachVolume",
    "FailedScheduling",
    "FailedCreatePodSandBox",
    "FailedCreate",
)
_UNBOUND = "unbound immediate PersistentVolumeClaims"
_CODES = {
    errors.EXIT_SETTINGS: "a setting is wrong",
    errors.EXIT_DATA: "the data is wrong or missing, or the loss is no number",
    errors.EXIT_TWIN: "another pod of its rank has its place; this fails nothing",
    errors.EXIT_GANG: "it failed for good",
    errors.EXIT_UNFIT: "this pod could not go on, another one of its rank may",
    errors.EXIT_STORAGE: "the storage is full or cannot be written",
    errors.EXIT_STOPPED: "SIGTERM: told to stop",
}
_FINAL = (errors.EXIT_SETTINGS, errors.EXIT_DATA, errors.EXIT_GANG, errors.EXIT_STORAGE)
"""With these the message is the cause of the run's end; with others it may be only the log's last lines."""
_HARMLESS = (errors.EXIT_TWIN, errors.EXIT_STOPPED)  # the chart's podFailurePolicy ignores them
_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def name(thing: Object) -> str:
    return str(thing.get("metadata", {}).get("name", ""))


def container_statuses(pod: Object) -> list[Object]:
    """Init containers' statuses first, then the others', in their order."""
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def condition(thing: Object, kind: str) -> Object | None:
    """The condition `kind` of a pod or Job, if it is there."""
    for entry in thing.get("status", {}).get("conditions") or []:
        if entry.get("type") == kind:
            return dict(entry)
    return None


def stuck_waiting(pod: Object) -> tuple[str, str] | None:
    """(reason, sentence) of the first container that waits for something that may never come."""
    for status in container_statuses(pod):
        waiting = (status.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason in _PLAIN_WAITING:
            continue
        message = waiting.get("message", "")
        image = f" (image {status['image']})" if "Image" in reason and status.get("image") else ""
        return reason, f"{reason}{image}: {message}" if message else f"{reason}{image}"
    return None


def pending_reason(pod: Object, events: Sequence[Object] = ()) -> str:
    """One sentence: why this pod is not running yet. Empty when nothing tells."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled and scheduled.get("status") == "False":
        message = scheduled.get("message") or "no node fits"
        if _UNBOUND not in message:
            return f"{scheduled.get('reason', 'Unschedulable')}: {message}"
        events = ()  # each first start begins so; a note about the claim says why it lasts
    stuck = stuck_waiting(pod)
    if stuck:
        return stuck[1]
    # Once it has a node, what the scheduler said before is over.
    told = event_reason(e for e in events if not scheduled or e.get("reason") != "FailedScheduling")
    if told:
        return told
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return "being deleted"
    if not scheduled or scheduled.get("status") == "False":
        return "its storage claim is not bound yet" if scheduled else "not scheduled yet"
    running_init = [
        status["name"]
        for status in pod.get("status", {}).get("initContainerStatuses", [])
        if "running" in (status.get("state") or {})
    ]
    return f"init container {running_init[0]} is at work" if running_init else "its containers are being made"


def event_reason(events: Iterable[Object]) -> str:
    """The newest warning that explains a delay, as `reason: message`; empty if there is none."""
    for event in reversed(list(events)):
        if event.get("type") == "Warning" and event.get("reason") in _TELLING_EVENTS:
            return f"{event['reason']}: {str(event.get('message', '')).strip()}"
    return ""


def exit_name(code: int) -> str:
    """An exit code as people know it: `exit code 71 (…)` of the launcher's own, `SIGKILL` for 128 + a
    signal."""
    meaning = _CODES.get(code) or _SIGNALS.get(code - 128)
    return f"exit code {code} ({meaning})" if meaning else f"exit code {code}"


def harmless(pod: Object) -> bool:
    """Whether a failed pod counts for nothing: it was disrupted or told to stop, or was replaced."""
    if (condition(pod, "DisruptionTarget") or {}).get("status") == "True":
        return True
    ends = [(status.get("state") or {}).get("terminated") or {} for status in container_statuses(pod)]
    codes = [end["exitCode"] for end in ends if end.get("exitCode")]
    return bool(codes) and all(code in _HARMLESS for code in codes)


def termination(pod: Object) -> str:
    """What a failed pod left as its reason: its containers' messages, else exit codes, else the pod's own."""
    told: list[str] = []
    for status in container_statuses(pod):
        ended = (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get(
            "terminated"
        )
        if not ended or ended.get("exitCode", 0) == 0:
            continue
        code, message = ended["exitCode"], str(ended.get("message") or "").strip()
        if not message or code not in _FINAL:
            reason = ended.get("reason", "Error")
            extra = "" if reason in ("Error", "Completed") else f", {reason}"
            if reason == "OOMKilled":
                extra += ": it used more memory than its limit"
            what = f"container {status.get('name')} ended with {exit_name(code)}{extra}"
            message = f"{what}: {message}" if message else what
        told.append(message)
    if told:
        return "\n".join(told)
    status = pod.get("status", {})
    return ": ".join(part for part in (status.get("reason"), status.get("message")) if part)


def job_state(job: Object | None) -> tuple[str, str]:
    """(state, reason) of a Job: missing, suspended, running, complete or failed."""
    if job is None:
        return "missing", ""
    failed = condition(job, "Failed") or condition(job, "FailureTarget")
    if failed and failed.get("status") == "True":
        return "failed", ": ".join(part for part in (failed.get("reason"), failed.get("message")) if part)
    complete = condition(job, "Complete")
    if complete and complete.get("status") == "True":
        return "complete", ""
    if job.get("spec", {}).get("suspend"):
        return "suspended", "spec.suspend is true"
    return "running", ""


def queue(job: Object | None) -> str:
    """Return the Kueue queue that suspends and resumes a Job; empty: none does."""
    return str(((job or {}).get("metadata", {}).get("labels") or {}).get(QUEUE_LABEL) or "")


def claim_reason(claim: Object | None, claim_name: str, events: Sequence[Object] = ()) -> str:
    """Why a claim cannot be mounted; empty when it is bound, or will be when its first pod comes."""
    if claim is None:
        return f"the claim {claim_name} {ABSENT}"
    phase = claim.get("status", {}).get("phase")
    if phase == "Bound":
        return ""
    newest = next((event for event in reversed(list(events)) if event.get("message")), None)
    if newest and newest.get("reason") == "WaitForFirstConsumer":
        return ""
    why = f"{newest.get('reason')}: {newest.get('message')}" if newest else "no event tells why"
    wanted = claim.get("spec", {}).get("volumeName") or claim.get("spec", {}).get("storageClassName")
    wants = f"it wants {wanted or 'any volume'}"
    return f"the claim {claim_name} is {phase or 'Pending'}, not Bound ({wants}); {why}"
