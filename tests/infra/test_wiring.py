"""Target aws: who refers to whom, in every component. The mock engine records what the program registers."""

from __future__ import annotations

import importlib
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from infra import policies, versions
from infra.deployer_actions import ACTIONS
from infra.problems import SettingsError

from .support import AWS, INVOKES, ROOT, Recorder, aws_stack

EVERYTHING: dict[str, Any] = {
    "network": {"nat": "none"},
    "values": {"data": {"source": "s3://{bucket}/sources/x"}},
    "nodes": {"placementGroup": True, "singleZone": True, "sshKeyName": "mine"},
    "bastion": {"enabled": True},
    "dns": {"publicZoneId": "Z1", "externalName": "paddle.example.com"},
    "cluster": {"admins": ["role/Admin"], "viewers": ["role/preview"], "publicCidrs": ["203.0.113.0/24"]},
    "artifacts": {"uploads": {"sources/readme": "Pulumi.yaml"}},
    "tags": {"Team": "paddle"},
    "iam": {"path": "/teams/", "permissionsBoundary": "arn:aws:iam::123456789012:policy/Boundary"},
}


@lru_cache
def default() -> Recorder:
    return aws_stack()


@lru_cache
def everything() -> Recorder:
    return aws_stack(**EVERYTHING)


def _types(recorder: Recorder) -> set[str]:
    return {args.typ for args in recorder.resources if args.typ.startswith("aws:")}


def test_everything_is_made_by_component_and_nothing_beside() -> None:
    components = {args.typ for args in everything().resources if args.typ.startswith("paddle:infra:")}
    names = [
        "Key",
        "Network",
        "Storage",
        "Artifacts",
        "Registry",
        "Cluster",
        "Nodes",
        "Dns",
        "Bastion",
        "Training",
    ]
    assert components == {f"paddle:infra:{name}" for name in names}


# --- network ------------------------------------------------------------------------------------------------


def test_names_of_the_file_system_resolve_in_the_network() -> None:
    vpc = default().one("aws:ec2/vpc:Vpc").inputs
    assert vpc["enableDnsSupport"] is True
    assert vpc["enableDnsHostnames"] is True


def test_zones_are_the_regions_first_ones_by_name() -> None:
    zones = {args.inputs["availabilityZone"] for args in default().of("aws:ec2/subnet:Subnet")}
    assert zones == {"us-west-2a", "us-west-2b"}, "not in the order of the answer, which changes"


def test_no_subnet_gives_public_addresses_by_itself() -> None:
    assert not any(args.inputs["mapPublicIpOnLaunch"] for args in default().of("aws:ec2/subnet:Subnet"))


def test_a_single_nat_serves_all_zones() -> None:
    nat = default().one("aws:ec2/natGateway:NatGateway")
    routes = [a for a in default().of("aws:ec2/route:Route") if a.inputs.get("natGatewayId")]
    assert len(routes) == 2
    assert {route.inputs["natGatewayId"] for route in routes} == {f"{nat.name}-id"}
    assert "public" in nat.inputs["subnetId"], "a NAT gateway in a private subnet reaches nothing"


def test_nat_per_zone_keeps_each_zones_traffic_in_it() -> None:
    made = aws_stack(network={"nat": "per-az"})
    for nat in made.of("aws:ec2/natGateway:NatGateway"):
        zone = nat.name[-len("us-west-2a") :]
        assert nat.inputs["subnetId"].endswith(f"public-{zone}-id")
        route = made.one("aws:ec2/route:Route", f"private-{zone}-out")
        assert route.inputs["natGatewayId"] == f"{nat.name}-id"
    assert len(made.of("aws:ec2/natGateway:NatGateway")) == 2


def test_without_nat_the_endpoints_that_nodes_need_are_there() -> None:
    endpoints = {a.inputs["serviceName"].rpartition("us-west-2.")[2] for a in everything().of("VpcEndpoint")}
    needed = {"s3", "ecr.api", "ecr.dkr", "sts", "ec2", "logs", "eks", "eks-auth", "elasticfilesystem"}
    assert needed <= endpoints
    assert not everything().of("aws:ec2/natGateway:NatGateway")


def test_the_free_s3_endpoint_is_always_there_for_private_subnets() -> None:
    endpoint = default().one("VpcEndpoint", "s3").inputs
    assert endpoint["vpcEndpointType"] == "Gateway"
    assert all("private" in table for table in endpoint["routeTableIds"])


EXISTING = {"vpcId": "vpc-0a", "subnetIds": ["subnet-0a", "subnet-0b", "subnet-0c"]}


