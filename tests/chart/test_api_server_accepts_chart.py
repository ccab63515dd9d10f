"""A real API server accepts the chart's objects under their Pod Security level."""

from __future__ import annotations

import copy
import json
import uuid

import pytest
from chart_tools import CHART, EXAMPLES, ONE_MACHINE, SCENARIOS, render, run, tool

from testkit.object_api import ObjectApi
from testkit.waiting import until

pytestmark = pytest.mark.e2e

CASES = [(path,) for path in SCENARIOS] + [(ONE_MACHINE, path) for path in EXAMPLES]


def try_kubectl(*argv: str, stdin: str | None = None):
    """Run kubectl and return its exit code and output."""
    return run(tool("kubectl"), *argv, stdin=stdin)


@pytest.fixture(scope="module")
def namespaces(local_cluster):
    """Create one namespace for each Pod Security level; remove them at the end."""
    made = {level: f"chart-{level}-{uuid.uuid4().hex[:6]}" for level in ("restricted", "privileged")}
    for level, name in made.items():
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        done = try_kubectl("create", "-f", "-", stdin=json.dumps(body))
        assert done.returncode == 0, done.stderr
        until(
            lambda name=name: ObjectApi().find("serviceaccounts", name, "default"),
            f"the default service account of namespace {name}",
            60,
        )
    yield made
    for name in made.values():
        try_kubectl("delete", "namespace", name, "--wait=false")


def pods(manifests):
    """Return the pods that the Job controller would create: Pod Security only rejects pods."""
    for item in manifests:
        if item["kind"] == "Job":
            template = copy.deepcopy(item["spec"]["template"])
            template["spec"]["serviceAccountName"] = "default"  # the chart's own does not exist in a dry run
            name = {"name": item["metadata"]["name"], "namespace": item["metadata"]["namespace"]}
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": template["metadata"] | name,
                "spec": template["spec"],
            }


@pytest.mark.parametrize("files", CASES, ids=lambda files: files[-1].stem)
def test_api_server_accepts_each_scenario_without_a_warning(files, namespaces):
    host_ports = files[-1].stem == "host-ports"
    namespace = namespaces["privileged" if host_ports else "restricted"]
    manifests = render(*files, namespace=namespace)
    for item in manifests:
        if item["kind"] == "Pod":
            item["spec"]["serviceAccountName"] = "default"
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*manifests, *pods(manifests)]})
    done = try_kubectl("create", "--dry-run=server", "-f", "-", stdin=body)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr


def test_sample_claim_is_accepted_by_the_chart(namespaces):
    file = CHART / "examples" / "claim" / "claim.yaml"
    done = try_kubectl(
        "create", "--dry-run=server", "-o", "json", "-n", namespaces["restricted"], "-f", str(file)
    )
    assert done.returncode == 0, done.stderr
    claim = json.loads(done.stdout)
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    assert f"storage.existingClaim.name={claim['metadata']['name']}" in readme


def test_restricted_namespace_rejects_pods_with_host_ports(namespaces):
    manifests = render(CHART / "ci" / "host-ports.yaml", namespace=namespaces["restricted"])
    training = next(pod for pod in pods(manifests) if "data" not in pod["metadata"]["name"])
    done = try_kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(training))
    assert done.returncode != 0
    assert "violates PodSecurity" in done.stderr


def test_chart_rejects_host_ports_in_a_restricted_namespace(namespaces):
    argv = ["install", "demo", CHART, "-n", namespaces["restricted"], "-f", CHART / "ci" / "host-ports.yaml"]
    done = run(tool("helm"), *argv, "--dry-run=server")
    assert "hostPorts is true, but must be false in namespace" in done.stderr, done.stdout + done.stderr


def test_chart_rejects_a_claim_with_access_mode_read_write_once(namespaces):
    namespace = namespaces["restricted"]
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared"},
        "spec": spec,
    }
    assert try_kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(claim)).returncode == 0
    argv = ["install", "demo", CHART, "-n", namespace, "-f", CHART / "ci" / "existing-claim.yaml"]
    done = run(tool("helm"), *argv, "--dry-run=server")
    assert (
        'storage.existingClaim.name is "shared", but must be a claim with access mode ReadWriteMany'
        in done.stderr
    )
