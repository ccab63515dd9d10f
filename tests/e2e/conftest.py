"""Fixtures of end-to-end tests: one local cluster for all, a namespace, a release and a folder for each test."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from launcher.cli.releases import merge_values
from local.paths import KUBECONFIG
from testkit.local_cluster import CHART, Cluster, Training, find_cluster


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """Return the cluster that `make cluster` started, with the image that `make image` imported."""
    if not KUBECONFIG.exists():
        pytest.fail(
            f"there is no local cluster ({KUBECONFIG} is missing); start it with `make cluster image`"
        )
    return find_cluster()


@contextlib.contextmanager
def create_trainings(cluster: Cluster, title: str) -> Iterator[Callable[..., Training]]:
    """Yield a function that creates trainings, and remove them at the end.

    The function takes an example, a Pod Security level for the namespace, and changes of the example's
    values.
    """
    made: list[Training] = []
    slug = title.replace("_", "-").lower().removeprefix("test-")
    slug = "".join(c for c in slug if c.isalnum() or c == "-")[:28].strip("-")

    def make(example: str = "quick_start", level: str = "restricted", **changes: Any) -> Training:
        name = f"e2e-{slug}-{uuid.uuid4().hex[:4]}"  # a second attempt finds nothing of the first one
        cluster.apply("Namespace", name, labels={"pod-security.kubernetes.io/enforce": level})
        values = yaml.safe_load((CHART / "examples" / f"{example}.yaml").read_text())
        base = {
            "image": cluster.image,
            "imagePullPolicy": "Never",
            "jobName": name,
            "storage": {"type": "hostPath", "hostPath": {"path": str(cluster.shared)}},
        }
        training = Training(cluster, name, merge_values(merge_values(values, base), changes))
        made.append(training)
        return training

    try:
        yield make
    finally:
        for training in made:
            training.remove()


@pytest.fixture
def train(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Callable[..., Training]]:
    """Return the function that creates this test's trainings."""
    with create_trainings(cluster, request.node.name) as make:
        yield make
