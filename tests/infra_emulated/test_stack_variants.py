"""Other stacks than `dev`, with the real engine: existing resources, no NAT, spot nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from testkit.aws_emulator import inventory
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.handler import MotoCloud
from testkit.aws_emulator.pulumi_engine import REGION, Engine

pytestmark = [pytest.mark.timeout(2700), pytest.mark.long]

Make = Callable[..., Engine]
NAT, ENDPOINT = "aws:ec2/natGateway:NatGateway", "aws:ec2/vpcEndpoint:VpcEndpoint"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
NODES, TEMPLATE = "aws:eks/nodeGroup:NodeGroup", "aws:ec2/launchTemplate:LaunchTemplate"


@pytest.fixture
def cloud(account: Account) -> MotoCloud:
    """Return clients of the account, to create what exists before the stack."""
    return MotoCloud(account, REGION)


def _network(cloud: MotoCloud) -> tuple[str, list[str]]:
    """Create a VPC with DNS: a subnet in each of two zones, and another one in the second zone."""
    ec2 = cloud.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.50.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    places = (("10.50.0.0/20", "a"), ("10.50.16.0/20", "b"), ("10.50.32.0/20", "b"))
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=f"{REGION}{zone}")["Subnet"][
            "SubnetId"
        ]
        for block, zone in places
    ]
    return vpc, subnets


def _names(cloud: MotoCloud, zone: str) -> dict[str, list[str]]:
    found = cloud.client("route53").list_resource_record_sets(HostedZoneId=zone)["ResourceRecordSets"]
    return {
        record["Name"].rstrip("."): [value["Value"] for value in record["ResourceRecords"]]
        for record in found
        if record["Type"] == "CNAME"
    }


def _ended(engine: Engine, account: Account, before: list[str]) -> None:
    """Check that a second up finds no change, and that destroy leaves what existed before."""
    engine.up("--refresh", "--expect-no-changes")
    engine.destroy()
    assert inventory.list_leftovers(account, REGION) == before


def test_existing_network_key_and_zone_stay_unchanged(
    dev_stack: Make, account: Account, cloud: MotoCloud
) -> None:
    vpc, subnets = _network(cloud)
    key = cloud.client("kms").create_key(Description="the company's")["KeyMetadata"]
    made = cloud.client("route53").create_hosted_zone(Name="example.com", CallerReference="one")
    zone = made["HostedZone"]["Id"].rpartition("/")[2]
    all_of_it = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [all_of_it]})
    policy = cloud.client("iam").create_policy(PolicyName="Boundary", PolicyDocument=document)["Policy"]
    boundary = policy["Arn"]
    before = inventory.list_leftovers(account, REGION)
    assert {f"vpc {vpc}", f"key {key['KeyId']}", f"policy {boundary}"} < set(before)

    network = [f"network.vpcId={vpc}", *[f"network.subnetIds[{i}]={s}" for i, s in enumerate(subnets)]]
    iam = (f"iam.permissionsBoundary={boundary}", "iam.path=/teams/paddle/")
    engine = dev_stack(
        "dev",
        "storage.protect=false",
        *network,
        *iam,
        f"kms.keyArn={key['Arn']}",
        "bastion.enabled=true",
        f"dns.publicZoneId={zone}",
        "dns.externalName=paddle.example.com",
    )
    up = engine.up()

    kinds = {step.type for step in up.steps}
    assert not kinds & {"aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet", NAT, ENDPOINT, "aws:kms/key:Key"}
    assert {"aws:ec2/instance:Instance", "aws:iam/instanceProfile:InstanceProfile", EGRESS} <= kinds
    targets = cloud.client("efs").describe_mount_targets(FileSystemId=engine.outputs()["fileSystemId"])
    assert {target["SubnetId"] for target in targets["MountTargets"]} == set(subnets[:2]), (
        "one mount target in each zone"
    )
    file_system = cloud.client("efs").describe_file_systems()["FileSystems"][0]
    assert (file_system["Encrypted"], file_system["KmsKeyId"]) == (True, key["Arn"])

    endpoint = account.all("aws:eks/cluster:Cluster")[0].outputs["endpoint"].removeprefix("https://")
    assert _names(cloud, zone) == {"paddle.example.com": [endpoint]}
    way_in = json.loads(engine.outputs()["kubeconfig"])["clusters"][0]["cluster"]
    assert (way_in["server"], way_in["tls-server-name"]) == ("https://paddle.example.com", endpoint)
    private = account.all("aws:route53/zone:Zone")[0]
    assert _names(cloud, private.id) == {
        "api.paddle-training-dev.internal": [endpoint],
        "efs.paddle-training-dev.internal": [f"{file_system['FileSystemId']}.efs.{REGION}.amazonaws.com"],
    }

    # Another stack in the same VPC has a zone of its own by default, and cannot take the name of an existing one.
    second = dev_stack("two", *network, *iam)
    second.preview()
    second.config("paddle-training:dns.zone=paddle-training-dev.internal")
    taken = second.preview(fails=True)
    assert f"{vpc} has the private zone {private.id} of this name, which is not this stack's" in taken.text

    bastion = cloud.client("ec2").describe_instances(InstanceIds=[engine.outputs()["bastion"]])
    machine: dict[str, Any] = bastion["Reservations"][0]["Instances"][0]
    assert machine["SubnetId"] in subnets
    assert "KeyName" not in machine
    roles = cloud.client("iam").list_roles(PathPrefix="/teams/paddle/")["Roles"]
    assert len(roles) == len(account.all("aws:iam/role:Role")) > 3
    for role in roles:
        about = cloud.client("iam").get_role(RoleName=role["RoleName"])["Role"]
        assert about["PermissionsBoundary"]["PermissionsBoundaryArn"] == boundary

    _ended(engine, account, before)
    assert cloud.client("kms").describe_key(KeyId=key["KeyId"])["KeyMetadata"]["KeyState"] == "Enabled"


def test_nat_none_on_spot_nodes_then_nat_per_az(dev_stack: Make, account: Account, cloud: MotoCloud) -> None:
    ec2 = cloud.client("ec2")
    before = inventory.list_leftovers(account, REGION)
    engine = dev_stack(
        "dev",
        "storage.protect=false",
        "network.nat=none",
        "nodes.auto=false",
        "nodes.placementGroup=true",
        "nodes.capacity=SPOT",
        "nodes.sshKeyName=mine",
    )
    rejected = engine.up(fails=True)
    assert "mine" in rejected.text, f"AWS must reject a missing key pair:\n{rejected.text}"
    assert "does not exist" in rejected.text
    ec2.create_key_pair(KeyName="mine")
    engine.up()

    endpoints = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    interfaces = {
        item["ServiceName"].partition(f"{REGION}.")[2]: set(item["SubnetIds"])
        for item in endpoints
        if item["VpcEndpointType"] == "Interface"
    }
    assert {"ecr.api", "ecr.dkr", "sts", "ec2", "logs", "eks", "eks-auth", "elasticfilesystem"} <= set(
        interfaces
    )
    privates = {
        r.id for r in account.all("aws:ec2/subnet:Subnet") if "::paddle-training-dev-private" in r.urn
    }
    assert set(map(frozenset, interfaces.values())) == {frozenset(privates)}
    assert ec2.describe_nat_gateways()["NatGateways"] == []

    group = account.all(NODES)[0]
    assert (group.inputs["capacityType"], len(group.inputs["subnetIds"])) == ("SPOT", 1)
    template = ec2.describe_launch_template_versions(LaunchTemplateId=account.all(TEMPLATE)[0].id)
    assert template["LaunchTemplateVersions"][0]["LaunchTemplateData"]["KeyName"] == "mine"
    placed = account.all(TEMPLATE)[0].inputs["placement"]["groupName"]
    assert [record.id for record in account.all("aws:ec2/placementGroup:PlacementGroup")] == [placed]

    engine.config("paddle-training:network.nat=per-az")
    opened = engine.up()
    assert {step.type for step in opened.steps if step.op in ("update", "replace")} == set()
    gateways = {nat["NatGatewayId"]: nat["SubnetId"] for nat in ec2.describe_nat_gateways()["NatGateways"]}
    zones = {item["SubnetId"]: item["AvailabilityZone"] for item in ec2.describe_subnets()["Subnets"]}
    out = {}
    for table in ec2.describe_route_tables()["RouteTables"]:
        ways = [route["NatGatewayId"] for route in table["Routes"] if route.get("NatGatewayId")]
        subnets = {item["SubnetId"] for item in table["Associations"] if item.get("SubnetId")}
        out |= dict.fromkeys(subnets & privates, ways)
    assert set(out) == privates
    for subnet, ways in out.items():
        assert [zones[gateways[way]] for way in ways] == [zones[subnet]], "traffic must stay in its zone"
    living = [item for item in ec2.describe_vpc_endpoints()["VpcEndpoints"] if item["State"] == "available"]
    assert [item["VpcEndpointType"] for item in living] == ["Gateway"]

    _ended(engine, account, sorted([*before, "key-pair mine"]))


def test_gpu_nodes_replace_nodes_and_bring_system_nodes_and_addons_on_them(
    dev_stack: Make, account: Account, cloud: MotoCloud
) -> None:
    before = inventory.list_leftovers(account, REGION)
    one = ("nodes.auto=false", "nodes.min=1", "nodes.desired=1")
    engine = dev_stack("dev", "storage.protect=false", *one, "values.trainers=1")
    engine.up()
    engine.config("paddle-training:nodes.instanceTypes[0]=g6.xlarge")
    changed = engine.up()
    assert "g6.xlarge have GPUs, but the training requests none" in changed.text

    eks = cloud.client("eks")
    (cluster,) = eks.list_clusters()["clusters"]
    groups = {r.urn.rpartition("-")[2]: r for r in account.all(NODES)}
    assert {part: group.inputs["amiType"] for part, group in groups.items()} == {
        "nodes": "AL2023_x86_64_NVIDIA",
        "system": "AL2023_x86_64_STANDARD",
    }
    described = eks.describe_nodegroup(
        clusterName=cluster, nodegroupName=groups["nodes"].id.rpartition(":")[2]
    )
    assert described["nodegroup"]["instanceTypes"] == ["g6.xlarge"]
    assert described["nodegroup"]["labels"] == {"k8s.amazonaws.com/accelerator": "nvidia"}
    taints = {taint["key"]: taint["effect"] for taint in groups["nodes"].inputs["taints"]}
    assert taints["nvidia.com/gpu"] == "NO_SCHEDULE"
    addons = {r.inputs["addonName"]: r.inputs for r in account.all("aws:eks/addon:Addon")}
    for name in ("coredns", "aws-efs-csi-driver"):
        chosen = json.loads(addons[name]["configurationValues"])
        assert chosen.get("controller", chosen)["nodeSelector"] == groups["system"].inputs["labels"]

    # Only scripts use GPUs; the numbers are the chart's defaults, because the example of `dev` has others.
    collective = ("runtime=collective", "portsNum=2", "portsNumSparse=2")
    script = (
        "training.logPeriod=50",
        "training.config=planes/train.py",
        'resources.limits["nvidia.com/gpu"]=4',
    )
    engine.config(*[f"paddle-training:values.{pair}" for pair in (*collective, *script)])
    too_many = engine.up(fails=True)
    assert "a node of type g6.xlarge has no more, so the pod would never start" in too_many.text
    engine.config('paddle-training:values.resources.limits["nvidia.com/gpu"]=1')
    _ended(engine, account, before)


def test_a_replaced_cluster_gets_its_own_namespace_and_releases(dev_stack: Make, account: Account) -> None:
    """No Kubernetes runs behind the emulated endpoint, so commands fail there, after all other steps."""
    engine = dev_stack("dev", "storage.protect=false", "image=registry/launcher@sha256:1")
    reached = engine.up(fails=True)
    provider = "pulumi:providers:kubernetes"
    assert [step.op for step in reached.of(provider)] == ["create"], reached.text
    same = engine.preview(fails=True)
    assert not same.of(provider), same.text
    engine.config("paddle-training:network.serviceCidr=172.21.0.0/16")
    replaced = engine.preview()
    assert "replace" in {step.op for step in replaced.of("aws:eks/cluster:Cluster")}, replaced.text
    assert "replace" in {step.op for step in replaced.of(provider)}, replaced.text
