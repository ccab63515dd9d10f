"""Resources of target kubeconfig: the namespace and the release."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infra import chart_values
from infra.chart_values import read_stack_inputs
from infra.training import ENFORCE_LABEL, OWNER_LABEL, wait_seconds

from .recording_mocks import LOCAL, ROOT, clone, config, local_settings, local_stack


def test_kubeconfig_target_creates_only_namespace_and_release() -> None:
    made = local_stack()
    kinds = [args.typ for args in made.resources]
    assert kinds == [
        "paddle:infra:Training",
        "pulumi:providers:kubernetes",
        "kubernetes:core/v1:Namespace",
        "kubernetes:helm.sh/v3:Release",
    ]
    assert made.calls == [], "target kubeconfig must not call AWS"
    provider = made.one("pulumi:providers:kubernetes").inputs
    assert (provider["kubeconfig"], provider["context"]) == ("/nowhere/kubeconfig", "local")


WITHOUT_AWS = """
import sys
from pathlib import Path
from pulumi.runtime.mocks import Mocks, set_mocks
from infra.stack_builder import create_kubeconfig_stack
from infra.settings import load_settings
from infra.chart_values import read_stack_inputs

class Any(Mocks):
    def new_resource(self, args):
        return args.name, args.inputs
    def call(self, args):
        return {}

set_mocks(Any(), project="paddle-training", stack="local")
chosen = load_settings(%r)
outputs = create_kubeconfig_stack(read_stack_inputs(chosen, "paddle-training", "local", Path.cwd()), "x")
assert outputs["release"] is not None
print([name for name in sys.modules if name in ("pulumi_aws", "pulumi_kubernetes.core.v1._inputs", "boto3")])
"""


def test_kubeconfig_target_does_not_import_aws_sdk() -> None:
    script = WITHOUT_AWS % config(region=None, **LOCAL)
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", "each of these modules takes as long to load as everything else"


def test_release_has_fixed_name_and_relative_chart_path() -> None:
    release = local_stack().one("Release").inputs
    assert release["name"] == "paddle-training"
    assert release["chart"] == "./charts/paddle-training"
    assert release["skipAwait"] is False
    assert release["cleanupOnFail"] is release["atomic"] is True
    assert release["waitForJobs"] is False
    assert release["values"]["image"].startswith("localhost/paddle-training:")
    assert "{" not in release["values"]["image"]


def test_release_is_equal_in_two_clones(tmp_path: Path) -> None:
    with clone(tmp_path / "a") as one, clone(tmp_path / "b") as other:
        seen = [[(r.name, r.inputs) for r in local_stack(folder).resources] for folder in (one, other)]
    assert seen[0] == seen[1]


def test_release_description_changes_with_chart(tmp_path: Path) -> None:
    with clone(tmp_path) as folder:
        before = local_stack(folder).one("Release").inputs
        template = folder / chart_values.CHART / "templates" / "service.yaml"
        template.write_text(template.read_text() + "# edited\n")
        after = local_stack(folder).one("Release").inputs
    assert {key for key in after if before[key] != after[key]} == {"description"}


def test_release_wait_timeout_covers_both_deadlines() -> None:
    release = local_stack(release={"wait": True}).one("Release").inputs
    assert release["waitForJobs"] is True
    assert release["cleanupOnFail"] is release["atomic"] is False, (
        "the Jobs of a failed training must be kept for inspection"
    )
    assert release["timeout"] >= 3600 + 86400
    assert wait_seconds({"data": {"enabled": False, "deadlineSeconds": 9}, "training": {}}) == wait_seconds(
        {}
    )


def test_release_keep_manual_values_reuses_values() -> None:
    release = local_stack(release={"keepManualValues": True}).one("Release").inputs
    assert release["values"] == {}
    assert release["reuseValues"] is True


@pytest.mark.parametrize(("host_ports", "level"), [(False, "restricted"), (True, "privileged")])
def test_namespace_pod_security_depends_on_host_ports(host_ports: bool, level: str) -> None:
    namespace = local_stack(values={"hostPorts": host_ports}).one("Namespace").inputs["metadata"]
    assert namespace["labels"][ENFORCE_LABEL] == level
    assert namespace["labels"][OWNER_LABEL] == "paddle-training-dev"


def test_namespace_create_false_uses_existing_namespace() -> None:
    made = local_stack(namespace={"name": "theirs", "create": False})
    assert not made.of("Namespace")
    assert made.one("Release").inputs["namespace"] == "theirs"


def test_owner_label_identifies_stack() -> None:
    owner = read_stack_inputs(local_settings(), "paddle-training", "x" * 80, ROOT).owner
    assert owner.startswith("paddle-training-x")
    assert len(owner) <= 63
