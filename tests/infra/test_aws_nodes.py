"""Target aws with mocks: control plane, node groups, nodes with GPUs, add-ons, and the order of resources."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest
import yaml

from infra import aws_facts, chart_values, eks_nodes, naming
from infra.settings import SettingsError

from .recording_mocks import ROOT, Recorder, aws_settings, aws_stack, default, everything, running


def test_cluster_endpoint_is_private_or_limited_to_public_cidrs() -> None:
    assert default().one("aws:eks/cluster:Cluster").inputs["vpcConfig"]["endpointPublicAccess"] is False
    vpc = everything().one("aws:eks/cluster:Cluster").inputs["vpcConfig"]
    assert vpc["endpointPublicAccess"] is True
    assert vpc["publicAccessCidrs"] == ["203.0.113.0/24"]


def test_admins_and_viewers_have_different_policies() -> None:
    scopes = {
        a.inputs["principalArn"]: a.inputs["policyArn"] for a in everything().of("AccessPolicyAssociation")
    }
    assert scopes["arn:aws:iam::123456789012:role/Admin"].endswith("/AmazonEKSClusterAdminPolicy")
    assert scopes["arn:aws:iam::123456789012:role/preview"].endswith("/AmazonEKSViewPolicy")
    entries = {a.inputs["principalArn"] for a in everything().of("AccessEntry")}
    assert entries == set(scopes)
    assert not any(":sts:" in entry for entry in entries), "a session ends, so it cannot be a principal"


def _short(names: set[str]) -> set[str]:
    """Return `nodeGroup nodes` for `aws:eks/nodeGroup:NodeGroup::paddle-training-dev-nodes`."""
    return {f"{n.split(':')[1].rpartition('/')[2]} {n.rpartition('paddle-training-dev-')[2]}" for n in names}


def test_dependencies_of_nodes_addons_and_release() -> None:
    made = default()
    nodes = made.one("NodeGroup")
    addons = (aws_facts.ADDON_VPC_CNI, aws_facts.ADDON_KUBE_PROXY, aws_facts.ADDON_POD_IDENTITY)
    ways = {"route private-us-west-2a-out", "route private-us-west-2b-out", "natGateway nat-us-west-2a"}
    # A destroy removes a resource that nothing depends on at once: the nodes would lose their routes while they stop.
    subnets = [f"{kind}-us-west-2{zone}" for kind in ("public", "private") for zone in "ab"]
    ways |= {"vpcEndpoint s3", *(f"routeTableAssociation {subnet}" for subnet in subnets)}
    entry = {"accessEntry access-role-Admin", "accessPolicyAssociation access-role-Admin"}
    first = {"cluster cluster", "logGroup logs", "rolePolicyAttachment cluster", *entry, *ways}
    assert {*first, *(f"addon {name}" for name in addons)} <= _short(made.before(nodes))
    late = (aws_facts.ADDON_COREDNS, aws_facts.ADDON_EFS_CSI)
    for name in late:
        before = _short(made.before(made.one("Addon", name)))
        assert "nodeGroup nodes" in before, name
        assert not {f"addon {other}" for other in late} & before, "both must be created in parallel"
    before = _short(made.before(made.one("Release")))
    mounts = {"mountTarget efs-us-west-2a", "mountTarget efs-us-west-2b"}
    rules = {"securityGroupIngressRule efs-from-nodes", "podIdentityAssociation pods"}
    assert {*first, *mounts, *rules, "accessPoint pods", *(f"addon {name}" for name in late)} <= before


def test_control_plane_upgraded_by_aws_is_followed_and_nodes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    made = aws_stack(answers=running("1.36", nodes={"sizes": (1, 3, 3)}), nodes={"auto": True})
    assert made.one("aws:eks/cluster:Cluster").inputs["version"] == "1.36"
    assert made.ignored["paddle-training-dev-cluster"] == ["version"]
    assert made.one("NodeGroup", "nodes").inputs["version"] == "1.35"
    assert made.one("Release", "autoscaler").inputs["values"]["image"].partition(":v")[2].startswith("1.36.")
    assert [text for text in said if "cluster.version 1.35: the control plane has 1.36" in text]
    made = aws_stack(
        answers=running("1.35", nodes={"sizes": (1, 3, 3)}),
        cluster={"admins": ["role/Admin"], "version": "1.36"},
    )
    assert "paddle-training-dev-cluster" not in made.ignored, "an upgrade that the owner asks for"


def test_instance_type_that_aws_does_not_report_is_not_checked() -> None:
    unknown = {"aws:ec2/getInstanceType:getInstanceType": Exception("no matching instance type")}
    aws_stack(answers=unknown).one("NodeGroup")
    small = {"id": "x", "defaultVcpus": 1, "memorySize": 512, "gpuses": []}
    with pytest.raises(SettingsError, match="resources: memory is "):
        aws_stack(answers={"aws:ec2/getInstanceType:getInstanceType": small})


def test_zero_nodes_creates_no_addon_with_pods() -> None:
    made = aws_stack(nodes={"min": 0, "desired": 0})
    addons = {addon.inputs["addonName"] for addon in made.of("Addon")}
    assert addons == {aws_facts.ADDON_VPC_CNI, aws_facts.ADDON_KUBE_PROXY, aws_facts.ADDON_POD_IDENTITY}
    made.one("Release")


def test_auto_addons_run_on_system_node() -> None:
    made = aws_stack(nodes={"auto": True, "min": 0, "desired": 0, "max": 4})
    gang, system = made.one("NodeGroup", "nodes").inputs, made.one("NodeGroup", "system").inputs
    assert gang["scalingConfig"] == {"minSize": 0, "desiredSize": 0, "maxSize": 4}
    assert system["scalingConfig"]["minSize"] == 1
    assert "CriticalAddonsOnly" in {taint["key"] for taint in system["taints"]}
    for name in (aws_facts.ADDON_COREDNS, aws_facts.ADDON_EFS_CSI):
        chosen = json.loads(made.one("Addon", name).inputs["configurationValues"])
        assert chosen.get("controller", chosen)["nodeSelector"] == system["labels"], name
    scaler = made.one("Release", "autoscaler")
    assert scaler.inputs["values"]["nodeSelector"] == system["labels"]
    assert scaler.inputs["values"]["image"].endswith(":v1.35.2")
    association = made.one("PodIdentityAssociation", "scaler").inputs
    assert (association["namespace"], association["serviceAccount"]) == ("kube-system", scaler.inputs["name"])
    role = json.loads(made.one("RolePolicy", "scaler").inputs["policy"])
    changing = [s for s in role["Statement"] if "autoscaling:SetDesiredCapacity" in s["Action"]]
    tag = "aws:ResourceTag/k8s.io/cluster-autoscaler/paddle-training-dev"
    assert [s["Condition"] for s in changing] == [{"StringEquals": {tag: "owned"}}]
    assert "helm.sh/v3:Release::paddle-training-dev-autoscaler" in "".join(
        made.before(made.one("Release", "dev-release"))
    )


@pytest.mark.slow
@pytest.mark.parametrize("fallback", [False, True])
def test_autoscaler_chart_renders_with_known_flags(fallback: bool) -> None:
    nodes = {"auto": True, "capacity": "SPOT", "fallback": fallback}
    values = aws_stack(nodes=nodes).one("Release", "autoscaler").inputs["values"]
    chart = str(ROOT / "charts" / "cluster-autoscaler")
    done = subprocess.run(
        ["helm", "template", "cluster-autoscaler", chart, "-n", "kube-system", "--values", "-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=True,
    )
    objects = {item["kind"]: item for item in yaml.safe_load_all(done.stdout)}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == values["nodeSelector"]
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


def test_pod_logs_are_logs_only_in_own_groups_with_retention() -> None:
    settings = {"admins": ["role/Admin"], "podLogs": True, "logRetentionDays": 30}
    made = aws_stack(cluster=settings, nodes={"auto": True})
    addon = made.one("Addon", "amazon-cloudwatch-observability")
    chosen = json.loads(addon.inputs["configurationValues"])
    assert chosen["containerLogs"] == {"enabled": True}
    assert list(chosen["agent"]["config"]["logs"]["metrics_collected"]) == ["emf"], "no Container Insights"
    assert chosen["manager"]["applicationSignals"]["autoMonitor"]["monitorAllServices"] is False
    assert chosen["manager"]["nodeSelector"] == made.one("NodeGroup", "system").inputs["labels"]
    assert made.one("PodIdentityAssociation", "pod-logs").inputs["serviceAccount"] == "cloudwatch-agent"
    groups = {a.inputs["name"]: a.inputs["retentionInDays"] for a in made.of("LogGroup")}
    pods = {f"/aws/containerinsights/paddle-training-dev/{p}" for p in ("application", "dataplane", "host")}
    assert groups == dict.fromkeys({*pods, "/aws/eks/paddle-training-dev/cluster"}, 30)
    assert pods <= {f"/aws/containerinsights/paddle-training-dev/{n.rpartition('-')[2]}"
                    for n in _short(made.before(addon)) if n.startswith("logGroup logs-")}  # fmt: skip
    policy = json.loads(made.one("RolePolicy", "pod-logs").inputs["policy"])["Statement"]
    assert not [s for s in policy if "logs:CreateLogGroup" in s["Action"] or s["Resource"] == "*"]
    assert [a.name for a in default().of("LogGroup")] == ["paddle-training-dev-logs"]


@pytest.mark.parametrize(
    ("cluster", "running_versions", "kept"),
    [
        ({}, ("1.35", "1.35"), True),
        ({"upgradeAddons": True}, ("1.35", "1.35"), False),
        ({"version": "1.36"}, ("1.35", "1.35"), False),
        # An upgrade that failed in the middle continues.
        ({"version": "1.36"}, ("1.36", "1.35"), False),
        # AWS upgraded the control plane at the end of support.
        ({}, ("1.36", "1.35"), True),
    ],
)
def test_running_addons_keep_their_version_unless_the_owner_asks(
    cluster: dict[str, Any], running_versions: tuple[str, str], kept: bool
) -> None:
    """The engine uses the version in the state for an input whose changes are ignored."""
    plane, nodes = running_versions
    made = aws_stack(
        cluster={"admins": ["role/Admin"], **cluster},
        answers=running(plane, nodes={"sizes": (1, 3, 3), "version": nodes}),
    )
    addons = made.of("Addon")
    assert len(addons) == 5
    for addon in addons:
        assert addon.inputs["addonVersion"] == "v1.2.3-eksbuild.1", "of a new add-on, in a preview too"
        assert (made.ignored.get(addon.name, []) == ["addonVersion"]) is kept


def test_kubernetes_providers_are_identified_by_the_endpoint_which_a_new_cluster_changes() -> None:
    """The provider replaces what is in the cluster only when its identifier changes; the cluster's name never does."""
    nodes = {"auto": True, "instanceTypes": ["g6.xlarge"]}
    made = aws_stack(nodes=nodes)
    providers = [each for each in made.resources if each.typ == "pulumi:providers:kubernetes"]
    assert len(providers) == 3
    endpoint = "https://ABC.gr7.us-west-2.eks.amazonaws.com"
    assert {each.inputs["clusterIdentifier"] for each in providers} == {endpoint}


