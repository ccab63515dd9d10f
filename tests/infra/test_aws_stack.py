"""Target aws with mocks: names and tags, network, storage, bastion, release, and compute off."""

from __future__ import annotations

import importlib
import ipaddress
import itertools
import json
import re
from typing import Any

import pulumi
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.settings import SettingsError
from infra.vpc_network import plan_subnets
from testkit.aws_emulator import authorization

from .recording_mocks import AWS, EVERYTHING, INVOKES, Recorder, aws_stack, default, everything


def _takes_tags(token: str) -> bool:
    module, kind = re.fullmatch(r"aws:(\w+)/\w+:(\w+)", token).groups()  # type: ignore[union-attr]
    return hasattr(getattr(importlib.import_module(f"pulumi_aws.{module}"), kind), "tags")


def test_every_taggable_resource_has_stack_tags() -> None:
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


def test_bucket_object_has_only_stack_tags() -> None:
    made = aws_stack(**EVERYTHING | {"tags": {f"k{n}": "v" for n in range(20)}})
    tags = made.one("BucketObjectv2").inputs["tags"]
    assert set(tags) == {"Project", "Stack", "ManagedBy", "KubernetesCluster", "Name"}


def test_launch_template_tags_instances_and_volumes() -> None:
    for specification in everything().one("LaunchTemplate").inputs["tagSpecifications"]:
        assert specification["tags"]["Stack"] == "dev"


def test_names_begin_with_project_and_stack() -> None:
    for args in everything().resources:
        if not args.typ.startswith("pulumi:"):
            assert args.name.startswith("paddle-training-dev"), args.name


def test_budget_counts_stack_tag_and_has_two_alarms() -> None:
    budget = everything().one("budgets/budget:Budget").inputs
    assert budget["costFilters"] == [
        {"name": "TagKeyValue", "values": ["user:KubernetesCluster$paddle-training-dev"]}
    ]
    assert [alarm["threshold"] for alarm in budget["notifications"]] == [80, 100]
    assert {mail for alarm in budget["notifications"] for mail in alarm["subscriberEmailAddresses"]} == {
        "owner@example.com"
    }


def test_nat_per_az_stays_in_its_zone() -> None:
    made = aws_stack(network={"nat": "per-az"})
    for nat in made.of("aws:ec2/natGateway:NatGateway"):
        zone = nat.name[-len("us-west-2a") :]
        assert nat.inputs["subnetId"].endswith(f"public-{zone}-id")
        route = made.one("aws:ec2/route:Route", f"private-{zone}-out")
        assert route.inputs["natGatewayId"] == f"{nat.name}-id"
    assert len(made.of("aws:ec2/natGateway:NatGateway")) == 2


def test_nat_none_creates_interface_endpoints() -> None:
    endpoints = {a.inputs["serviceName"].rpartition("us-west-2.")[2] for a in everything().of("VpcEndpoint")}
    needed = {"s3", "ecr.api", "ecr.dkr", "sts", "ec2", "logs", "eks", "eks-auth", "elasticfilesystem"}
    assert needed <= endpoints
    assert not everything().of("aws:ec2/natGateway:NatGateway")


EXISTING = {"vpcId": "vpc-0a", "subnetIds": ["subnet-0a", "subnet-0b", "subnet-0c"]}


def test_existing_network_is_used_unchanged() -> None:
    made = aws_stack(network=EXISTING)
    assert not made.of("aws:ec2/vpc:Vpc")
    assert not made.of("aws:ec2/subnet:Subnet")
    assert set(made.one("aws:eks/cluster:Cluster").inputs["vpcConfig"]["subnetIds"]) == set(
        EXISTING["subnetIds"]
    )
    targets = {args.inputs["subnetId"] for args in made.of("MountTarget")}
    assert targets == {"subnet-0a", "subnet-0b"}, "EFS allows one mount target in a zone"


ZONES = "aws:index/getAvailabilityZones:getAvailabilityZones"


