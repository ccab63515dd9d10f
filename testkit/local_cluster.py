"""Use the local cluster in tests and benchmarks: kubectl, helm, and one namespace and release per training."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from launcher.cli.launch_training import merge_values
from launcher.dataprep.prepared_data import read_manifest, remove_data
from launcher.paths import JobPaths
from local import launcher_image
from local.paths import CLONE as ROOT
from local.paths import KUBECONFIG, SHARED
from testkit.object_api import ObjectApi
from testkit.waiting import PATIENCE, until

CHART = ROOT / "charts" / "paddle-training"
HELM_UPGRADE = ("helm", "upgrade", "--install", "--disable-openapi-validation")
"""Without the check by helm, which reads the API server's large schema and takes two thirds of helm's CPU time. The
tests that the API server accepts the chart's objects check the same."""
SERVING = ROOT / "charts" / "paddle-serving"
POLL = 0.5


def run_checked(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    seconds: float = 120,
    check: bool = True,
    given: str | None = None,
    cwd: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """Run a command and return the finished process.

    If `check` is true and the exit code is not 0, raise AssertionError with the end of the command's output.
    """
    ended = subprocess.run(
        list(argv),
        env=dict(env),
        cwd=cwd,
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        timeout=seconds * PATIENCE,
        check=False,
    )
    if check and ended.returncode:
        raise AssertionError(
            f"{' '.join(argv)} exited with code {ended.returncode}\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
        )
    return ended


def find_cluster() -> Cluster:
    """Return access to the local cluster, with the name of this clone's launcher image; contacts nothing."""
    env = {**os.environ, "KUBECONFIG": str(KUBECONFIG), "PYTHONPATH": str(ROOT)}
    return Cluster(env, launcher_image.image_name(), SHARED)


@dataclass
class Cluster:
    """The local cluster as a user reaches it: an environment with PATH and KUBECONFIG."""

    env: dict[str, str]
    image: str
    shared: Path

    def kubectl(self, *words: str, check: bool = True, given: str | None = None, seconds: float = 60) -> str:
        """Run kubectl and return its output."""
        return run_checked(["kubectl", *words], self.env, check=check, given=given, seconds=seconds).stdout

    def apply(self, kind: str, name: str, namespace: str = "", *, version: str = "v1", **fields: Any) -> None:
        """Create or change an object; `fields` are those next to its metadata, and `labels`."""
        about = {"name": name, "namespace": namespace or None, "labels": fields.pop("labels", {})}
        body = {"apiVersion": version, "kind": kind, "metadata": about, **fields}
        self.kubectl("apply", "-f", "-", given=json.dumps(body))

    @property
    def objects(self) -> ObjectApi:
        """Return the client for the cluster's objects, for questions that are asked again and again."""
        return ObjectApi()

    def get(self, kind: str, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind, given as plural name, in a namespace: all, or those with these labels."""
        return self.objects.list(kind, namespace, labels)

    def launcher(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `python -m launcher …` as a user does."""
        return run_checked(["python", "-m", "launcher", *words], self.env, check=check, seconds=300)


@dataclass
class Training:
    """One release of the chart, installed with helm, in its own namespace."""

    cluster: Cluster
    namespace: str
    values: dict[str, Any]
    release: str = "paddle-training"

    @property
    def job(self) -> Path:
        """Return the job's folder on the shared storage, as a path on this machine."""
        folder = self.values.get("storage", {}).get("hostPath", {}).get("path", self.cluster.shared)
        return Path(folder) / str(self.values["jobName"])

    @property
    def output(self) -> Path:
        """Return the job's output folder."""
        return self.job / "output"

    def manifest(self) -> dict[str, Any]:
        """Return manifest.json of the job's folder."""
        return dict(json.loads((self.job / "manifest.json").read_text()))

    def wait_for_data(self) -> None:
        """Wait until the job's folder has the data of the release's run."""

        def is_there() -> bool:
            with contextlib.suppress(FileNotFoundError):  # none yet, or the data Job is replacing it
                return bool(self.manifest()["dataDigest"] == self.described()["dataDigest"])
            return False

        until(is_there, f"the data of release {self.release}", 120, POLL, self.last_log_lines)

    def record(self) -> dict[str, Any]:
        """Return run.json of the output folder, the run record."""
        return dict(json.loads((self.output / "run.json").read_text()))

    def upgrade(
        self, changes: Mapping[str, Any] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run `helm upgrade --install` with the values, after merging `changes` into them permanently."""
        self.values = merge_values(self.values, changes or {})
        return run_checked(
            [*HELM_UPGRADE, self.release, str(CHART), "-n", self.namespace, "-f", "-"],
            self.cluster.env,
            given=yaml.safe_dump(self.values),
            check=check,
        )

    def remove(self) -> None:
        """Remove the releases of the namespace, the namespace, the job's folder and its data; fail if pods stay.

        The releases are removed first: in a terminating namespace a Job with a limit per index never
        completes. It keeps the finalizer of its last failed pod until the next pod is created, and the API
        server rejects that pod.
        """
        there = ("-n", self.namespace)
        revisions = self.cluster.get("secrets", self.namespace, "owner=helm")
        if releases := {one["metadata"]["labels"]["name"] for one in revisions}:
            run_checked(["helm", "uninstall", *releases, *there], self.cluster.env)
        self.cluster.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false")
        until(
            lambda: not self.cluster.get("pods", self.namespace),
            f"no pod in {self.namespace}",
            80,
            POLL,
            lambda: self.cluster.kubectl("describe", "pods", *there, check=False),
        )
        shutil.rmtree(self.job, ignore_errors=True)
        layout = JobPaths(self.job.parent, self.job.name)
        for record in map(read_manifest, layout.all_data.glob("*.json")):
            if record and (record.get("madeBy") or {}).get("namespace") == self.namespace:
                remove_data(layout, record)

    def described(self) -> dict[str, Any]:
        """Return the description of the release's run: key `run.json` of the ConfigMap `<release>-run`."""
        found = self.cluster.objects.read("configmaps", self.namespace, f"{self.release}-run")
        return dict(json.loads(found["data"]["run.json"]))

    def k8s_job(self) -> dict[str, Any]:
        """Return the training Job."""
        return self.cluster.objects.read("jobs", self.namespace, self.described()["k8sJob"])

    def condition(self) -> str:
        """Return Complete, Failed, or an empty string while the Job is active."""
        for condition in self.k8s_job().get("status", {}).get("conditions", []):
            if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True":
                return str(condition["type"])
        return ""

    def pods(self, component: str = "training") -> list[dict[str, Any]]:
        """Return the pods of a component of the release."""
        labels = f"app.kubernetes.io/instance={self.release},app.kubernetes.io/component={component}"
        return self.cluster.get("pods", self.namespace, labels)

    def pod(self, rank: int) -> str:
        """Return the name of the newest training pod of a rank."""
        index = "batch.kubernetes.io/job-completion-index"
        found = [p["metadata"] for p in self.pods() if p["metadata"]["labels"][index] == str(rank)]
        return str(max(found, key=lambda m: m["creationTimestamp"])["name"])

    def ended(self, seconds: float = 180) -> str:
        """Wait until the training Job has finished; return Complete or Failed."""
        return until(
            self.condition, f"the end of training {self.namespace}", seconds, POLL, self.last_log_lines
        )

    def complete(self, seconds: float = 180) -> None:
        """Wait until the Job is Complete; if it fails, fail the test with the pods' logs."""
        if self.ended(seconds) != "Complete":
            raise AssertionError(f"the training Job failed:\n{self.last_log_lines()}")

    def last_log_lines(self) -> str:
        """Return the last log lines of all data and training pods, for the message of a failing test."""
        said = []
        for component in ("data", "training"):
            for pod in self.pods(component):
                name = pod["metadata"]["name"]
                log = self.cluster.kubectl("logs", name, "-n", self.namespace, "--tail=25", check=False)
                said.append(f"--- {name} ({pod['status'].get('phase')})\n{log}")
        return "\n".join(said)

    def messages(self) -> list[str]:
        """Return the termination messages of the training pods."""
        found = []
        for pod in self.pods():
            for status in pod["status"].get("containerStatuses", []):
                ended = status["state"].get("terminated") or {}
                found.append(str(ended.get("message", "")))
        return found

    def current_pass(self) -> int:
        """Return the pass that status.json shows for rank 0; -1 before the first, or if the state is not `training`."""
        path = self.output / "status.json"
        status = json.loads(path.read_text()) if path.exists() else {"state": ""}
        ranks = status["ranks"] if status["state"] == "training" else []
        return next((int(r["pass"]) for r in ranks if r["rank"] == 0 and r["pass"] is not None), -1)


@dataclass
class Serving:
    """A release of the serving chart in the namespace of a training, with the model from the training's volume."""

    training: Training
    release: str = "model"
    port: int = 8080

    def install(self, **model: Any) -> None:
        """Install the release; `model` has further values of `model`."""
        training = self.training
        values = {
            "image": training.cluster.image,
            "imagePullPolicy": "Never",
            "model": {
                "claim": training.described()["claim"],
                "path": f"{training.values['jobName']}/output/model",
                **model,
            },
            "replicas": 1,
            "port": self.port,
            "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}},
        }
        argv = [*HELM_UPGRADE, self.release, str(SERVING), "-n", training.namespace, "-f", "-"]
        run_checked(argv, training.cluster.env, given=yaml.safe_dump(values))

    def rollout(self, *words: str) -> None:
        """Run `kubectl rollout … deployment/NAME`."""
        command = ("rollout", *words, f"deployment/{self.release}", "-n", self.training.namespace)
        self.training.cluster.kubectl(*command, seconds=150)

    def get(self, path: str) -> str:
        """Return the answer to GET `path`, sent to the release's Service through the API server's proxy."""
        service = f"/api/v1/namespaces/{self.training.namespace}/services/{self.release}:http"
        return self.training.cluster.objects.get(f"{service}/proxy/{path}")

    def pod(self) -> dict[str, Any]:
        """Return the release's only pod that is not being deleted."""
        labels = f"app.kubernetes.io/instance={self.release}"
        pods = self.training.cluster.get("pods", self.training.namespace, labels)
        [pod] = [p for p in pods if "deletionTimestamp" not in p["metadata"]]
        return dict(pod)

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the answer of the release's pod to these rows; pods are reachable from this machine."""
        url = f"http://{self.pod()['status']['podIP']}:{self.port}/predict"
        return dict(httpx.post(url, json={"rows": list(rows)}, timeout=60).raise_for_status().json())
