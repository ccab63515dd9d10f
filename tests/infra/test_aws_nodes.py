"""Target aws with mocks: the rendered charts of autoscaler and device plugin, and nodes with GPUs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest
import yaml

from infra import eks_nodes, naming
from tests.chart.chart_tools import helm_template

from .recording_mocks import ROOT, Recorder, aws_stack, mocked_account


def _rendered(release: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of a Helm release, whose inputs are `release`."""
    name, namespace = release["name"], release["namespace"]
    made = helm_template(
        values=release["values"], release=name, namespace=namespace, chart=ROOT / release["chart"]
    )
    assert made.returncode == 0, made.stderr
    return list(yaml.safe_load_all(made.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("fallback", [False, True])
def test_autoscaler_chart_renders_with_known_flags(fallback: bool) -> None:
    nodes = {"auto": True, "capacity": "SPOT", "fallback": fallback}
    release = aws_stack(nodes=nodes).one("Release", "autoscaler").inputs
    objects = {item["kind"]: item for item in _rendered(release)}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == release["values"]["nodeSelector"]
    assert pod["containers"][0]["command"] == ["/cluster-autoscaler"], "its image has no entrypoint"
    given = dict(flag.removeprefix("--").partition("=")[::2] for flag in pod["containers"][0]["args"])
    assert "startup-taint" not in given, "EKS would set it after the driver has removed it"
    known = Path(__file__).with_name("autoscaler_flags.txt").read_text(encoding="utf-8").split()
    assert set(given) - set(known) == set(), "an unknown flag makes the autoscaler exit"
    assert given["expander"] == ("priority,least-waste" if fallback else "least-waste")
    assert ("ConfigMap" in objects) is fallback
    if fallback:
        assert objects["ConfigMap"]["metadata"]["name"] == "cluster-autoscaler-priority-expander"
        priorities = yaml.safe_load(objects["ConfigMap"]["data"]["priorities"])
        # EKS calls the Auto Scaling group of a node group eks-<node group>-<id>.
        groups = {
            part: f"eks-paddle-training-dev-{part}-1a2b3c4-0c1d" for part in ("nodes", "fallback", "system")
        }
        order = [part for _, found in sorted(priorities.items(), reverse=True)
                 for part, name in groups.items() if any(re.search(each, name) for each in found)]  # fmt: skip
        assert order == ["nodes", "fallback"]
    rules = objects["Role"]["rules"]
    changes = [rule for rule in rules if {"delete", "get", "update", "patch"} & set(rule["verbs"])]
    maps = ["cluster-autoscaler-status", *(["cluster-autoscaler-priority-expander"] if fallback else [])]
    named = {rule["resources"][0]: rule["resourceNames"] for rule in changes}
    assert named == {"configmaps": maps, "leases": ["cluster-autoscaler"]}
    others = sorted(verb for rule in rules if rule not in changes for verb in rule["verbs"])
    assert others == ["create", "create", *(["list", "watch"] if fallback else [])]
    assert objects["ServiceAccount"]["metadata"]["name"] == pod["serviceAccountName"] == "cluster-autoscaler"


GPUS: dict[str, Any] = {
    "runtime": "collective",
    "training": {"config": "planes/train.py"},
    "data": {"source": "file://planes.txt"},
    "resources": {
        "requests": {"cpu": "2", "memory": "4Gi"},
        "limits": {"memory": "4Gi", "nvidia.com/gpu": 1},
    },
}


def _gpu_stack(**nodes: Any) -> Recorder:
    machine = {"ec2/getInstanceType": {"defaultVcpus": 4, "memorySize": 16384, "gpuses": [{"count": 1}]}}
    return aws_stack(
        nodes={"instanceTypes": ["g6.xlarge"], **nodes},
        valuesFiles=[],
        values=GPUS,
        account=mocked_account(machine, {}),
    )


def test_gpu_nodes_release_is_that_of_the_nvidia_image(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(name: str, opts: pulumi.InvokeOptions) -> SimpleNamespace:
        asked.append(name)
        return SimpleNamespace(insecure_value="1.35.2-20261109")

    monkeypatch.setattr(eks_nodes.aws.ssm, "get_parameter", answer)
    _gpu_stack()
    base = "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/x86_64"
    assert asked == [f"{base}/{variant}/recommended/release_version" for variant in ("nvidia", "standard")]


def test_addon_release_changes_with_its_chart() -> None:
    """Pulumi's Release notices a changed local chart only by its version, which stays the same here."""
    made = _gpu_stack(auto=True, capacity="SPOT", fallback=True)
    for part in ("autoscaler", "gpus"):
        release = made.one("Release", f"dev-{part}").inputs
        assert naming.folder_digest(ROOT / release["chart"]) in release["description"], part


@pytest.mark.slow
def test_device_plugin_chart_runs_only_on_gpu_nodes_and_tolerates_all_their_taints() -> None:
    made = _gpu_stack()
    group, release = made.one("NodeGroup", "dev-nodes").inputs, made.one("Release", "dev-gpus").inputs
    (daemon,) = _rendered(release)
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
