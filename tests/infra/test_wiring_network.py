"""Target aws with mocks: the stack's own network, an existing one, and DNS records."""

from __future__ import annotations

import pytest

from infra.settings import SettingsError

from .recording_mocks import INVOKES, aws_stack, everything


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


@pytest.mark.parametrize("switch", ["enableDnsSupport", "enableDnsHostnames"])
def test_existing_network_without_dns_raises(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(INVOKES["aws:ec2/getVpc:getVpc"], switch, False)
    with pytest.raises(SettingsError, match=r"network\.vpcId"):
        aws_stack(network=EXISTING)


def test_existing_subnets_in_one_zone_raises() -> None:
    with pytest.raises(SettingsError, match="at least two zones"):
        aws_stack(network={"vpcId": "vpc-0a", "subnetIds": ["subnet-0b", "subnet-0c"]})


ZONES = "aws:index/getAvailabilityZones:getAvailabilityZones"


def test_zones_more_than_region_has_raises() -> None:
    with pytest.raises(SettingsError, match=r"network\.zones"):
        aws_stack(answers={ZONES: {**INVOKES[ZONES], "names": ["us-west-2a"], "zoneIds": ["usw2-az1"]}})


# In this account, us-west-2b has the id of a zone without EKS control planes.
WITHOUT = {ZONES: {**INVOKES[ZONES], "zoneIds": ["use1-az3", "usw2-az1", "usw2-az4", "usw2-az3"]}}


def test_zone_without_control_plane_is_skipped_or_raises() -> None:
    chosen = aws_stack(answers=WITHOUT).of("aws:ec2/subnet:Subnet")
    assert {subnet.inputs["availabilityZone"] for subnet in chosen} == {"us-west-2a", "us-west-2c"}
    with pytest.raises(SettingsError, match=r"us-west-2b.*\n.*us-west-2a, us-west-2c"):
        aws_stack(network={"availabilityZones": ["us-west-2a", "us-west-2b"]}, answers=WITHOUT)


def test_service_network_overlapping_existing_network_raises() -> None:
    with pytest.raises(SettingsError, match=r"network\.serviceCidr"):
        aws_stack(network={**EXISTING, "serviceCidr": "10.9.128.0/20"})


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
