"""Start a Job of a release again under the same name: a failed training, or a data Job whose data was replaced."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher.cli.cluster import object_states
from launcher.cli.cluster.cluster_api import Cluster, Object
from launcher.cli.cluster.releases import ReleaseRun
from launcher.cli.errors import CliError

GONE_SECONDS = 120.0  # for a deleted Job to disappear
_SERVER_FIELDS = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "ownerReferences",
)
_SERVER_LABELS = {
    f"{prefix}{name}" for prefix in ("", "batch.kubernetes.io/") for name in ("controller-uid", "job-name")
}


def restart_failed_training(cluster: Cluster, run: ReleaseRun, report: Callable[[str], None]) -> bool:
    """Start the training Job of a release again if it has failed; return whether it had.

    After a failure of the data Job nothing is started: the training needs another data Job, and so another `runId`.
    """
    if run.k8s_data_job and object_states.job_state(_find(cluster, run.k8s_data_job))[0] == "failed":
        return False
    job = _find(cluster, run.k8s_job)
    if job is None or object_states.job_state(job)[0] != "failed":
        return False
    report(
        f"the training has failed: starting Job {run.k8s_job} again, which resumes from the newest checkpoint"
    )
    recreate_job(cluster, job)
    return True


def recreate_job(cluster: Cluster, job: Object) -> None:
    """Delete a Job, and create it again with the same name and spec, so that its pods start again.

    Raises:
        CliError: the Job still exists after GONE_SECONDS, or the cluster rejects a request.
    """
    name = object_states.name_of(job)
    cluster.delete("job", name)
    deadline = time.monotonic() + GONE_SECONDS
    while _find(cluster, name) is not None:
        if time.monotonic() > deadline:
            raise CliError(
                f"the Job {name} still exists {GONE_SECONDS:.0f} s after it was deleted",
                f"check why its pods do not exit (kubectl get pods -n {cluster.namespace} -l "
                f"job-name={name}), then run the same command again",
            )
        time.sleep(0.5)
    cluster.create("job", reset_job(job))


def reset_job(job: Object) -> Object:
    """Return a Job without the fields that the API server added, so that it can be created again."""
    meta = {key: value for key, value in job["metadata"].items() if key not in _SERVER_FIELDS}
    meta["annotations"] = {
        key: value for key, value in (meta.get("annotations") or {}).items() if not key.startswith("batch.")
    }
    spec = {key: value for key, value in job["spec"].items() if key != "selector"}
    template = dict(spec["template"])
    kept = {k: v for k, v in template["metadata"].get("labels", {}).items() if k not in _SERVER_LABELS}
    spec["template"] = {**template, "metadata": {**template["metadata"], "labels": kept}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def _find(cluster: Cluster, name: str) -> Object | None:
    return cluster.find("job", name, f"read Job {name}")