# In this account, us-west-2b has the id of a zone without EKS control planes.
WITHOUT = {ZONES: {**INVOKES[ZONES], "zoneIds": ["use1-az3", "usw2-az1", "usw2-az4", "usw2-az3"]}}


ONE_ZONE = {ZONES: {**INVOKES[ZONES], "names": ["us-west-2a"], "zoneIds": ["usw2-az1"]}}
VPC = "aws:ec2/getVpc:getVpc"


@pytest.mark.parametrize(
    ("keys", "answers", "message"),
    [
        ({"name": "s" * 29}, {}, "at most 44 characters"),
        *(
            ({"network": EXISTING}, {VPC: {**INVOKES[VPC], switch: False}}, r"network\.vpcId")
            for switch in ("enableDnsSupport", "enableDnsHostnames")
        ),
        ({"network": {"vpcId": "vpc-0a", "subnetIds": ["subnet-0b", "subnet-0c"]}}, {}, "at least two zones"),
        ({"network": {**EXISTING, "serviceCidr": "10.9.128.0/20"}}, {}, r"network\.serviceCidr"),
        ({}, ONE_ZONE, r"network\.zones"),
        (
            {"network": {"availabilityZones": ["us-west-2a", "us-west-2b"]}},
            WITHOUT,
            r"us-west-2b.*\n.*us-west-2a, us-west-2c",
        ),
        ({"artifacts": {"uploads": {"sources/x": "nowhere.csv"}}}, {}, r"artifacts\.uploads"),
    ],
)
def test_stack_that_does_not_fit_the_account_raises(keys: Any, answers: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        aws_stack(answers=answers, **keys)


def test_zone_without_control_plane_is_skipped() -> None:
    chosen = aws_stack(answers=WITHOUT, name="s" * 28).of("aws:ec2/subnet:Subnet")
    assert {subnet.inputs["availabilityZone"] for subnet in chosen} == {"us-west-2a", "us-west-2c"}


def test_dns_records_point_to_resources() -> None:
    records = {a.inputs["name"]: a.inputs for a in everything().of("route53/record:Record")}
    assert records["efs.paddle.internal"]["records"] == ["fs-1.efs.us-west-2.amazonaws.com"]
    assert records["api.paddle.internal"]["records"] == ["ABC.gr7.us-west-2.eks.amazonaws.com"]
    assert records["paddle.example.com"]["zoneId"] == "Z1"
    assert records["paddle.example.com"]["records"] == ["ABC.gr7.us-west-2.eks.amazonaws.com"]
    assert everything().one("Zone").inputs["vpcs"] == [{"vpcId": "paddle-training-dev-vpc-id"}]


def test_private_zone_in_an_existing_network_has_a_name_of_the_stack() -> None:
    assert everything().one("Zone").inputs["name"] == "paddle.internal"
    names = [aws_stack(network=EXISTING, name=name).one("Zone").inputs["name"] for name in ("dev", "two")]
    assert names == ["paddle-training-dev.internal", "paddle-training-two.internal"]


@pytest.mark.parametrize(("stack", "rejected"), [("another", True), ("dev", False)])
def test_private_zone_name_that_the_network_has_is_rejected_unless_it_is_of_this_stack(
    stack: str, rejected: bool
) -> None:
    tags = {"Project": "paddle-training", "Stack": stack, "ManagedBy": "pulumi"}
    tags["KubernetesCluster"] = f"paddle-training-{stack}"
    answers = {"aws:route53/getZone:getZone": {"id": "Z9", "zoneId": "Z9", "tags": tags}}
    if not rejected:
        aws_stack(network=EXISTING, dns={"zone": "ours.internal"}, answers=answers)
        return
    with pytest.raises(SettingsError, match=r"dns.zone is 'ours.internal'.*private zone Z9 of this name"):
        aws_stack(network=EXISTING, dns={"zone": "ours.internal"}, answers=answers)


@given(
    st.integers(16, 22).flatmap(
        lambda bits: st.integers(0, 2**bits - 1).map(
            lambda n: f"{ipaddress.IPv4Address(n << (32 - bits))}/{bits}"
        )
    ),
    st.integers(1, 3),
)
def test_subnets_are_inside_vpc_and_disjoint(block: str, zones: int) -> None:
    plans = plan_subnets(block, zones)
    nets = [ipaddress.IPv4Network(net) for plan in plans for net in plan]
    assert len(plans) == zones
    assert all(net.subnet_of(ipaddress.IPv4Network(block)) for net in nets)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(nets, 2))
    assert all(net.prefixlen <= 28 for net in nets), "AWS allows no subnet smaller than /28"