def test_an_existing_network_is_used_and_not_changed() -> None:
    made = aws_stack(network=EXISTING)
    assert not made.of("aws:ec2/vpc:Vpc")
    assert not made.of("aws:ec2/subnet:Subnet")
    assert set(made.one("aws:eks/cluster:Cluster").inputs["vpcConfig"]["subnetIds"]) == set(
        EXISTING["subnetIds"]
    )
    targets = {args.inputs["subnetId"] for args in made.of("MountTarget")}
    assert targets == {"subnet-0a", "subnet-0b"}, "EFS takes one mount target a zone"


@pytest.mark.parametrize("switch", ["enableDnsSupport", "enableDnsHostnames"])
def test_an_existing_network_without_dns_is_refused_before_any_resource(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(INVOKES["aws:ec2/getVpc:getVpc"], switch, False)
    with pytest.raises(SettingsError, match=r"network\.vpcId"):
        aws_stack(network=EXISTING)


def test_existing_subnets_of_one_zone_are_refused() -> None:
    with pytest.raises(SettingsError, match="at least two zones"):
        aws_stack(network={"vpcId": "vpc-0a", "subnetIds": ["subnet-0b", "subnet-0c"]})


def test_more_zones_than_the_region_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        INVOKES["aws:index/getAvailabilityZones:getAvailabilityZones"], "names", ["us-west-2a"]
    )
    with pytest.raises(SettingsError, match=r"network\.zones"):
        aws_stack()


# --- key and what it encrypts -------------------------------------------------------------------------------


def _encrypted(made: Recorder) -> dict[str, Any]:
    rules = made.one("BucketServerSideEncryptionConfiguration").inputs["rules"]
    template = made.one("LaunchTemplate").inputs["blockDeviceMappings"][0]["ebs"]
    return {
        "secrets": made.one("aws:eks/cluster:Cluster").inputs["encryptionConfig"]["provider"]["keyArn"],
        "file system": made.one("FileSystem").inputs["kmsKeyId"],
        "bucket": rules[0]["applyServerSideEncryptionByDefault"]["kmsMasterKeyId"],
        "registry": made.one("Repository").inputs["encryptionConfigurations"][0]["kmsKey"],
        "disks": template["kmsKeyId"],
    }


def test_one_own_key_encrypts_everything_and_rotates() -> None:
    key = default().one("aws:kms/key:Key")
    assert key.inputs["enableKeyRotation"] is True
    assert set(_encrypted(default()).values()) == {f"arn:aws:mock:::{key.name}"}
    assert default().one("LaunchTemplate").inputs["blockDeviceMappings"][0]["ebs"]["encrypted"] == "true"
    assert default().one("FileSystem").inputs["encrypted"] is True


def test_a_given_key_is_used_everywhere_and_never_owned() -> None:
    arn = "arn:aws:kms:us-west-2:123456789012:key/1-2"
    made = aws_stack(kms={"keyArn": arn})
    assert not made.of("aws:kms/key:Key")
    assert not made.of("aws:kms/alias:Alias")
    assert set(_encrypted(made).values()) == {arn}


# --- cluster ------------------------------------------------------------------------------------------------


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


def test_the_startup_taint_is_there_with_efs_csi_only() -> None:
    taints = default().one("NodeGroup").inputs["taints"]
    assert [taint["key"] for taint in taints] == ["efs.csi.aws.com/agent-not-ready"]
    made = aws_stack(storage={"type": "hostPath", "path": "/shared"})
    assert "taints" not in made.one("NodeGroup").inputs
    assert not made.of("Addon") or not [
        a for a in made.of("Addon") if a.name.endswith(versions.ADDON_EFS_CSI)
    ]


# --- nodes --------------------------------------------------------------------------------------------------


def test_nodes_take_imdsv2_with_one_hop_from_an_own_launch_template() -> None:
    made = default()
    template = made.one("LaunchTemplate")
    metadata = template.inputs["metadataOptions"]
    assert metadata["httpTokens"] == "required"
    assert metadata["httpPutResponseHopLimit"] == 1
    group = made.one("NodeGroup").inputs
    assert group["launchTemplate"]["id"] == f"{template.name}-id"
    assert group["amiType"] == "AL2023_x86_64_STANDARD"
    assert "diskSize" not in group, "EKS refuses it beside a launch template"
    assert "remoteAccess" not in group, "EKS refuses it beside a launch template"
    assert "vpcSecurityGroupIds" not in template.inputs, (
        "own groups would drop the cluster's group from the nodes"
    )


