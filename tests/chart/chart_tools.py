"""Render the chart with the helm on PATH, without a cluster; run kubectl on the local cluster."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.go_tools import find_tool
from testkit.local_cluster import find_cluster
from testkit.object_api import ObjectApi
from testkit.waiting import until

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "paddle-training"
SERVING = ROOT / "charts" / "paddle-serving"
SCENARIOS = sorted((CHART / "ci").glob("*.yaml"))
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
ONE_MACHINE = CHART / "ci" / "one-machine.yaml"
KUBE_VERSION = "1.35.4"  # helm built from source without flags assumes Kubernetes 1.20

Manifest = dict[str, Any]


def tool(name: str) -> str:
    """Return the path of a tool; fail the test when it is not on PATH."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not on PATH; `make env` prints the exports that put the pinned one there")
    return found


def pinned_helm(major: int) -> Path:
    """Return the path of the pinned Helm 3 or 4, whatever helm is on PATH."""
    found = find_tool({3: "helm3", 4: "helm"}[major]).folder / "helm"
    if not found.is_file():
        pytest.fail(f"{found} is missing; `make tools` builds it")
    return found


def run(*argv: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool and return its exit code and output."""
    return subprocess.run(
        [str(item) for item in argv], input=stdin, text=True, capture_output=True, timeout=360, check=False
    )


def kubectl(*argv: str, stdin: str | None = None) -> str:
    """Run kubectl and return its output; fail the test if kubectl fails."""
    done = run(tool("kubectl"), *argv, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def new_namespace(level: str = "") -> Iterator[str]:
    """Create a namespace with a new name and this Pod Security level, and remove it with its Jobs at the end."""
    name = f"chart-{uuid.uuid4().hex[:8]}"
    modes = ("enforce", "warn") if level else ()
    find_cluster().apply(
        "Namespace", name, labels={f"pod-security.kubernetes.io/{mode}": level for mode in modes}
    )
    try:
        until(
            lambda: ObjectApi().find("serviceaccounts", name, "default"), f"the service account of {name}", 60
        )
        yield name
    finally:
        # A namespace deletes its pods first, and a Job that would replace one keeps the pod's finalizer.
        run(tool("kubectl"), "delete", "jobs", "--all", "-n", name)
        kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def helm_template(
    *files: Path,
    values: Any = None,
    release: str = "demo",
    namespace: str = "paddle",
    chart: Path = CHART,
    helm: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `helm template` (of the Helm on PATH, or of `helm`) with values files and, over them, `values`."""
    argv: list[str | Path] = [helm or tool("helm"), "template", release, chart, "--namespace", namespace]
    argv += ["--kube-version", KUBE_VERSION]
    for file in files:
        argv += ["--values", file]
    if values is not None:
        argv += ["--values", "-"]
    return run(*argv, stdin=None if values is None else json.dumps(values))


@functools.cache
def _rendered(files: tuple[Path, ...], values: str, release: str, namespace: str, chart: Path) -> str:
    done = helm_template(*files, values=json.loads(values), release=release, namespace=namespace, chart=chart)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(
    *files: Path, values: Any = None, release: str = "demo", namespace: str = "paddle", chart: Path = CHART
) -> list[Manifest]:
    """Return the objects that the chart renders with these values."""
    text = _rendered(files or (ONE_MACHINE,), json.dumps(values or {}), release, namespace, chart)
    return [document for document in yaml.safe_load_all(text) if document]


def one(manifests: list[Manifest], kind: str, component: str | None = None) -> Manifest:
    """Return the only object of a kind (and component)."""
    found = [
        item
        for item in manifests
        if item["kind"] == kind
        and component in (None, item["metadata"]["labels"].get("app.kubernetes.io/component"))
    ]
    assert len(found) == 1, f"{len(found)} objects of kind {kind} {component or ''}"
    return found[0]


def run_json(manifests: list[Manifest]) -> dict[str, Any]:
    """Return run.json of the ConfigMap, which the command line reads."""
    [found] = [item["data"]["run.json"] for item in manifests if "run.json" in item.get("data", {})]
    return json.loads(found)


def settings(template: Manifest) -> dict[str, Any]:
    """Return the settings document of a pod template."""
    return json.loads(template["metadata"]["annotations"]["paddle-training/settings"])


@functools.cache
def default_values(chart: Path = CHART) -> dict[str, Any]:
    """Return the default values of a chart."""
    return yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))


def leaves(values: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all values that are not objects, or are empty ones."""
    if isinstance(values, dict) and values:
        return [leaf for key, value in values.items() for leaf in leaves(value, (*path, key))]
    return [path]


def env(container: Manifest) -> dict[str, str]:
    """Return the value of each environment variable of a container by name; `<downward>` for one with `valueFrom`."""
    return {item["name"]: item.get("value", "<downward>") for item in container["env"]}
