"""Target aws with mocks: nodes with GPUs, their add-ons and the device plugin."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest
import yaml

from infra import aws_facts, chart_values, eks_nodes, naming

from .recording_mocks import ROOT, Recorder, aws_settings, aws_stack, default

GPUS: dict[str, Any] = {
    "runtime": "collective",
    "training": {"config": "planes/train.py"},
    "data": {"source": "file://planes.txt"},
    "resources": {
        "requests": {"cpu": "2", "memory": "4Gi"},
        "limits": {"memory": "4Gi", "nvidia.com/gpu": 1},
    },
}
LABEL = {"k8s.amazonaws.com/accelerator": "nvidia"}
FALLBACK = {"auto": True, "capacity": "SPOT", "fallback": True}


def _gpu_stack(**nodes: Any) -> Recorder:
    machine = {
        "aws:ec2/getInstanceType:getInstanceType": {
            **{"id": "x", "defaultVcpus": 4, "memorySize": 16384},
            "gpuses": [{"count": 1, "manufacturer": "NVIDIA", "memorySize": 24576, "name": "L4"}],
        }
    }
    return aws_stack(
        nodes={"instanceTypes": ["g6.xlarge"], **nodes}, valuesFiles=[], values=GPUS, answers=machine
    )


def _taints(group: dict[str, Any]) -> dict[str, str]:
    return {f"{taint['key']}={taint.get('value', '')}": taint["effect"] for taint in group["taints"]}


@pytest.mark.parametrize(("nodes", "parts"), [({}, ["nodes"]), (FALLBACK, ["nodes", "fallback"])])
def test_gpu_nodes_have_nvidia_image_label_and_taint(nodes: dict[str, Any], parts: list[str]) -> None:
    made = _gpu_stack(**nodes)
    for part in parts:
        group = made.one("NodeGroup", f"dev-{part}").inputs
        assert (group["amiType"], group["labels"]) == ("AL2023_x86_64_NVIDIA", LABEL)
        assert _taints(group) == {"nvidia.com/gpu=present": "NO_SCHEDULE"}
        assert group["updateConfig"] == {"maxUnavailable": 1, "updateStrategy": "MINIMAL"}
    assert len(made.of("NodeGroup")) == len(parts) + 1
    system = made.one("NodeGroup", "dev-system").inputs
    assert (system["amiType"], system["instanceTypes"][0]) == ("AL2023_x86_64_STANDARD", "t3.medium")
    assert _taints(system) == {"CriticalAddonsOnly=true": "NO_SCHEDULE"}


def test_nodes_without_gpus_have_neither_label_nor_plugin() -> None:
    group = default().one("NodeGroup").inputs
    assert "labels" not in group
    assert "taints" not in group
    assert group["updateConfig"] == {"maxUnavailable": 1}
    assert not [release for release in default().of("Release") if "gpus" in release.name]


def test_gpu_nodes_release_is_that_of_the_nvidia_image(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(name: str, opts: pulumi.InvokeOptions) -> SimpleNamespace:
        asked.append(name)
        return SimpleNamespace(insecure_value="1.35.2-20261109")

    monkeypatch.setattr(eks_nodes.aws.ssm, "get_parameter", answer)
    _gpu_stack()
    base = "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/x86_64"
    assert asked == [f"{base}/{variant}/recommended/release_version" for variant in ("nvidia", "standard")]


def test_addons_of_gpu_stack_run_on_system_nodes() -> None:
    """The taint of the GPU nodes would keep the pods of the add-ons pending."""
    made = _gpu_stack()
    system = made.one("NodeGroup", "dev-system").inputs
    for name in (aws_facts.ADDON_COREDNS, aws_facts.ADDON_EFS_CSI):
        addon = made.one("Addon", name)
        chosen = json.loads(addon.inputs["configurationValues"])
        assert chosen.get("controller", chosen)["nodeSelector"] == system["labels"], name
        assert "aws:eks/nodeGroup:NodeGroup::paddle-training-dev-system" in made.before(addon)


def test_device_plugin_is_released_after_nodes_and_before_training() -> None:
    made = _gpu_stack()
    plugin, training = made.one("Release", "dev-gpus"), made.one("Release", "dev-release")
    assert plugin.inputs["chart"] == "./charts/nvidia-device-plugin"
    assert "aws:eks/nodeGroup:NodeGroup::paddle-training-dev-nodes" in made.before(plugin)
    assert "kubernetes:helm.sh/v3:Release::paddle-training-dev-gpus" in made.before(training)
    tolerations = training.inputs["values"]["scheduling"]["tolerations"]
    assert [each["key"] for each in tolerations] == ["nvidia.com/gpu"]


def test_addon_release_changes_with_its_chart() -> None:
    """Pulumi's Release notices a changed local chart only by its version, which stays the same here."""
    made = _gpu_stack(**FALLBACK)
    for part in ("autoscaler", "gpus"):
        release = made.one("Release", f"dev-{part}").inputs
        assert naming.folder_digest(ROOT / release["chart"]) in release["description"], part


@pytest.mark.slow
def test_all_pods_of_release_tolerate_taint_of_gpu_nodes() -> None:
    """The data pods request no GPU, and there are no other nodes for them."""
    settings = aws_settings(nodes={"instanceTypes": ["g6.xlarge"]})
    done = chart_values.run_helm_template(settings, GPUS, ROOT)
    assert done.returncode == 0, done.stderr
    pods = {}
    for item in filter(None, yaml.safe_load_all(done.stdout)):
        if item["kind"] in ("Job", "Pod"):
            component = item["metadata"]["labels"]["app.kubernetes.io/component"]
            pods[component] = item["spec"].get("template", item)["spec"]
    assert set(pods) == {"data", "training", "test"}
    for component, pod in pods.items():
        assert "nvidia.com/gpu" in [each["key"] for each in pod["tolerations"]], component
    limits = pods["training"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 1


@pytest.mark.slow
def test_device_plugin_chart_runs_only_on_gpu_nodes_and_tolerates_all_their_taints() -> None:
    made = _gpu_stack()
    group, release = made.one("NodeGroup", "dev-nodes").inputs, made.one("Release", "dev-gpus").inputs
    chart = str(ROOT / release["chart"])
    done = subprocess.run(
        ["helm", "template", release["name"], chart, "-n", release["namespace"], "--values", "-"],
        input=json.dumps(release["values"]),
        capture_output=True,
        text=True,
        check=True,
    )
    (daemon,) = yaml.safe_load_all(done.stdout)
    pod = daemon["spec"]["template"]["spec"]
    assert (daemon["kind"], daemon["metadata"]["namespace"]) == ("DaemonSet", "kube-system")
    assert pod["nodeSelector"] == group["labels"]
    tolerated = {each["key"] for each in pod["tolerations"] if each["operator"] == "Exists"}
    assert {taint["key"] for taint in group["taints"]} <= tolerated
    assert not [each for each in pod["tolerations"] if "key" not in each or "effect" in each]
    (container,) = pod["containers"]
    assert container["image"].startswith("nvcr.io/nvidia/k8s-device-plugin:v")
    # The kubelet finds plugins by sockets in this folder of the node (DevicePluginPath of its API v1beta1).
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert set(mounts.values()) == set(paths.values()) == {"/var/lib/kubelet/device-plugins"}
    assert mounts.keys() == paths.keys()
    assert daemon["spec"]["selector"]["matchLabels"] == daemon["spec"]["template"]["metadata"]["labels"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