def test_a_nodes_number_is_the_groups_only_change_from_one_to_three() -> None:
    one = aws_stack(nodes={"desired": 1}, values={"trainers": 1}).one("NodeGroup").inputs
    three = default().one("NodeGroup").inputs
    assert {key for key in three if one.get(key) != three[key]} == {"scalingConfig"}


def test_graviton_types_take_their_own_image() -> None:
    group = aws_stack(nodes={"instanceTypes": ["m7g.large"]}).one("NodeGroup").inputs
    assert group["amiType"] == "AL2023_ARM_64_STANDARD"


def test_a_key_pair_and_a_placement_group_reach_the_launch_template() -> None:
    template = everything().one("LaunchTemplate").inputs
    assert template["keyName"] == "mine"
    assert template["placement"]["groupName"] == everything().one("PlacementGroup").name
    assert len(everything().one("NodeGroup").inputs["subnetIds"]) == 1
    assert "keyName" not in default().one("LaunchTemplate").inputs


# --- compute off --------------------------------------------------------------------------------------------

PAID_BY_THE_HOUR = (
    "natGateway:NatGateway",
    "eip:Eip",
    "cluster:Cluster",
    "nodeGroup:NodeGroup",
    "instance:Instance",
)


@pytest.mark.parametrize("nat", ["single", "per-az", "none"])
def test_compute_off_leaves_the_data_and_nothing_that_costs_by_the_hour(nat: str) -> None:
    values = {"data": {"source": "s3://b/k"}}
    made = aws_stack(compute="off", network={"nat": nat}, bastion={"enabled": True}, values=values)
    for kind in PAID_BY_THE_HOUR:
        assert not made.of(kind), kind
    assert not [a for a in made.of("VpcEndpoint") if a.inputs["vpcEndpointType"] == "Interface"]
    assert not made.of("Release")
    for kind in ("FileSystem", "aws:s3/bucket:Bucket", "aws:kms/key:Key", "Repository", "AccessPoint"):
        made.one(kind)


def test_compute_on_again_mounts_the_same_file_system() -> None:
    kept = (
        "FileSystem",
        "AccessPoint",
        "MountTarget",
        "aws:s3/bucket:Bucket",
        "aws:kms/key:Key",
        "Repository",
    )
    for kind in kept:
        on = [(a.name, a.inputs) for a in default().of(kind)]
        off = [(a.name, a.inputs) for a in aws_stack(compute="off").of(kind)]
        assert on == off, kind


# --- storage, dns, bucket, registry, bastion ----------------------------------------------------------------


def test_nfs_is_open_to_the_nodes_group_and_to_nobody_else() -> None:
    made = default()
    rules = [a for a in made.of("SecurityGroupIngressRule") if "efs" in a.name]
    assert len(rules) == 1
    rule = rules[0].inputs
    assert (rule["fromPort"], rule["toPort"], rule["ipProtocol"]) == (2049, 2049, "tcp")
    assert rule["referencedSecurityGroupId"] == "sg-cluster"
    assert "cidrIpv4" not in rule
    group = made.one("aws:ec2/securityGroup:SecurityGroup", "efs")
    assert rule["securityGroupId"] == f"{group.name}-id"
    assert all(a.inputs["securityGroups"] == [f"{group.name}-id"] for a in made.of("MountTarget"))


def test_each_zone_in_use_has_one_mount_target() -> None:
    subnets = [args.inputs["subnetId"] for args in default().of("MountTarget")]
    assert len(subnets) == len(set(subnets)) == 2
    assert all("private" in subnet for subnet in subnets)


def test_the_access_point_enforces_the_pods_user() -> None:
    point = default().one("AccessPoint").inputs
    assert point["posixUser"] == {"uid": 10001, "gid": 10001}
    assert point["rootDirectory"]["creationInfo"]["ownerUid"] == 10001


def test_the_file_system_is_elastic_and_backed_up() -> None:
    assert default().one("FileSystem").inputs["throughputMode"] == "elastic"
    assert default().one("BackupPolicy").inputs["backupPolicy"] == {"status": "ENABLED"}
    assert (
        aws_stack(storage={"archiveAfterDays": 0}).one("FileSystem").inputs.get("lifecyclePolicies", []) == []
    )


