"""One local cluster for all end-to-end tests; a namespace, a release and a folder of its own for each."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.naming import image_reference
from tests.e2e.kube import CHART, ROOT, Cluster, Training, merged

STATE = Path("/var/lib/paddle-training")
SHARED = STATE / "shared"


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster that `make cluster` started, with the image that `make image` put on its nodes."""
    kubeconfig = STATE / "kubeconfig"
    if not kubeconfig.exists():
        pytest.fail(
            f"there is no local cluster ({kubeconfig} is missing); start it with `make cluster image`"
        )
    env = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT)}
    return Cluster(env, image_reference("localhost/paddle-training:{launcher}", ROOT / "launcher"), SHARED)


@contextlib.contextmanager
def trainings(cluster: Cluster, title: str) -> Iterator[Callable[..., Training]]:
    """Makes trainings (an example's values, changes, and a namespace that allows what they need)."""
    made: list[Training] = []
    slug = title.replace("_", "-").lower().removeprefix("test-")
    slug = "".join(c for c in slug if c.isalnum() or c == "-")[:28].strip("-")

    def make(example: str = "quick_start", level: str = "restricted", **changes: Any) -> Training:
        name = f"e2e-{slug}-{uuid.uuid4().hex[:4]}"  # a second try meets nothing of the first
        labels = f'{{"pod-security.kubernetes.io/enforce": "{level}"}}'
        cluster.kubectl(
            "apply",
            "-f",
            "-",
            given=f'{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{name}","labels":{labels}}}}}',
        )
        values = yaml.safe_load((CHART / "examples" / f"{example}.yaml").read_text())
        base = {
            "image": cluster.image,
            "imagePullPolicy": "Never",
            "jobName": name,
            "storage": {"type": "hostPath", "hostPath": {"path": str(SHARED)}},
        }
        training = Training(cluster, name, merged(merged(values, base), changes))
        made.append(training)
        return training

    try:
        yield make
    finally:
        for training in made:
            training.remove()


@pytest.fixture
def train(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Callable[..., Training]]:
    """The maker of this test's trainings."""
    with trainings(cluster, request.node.name) as make:
        yield make
