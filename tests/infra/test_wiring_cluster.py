"""Target aws with mocks: the control plane, its add-ons, and the order of resources."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from infra import aws_facts
from infra.settings import SettingsError

from .recording_mocks import ROOT, aws_stack, default, everything, running


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
