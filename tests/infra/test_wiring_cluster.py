"""Wiring of target aws, by mocks: the control plane, its add-ons, and the order of everything."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from infra import quantities, versions
from infra.problems import SettingsError

from .support import ROOT, aws_stack, default, everything


def test_the_control_plane_admits_listed_principals_only_and_ends_with_standard_support() -> None:
    cluster = default().one("aws:eks/cluster:Cluster").inputs
    assert cluster["accessConfig"] == {
        "authenticationMode": "API",
        "bootstrapClusterCreatorAdminPermissions": False,
    }
    assert cluster["upgradePolicy"] == {"supportType": "STANDARD"}
    assert cluster["version"] == "1.35"
    assert cluster["vpcConfig"]["endpointPrivateAccess"] is True
    assert cluster["vpcConfig"]["endpointPublicAccess"] is False
    assert all("private" in subnet for subnet in cluster["vpcConfig"]["subnetIds"])


def test_the_public_endpoint_answers_the_listed_networks_only() -> None:
    vpc = everything().one("aws:eks/cluster:Cluster").inputs["vpcConfig"]
    assert vpc["endpointPublicAccess"] is True
    assert vpc["publicAccessCidrs"] == ["203.0.113.0/24"]


def test_logs_have_an_end_and_exist_before_the_cluster_writes_them() -> None:
    made = default()
    logs, cluster = made.one("LogGroup"), made.one("aws:eks/cluster:Cluster")
    assert logs.inputs["name"] == f"/aws/eks/{cluster.inputs['name']}/cluster"
    assert logs.inputs["retentionInDays"] == 90
    assert made.resources.index(logs) < made.resources.index(cluster)


def test_admins_and_viewers_get_their_own_policies() -> None:
    scopes = {
        a.inputs["principalArn"]: a.inputs["policyArn"] for a in everything().of("AccessPolicyAssociation")
    }
    assert scopes["arn:aws:iam::123456789012:role/Admin"].endswith("/AmazonEKSClusterAdminPolicy")
    assert scopes["arn:aws:iam::123456789012:role/preview"].endswith("/AmazonEKSViewPolicy")
    entries = {a.inputs["principalArn"] for a in everything().of("AccessEntry")}
    assert entries == set(scopes)
    assert not any(":sts:" in entry for entry in entries), "a session is no principal that stays"


def test_the_order_is_cluster_networking_nodes_then_dns_and_storage_driver_then_release() -> None:
    made = default()
    names = [args.name.removeprefix("paddle-training-dev-") for args in made.resources]
    kinds = [args.typ for args in made.resources]
    cluster = kinds.index("aws:eks/cluster:Cluster")
    nodes = kinds.index("aws:eks/nodeGroup:NodeGroup")
    release = kinds.index("kubernetes:helm.sh/v3:Release")
    for name in (versions.ADDON_VPC_CNI, versions.ADDON_KUBE_PROXY, versions.ADDON_POD_IDENTITY):
        assert cluster < names.index(name) < nodes, name
    for name in (versions.ADDON_COREDNS, versions.ADDON_EFS_CSI):
        assert nodes < names.index(name) < release, name
    for target in made.of("MountTarget"):
        assert made.resources.index(target) < release
    for way in made.of("aws:ec2/route:Route"):
        assert made.resources.index(way) < nodes, "a node without a way out never joins"


def _short(names: set[str]) -> set[str]:
    """`nodeGroup nodes` for `aws:eks/nodeGroup:NodeGroup::paddle-training-dev-nodes`."""
    return {f"{n.split(':')[1].rpartition('/')[2]} {n.rpartition('paddle-training-dev-')[2]}" for n in names}


def test_each_waits_for_what_it_needs_so_that_a_destroy_goes_the_other_way() -> None:
    made = default()
    nodes = made.one("NodeGroup")
    addons = (versions.ADDON_VPC_CNI, versions.ADDON_KUBE_PROXY, versions.ADDON_POD_IDENTITY)
    ways = {"route private-us-west-2a-out", "route private-us-west-2b-out", "natGateway nat-us-west-2a"}
    entry = {"accessEntry access-role-Admin", "accessPolicyAssociation access-role-Admin"}
    first = {"cluster cluster", "logGroup logs", "rolePolicyAttachment cluster", *entry, *ways}
    assert {*first, *(f"addon {name}" for name in addons)} <= _short(made.before(nodes))
    late = (versions.ADDON_COREDNS, versions.ADDON_EFS_CSI)
    for name in late:
        before = _short(made.before(made.one("Addon", name)))
        assert "nodeGroup nodes" in before, name
        assert not {f"addon {other}" for other in late} & before, "both are made at once"
    before = _short(made.before(made.one("Release")))
    mounts = {"mountTarget efs-us-west-2a", "mountTarget efs-us-west-2b"}
    rules = {"securityGroupIngressRule efs-from-nodes", "podIdentityAssociation pods"}
    assert {*first, *mounts, *rules, "accessPoint pods", *(f"addon {name}" for name in late)} <= before


def test_versions_are_asked_for_so_that_a_preview_shows_them() -> None:
    made = default()
    assert {addon.inputs["addonVersion"] for addon in made.of("Addon")} == {"v1.2.3-eksbuild.1"}
    nodes = made.one("NodeGroup").inputs
    assert (nodes["version"], nodes["releaseVersion"]) == ("1.35", "1.35.2-20261109")
    held = aws_stack(nodes={"amiRelease": "1.35.1-20261001"})
    assert held.one("NodeGroup").inputs["releaseVersion"] == "1.35.1-20261001"


def test_a_machine_that_aws_does_not_describe_is_not_judged() -> None:
    unknown = {"aws:ec2/getInstanceType:getInstanceType": Exception("no matching instance type")}
    aws_stack(answers=unknown).one("NodeGroup")
    small = {"aws:ec2/getInstanceType:getInstanceType": {"id": "x", "defaultVcpus": 1, "memorySize": 512}}
    with pytest.raises(SettingsError, match="0 trainers fit"):
        aws_stack(answers=small)


def test_without_nodes_there_are_no_add_ons_that_would_wait_for_one() -> None:
    made = aws_stack(nodes={"min": 0, "desired": 0})
    addons = {addon.inputs["addonName"] for addon in made.of("Addon")}
    assert addons == {versions.ADDON_VPC_CNI, versions.ADDON_KUBE_PROXY, versions.ADDON_POD_IDENTITY}
    made.one("Release")


def test_with_auto_a_small_node_holds_what_must_not_keep_the_gangs_nodes() -> None:
    made = aws_stack(nodes={"auto": True, "min": 0, "desired": 0, "max": 4})
    gang, system = made.one("NodeGroup", "nodes").inputs, made.one("NodeGroup", "system").inputs
    assert gang["scalingConfig"] == {"minSize": 0, "desiredSize": 0, "maxSize": 4}
    assert system["scalingConfig"]["minSize"] == 1
    assert "CriticalAddonsOnly" in {taint["key"] for taint in system["taints"]}
    for name in (versions.ADDON_COREDNS, versions.ADDON_EFS_CSI):
        chosen = json.loads(made.one("Addon", name).inputs["configurationValues"])
        assert chosen.get("controller", chosen)["nodeSelector"] == system["labels"], name
    scaler = made.one("Release", "autoscaler")
    assert scaler.inputs["values"]["nodeSelector"] == system["labels"]
    assert scaler.inputs["values"]["image"].endswith(":v1.35.0")
    association = made.one("PodIdentityAssociation", "scaler").inputs
    assert (association["namespace"], association["serviceAccount"]) == ("kube-system", scaler.inputs["name"])
    role = json.loads(made.one("RolePolicy", "scaler").inputs["policy"])
    changing = [s for s in role["Statement"] if "autoscaling:SetDesiredCapacity" in s["Action"]]
    tag = "aws:ResourceTag/k8s.io/cluster-autoscaler/paddle-training-dev"
    assert [s["Condition"] for s in changing] == [{"StringEquals": {tag: "owned"}}]
    assert "helm.sh/v3:Release::paddle-training-dev-autoscaler" in "".join(
        made.before(made.one("Release", "dev-release"))
    )


def test_the_autoscalers_chart_renders_with_those_values_and_flags_that_it_has() -> None:
    values = aws_stack(nodes={"auto": True}).one("Release", "autoscaler").inputs["values"]
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
    assert given["startup-taint"] == versions.EFS_STARTUP_TAINT
    known = Path(__file__).with_name("autoscaler_flags.txt").read_text(encoding="utf-8").splitlines()
    assert set(given) - set(known) == set(), "it would end at once"
    assert objects["ServiceAccount"]["metadata"]["name"] == pod["serviceAccountName"] == "cluster-autoscaler"


def test_pod_logs_have_an_agent_with_a_role_of_its_own() -> None:
    made = aws_stack(cluster={"admins": ["role/Admin"], "podLogs": True})
    made.one("Addon", "amazon-cloudwatch-observability")
    assert made.one("PodIdentityAssociation", "pod-logs").inputs["serviceAccount"] == "cloudwatch-agent"
    assert not default().of("pod-logs")


def test_network_policy_is_enforced_by_the_cni() -> None:
    configuration = json.loads(default().one("Addon", "vpc-cni").inputs["configurationValues"])
    assert configuration == {"enableNetworkPolicy": "true"}


def test_the_storage_driver_has_its_own_role_and_its_idle_controller_asks_for_little() -> None:
    made = default()
    configuration = json.loads(made.one("Addon", versions.ADDON_EFS_CSI).inputs["configurationValues"])
    assert list(configuration) == ["controller"], "the daemon tolerates all by itself"
    # What is asked for counts for each of three containers of two pods.
    assert 6 * quantities.number(configuration["controller"]["resources"]["requests"]["cpu"]) < 0.1
    association = made.one("PodIdentityAssociation", "efs-csi").inputs
    assert association["serviceAccount"] == "efs-csi-controller-sa"
    assert association["roleArn"] == f"arn:aws:mock:::{made.one('aws:iam/role:Role', 'efs-csi').name}"
