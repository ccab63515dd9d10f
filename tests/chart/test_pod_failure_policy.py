"""Reaction of a real Job controller to each exit of a training pod; the tests set the pods' status by hand."""

from __future__ import annotations

import copy
import json
import time

import pytest
from chart_tools import ONE_MACHINE, kubectl, one, render

from testkit.object_api import ObjectApi
from testkit.waiting import until

pytestmark = pytest.mark.e2e

DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}

# container, exit code, training.restarts, conditions of the pod, effect on the Job
CASES = [
    ("train", 69, 0, [], "replaced"),
    ("train", 143, 0, [], "replaced"),
    ("train", 70, 0, [DISRUPTED], "replaced"),
    ("train", 71, 3, [], "replaced and counted"),
    ("train", 71, 0, [], "the Job failed"),
    ("train", 64, 3, [], "the Job failed"),
    ("train", 65, 3, [], "the Job failed"),
    ("train", 70, 3, [], "the Job failed"),
    ("train", 75, 3, [], "the Job failed"),
    ("prepare", 143, 0, [], "replaced"),
    ("prepare", 71, 3, [], "replaced and counted"),
    ("prepare", 65, 3, [], "the Job failed"),
    ("prepare", 65, 0, [DISRUPTED], "replaced"),
]


def rank_1(pods: list[dict], job: str) -> list[dict]:
    """Return the pods that this Job has created for rank 1."""
    labels = {"batch.kubernetes.io/job-name": job, "batch.kubernetes.io/job-completion-index": "1"}
    return [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()]


def outcome(job: dict, pods: list[dict]) -> str:
    conditions = {item["type"] for item in job["status"].get("conditions", []) if item["status"] == "True"}
    if "Failed" in conditions:
        return "the Job failed"
    new = [pod for pod in rank_1(pods, job["metadata"]["name"]) if pod["status"]["phase"] == "Pending"]
    if not new:
        return "nothing yet"
    counted = new[0]["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"]
    return "replaced and counted" if counted != "0" else "replaced"


def test_each_exit_code_of_a_pod_has_the_documented_effect_on_the_job(namespace):
    """The claim does not exist, so that no pod is scheduled and the test sets the exit codes."""
    jobs = {}
    for number, (name, _, restarts, _, _) in enumerate(CASES):
        values = {
            "trainers": 2,
            "training": {"restarts": restarts},
            "data": {"preparedBy": "trainingPods" if name == "prepare" else "dataJob"},
            "serviceAccount": {"create": False, "name": "default"},
        }
        job = copy.deepcopy(one(render(ONE_MACHINE, values=values, namespace=namespace), "Job", "training"))
        job["metadata"]["name"] += f"-{number}"
        jobs[job["metadata"]["name"]] = job
    made = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(jobs.values())})
    kubectl("create", "-f", "-", stdin=made)

    def all_pods() -> list[dict]:
        found = ObjectApi().list("pods", namespace)
        return found if all(rank_1(found, job) for job in jobs) else []

    pods = until(all_pods, "the pods of rank 1", 60, 0.5)
    for job, (name, code, _, conditions, _) in zip(jobs, CASES, strict=True):
        ended = {"exitCode": code, "finishedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        kind = "initContainerStatuses" if name == "prepare" else "containerStatuses"
        container = {"name": name, "image": "a", "imageID": "a", "ready": False, "restartCount": 0}
        status = {
            "phase": "Failed",
            "conditions": conditions,
            kind: [container | {"state": {"terminated": ended}}],
        }
        pod = rank_1(pods, job)[0]["metadata"]["name"]
        ObjectApi().patch("pods", namespace, pod, {"status": status}, part="status")

    def seen() -> dict[str, str]:
        pods = ObjectApi().list("pods", namespace)
        return {job["metadata"]["name"]: outcome(job, pods) for job in ObjectApi().list("jobs", namespace)}

    wanted = {job: case[4] for job, case in zip(jobs, CASES, strict=True)}
    until(lambda: seen() == wanted, f"these consequences of {CASES}: {wanted}", 60, 0.5, seen)
