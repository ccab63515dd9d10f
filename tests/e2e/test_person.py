"""A person's command line, as somebody who cannot read the folder of the nodes."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.e2e.kube import ROOT, Cluster, Training, run

pytestmark = pytest.mark.e2e

Make = Callable[..., Training]


class Person:
    """Somebody who cannot read the nodes' folder: a mount namespace hides it."""

    def __init__(self, cluster: Cluster, training: Training) -> None:
        self.cluster, self.training = cluster, training

    def run(self, *words: str, seconds: float = 240) -> subprocess.CompletedProcess[str]:
        hide = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
        return run(
            ["unshare", "--mount", "sh", "-c", hide, str(self.cluster.shared), *words],
            self.cluster.env,
            seconds=seconds,
            check=False,
        )

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("python", "-m", "launcher", words[0], "-n", self.training.namespace, *words[1:])


def test_a_person_runs_a_program_follows_it_and_takes_the_model_home(
    train: Make, cluster: Cluster, tmp_path: Path
) -> None:
    """run, run again, status; then, after all Job pods are gone, logs and results --to."""
    training = train("quick_start", training={"passes": 1})
    training.upgrade()
    training.complete()
    own = tmp_path / "mine"
    shutil.copytree(ROOT / "launcher" / "programs" / "quick_start", own)
    person = Person(cluster, training)
    denied = person.run("ls", str(training.output))
    assert denied.returncode != 0, "the folder must be hidden from this person, or the test proves nothing"
    values, before = tmp_path / "values.yaml", training.described()["k8sJob"]
    values.write_text(yaml.safe_dump(training.values))
    again = ("run", str(own), "-f", str(values), "--keep", str(tmp_path / "kept.yaml"), "--timeout", "200")
    ran = person(*again)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (training.job / "mine" / "trainer_config.py").exists()
    assert training.described()["k8sJob"] != before
    assert "helm upgrade --install paddle-training" in ran.stderr
    assert "score error 0." in ran.stdout
    assert "train_loss" in ran.stdout
    unchanged = person(*again)
    assert "nothing new to train" in unchanged.stderr, unchanged.stdout + unchanged.stderr
    status = person("status", "--output", "json")
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)

    pods = training.cluster.kubectl("delete", "pods", "--all", "-n", training.namespace, "--wait=true")
    assert "deleted" in pods
    logs = person("logs", "--rank", "0", "--role", "trainer")
    assert logs.returncode == 0, logs.stderr
    assert "Pass=1" in logs.stdout
    taken = person("results", "--to", str(tmp_path / "taken"))
    assert taken.returncode == 0, taken.stderr
    for name in ("metrics.csv", "curve.png", "report.html", "run.json"):
        ours = (training.output / name).read_bytes()
        assert (
            hashlib.sha256((tmp_path / "taken" / name).read_bytes()).digest() == hashlib.sha256(ours).digest()
        ), name
    for path in (training.output / "model").rglob("*"):
        if path.is_file():
            copy = tmp_path / "taken" / "model" / path.relative_to(training.output / "model")
            assert copy.read_bytes() == path.read_bytes()
    labels = f"app.kubernetes.io/instance={training.release},app.kubernetes.io/component=reader"
    cluster.until(
        "no reader pod", 30, lambda: cluster.get("pods", training.namespace, "-l", labels) == []
    )  # it is deleted before the command ends, and gone a little later


def test_a_pod_that_cannot_start_is_shown_with_the_reason(train: Make, cluster: Cluster) -> None:
    training = train(
        "quick_start", trainers=2, resources={"requests": {"memory": "900Gi"}, "limits": {"memory": "900Gi"}}
    )
    training.upgrade()

    def seen() -> str:
        shown = cluster.launcher("status", "-n", training.namespace, check=False)
        return shown.stdout if "nsufficient memory" in shown.stdout + shown.stderr else ""

    assert cluster.until("the scheduler's reason in status", 60, seen)
