"""Continue a stopped or failed training, and start a Job again under the same name."""

from __future__ import annotations

import time

from launcher.cli.cluster import object_states
from launcher.cli.cluster.cluster_api import Cluster, Object
from launcher.cli.cluster.releases import ReleaseRun
from launcher.cli.errors import CliError
from launcher.cli.terminal import report

GONE_SECONDS = 120.0  # for a deleted Job to disappear
_SERVER_FIELDS = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
_SERVER_LABELS = {
    f"{prefix}{name}" for prefix in ("", "batch.kubernetes.io/") for name in ("controller-uid", "job-name")
}


def continue_training(cluster: Cluster, run: ReleaseRun, *, is_held: bool = False) -> bool:
    """Resume a release's suspended Jobs, and start its training Job again if it has failed; return whether one was.

    Jobs with a Kueue queue stay suspended: the queue starts them. So does the training Job if `is_held`, because the
    release has `scheduling.suspend: true`. A failed training is not started again after a failure of the data Job: it
    needs another data Job, and so another `runId`.
    """
    jobs = [job for name in (run.k8s_job, run.k8s_data_job) if name and (job := cluster.find("job", name))]
    states = {object_states.name_of(job): object_states.job_state(job)[0] for job in jobs}
    is_stopped = False
    for job in jobs:
        name = object_states.name_of(job)
        stays = object_states.queue_of(job) or (is_held and name == run.k8s_job)
        if states[name] == "suspended" and not stays:
            report(f"resumed: {name}")
            cluster.suspend_job(name, False)
            is_stopped = True
    has_failed = states.get(run.k8s_job) == "failed" and states.get(run.k8s_data_job) != "failed"
    if has_failed:
        report(
            f"the training has failed: starting Job {run.k8s_job} again, which resumes from the newest checkpoint"
        )
        recreate_job(cluster, jobs[0])
    return has_failed or is_stopped


def recreate_job(cluster: Cluster, job: Object) -> None:
    """Delete a Job, and create it again with the same name and spec, so that its pods start again.

    Raises CliError if the Job still exists after GONE_SECONDS, or the cluster rejects a request.
    """
    name = object_states.name_of(job)
    cluster.delete("job", name)
    deadline = time.monotonic() + GONE_SECONDS
    while cluster.find("job", name) is not None:
        if time.monotonic() > deadline:
            raise CliError(
                f"the Job {name} still exists {GONE_SECONDS:.0f} s after it was deleted",
                f"check why its pods do not exit (kubectl get pods -n {cluster.namespace} -l "
                f"job-name={name}), then run the same command again",
            )
        time.sleep(0.5)
    cluster.create("job", reset_job(job))


def reset_job(job: Object) -> Object:
    """Return a Job without the fields that the API server added, so that it can be created again.

    Its owner stays: a Job without its CronJob would not be the newest run of the schedule.
    """
    meta = {key: value for key, value in job["metadata"].items() if key not in _SERVER_FIELDS}
    meta["annotations"] = {
        key: value for key, value in (meta.get("annotations") or {}).items() if not key.startswith("batch.")
    }
    spec = {key: value for key, value in job["spec"].items() if key != "selector"}
    template = dict(spec["template"])
    kept = {k: v for k, v in template["metadata"].get("labels", {}).items() if k not in _SERVER_LABELS}
    spec["template"] = {**template, "metadata": {**template["metadata"], "labels": kept}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