def test_nodes_without_gpus_have_no_taint_and_the_driver_only_efs_csi() -> None:
    """EKS sets a node group's taints after the EFS driver has removed its own, which then stays for ever."""
    assert "taints" not in default().one("NodeGroup").inputs
    assert aws_facts.ADDON_EFS_CSI in {addon.inputs["addonName"] for addon in default().of("Addon")}
    made = aws_stack(storage={"type": "hostPath", "path": "/shared"})
    assert aws_facts.ADDON_EFS_CSI not in {addon.inputs["addonName"] for addon in made.of("Addon")}


def test_nodes_are_in_one_zone_unless_single_zone_is_false() -> None:
    """The control plane keeps all zones; traffic between trainers in two zones would be charged."""
    ids = default().one("aws:eks/cluster:Cluster").inputs["vpcConfig"]["subnetIds"]
    assert len(ids) == 2
    assert default().one("NodeGroup").inputs["subnetIds"] == ids[:1]


def test_several_zones_have_one_node_group_each_so_that_no_group_is_rebalanced() -> None:
    ids = default().one("aws:eks/cluster:Cluster").inputs["vpcConfig"]["subnetIds"]
    made = aws_stack(nodes={"singleZone": False, "min": 1, "desired": 3, "max": 5})
    groups = {group.name.partition("-dev-")[2]: group.inputs for group in made.of("NodeGroup")}
    assert {part: group["subnetIds"] for part, group in groups.items()} == {
        "nodes-a": ids[:1],
        "nodes-b": ids[1:],
    }
    sizes = [group["scalingConfig"] for group in groups.values()]
    assert [(s["minSize"], s["desiredSize"], s["maxSize"]) for s in sizes] == [(1, 2, 3), (0, 1, 2)]
    release = made.before(made.one("Release"))
    assert all(any(name.endswith(f"-dev-{part}") for name in release) for part in groups)


