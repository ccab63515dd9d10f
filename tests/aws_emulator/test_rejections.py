"""Requests that AWS rejects and moto accepts, one rule per test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra import iam_policies
from testkit.aws_emulator import invokes
from testkit.aws_emulator.account import Account, AwsError, required_actions
from testkit.aws_emulator.moto_handlers import expire_images
from testkit.aws_emulator.resource_model import Model
from tests.aws_emulator.test_resource_model import (
    ADDON,
    CLUSTER,
    NODES,
    ROLE,
    SUBNET,
    TRUST,
    VPC,
    _cluster,
    _group,
    _make,
)

LOGS, OBJECT = "aws:cloudwatch/logGroup:LogGroup", "aws:s3/bucketObjectv2:BucketObjectv2"
POLICY, ATTACHMENT = "aws:iam/rolePolicy:RolePolicy", "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
EFS = "aws-efs-csi-driver"


def _with_nodes(model: Model) -> None:
    _, subnets, role = _cluster(model)
    _make(model, ADDON, clusterName="c", addonName="vpc-cni")
    _make(model, NODES, **_group(subnets, role))


@pytest.mark.parametrize(
    ("addon", "configuration", "where"),
    [
        (EFS, {"node": {"tolerateAllTaints": True}}, r"\$\.node"),
        (EFS, {"node": {"resources": {}}}, r"\$\.node"),
        (EFS, {"replicaCount": 1}, r"\$"),
        ("vpc-cni", {"enableNetworkPolicy": True}, "enableNetworkPolicy"),
    ],
)
def test_addon_configuration_outside_schema_rejects(
    model: Model, addon: str, configuration: dict[str, Any], where: str
) -> None:
    _cluster(model)
    text = json.dumps(configuration)
    with pytest.raises(AwsError, match=f"Json schema validation failed with error: .*{where}"):
        _make(model, ADDON, clusterName="c", addonName=addon, configurationValues=text)


def test_addon_schemas_are_closed_and_cite_source() -> None:
    for path in (Path(invokes.__file__).parent / "addons").glob("*.json"):
        schema = json.loads(path.read_text(encoding="utf-8"))
        assert schema["additionalProperties"] is False, path.name
        assert len(schema["$comment"]) > 30, path.name


def test_addon_with_pods_without_nodes_rejects(model: Model) -> None:
    _, subnets, role = _cluster(model)
    _make(model, ADDON, clusterName="c", addonName="vpc-cni")
    sizes = {"minSize": 0, "desiredSize": 0, "maxSize": 3}
    _make(model, NODES, **{**_group(subnets, role), "scalingConfig": sizes})
    with pytest.raises(AwsError, match="no nodes available"):
        _make(model, ADDON, clusterName="c", addonName=EFS)


def _update(model: Model, kind: str, rid: str, **changes: Any) -> None:
    record = model.account.get(kind, rid)
    assert record is not None
    model.update(kind, record.urn, rid, record.inputs, record.inputs | changes)


def test_upgrade_requires_control_plane_first_and_one_minor(model: Model) -> None:
    _with_nodes(model)
    group = model.account.all(NODES)[0].id
    for kind, rid, change in (
        (NODES, group, {"version": "1.36"}),
        (ADDON, "c:vpc-cni", {"addonVersion": "v36.0.0-eksbuild.1"}),
        (CLUSTER, "c", {"version": "1.37"}),
    ):
        with pytest.raises(AwsError, match="InvalidParameterException"):
            _update(model, kind, rid, **change)
    _update(model, CLUSTER, "c", version="1.36")
    with pytest.raises(AwsError, match=r"from 1\.36 to 1\.35"):
        _update(model, CLUSTER, "c", version="1.35")
    chosen = invokes.invoke(
        model.cloud,
        "aws:eks/getAddonVersion:getAddonVersion",
        {"addonName": "x", "kubernetesVersion": "1.36"},
    )
    _update(model, ADDON, "c:vpc-cni", addonVersion=chosen["version"])
    _update(model, NODES, group, version="1.36", releaseVersion="1.36.0-20261101")


def test_cluster_in_zone_without_control_plane_rejects(account: Account) -> None:
    east = Model(account, "us-east-1", {})
    zones = east.cloud.client("ec2").describe_availability_zones()["AvailabilityZones"]
    unfit = next(zone["ZoneName"] for zone in zones if zone["ZoneId"] == "use1-az3")
    names = invokes.invoke(
        east.cloud, "aws:index/getAvailabilityZones:getAvailabilityZones", {"excludeZoneIds": ["use1-az3"]}
    )["names"]
    assert unfit not in names
    vpc, _ = _make(east, VPC, cidrBlock="10.0.0.0/16")
    places = (("10.0.0.0/24", names[0]), ("10.0.1.0/24", unfit))
    subnets = [
        _make(east, SUBNET, vpcId=vpc, cidrBlock=block, availabilityZone=zone)[0] for block, zone in places
    ]
    role = _make(east, ROLE, assumeRolePolicy=TRUST)[1]["arn"]
    with pytest.raises(AwsError, match=r"UnsupportedAvailabilityZoneException.*use1-az3"):
        _make(east, CLUSTER, name="c", roleArn=role, vpcConfig={"subnetIds": subnets})


def test_cluster_service_network_overlapping_vpc_rejects(model: Model) -> None:
    _, subnets, role = _cluster(model)
    services = {"serviceIpv4Cidr": "10.0.128.0/20"}
    with pytest.raises(AwsError, match="overlaps"):
        _make(
            model,
            CLUSTER,
            name="d",
            roleArn=role,
            vpcConfig={"subnetIds": subnets},
            kubernetesNetworkConfig=services,
        )


def test_object_with_eleven_tags_rejects(model: Model) -> None:
    bucket, _ = _make(model, "aws:s3/bucket:Bucket")
    tags = {f"k{n}": "v" for n in range(11)}
    with pytest.raises(AwsError, match="greater than 10"):
        _make(model, OBJECT, bucket=bucket, key="x", content="y", tags=tags)


def test_check_too_long_name_reports_limit(model: Model) -> None:
    _, failures = model.check(ROLE, "x" * 60, {}, {"assumeRolePolicy": TRUST}, b"seed")
    assert [path for path, why in failures if "64" in why] == ["name"]


def test_log_group_existing_rejects_and_late_lines_recreate_it(model: Model, account: Account) -> None:
    name = "/aws/eks/c/cluster"
    _make(model, LOGS, name=name)
    with pytest.raises(AwsError, match="ResourceAlreadyExists"):
        _make(model, LOGS, name=name)
    account.change(late_logs=True)
    model.delete(LOGS, "urn", name, {})
    with pytest.raises(AwsError, match="ResourceAlreadyExists"):
        _make(model, LOGS, name=name)


def test_import_omits_values_that_aws_does_not_return(model: Model) -> None:
    key, _ = _make(model, "aws:kms/key:Key", deletionWindowInDays=30, description="x")
    found = model.read("aws:kms/key:Key", "urn", key, {})
    assert found is not None
    assert "deletionWindowInDays" not in found[0]


def _grant(account: Account, **more: Any) -> None:
    """Grant the rights that these tests need; actions on IAM roles only for the roles `own-*`.

    `more` are further keys of the policy statement for these roles, such as conditions.
    """
    names = [
        "CreateRole",
        "DeleteRole",
        "PassRole",
        "PutRolePolicy",
        "AttachRolePolicy",
        "UpdateAssumeRolePolicy",
    ]
    rows = (ROLE, CLUSTER, POLICY, ATTACHMENT)
    limited = {f"iam:{name}" for name in names}
    others = set().union(*(required_actions(row) for row in rows)) - limited
    limits = {"Action": sorted(limited), "Resource": "arn:aws:iam::123456789012:role/own-*", **more}
    account.grant([json.dumps({"Statement": [{"Action": sorted(others), "Resource": "*"}, limits]})])


def test_foreign_role_rejects_create_policy_and_pass(model: Model, account: Account) -> None:
    _, subnets, _ = _cluster(model)
    _grant(account)
    _make(model, ROLE, name="own-1", assumeRolePolicy=TRUST)
    with pytest.raises(AwsError, match=r"iam:CreateRole on resource: .*role/Other"):
        _make(model, ROLE, name="Other", assumeRolePolicy=TRUST)
    model.cloud.client("iam").create_role(RoleName="Other", AssumeRolePolicyDocument=TRUST)
    with pytest.raises(AwsError, match="iam:PutRolePolicy on resource"):
        _make(model, POLICY, role="Other", name="x", policy=TRUST)
    with pytest.raises(AwsError, match="iam:PassRole on resource"):
        arn = "arn:aws:iam::123456789012:role/Other"
        _make(model, CLUSTER, name="d", roleArn=arn, vpcConfig={"subnetIds": subnets})


def test_role_without_required_boundary_or_with_other_policy_rejects(model: Model, account: Account) -> None:
    boundary = "arn:aws:iam::123456789012:policy/Boundary"
    _grant(account, Condition={"StringEquals": {"iam:PermissionsBoundary": boundary}})
    with pytest.raises(AwsError, match="iam:CreateRole"):
        _make(model, ROLE, name="own-1", assumeRolePolicy=TRUST)
    _grant(account, Condition={"ArnEquals": {"iam:PolicyARN": "arn:aws:iam::aws:policy/One"}})
    model.cloud.client("iam").create_role(RoleName="own-2", AssumeRolePolicyDocument=TRUST)
    with pytest.raises(AwsError, match="iam:AttachRolePolicy"):
        _make(model, ATTACHMENT, role="own-2", policyArn="arn:aws:iam::aws:policy/AdministratorAccess")


@pytest.mark.parametrize(
    ("variant", "known"),
    [("x86_64/nvidia", True), ("arm64/standard", True), ("nvidia/x86_64", False), ("x86_64/gpu", False)],
)
def test_unknown_machine_image_rejects(model: Model, variant: str, known: bool) -> None:
    base = "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023"
    arguments = {"name": f"{base}/{variant}/recommended/release_version"}
    if known:
        found = invokes.invoke(model.cloud, "aws:ssm/getParameter:getParameter", arguments)
        assert found["value"].startswith("1.35.")
    else:
        with pytest.raises(AwsError, match="ParameterNotFound"):
            invokes.invoke(model.cloud, "aws:ssm/getParameter:getParameter", arguments)


def test_node_group_with_a_startup_taint_rejects(model: Model) -> None:
    _, subnets, role = _cluster(model)
    _make(model, ADDON, clusterName="c", addonName="vpc-cni")
    taint = {"key": "efs.csi.aws.com/agent-not-ready", "effect": "NO_EXECUTE"}
    with pytest.raises(AwsError, match="was set after the driver had removed it"):
        _make(model, NODES, **_group(subnets, role), taints=[taint])


@pytest.mark.parametrize("block", ["203.0.113.7", "203.0.113.0/255.255.255.0"])
def test_cluster_with_a_network_without_mask_rejects(model: Model, block: str) -> None:
    with pytest.raises(AwsError, match="The following CIDRs are invalid"):
        _cluster(model, networks=[block])


def test_second_private_zone_of_a_name_in_a_vpc_rejects(model: Model) -> None:
    vpcs = [{"vpcId": _make(model, VPC, cidrBlock=block)[0]} for block in ("10.0.0.0/16", "10.1.0.0/16")]
    zone = "aws:route53/zone:Zone"
    _make(model, zone, name="paddle.internal", comment="first", vpcs=vpcs[:1])
    _make(model, zone, name="paddle.internal", comment="of another network", vpcs=vpcs[1:])
    _make(model, zone, name="two.paddle.internal", comment="a name below it", vpcs=vpcs[:1])
    with pytest.raises(AwsError, match="ConflictingDomainExists"):
        _make(model, zone, name="paddle.internal", comment="second", vpcs=vpcs[:1])


@pytest.mark.parametrize(
    ("strategy", "quota", "rejected"), [(None, 4, True), (None, 5, False), ("MINIMAL", 1, False)]
)
def test_update_of_nodes_starts_two_in_each_zone_first_unless_minimal(
    model: Model, strategy: str | None, quota: int, rejected: bool
) -> None:
    _, subnets, role = _cluster(model)
    _make(model, ADDON, clusterName="c", addonName="vpc-cni")
    config = {"maxUnavailable": 1} | ({"updateStrategy": strategy} if strategy else {})
    model.account.change(node_quota=quota)
    group, _ = _make(model, NODES, **_group(subnets, role), updateConfig=config)
    if rejected:
        with pytest.raises(AwsError, match=r"VcpuLimitExceeded.*5 nodes, limit 4"):
            _update(model, NODES, group, releaseVersion="1.35.0-20261120")
    else:
        _update(model, NODES, group, releaseVersion="1.35.0-20261120")


BY_NUMBER = {
    "rulePriority": 1,
    "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 20},
    "action": {"type": "expire"},
}
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


@pytest.mark.parametrize(
    ("policy", "kept"),
    [(json.dumps({"rules": [BY_NUMBER]}), False), (iam_policies.registry_lifecycle(), True)],
)
def test_lifecycle_of_the_registry_keeps_an_image_that_an_old_stack_uses(
    model: Model, policy: str, kept: bool
) -> None:
    registry, _ = _make(model, "aws:ecr/repository:Repository", name="launcher")
    _make(model, "aws:ecr/lifecyclePolicy:LifecyclePolicy", repository=registry, policy=policy)
    ecr = model.cloud.client("ecr")
    for number in range(30):
        manifest = json.dumps(
            {"schemaVersion": 2, "mediaType": MANIFEST, "config": {"digest": f"sha256:{number:064}"}}
        )
        ecr.put_image(repositoryName=registry, imageManifest=manifest, imageTag=f"push-{number}")
    expire_images(model.cloud)
    tags = {image.get("imageTag") for image in ecr.list_images(repositoryName=registry)["imageIds"]}
    assert ("push-0" in tags) is kept


def test_several_nodes_of_a_group_in_several_zones_rejects(model: Model) -> None:
    _, subnets, role = _cluster(model)
    _make(model, ADDON, clusterName="c", addonName="vpc-cni")
    with pytest.raises(AwsError, match="AZRebalance"):
        _make(model, NODES, **_group(subnets, role, 2))
    _make(model, NODES, **_group(subnets[:1], role, 2))