@given(st.integers(1, 2))
def test_subnets_stay_when_a_zone_is_added(zones: int) -> None:
    assert plan_subnets("10.0.0.0/16", zones) == plan_subnets("10.0.0.0/16", zones + 1)[:zones]


def test_file_system_has_backups_only_on_request() -> None:
    made = aws_stack(storage={"backup": True, "protect": False})
    assert made.one("BackupPolicy").inputs["backupPolicy"] == {"status": "ENABLED"}
    assert "stay in AWS Backup for 35 days" in made.outputs["destroyLoses"]
    assert "AWS Backup" not in default().outputs["destroyLoses"]


def test_file_system_without_archive_has_no_lifecycle_policy() -> None:
    files = aws_stack(storage={"archiveAfterDays": 0}).one("FileSystem").inputs
    assert files.get("lifecyclePolicies", []) == []


FILES, POINT = (f"arn:aws:mock:::paddle-training-dev-{part}" for part in ("efs", "pods"))


def _mount(made: Recorder, role: str, **request: str) -> bool:
    """Return whether EFS lets a client mount as `role`; no role: a client without IAM.

    EFS evaluates the file-system policy and the policies of the role together, and a Deny wins. A file system without
    a policy admits everybody.
    """
    policies = made.of("FileSystemPolicy")
    rules = [rule for p in policies for rule in json.loads(p.inputs["policy"])["Statement"]]
    own = [p for p in made.of("RolePolicy") if p.name.endswith(f"-{role}")] if role else []
    rules += [rule for p in own for rule in json.loads(p.inputs["policy"])["Statement"]]
    allowed = [rule for rule in rules if rule["Effect"] == "Allow"]
    denied = [rule for rule in rules if rule["Effect"] == "Deny"]
    given = {"aws:SecureTransport": "true", "elasticfilesystem:AccessPointArn": POINT, **request}
    context = {key: value for key, value in given.items() if value}
    action = "elasticfilesystem:ClientMount"
    if authorization.is_allowed(denied, action, FILES, context):
        return False
    return not policies or authorization.is_allowed(allowed, action, FILES, context)


@pytest.mark.parametrize("role", ["efs-node", "bastion"])
def test_file_system_requires_tls_iam_and_access_point(role: str) -> None:
    made = aws_stack(bastion={"enabled": True})
    assert _mount(made, role)
    assert not _mount(made, ""), "without IAM"
    assert not _mount(made, "efs-csi"), "a role without the right to mount"
    assert not _mount(made, role, **{"aws:SecureTransport": "false"})
    assert not _mount(made, role, **{"elasticfilesystem:AccessPointArn": ""}), "the root of the file system"
    assert not _mount(made, role, **{"elasticfilesystem:AccessPointArn": f"{POINT}2"})
    rights = json.loads(made.one("RolePolicy", role).inputs["policy"])["Statement"]
    clients = {a for rule in rights for a in rule["Action"] if a.startswith("elasticfilesystem:Client")}
    assert clients == {"elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"}, "not as root"


def test_file_system_denies_even_administrators_without_tls_or_access_point() -> None:
    [policy] = default().of("FileSystemPolicy")
    rules = json.loads(policy.inputs["policy"])["Statement"]
    assert {(rule["Effect"], rule["Principal"], rule["Resource"]) for rule in rules} == {("Deny", "*", FILES)}
    assert not [key for key in default().retained if "fileSystemPolicy" in key]