def test_records_follow_the_resources_that_they_name() -> None:
    records = {a.inputs["name"]: a.inputs for a in everything().of("route53/record:Record")}
    assert records["efs.paddle.internal"]["records"] == ["fs-1.efs.us-west-2.amazonaws.com"]
    assert records["api.paddle.internal"]["records"] == ["ABC.gr7.us-west-2.eks.amazonaws.com"]
    assert records["paddle.example.com"]["zoneId"] == "Z1"
    assert records["paddle.example.com"]["records"] == ["ABC.gr7.us-west-2.eks.amazonaws.com"]
    assert everything().one("Zone").inputs["vpcs"] == [{"vpcId": "paddle-training-dev-vpc-id"}]


def test_the_bucket_is_private_encrypted_and_versioned() -> None:
    made = default()
    block = made.one("BucketPublicAccessBlock").inputs
    assert all(block[key] for key in ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls"))
    assert block["restrictPublicBuckets"]
    assert made.one("BucketVersioning").inputs["versioningConfiguration"] == {"status": "Enabled"}
    statement = json.loads(made.one("BucketPolicy").inputs["policy"])["Statement"][0]
    assert statement["Effect"] == "Deny"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_the_pods_role_reaches_their_part_of_the_bucket_only() -> None:
    made = default()
    association = made.one("PodIdentityAssociation", "pods").inputs
    assert association["namespace"] == "paddle"
    assert association["serviceAccount"] == "paddle-training"
    role = made.one("aws:iam/role:Role", "dev-pods")
    assert association["roleArn"] == f"arn:aws:mock:::{role.name}"
    policy = json.loads(made.one("RolePolicy", "dev-pods").inputs["policy"])
    bucket = f"arn:aws:mock:::{made.one('aws:s3/bucket:Bucket').name}"
    for statement in policy["Statement"]:
        resources = statement["Resource"]
        assert "*" not in resources
        assert all(r.startswith((bucket, "arn:aws:mock:::paddle-training-dev-key")) for r in resources)
    writes = [s for s in policy["Statement"] if "s3:PutObject" in s["Action"]]
    assert [s["Resource"] for s in writes] == [[f"{bucket}/models/*"]]


def test_a_pushed_tag_never_means_another_image() -> None:
    repository = default().one("Repository").inputs
    assert repository["imageTagMutability"] == "IMMUTABLE"
    assert repository["imageScanningConfiguration"] == {"scanOnPush": True}


@pytest.mark.parametrize("protect", [True, False])
def test_what_is_not_protected_is_emptied_and_removed(protect: bool) -> None:
    made = aws_stack(storage={"protect": protect})
    assert made.one("aws:s3/bucket:Bucket").inputs["forceDestroy"] is not protect
    assert made.one("Repository").inputs["forceDelete"] is not protect


def test_the_bastion_opens_no_port_and_mounts_with_the_tutorials_options() -> None:
    made = everything()
    instance = made.one("Instance").inputs
    group = instance["vpcSecurityGroupIds"][0]
    assert not [a for a in made.of("SecurityGroupIngressRule") if a.inputs["securityGroupId"] == group]
    mounts = [
        a for a in made.of("SecurityGroupIngressRule") if a.inputs.get("referencedSecurityGroupId") == group
    ]
    assert [a.inputs["fromPort"] for a in mounts] == [2049]
    assert instance["metadataOptions"]["httpTokens"] == "required"
    assert instance["associatePublicIpAddress"] is False
    assert "keyName" not in instance
    mount = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
    assert f"fs-1.efs.us-west-2.amazonaws.com:/ /efs nfs4 {mount},_netdev 0 0" in instance["userData"]
    assert not default().of("Instance"), "it is made only when asked for"


# --- roles and tags -----------------------------------------------------------------------------------------


def test_every_role_has_the_path_and_the_boundary_that_were_asked_for() -> None:
    roles = everything().of("aws:iam/role:Role")
    assert {role.inputs["path"] for role in roles} == {"/teams/"}
    assert {role.inputs["permissionsBoundary"] for role in roles} == {
        EVERYTHING["iam"]["permissionsBoundary"]
    }
    assert not [r for r in default().of("aws:iam/role:Role") if "permissionsBoundary" in r.inputs]


def test_every_role_is_used() -> None:
    made = everything()
    texts = str([args.inputs for args in made.resources if args.typ != "aws:iam/role:Role"])
    for role in made.of("aws:iam/role:Role"):
        by_arn, by_profile = f"arn:aws:mock:::{role.name}", made.of("InstanceProfile")
        assert by_arn in texts or role.name in [p.inputs["role"] for p in by_profile], role.name


def test_no_policy_of_aws_with_full_access_is_attached() -> None:
    attached = [a.inputs["policyArn"] for a in everything().of("RolePolicyAttachment")]
    assert attached
    assert not [arn for arn in attached if "FullAccess" in arn or "Administrator" in arn]


def _takes_tags(token: str) -> bool:
    module, kind = re.fullmatch(r"aws:(\w+)/\w+:(\w+)", token).groups()  # type: ignore[union-attr]
    return hasattr(getattr(importlib.import_module(f"pulumi_aws.{module}"), kind), "tags")


def test_every_taggable_resource_carries_the_one_tag_set() -> None:
    for args in everything().resources:
        if args.typ.startswith("aws:") and _takes_tags(args.typ) and "bucketObject" not in args.typ:
            assert (
                args.inputs["tags"].items()
                >= {
                    "Project": "paddle-training",
                    "Stack": "dev",
                    "ManagedBy": "pulumi",
                    "KubernetesCluster": "paddle-training-dev",
                    "Team": "paddle",
                }.items()
            ), args.name
    for specification in everything().one("LaunchTemplate").inputs["tagSpecifications"]:
        assert specification["tags"]["Stack"] == "dev"


def test_every_name_carries_project_and_stack() -> None:
    for args in everything().resources:
        if not args.typ.startswith("pulumi:"):
            assert args.name.startswith("paddle-training-dev"), args.name


# --- image, values, uploads ---------------------------------------------------------------------------------


def test_without_an_image_everything_but_the_release_is_made() -> None:
    made = aws_stack(image="")
    assert not made.of("Release")
    made.one("NodeGroup")
    made.one("Repository")


def test_the_release_gets_what_the_stacks_resources_know() -> None:
    values = everything().one("Release").inputs["values"]
    assert values["image"] == AWS["image"]
    assert values["storage"]["efsCsi"]["fileSystemId"] == "paddle-training-dev-efs-id"
    assert values["storage"]["efsCsi"]["accessPointId"] == "paddle-training-dev-pods-id"
    assert values["data"]["source"] == "s3://paddle-training-dev-artifacts/sources/x"


def test_the_releases_provider_knows_one_cluster_and_survives_its_loss() -> None:
    provider = everything().one("pulumi:providers:kubernetes")
    config = json.loads(provider.inputs["kubeconfig"])
    server = config["clusters"][0]["cluster"]
    assert server["server"] == "https://paddle.example.com"
    assert server["tls-server-name"] == "ABC.gr7.us-west-2.eks.amazonaws.com"
    assert config["users"][0]["user"]["exec"]["args"][:4] == [
        "eks",
        "get-token",
        "--cluster-name",
        "paddle-training-dev",
    ]
    assert provider.inputs["deleteUnreachable"] in (True, "true")
    assert provider.inputs["clusterIdentifier"] == "paddle-training-dev"


def test_uploads_become_objects_that_change_with_their_file() -> None:
    made = everything().one("BucketObjectv2").inputs
    assert made["key"] == "sources/readme"
    assert len(made["sourceHash"]) == 64


def test_an_upload_that_is_not_there_is_refused_before_any_resource() -> None:
    with pytest.raises(SettingsError, match=r"artifacts\.uploads"):
        aws_stack(artifacts={"uploads": {"sources/x": "nowhere.csv"}})


# --- the deployer's policy ----------------------------------------------------------------------------------


def test_the_deployers_policy_covers_the_resource_types_in_use_and_no_others() -> None:
    used = _types(everything()) | _types(default())
    assert used == set(ACTIONS)


def test_the_deployers_policy_has_no_wildcard_action() -> None:
    document = json.loads(policies.deployer())
    actions = [action for statement in document["Statement"] for action in statement["Action"]]
    assert actions
    assert not [action for action in actions if "*" in action]
    assert len(actions) == len(set(actions))


def test_the_deployer_hands_roles_to_the_services_in_use_only() -> None:
    document = json.loads(policies.deployer())
    passing = [s for s in document["Statement"] if "iam:PassRole" in s["Action"]]
    assert [s["Action"] for s in passing] == [["iam:PassRole"]]
    services = {json.loads(r.inputs["assumeRolePolicy"])["Statement"][0]["Principal"]["Service"]
                for r in everything().of("aws:iam/role:Role")}  # fmt: skip
    assert set(passing[0]["Condition"]["StringEquals"]["iam:PassedToService"]) == services


def test_each_of_the_programs_files_can_be_held_in_mind() -> None:
    for path in [*Path(ROOT / "infra").glob("*.py"), ROOT / "__main__.py"]:
        lines = len(path.read_text().splitlines())
        assert lines <= (60 if path.name == "__main__.py" else 350), f"{path.name} has {lines} lines"
