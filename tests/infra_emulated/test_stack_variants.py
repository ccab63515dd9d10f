"""Other stacks than `dev`, with the real engine: existing resources, no NAT, spot nodes.

tests/infra/rules says what the program registers for these settings; here the emulated AWS must accept it, change
nothing at a second `up`, and have nothing left after a destroy.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from testkit.aws_emulator import inventory
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.handler import MotoCloud
from testkit.aws_emulator.pulumi_engine import REGION, Engine

pytestmark = [pytest.mark.timeout(2700), pytest.mark.long]

Make = Callable[..., Engine]


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
    engine.up()

    # Another stack in the same VPC has a zone of its own by default, and cannot take the name of an existing one.
    second = dev_stack("two", *network, *iam)
    second.preview()
    second.config("paddle-training:dns.zone=paddle-training-dev.internal")
    private = account.all("aws:route53/zone:Zone")[0].id
    taken = second.preview(fails=True)
    assert f"{vpc} has the private zone {private} of this name, which is not this stack's" in taken.text
    _ended(engine, account, before)


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

    engine.config("paddle-training:network.nat=per-az")
    opened = engine.up()
    assert {step.type for step in opened.steps if step.op in ("update", "replace")} == set()
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
