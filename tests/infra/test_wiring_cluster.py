"""Wiring of target aws, by mocks: the control plane, its add-ons, and the order of everything."""

from __future__ import annotations

import json

from infra import versions

from .support import default, everything


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
    assert scopes["arn:aws:iam::123456789012:role/preview"].endswith("/AmazonEKSAdminViewPolicy")
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


def test_network_policy_is_enforced_by_the_cni() -> None:
    configuration = json.loads(default().one("Addon", "vpc-cni").inputs["configurationValues"])
    assert configuration == {"enableNetworkPolicy": "true"}


def test_the_storage_driver_has_its_own_role_enough_memory_and_runs_on_tainted_nodes() -> None:
    made = default()
    configuration = json.loads(made.one("Addon", versions.ADDON_EFS_CSI).inputs["configurationValues"])
    assert configuration["node"]["resources"]["limits"]["memory"] == "512Mi"
    assert configuration["node"]["tolerateAllTaints"] is True
    association = made.one("PodIdentityAssociation", "efs-csi").inputs
    assert association["serviceAccount"] == "efs-csi-controller-sa"
    assert association["roleArn"] == f"arn:aws:mock:::{made.one('aws:iam/role:Role', 'efs-csi').name}"
