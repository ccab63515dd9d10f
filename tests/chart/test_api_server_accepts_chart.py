"""A real API server accepts the chart's objects under their Pod Security level."""

from __future__ import annotations

import copy
import json

import pytest
from chart_tools import CHART, EXAMPLES, ONE_MACHINE, SCENARIOS, new_namespace, render, run, tool

from testkit.local_cluster import find_cluster

pytestmark = pytest.mark.e2e

CASES = [(path,) for path in SCENARIOS] + [(ONE_MACHINE, path) for path in EXAMPLES]


@pytest.fixture(scope="module")
def namespaces(local_cluster):
    """Create one namespace for each Pod Security level; remove them at the end."""
    with new_namespace("restricted") as restricted, new_namespace("privileged") as privileged:
        yield {"restricted": restricted, "privileged": privileged}


def pods(manifests):
    """Return the pods that the Job controller would create: Pod Security only rejects pods."""
    for item in manifests:
        if item["kind"] == "Job":
            template = copy.deepcopy(item["spec"]["template"])
            template["spec"]["serviceAccountName"] = "default"  # the chart's own does not exist in a dry run
            about = template["metadata"] | {key: item["metadata"][key] for key in ("name", "namespace")}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": template["spec"]}


@pytest.mark.parametrize("files", CASES, ids=lambda files: files[-1].stem)
def test_api_server_accepts_each_scenario_without_a_warning(files, namespaces):
    host_ports = files[-1].stem == "host-ports"
    namespace = namespaces["privileged" if host_ports else "restricted"]
    manifests = render(*files, namespace=namespace)
    for item in manifests:
        if item["kind"] == "Pod":
            item["spec"]["serviceAccountName"] = "default"
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*manifests, *pods(manifests)]})
    done = run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=body)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr


def test_sample_claim_is_accepted_by_the_chart(namespaces):
    file = CHART / "examples" / "claim" / "claim.yaml"
    done = run(
        "kubectl", "create", "--dry-run=server", "-o", "json", "-n", namespaces["restricted"], "-f", str(file)
    )
    assert done.returncode == 0, done.stderr
    claim = json.loads(done.stdout)
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    assert f"storage.existingClaim.name={claim['metadata']['name']}" in readme


def test_chart_rejects_host_ports_in_a_restricted_namespace(namespaces):
    argv = ["install", "demo", CHART, "-n", namespaces["restricted"], "-f", CHART / "ci" / "host-ports.yaml"]
    done = run(tool("helm"), *argv, "--dry-run=server")
    assert "hostPorts is true, but must be false in namespace" in done.stderr, done.stdout + done.stderr


def test_chart_rejects_a_claim_with_access_mode_read_write_once(namespaces):
    namespace, size = namespaces["restricted"], {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": size}
    find_cluster().apply("PersistentVolumeClaim", "shared", namespace, spec=spec)
    argv = ["install", "demo", CHART, "-n", namespace, "-f", CHART / "ci" / "existing-claim.yaml"]
    done = run(tool("helm"), *argv, "--dry-run=server")
    assert (
        'storage.existingClaim.name is "shared", but must be a claim with access mode ReadWriteMany'
        in done.stderr
    )