def test_autoscaler_may_add_all_nodes_in_any_zone() -> None:
    """A gang needs all its nodes, and one zone may have no capacity."""
    auto = {"auto": True, "capacity": "SPOT", "fallback": True, "singleZone": False, "min": 0, "max": 4}
    made = aws_stack(nodes=auto, answers=running(**{"nodes-a": {"sizes": (0, 3, 4)}}))
    groups = {group.name.partition("-dev-")[2]: group.inputs for group in made.of("NodeGroup")}
    assert set(groups) == {"nodes-a", "nodes-b", "fallback-a", "fallback-b", "system"}
    sizes = {part: group["scalingConfig"] for part, group in groups.items() if part != "system"}
    assert {size["maxSize"] for size in sizes.values()} == {4}
    assert {part: size["desiredSize"] for part, size in sizes.items() if size["desiredSize"]} == {
        "nodes-a": 3
    }


def test_more_zones_than_nodes_are_valid_sizes_of_node_groups() -> None:
    nodes = {"singleZone": False, "min": 0, "desired": 1, "max": 1}
    made = aws_stack(nodes=nodes, values={"trainers": 1}, network={"zones": 3})
    sizes = [group.inputs["scalingConfig"] for group in made.of("NodeGroup")]
    assert [(size["desiredSize"], size["maxSize"]) for size in sizes] == [(1, 1), (0, 1), (0, 1)]