def test_driver_daemon_mounts_with_its_own_role_and_volume_has_option_iam() -> None:
    made = default()
    association = made.one("PodIdentityAssociation", "efs-node").inputs
    assert (association["namespace"], association["serviceAccount"]) == ("kube-system", "efs-csi-node-sa")
    before = made.before(made.one("Addon", "aws-efs-csi-driver"))
    assert [name for name in before if name.endswith("PodIdentityAssociation::paddle-training-dev-efs-node")]
    storage = made.one("Release", "dev-release").inputs["values"]["storage"]
    assert storage["efsCsi"]["mountOptions"] == ["iam"]
    chosen = aws_stack(values={"storage": {"efsCsi": {"mountOptions": ["noac"]}}})
    storage = chosen.one("Release", "dev-release").inputs["values"]["storage"]
    assert storage["efsCsi"]["mountOptions"] == ["noac", "iam"], (
        "a list of the user replaces every other list"
    )


def test_storage_nfs_has_no_file_system_policy_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    made = aws_stack(storage={"type": "nfs"})
    assert not made.of("FileSystemPolicy")
    assert [text for text in said if "storage.type nfs" in text and "without TLS and IAM" in text]


def test_pods_use_the_key_only_through_s3() -> None:
    rights = json.loads(default().one("RolePolicy", "pods").inputs["policy"])["Statement"]
    key = "arn:aws:mock:::paddle-training-dev-key"
    for service, allowed in (("s3", True), ("ec2", False), ("", False)):
        context = {"kms:ViaService": f"{service}.us-west-2.amazonaws.com"} if service else {}
        assert authorization.is_allowed(rights, "kms:Decrypt", key, context) is allowed, service


@pytest.mark.parametrize("protect", [True, False])
def test_unprotected_bucket_and_registry_are_emptied(protect: bool) -> None:
    made = aws_stack(storage={"protect": protect})
    assert made.one("aws:s3/bucket:Bucket").inputs["forceDestroy"] is not protect
    assert made.one("Repository").inputs["forceDelete"] is not protect


def test_pod_identity_is_created_before_nodes() -> None:
    before = default().before(default().one("PodIdentityAssociation", "pods"))
    assert not [name for name in before if "NodeGroup" in name]


def test_upload_object_changes_with_file() -> None:
    made = everything().one("BucketObjectv2").inputs
    assert made["key"] == "sources/readme"
    assert len(made["sourceHash"]) == 64


def test_existing_key_is_used_and_not_created() -> None:
    arn = "arn:aws:kms:us-west-2:123456789012:key/1-2"
    made = aws_stack(kms={"keyArn": arn})
    assert not made.of("aws:kms/key:Key")
    assert not made.of("aws:kms/alias:Alias")
    rules = made.one("BucketServerSideEncryptionConfiguration").inputs["rules"]
    assert {
        made.one("aws:eks/cluster:Cluster").inputs["encryptionConfig"]["provider"]["keyArn"],
        made.one("FileSystem").inputs["kmsKeyId"],
        rules[0]["applyServerSideEncryptionByDefault"]["kmsMasterKeyId"],
        made.one("Repository").inputs["encryptionConfigurations"][0]["kmsKey"],
        made.one("LaunchTemplate").inputs["blockDeviceMappings"][0]["ebs"]["kmsKeyId"],
    } == {arn}


SEEDS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"


