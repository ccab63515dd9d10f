"""Wiring of target aws, by mocks: the network, its ways out, and an existing one."""

from __future__ import annotations

import pytest

from infra.problems import SettingsError

from .support import INVOKES, aws_stack, default, everything


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


ZONES = "aws:index/getAvailabilityZones:getAvailabilityZones"


def test_more_zones_than_the_region_has_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"network\.zones"):
        aws_stack(answers={ZONES: {**INVOKES[ZONES], "names": ["us-west-2a"], "zoneIds": ["usw2-az1"]}})


# This account's us-west-2b is one of the zones in which EKS puts no control plane, which go by their ids.
WITHOUT = {ZONES: {**INVOKES[ZONES], "zoneIds": ["use1-az3", "usw2-az1", "usw2-az4", "usw2-az3"]}}


def test_a_zone_that_takes_no_control_plane_is_never_chosen_and_refused_when_listed() -> None:
    chosen = aws_stack(answers=WITHOUT).of("aws:ec2/subnet:Subnet")
    assert {subnet.inputs["availabilityZone"] for subnet in chosen} == {"us-west-2a", "us-west-2c"}
    with pytest.raises(SettingsError, match=r"us-west-2b.*\n.*us-west-2a, us-west-2c"):
        aws_stack(network={"availabilityZones": ["us-west-2a", "us-west-2b"]}, answers=WITHOUT)


def test_services_with_addresses_of_an_existing_network_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"network\.serviceCidr"):
        aws_stack(network={**EXISTING, "serviceCidr": "10.9.128.0/20"})