def test_node_count_change_updates_only_scaling() -> None:
    one = aws_stack(nodes={"desired": 1}, values={"trainers": 1}).one("NodeGroup").inputs
    three = default().one("NodeGroup").inputs
    assert {key for key in three if one.get(key) != three[key]} == {"scalingConfig"}


def test_graviton_nodes_use_arm_image() -> None:
    group = (
        aws_stack(nodes={"instanceTypes": ["m7g.large"]}, values={"runtime": "v1"}).one("NodeGroup").inputs
    )
    assert group["amiType"] == "AL2023_ARM_64_STANDARD"


def test_autoscaler_knows_disk_of_nodes_that_do_not_run_yet() -> None:
    key = "k8s.io/cluster-autoscaler/node-template/resources/ephemeral-storage"
    made = aws_stack(
        nodes={"auto": True, "capacity": "SPOT", "fallback": True, "diskGib": 80, "min": 0},
    )
    disks = {group.name.rpartition("-")[2]: group.inputs["tags"].get(key) for group in made.of("NodeGroup")}
    assert disks == {"nodes": "70Gi", "fallback": "70Gi", "system": None}


def test_key_pair_and_placement_group_are_in_launch_template() -> None:
    template = everything().one("LaunchTemplate").inputs
    assert template["keyName"] == "mine"
    assert template["placement"]["groupName"] == everything().one("PlacementGroup").name
    assert len(everything().one("NodeGroup").inputs["subnetIds"]) == 1
    assert "keyName" not in default().one("LaunchTemplate").inputs


NEWEST = "1.35.2-20261109"
GROUP = "paddle-training-dev-nodes"
AUTO = {"auto": True, "min": 1, "desired": 3, "max": 40}


@pytest.mark.parametrize(
    ("sizes", "desired", "ignored"),
    [
        ((1, 30, 40), 30, True),  # nothing to change: EKS gets no request
        ((1, 30, 30), 30, False),  # a new maximum sends all three numbers
        ((0, 0, 40), 1, False),
        ((1, 50, 50), 40, False),
    ],
)
def test_auto_keeps_live_number_of_nodes(sizes: tuple[int, int, int], desired: int, ignored: bool) -> None:
    made = aws_stack(nodes=AUTO, answers=running(nodes={"sizes": sizes}))
    assert made.one("NodeGroup", GROUP).inputs["scalingConfig"]["desiredSize"] == desired
    assert ("scalingConfig" in made.ignored[GROUP]) is ignored