def test_bastion_of_storage_efs_csi_mounts_access_point_with_tls_and_iam() -> None:
    made = aws_stack(bastion={"enabled": True})
    script = made.one("Instance").inputs["userData"]
    files, point = (f"{made.one(token).name}-id" for token in ("FileSystem", "AccessPoint"))
    entry = f"{files}:/ /efs efs {SEEDS},_netdev,tls,iam,accesspoint={point} 0 0"
    assert f"echo '{entry}' >> /etc/fstab" in script, "mounted again after a restart"
    assert "dnf install -y amazon-efs-utils" in script
    rights = json.loads(made.one("RolePolicy", "bastion").inputs["policy"])["Statement"]
    assert rights == json.loads(made.one("RolePolicy", "efs-node").inputs["policy"])["Statement"]
    ready = made.before(made.one("Instance"))
    assert [name for name in ready if name.endswith("rolePolicy:RolePolicy::paddle-training-dev-bastion")]


def test_bastion_has_no_open_port_and_mounts_file_system() -> None:
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
    ways = {name for name in made.before(made.one("Instance")) if "vpcEndpoint" in name}
    assert len(ways) == len(made.of("VpcEndpoint")), "Session Manager works until the instance is gone"
    assert not default().of("Instance"), "created only with bastion.enabled"


def test_bastion_of_storage_nfs_mounts_root_of_file_system_by_nfs() -> None:
    made = aws_stack(storage={"type": "nfs"}, bastion={"enabled": True})
    entry = f"fs-1.efs.us-west-2.amazonaws.com:/ /efs nfs4 {SEEDS},_netdev 0 0"
    assert f"echo '{entry}' >> /etc/fstab" in made.one("Instance").inputs["userData"]
    assert not [policy for policy in made.of("RolePolicy") if policy.name.endswith("bastion")]


def test_release_without_image_is_not_created() -> None:
    made = aws_stack(image="")
    assert not made.of("Release")
    made.one("NodeGroup")
    made.one("PodIdentityAssociation", "pods")
    made.one("Repository")


def test_release_values_contain_stack_outputs() -> None:
    values = everything().one("Release").inputs["values"]
    assert values["image"] == AWS["image"]
    assert values["storage"]["efsCsi"]["fileSystemId"] == "paddle-training-dev-efs-id"
    assert values["storage"]["efsCsi"]["accessPointId"] == "paddle-training-dev-pods-id"
    assert values["data"]["source"] == "s3://paddle-training-dev-artifacts/sources/x"


def test_release_provider_uses_external_name_and_keeps_unreachable_resources() -> None:
    provider = everything().one("pulumi:providers:kubernetes")
    config = json.loads(provider.inputs["kubeconfig"])
    server = config["clusters"][0]["cluster"]
    assert server["server"] == "https://paddle.example.com"
    assert server["tls-server-name"] == "ABC.gr7.us-west-2.eks.amazonaws.com"
    # A refresh from a network that cannot reach the API would remove namespace and release from the state.
    assert "deleteUnreachable" not in provider.inputs


PAID_BY_THE_HOUR = (
    "natGateway:NatGateway",
    "eip:Eip",
    "cluster:Cluster",
    "nodeGroup:NodeGroup",
    "instance:Instance",
)
KEPT = (
    *("FileSystem", "AccessPoint", "MountTarget", "Repository", "LogGroup"),
    *("aws:s3/bucket:Bucket", "aws:kms/key:Key"),
)


@pytest.mark.parametrize("nat", ["single", "per-az", "none"])
def test_compute_off_keeps_data_and_removes_hourly_cost(nat: str) -> None:
    values = {"data": {"source": "s3://b/k"}}
    made = aws_stack(compute="off", network={"nat": nat}, bastion={"enabled": True}, values=values)
    for kind in PAID_BY_THE_HOUR:
        assert not made.of(kind), kind
    assert not [a for a in made.of("VpcEndpoint") if a.inputs["vpcEndpointType"] == "Interface"]
    assert not made.of("Release")
    for kind in KEPT:
        assert made.of(kind), kind


def test_compute_on_again_uses_same_file_system() -> None:
    for kind in KEPT:
        on = {a.name: a.inputs for a in default().of(kind)}
        off = {a.name: a.inputs for a in aws_stack(compute="off").of(kind)}
        assert on
        assert on == off, kind
