"""A short-lived pod that mounts the storage of a run, for users who have no other access to it.

The pod uses the run's own image, so it works after all pods of the run are gone. It runs under restricted Pod
Security, has no service account token and has a deadline; the command that creates it always deletes it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from launcher.cli.cluster import object_states
from launcher.cli.cluster.cluster_api import (
    CHART,
    COMPONENT_LABEL,
    NAME_LABEL,
    RELEASE_LABEL,
    Cluster,
    Object,
    labels,
)
from launcher.cli.cluster.releases import ReleaseRun
from launcher.cli.errors import CliError
from launcher.cli.storage.storage_access import Storage, pod_storage
from launcher.cli.terminal import report
from launcher.io.stop_signals import handle_signals

READER = "reader"
OWNER = "paddle-training/reader-owner"  # annotation: host:pid of the command that created the pod
START_SECONDS = 120.0  # it starts in 2 s if the image is on the node; a pull of 900 MB takes about a minute
UNBOUND_SECONDS = 45.0
"""A pod that is unscheduled for longer stays so until somebody acts. The controller that binds claims retries
every 15 s (kube-controller-manager's --pvclaimbinder-sync-period)."""


class UnschedulableError(CliError):
    """No node can run the reader pod."""


def build_pod(
    run: ReleaseRun, name: str, owner: str, *, seconds: int, writable: bool, template: Object | None
) -> Object:
    """Return the Kubernetes object of a reader pod, with the run's image, user and claim.

    `owner` is the `host:pid` of the command that creates the pod, `template` the training Job's pod spec, whose
    tolerations and node selector the pod has, too.
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
                    # It requests nothing, so that it starts on a full cluster, too. Without the zeros the
                    # limit would be the request, and a quota could reject the pod.
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


def is_stale(pod: Object, host: str, alive: Callable[[int], bool]) -> bool:
    """Return whether the pod has finished, or was created by a process of this `host` that is gone."""
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
    """Delete the reader pods of commands that were killed before they could delete them."""
    for pod in cluster.list_objects("pod", labels(release, READER)):
        if is_stale(pod, socket.gethostname(), _alive):
            cluster.delete("pod", object_states.name_of(pod), grace_seconds=1)


def _training_template(cluster: Cluster, run: ReleaseRun) -> Object | None:
    with contextlib.suppress(CliError):
        job = cluster.find("job", run.k8s_job)
        return dict(job["spec"]["template"]["spec"]) if job else None
    return None


@contextlib.contextmanager
def open_reader_pod(
    cluster: Cluster,
    run: ReleaseRun,
    seconds: int,
    writable: bool = False,
) -> Iterator[Storage]:
    """Create a reader pod, and yield the job's folder through it; then delete the pod.

    The pod is deleted on every way out of the block: an exception or a signal, which is an exception, too (main.py).
    `seconds` is the pod's deadline.

    Raises:
        UnschedulableError: no node can run the pod.
        CliError: the claim does not exist, or the pod does not start for another reason.
    """
    require_claim(cluster, run)
    remove_stale(cluster, run.release)
    name = f"{run.release[:40]}-reader-{secrets.token_hex(3)}"
    owner, template = f"{socket.gethostname()}:{os.getpid()}", _training_template(cluster, run)
    pod = build_pod(run, name, owner, seconds=seconds, writable=writable, template=template)
    try:
        cluster.create("pod", pod)
        _await_running(cluster, run, name)
        yield pod_storage(cluster, name, READER, PurePosixPath(run.job_path) / run.job_name)
    except BaseException:
        with contextlib.suppress(CliError):  # the first error is the one to report
            _delete(cluster, name)
        raise
    _delete(cluster, name)


def _delete(cluster: Cluster, name: str) -> None:
    with handle_signals(lambda _: None):  # a second Ctrl-C must not leave the pod behind
        for pause in (0.5, 2.0, None):
            try:
                cluster.delete("pod", name, grace_seconds=1)
            except CliError:
                if pause is None:
                    raise
                time.sleep(pause)
            else:
                return


def claim_problem(cluster: Cluster, run: ReleaseRun) -> str:
    """Return why the run's claim cannot be mounted; empty if it can be, or if the user may not read it."""
    try:
        claim = cluster.find("persistent_volume_claim", run.claim)
    except CliError:
        return ""  # without that right, the pod's own state explains the problem
    return object_states.explain_claim(claim, run.claim, cluster.list_events(run.claim) if claim else ())


def require_claim(cluster: Cluster, run: ReleaseRun) -> None:
    """Raise CliError if the claim in the release's values does not exist."""
    problem = claim_problem(cluster, run)
    if object_states.ABSENT in problem:
        raise CliError(
            f"{problem} in namespace {run.namespace}, so the storage of release {run.release} cannot be reached",
            "create the claim, or set an existing one in the release's values (storage) and run helm upgrade",
        )


def _await_running(cluster: Cluster, run: ReleaseRun, name: str) -> None:
    started = time.monotonic()
    last_reason = ""
    while True:
        pod = cluster.find("pod", name)
        if pod is None:
            raise CliError(f"the reader pod {name} was deleted before it ran", "run the same command again")
        phase = pod.get("status", {}).get("phase")
        if phase == "Running":
            return
        waited = time.monotonic() - started
        events: Sequence[Any] = cluster.list_events(name) if waited > 3 else ()
        why = object_states.explain_pending(pod, events)
        if phase in ("Succeeded", "Failed"):
            raise CliError(
                f"the reader pod {name} exited: {object_states.explain_failure(pod) or phase}",
                "correct this cause, then run the same command again",
            )
        waiting = object_states.unusual_wait(pod)
        if waiting and waiting[0] in object_states.PERMANENT_WAITS:
            raise CliError(
                f"the reader pod {name} cannot start: {waiting[1]}",
                f"make the run's image {run.image} available to node {pod['spec'].get('nodeName')}",
            )
        scheduled = object_states.find_condition(pod, "PodScheduled")
        if waited > UNBOUND_SECONDS and scheduled and scheduled.get("status") == "False":
            problem = claim_problem(cluster, run)
            raise UnschedulableError(
                f"no node can run the reader pod {name}: {why}" + (f". {problem}" if problem else ""),
                "free a node or bind the claim (kubectl describe pod, pvc), then run the same command again",
            )
        if waited > START_SECONDS:
            raise CliError(
                f"the reader pod {name} did not start within {START_SECONDS:.0f} s: {why}",
                "remove that cause, then run the same command again",
            )
        if waited > 3 and why != last_reason:
            report(f"waiting for the reader pod {name}: {why}")
            last_reason = why
        time.sleep(0.25 if waited < 5 else 1.0)