def test_auto_new_group_starts_at_minimum() -> None:
    for image in ("", "registry/launcher@sha256:1"):
        group = aws_stack(nodes=AUTO, image=image).one("NodeGroup", GROUP)
        assert group.inputs["scalingConfig"] == {"minSize": 1, "desiredSize": 1, "maxSize": 40}


@pytest.mark.parametrize(
    ("pinned", "running_version", "wanted_version", "release"),
    [
        ("", None, "1.35", NEWEST),
        ("", "1.35", "1.35", "ignored"),
        ("newest", "1.35", "1.35", NEWEST),
        ("1.35.0-20260901", "1.35", "1.35", "1.35.0-20260901"),
        # An upgrade of Kubernetes replaces the nodes anyway.
        ("", "1.35", "1.36", NEWEST),
    ],
)
def test_machine_image_of_a_group_changes_only_on_request(
    pinned: str, running_version: str | None, wanted_version: str, release: str
) -> None:
    group = {"sizes": (1, 3, 3), "version": running_version}
    made = aws_stack(
        nodes={"amiRelease": pinned},
        cluster={"admins": ["role/Admin"], "version": wanted_version},
        answers=running(wanted_version, nodes=group) if running_version else {},
    )
    ignored = made.ignored.get(GROUP, [])
    assert ("releaseVersion" in ignored) is (release == "ignored")
    assert ("version" in ignored) is (running_version == wanted_version)
    assert made.one("NodeGroup").inputs["version"] == wanted_version
    if release != "ignored":
        assert made.one("NodeGroup").inputs["releaseVersion"] == release


def test_number_of_nodes_that_the_owner_sets_is_applied_whatever_runs() -> None:
    """Without nodes.auto, no input of the sizes is ignored: also a change back to the number of the last update."""
    for sizes in ((1, 3, 3), (1, 1, 3)):
        made = aws_stack(nodes={"min": 1, "desired": 3, "max": 3}, answers=running(nodes={"sizes": sizes}))
        assert made.one("NodeGroup", GROUP).inputs["scalingConfig"]["desiredSize"] == 3
        assert "scalingConfig" not in str(made.ignored[GROUP])


def test_fallback_group_has_on_demand_nodes_of_the_same_template() -> None:
    spot = {"auto": True, "capacity": "SPOT", "min": 1, "desired": 3, "max": 40}
    made = aws_stack(nodes={**spot, "fallback": True})
    first, second = (made.one("NodeGroup", f"dev-{part}").inputs for part in ("nodes", "fallback"))
    assert (first["capacityType"], second["capacityType"]) == ("SPOT", "ON_DEMAND")
    assert second["scalingConfig"] == {"minSize": 0, "desiredSize": 0, "maxSize": 40}
    changed = {key for key in first if first[key] != second[key]}
    assert changed == {"capacityType", "scalingConfig", "tags"}
    assert made.one("Release", "autoscaler").inputs["values"]["fallback"] is True
    live = aws_stack(nodes={**spot, "fallback": True}, answers=running(fallback={"sizes": (0, 7, 40)}))
    assert live.one("NodeGroup", "dev-fallback").inputs["scalingConfig"]["desiredSize"] == 7
    assert len(aws_stack(nodes=spot).of("NodeGroup")) == 2, "the system group and one for training"


def test_step_from_one_to_three_nodes_of_the_tutorial_changes_only_sizes() -> None:
    """`nodes.min` keeps nodes without a training; `nodes.desired` has no effect with `nodes.auto`."""
    auto = {"auto": True, "max": 6}
    before, after, ignored = (
        aws_stack(nodes={**auto, **given}, answers=running(nodes={"sizes": (1, 1, 6)}))
        .one("NodeGroup", GROUP)
        .inputs
        for given in ({"min": 1}, {"min": 3}, {"min": 1, "desired": 9})
    )
    assert {key for key in after if before.get(key) != after[key]} == {"scalingConfig"}
    assert after["scalingConfig"] == {"minSize": 3, "desiredSize": 3, "maxSize": 6}
    assert ignored == before


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
