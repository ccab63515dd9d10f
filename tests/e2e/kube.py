"""What the end-to-end tests do with a cluster: kubectl, helm, one namespace and one release a test."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.waiting import PATIENCE, until

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "paddle-training"
SERVING = ROOT / "charts" / "paddle-serving"
POLL = 0.5


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    seconds: float = 120,
    check: bool = True,
    given: str | None = None,
    cwd: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """Runs a command; a failing one fails the test with all that it said."""
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
            f"{' '.join(argv)} ended with {ended.returncode}\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
        )
    return ended


@dataclass
class Cluster:
    """The local cluster as a person reaches it: an environment with PATH and KUBECONFIG."""

    env: dict[str, str]
    image: str
    shared: Path

    def kubectl(self, *words: str, check: bool = True, given: str | None = None, seconds: float = 60) -> str:
        return run(["kubectl", *words], self.env, check=check, given=given, seconds=seconds).stdout

    def get(self, kind: str, namespace: str, *words: str) -> list[dict[str, Any]]:
        text = self.kubectl("get", kind, "-n", namespace, "-o", "json", *words)
        return list(json.loads(text)["items"])

    def launcher(
        self, *words: str, check: bool = True, seconds: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """`python -m launcher …` as a person types it."""
        return run(["python", "-m", "launcher", *words], self.env, check=check, seconds=seconds)


@dataclass
class Training:
    """One release of the chart, installed by hand, in its namespace."""

    cluster: Cluster
    namespace: str
    values: dict[str, Any]
    release: str = "paddle-training"

    @property
    def job(self) -> Path:
        """The job's folder on the shared storage, as the host sees it."""
        folder = self.values.get("storage", {}).get("hostPath", {}).get("path", self.cluster.shared)
        return Path(folder) / str(self.values["jobName"])

    @property
    def output(self) -> Path:
        return self.job / "output"

    def upgrade(
        self, changes: Mapping[str, Any] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """`helm upgrade --install` with the values, and `changes` merged into them for good."""
        self.values = merged(self.values, changes or {})
        return run(
            ["helm", "upgrade", "--install", self.release, str(CHART), "-n", self.namespace, "-f", "-"],
            self.cluster.env,
            given=yaml.safe_dump(self.values),
            check=check,
        )

    def remove(self) -> None:
        """Nothing of it stays, nor of other releases of its namespace; fails a test whose pods do not go.

        The releases go first: in a namespace that is ending a Job with a limit per index never ends. It keeps
        its last failed pod's finalizer until the next pod is made, and that one is refused.
        """
        there = ("-n", self.namespace)
        releases = run(["helm", "list", "--all", "--short", *there], self.cluster.env).stdout.split()
        if releases:
            run(["helm", "uninstall", *releases, *there], self.cluster.env)
        self.cluster.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false")
        until(
            lambda: not self.cluster.get("pods", self.namespace),
            f"no pod in {self.namespace}",
            80,
            POLL,
            lambda: self.cluster.kubectl("describe", "pods", *there, check=False),
        )
        shutil.rmtree(self.job, ignore_errors=True)

    def described(self) -> dict[str, Any]:
        """The release's run ConfigMap."""
        text = self.cluster.kubectl(
            "get", "configmap", f"{self.release}-run", "-n", self.namespace, "-o", "json"
        )
        return dict(json.loads(json.loads(text)["data"]["run.json"]))

    def k8s_job(self) -> dict[str, Any]:
        """The training Job."""
        name = self.described()["k8sJob"]
        return dict(json.loads(self.cluster.kubectl("get", "job", name, "-n", self.namespace, "-o", "json")))

    def condition(self) -> str:
        """Complete, Failed, or empty while it runs."""
        for condition in self.k8s_job().get("status", {}).get("conditions", []):
            if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True":
                return str(condition["type"])
        return ""

    def pods(self, component: str = "training") -> list[dict[str, Any]]:
        labels = f"app.kubernetes.io/instance={self.release},app.kubernetes.io/component={component}"
        return self.cluster.get("pods", self.namespace, "-l", labels)

    def pod(self, rank: int) -> str:
        """The name of the newest training pod of a rank."""
        index = "batch.kubernetes.io/job-completion-index"
        found = [p["metadata"] for p in self.pods() if p["metadata"]["labels"][index] == str(rank)]
        return str(max(found, key=lambda m: m["creationTimestamp"])["name"])

    def ended(self, seconds: float = 180) -> str:
        """Waits for the training Job's end: Complete or Failed."""
        return until(self.condition, f"the end of training {self.namespace}", seconds, POLL, self.words)

    def complete(self, seconds: float = 180) -> None:
        """Waits for the Job to be Complete; a failed one fails the test with the pods' own words."""
        if self.ended(seconds) != "Complete":
            raise AssertionError(f"the training Job failed:\n{self.words()}")

    def words(self) -> str:
        """What the pods said last, for a failing test."""
        said = []
        for component in ("data", "training"):
            for pod in self.pods(component):
                name = pod["metadata"]["name"]
                log = self.cluster.kubectl("logs", name, "-n", self.namespace, "--tail=25", check=False)
                said.append(f"--- {name} ({pod['status'].get('phase')})\n{log}")
        return "\n".join(said)

    def messages(self) -> list[str]:
        """The termination messages of the training pods."""
        found = []
        for pod in self.pods():
            for status in pod["status"].get("containerStatuses", []):
                ended = status["state"].get("terminated") or {}
                found.append(str(ended.get("message", "")))
        return found

    def pass_of(self, rank: int = 0) -> int:
        """The pass that status.json shows for a rank; -1 before the first."""
        path = self.output / "status.json"
        if not path.exists():
            return -1
        status = json.loads(path.read_text())
        if status["state"] != "training":
            return -1
        return next(
            (int(r["pass"]) for r in status["ranks"] if r["rank"] == rank and r["pass"] is not None), -1
        )


@dataclass
class Serving:
    """A release of the other chart beside a training: its model over HTTP, from the same claim."""

    training: Training
    release: str = "model"
    port: int = 8080

    def install(self) -> None:
        training = self.training
        values = {
            "image": training.cluster.image,
            "imagePullPolicy": "Never",
            "model": {
                "claim": training.described()["claim"],
                "path": f"{training.values['jobName']}/output/model",
            },
            "replicas": 1,
            "port": self.port,
            "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}},
        }
        argv = [
            "helm",
            "upgrade",
            "--install",
            self.release,
            str(SERVING),
            "-n",
            training.namespace,
            "-f",
            "-",
        ]
        run(argv, training.cluster.env, given=yaml.safe_dump(values))

    def rollout(self, *words: str) -> None:
        """`kubectl rollout … deployment/NAME`."""
        command = ("rollout", *words, f"deployment/{self.release}", "-n", self.training.namespace)
        self.training.cluster.kubectl(*command, seconds=150)

    def get(self, path: str) -> str:
        """Through the Service, as the API server reaches it."""
        service = f"/api/v1/namespaces/{self.training.namespace}/services/{self.release}:http"
        return self.training.cluster.kubectl("get", "--raw", f"{service}/proxy/{path}")

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The answer of a pod that is ready; this machine has a way to the pods' addresses."""
        labels = f"app.kubernetes.io/instance={self.release}"
        pods = self.training.cluster.get("pods", self.training.namespace, "-l", labels)
        [address] = [p["status"]["podIP"] for p in pods if "deletionTimestamp" not in p["metadata"]]
        url = f"http://{address}:{self.port}/predict"
        return dict(httpx.post(url, json={"rows": list(rows)}, timeout=60).raise_for_status().json())


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` over `base`, mapping by mapping, as helm merges values."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return result
