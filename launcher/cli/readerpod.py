"""A short-lived pod of the run's own image that has the claim mounted, and is always deleted again.

It is how a person reads the shared storage who has no access to it otherwise, also after all pods of the
run are gone. Restricted Pod Security, no service account token, a deadline of its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from types import FrameType
from typing import Any

from launcher.cli import reasons
from launcher.cli.cluster import CHART, COMPONENT_LABEL, NAME_LABEL, RELEASE_LABEL, Cluster, labels
from launcher.cli.problems import CliError
from launcher.cli.storage import PodStorage
from launcher.cli.view import Object, Run

READER = "reader"
OWNER = "paddle-training/reader-owner"  # host:pid of the command line that made the pod
START_SECONDS = 120.0  # an image that is on the node starts in 2 s; a pull of 900 MB takes about a minute
UNBOUND_SECONDS = 45.0
"""A claim or node that is not there by then needs a person. The controller that binds claims and saw one
before its volume looks again 15 s later (kube-controller-manager's --pvclaimbinder-sync-period)."""


class NoPlaceError(CliError):
    """No node has a place for the reader pod."""


def reader_pod(
    run: Run, name: str, owner: str, *, seconds: int, writable: bool, template: Object | None
) -> Object:
    """The Pod object.

    `template` is the training Job's pod spec: its tolerations and node selector are taken over.
    """
    like = template or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {NAME_LABEL: CHART, RELEASE_LABEL: run.release, COMPONENT_LABEL: READER},
            "annotations": {OWNER: owner},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": seconds,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "serviceAccountName": run.service_account,
            "imagePullSecrets": run.image_pull_secrets,
            **{key: like[key] for key in ("tolerations", "nodeSelector") if like.get(key)},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": run.uid,
                "runAsGroup": run.gid,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": READER,
                    "image": run.image,
                    "imagePullPolicy": run.image_pull_policy,
                    "command": ["python3", "-m", "launcher", "reader", "--seconds", str(seconds)],
                    # Nothing requested: a full cluster, too, can be read and its training corrected. Without
                    # the zeros the limit would be requested, and a quota could refuse the pod.
                    "resources": {"requests": {"cpu": "0", "memory": "0"}, "limits": {"memory": "128Mi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "jobs", "mountPath": run.job_path, "readOnly": not writable}],
                }
            ],
            "volumes": [
                {"name": "jobs", "persistentVolumeClaim": {"claimName": run.claim, "readOnly": not writable}}
            ],
        },
    }


def owner_name() -> str:
    """This process, as the annotation of its reader pod."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_stale(pod: Object, host: str, alive: Callable[[int], bool]) -> bool:
    """Whether the pod has ended, or was made on this host by a process that is gone."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return True
    made_on, _, pid = str((pod["metadata"].get("annotations") or {}).get(OWNER, "")).rpartition(":")
    return made_on == host and pid.isdigit() and not alive(int(pid))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_stale(cluster: Cluster, release: str) -> None:
    """Delete what an earlier command line could not delete, because it was killed."""
    for pod in cluster.items("pod", "look for old reader pods", labels(release, READER)):
        if is_stale(pod, socket.gethostname(), _alive):
            cluster.delete_pod(reasons.name(pod))


def _template(cluster: Cluster, run: Run) -> Object | None:
    with contextlib.suppress(CliError):
        job = cluster.find("job", run.k8s_job, "read the training Job")
        return dict(job["spec"]["template"]["spec"]) if job else None
    return None


@contextlib.contextmanager
def reader(
    cluster: Cluster,
    run: Run,
    seconds: int,
    writable: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[PodStorage]:
    """The job's folder through a reader pod that lives at most `seconds`.

    Raises CliError when the pod cannot be made or does not start, with the reason. However the block ends, by
    an exception, Ctrl-C, TERM or HUP, the pod is deleted.
    """
    claim = claim_problem(cluster, run)
    if claim and reasons.ABSENT in claim:
        raise CliError(f"cannot read the storage: {claim} in namespace {run.namespace}.")
    remove_stale(cluster, run.release)
    name = f"{run.release[:40]}-reader-{secrets.token_hex(3)}"
    pod = reader_pod(
        run, name, owner_name(), seconds=seconds, writable=writable, template=_template(cluster, run)
    )
    with _signals_as_exceptions():
        try:
            cluster.create_pod(pod)
            _await_running(cluster, run, name, say)
            yield PodStorage(cluster, name, READER, PurePosixPath(run.job_path) / run.job_name)
        finally:
            _delete(cluster, name)


def _delete(cluster: Cluster, name: str) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave the pod behind
    try:
        for pause in (0.5, 2.0, None):
            try:
                cluster.delete_pod(name)
            except CliError:
                if pause is None:
                    raise
                time.sleep(pause)
            else:
                return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def claim_problem(cluster: Cluster, run: Run) -> str:
    """Why the run's claim cannot be mounted; empty when it can be, or may not be looked at."""
    try:
        claim = cluster.find("persistent_volume_claim", run.claim, "read the claim")
    except CliError:
        return ""  # without that right the pod's own trouble will tell
    return reasons.claim_reason(claim, run.claim, cluster.events(run.claim) if claim else ())


def _await_running(cluster: Cluster, run: Run, name: str, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    said = ""
    while True:
        pod = cluster.find("pod", name, "look at the reader pod")
        if pod is None:
            raise CliError(f"the reader pod {name} was deleted by somebody else before it ran.")
        phase = pod.get("status", {}).get("phase")
        if phase == "Running":
            return
        waited = time.monotonic() - started
        events: Sequence[Any] = cluster.events(name) if waited > 3 else ()
        why = reasons.pending_reason(pod, events)
        if phase in ("Succeeded", "Failed"):
            raise CliError(f"the reader pod {name} ended at once: {reasons.termination(pod) or phase}")
        stuck = reasons.stuck_waiting(pod)
        if stuck and stuck[0] in reasons.HOPELESS:
            raise CliError(
                f"the reader pod cannot start: {stuck[1]}. It uses the run's image {run.image}; can node "
                f"{pod['spec'].get('nodeName')} pull it?"
            )
        scheduled = reasons.condition(pod, "PodScheduled")
        if waited > UNBOUND_SECONDS and scheduled and scheduled.get("status") == "False":
            raise NoPlaceError(f"the reader pod finds no place: {why}. {claim_problem(cluster, run)}".strip())
        if waited > START_SECONDS:
            raise CliError(f"the reader pod did not start within {START_SECONDS:.0f} s: {why}")
        if waited > 3 and why != said:
            say(f"waiting for the reader pod {name}: {why}")
            said = why
        time.sleep(0.25 if waited < 5 else 1.0)
