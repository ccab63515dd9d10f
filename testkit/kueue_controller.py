"""Run the real Kueue controller as a process on this machine, next to the local cluster.

The objects are those of Kueue's own chart: CRDs, webhook configurations, and the Secret for the certificate that
Kueue makes itself. Three things differ from an installation in a cluster: the controller runs as the cluster's
administrator, the webhooks' Service points to this machine, and the Secret's files are written by this module
instead of a kubelet. Kueue manages only namespaces with the label `LABEL`, so other tests do not notice it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from local.external_commands import free_port
from local.toolchain.pinned_tools import kueue_folder
from testkit.local_cluster import Cluster, run_checked
from testkit.waiting import answers, until

NAMESPACE = "kueue-system"
LABEL = "paddle-training-test/kueue"
_SERVICE = "kueue-webhook-service"
_SECRET = "kueue-webhook-server-cert"
_KINDS = (
    "Secret",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
)
_QUEUES = ("localqueues", "clusterqueues", "resourceflavors")
_START_SECONDS = 60
_REMOVE_SECONDS = 60


def _configuration(webhook_port: int, health: str, certificates: Path) -> dict[str, Any]:
    """Return Kueue's Configuration: the strict one, in which Jobs without a queue wait for ever."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "manageJobsWithoutQueueName": True,
        "managedJobsNamespaceSelector": {"matchLabels": {LABEL: "true"}},
        "integrations": {"frameworks": ["batch/job"]},
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(certificates)},
        "health": {"healthProbeBindAddress": health},
        "metrics": {"bindAddress": "0"},
        "leaderElection": {"leaderElect": False},
        "featureGates": {
            "VisibilityOnDemand": False
        },  # needs an APIService, which this machine does not serve
    }


def _manifests(cluster: Cluster, configuration: str, webhook_port: int) -> str:
    """Return, as YAML, what a controller outside of the cluster needs.

    That is some objects of Kueue's chart, their namespace, and a Service for the webhooks that points to this machine.
    """
    values = {"managerConfig": {"controllerManagerConfigYaml": configuration}}
    chart = str(kueue_folder() / "chart")
    argv = ["helm", "template", "kueue", chart, "--namespace", NAMESPACE, "-f", "-"]
    text = run_checked(argv, cluster.env, given=yaml.safe_dump(values)).stdout
    made = [one for one in yaml.safe_load_all(text) if one and one["kind"] in _KINDS]
    for one in made:
        conversion = one.get("spec", {}).get("conversion", {}).get("webhook")
        for hook in [*one.get("webhooks", ()), *([conversion] if conversion else ())]:
            hook["clientConfig"]["service"]["port"] = webhook_port
    metadata = {"name": _SERVICE, "namespace": NAMESPACE}
    spec = {"type": "ExternalName", "externalName": "localhost"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    return yaml.safe_dump_all([namespace, service, *made])


@contextlib.contextmanager
def run_kueue(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Install Kueue and run its controller during the block; then remove all that belongs to it.

    The empty `folder` gets configuration, certificate and log.
    """
    certificates, port, health = folder / "certificates", free_port(), f"127.0.0.1:{free_port()}"
    certificates.mkdir()
    log, file = folder / "kueue.log", folder / "configuration.yaml"
    file.write_text(yaml.safe_dump(_configuration(port, health, certificates)))
    manifests = _manifests(cluster, file.read_text(), port)
    try:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=manifests)
        # setpriv: the controller must not outlive a test that is killed
        argv = ["setpriv", "--pdeathsig", "TERM", str(kueue_folder() / "kueue"), f"--config={file}"]
        with (
            log.open("wb") as stream,
            subprocess.Popen(argv, env=cluster.env, stdout=stream, stderr=stream) as child,
        ):
            try:
                _write_certificate(cluster, certificates, log)
                until(
                    lambda: answers(f"http://{health}/readyz"),
                    "Kueue is ready",
                    _START_SECONDS,
                    0.3,
                    log.read_text,
                )
                yield
            finally:
                _remove_queues(cluster)
                child.terminate()
                child.wait(30)
    finally:
        # A Secret without its namespace needs no deletion of its own, but the order does not matter either.
        words = ("--ignore-not-found", "--timeout=120s")
        cluster.kubectl("delete", *words, "-f", "-", given=manifests, seconds=150)


def _write_certificate(cluster: Cluster, folder: Path, log: Path) -> None:
    """Wait until Kueue has filled its Secret, and write the Secret's files as a kubelet would mount them."""

    def read() -> dict[str, str]:
        found = (
            json.loads(cluster.kubectl("get", "secret", _SECRET, "-n", NAMESPACE, "-o", "json")).get("data")
            or {}
        )
        return found if "tls.crt" in found else {}

    for name, content in until(read, "Kueue's certificate", _START_SECONDS, 0.3, log.read_text).items():
        (folder / name).write_bytes(base64.b64decode(content))


def _remove_queues(cluster: Cluster) -> None:
    """Delete all queues and flavors while the controller runs, which removes their finalizers."""
    for kind in _QUEUES:
        cluster.kubectl(
            "delete", f"{kind}.kueue.x-k8s.io", "--all", "--all-namespaces", "--timeout=60s", seconds=70
        )
    until(
        lambda: (
            not json.loads(cluster.kubectl("get", "workloads", "--all-namespaces", "-o", "json"))["items"]
        ),
        "Kueue has removed its Workloads",
        _REMOVE_SECONDS,
        0.5,
    )
