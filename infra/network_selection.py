"""Select the network of an AWS stack: the zones of a new VPC, or an existing VPC after its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra import constants, settings_rules
from infra.aws_context import AwsContext
from infra.aws_lookup import read_if_exists
from infra.dns_zone import private_zone_name
from infra.settings import Settings
from infra.settings_errors import Problem, SettingsError, setting_problem


@dataclass(frozen=True)
class SelectedNetwork:
    """The network to build in.

    Attributes:
        subnets: zone → id of the private subnet for nodes and mount targets.
        cluster_subnets: ids of the subnets of the control plane.
        ready: resources that must exist before the nodes (routes, route tables of the subnets, NAT
            gateways, endpoints).
    """

    vpc_id: pulumi.Input[str]
    subnets: Mapping[str, pulumi.Input[str]]
    cluster_subnets: Sequence[pulumi.Input[str]]
    ready: Sequence[pulumi.Resource] = ()


def select_zones(settings: Settings) -> list[str]:
    """Return `network.availabilityZones`, or if it is empty the first `network.zones` zones of the region by name.

    Raises:
        SettingsError: the region has fewer zones than `network.zones`, or EKS does not support a listed one.
    """
    network = settings.network
    # Local zones and wavelength zones require an opt-in; EKS control planes support none of them.
    found = aws.get_availability_zones(
        state="available",
        filters=[{"name": "opt-in-status", "values": ["opt-in-not-required"]}],
        exclude_zone_ids=list(constants.ZONES_WITHOUT_CONTROL_PLANE),
    )
    names = sorted(found.names)
    listed = ", ".join(names)
    why, fix = "EKS supports control planes in no other zone of this account", f"use zones of {listed}"
    unsupported = [zone for zone in network.availability_zones if zone not in names]
    if unsupported:
        key = "network.availabilityZones"
        raise SettingsError(
            [setting_problem(key, zone, f"zones of {listed}", why, fix) for zone in unsupported]
        )
    if len(names) < network.zones:
        limit = f"at most {len(names)} (zones {listed})"
        fix = f"set network.zones to at most {len(names)}, or use another region"
        raise SettingsError([setting_problem("network.zones", network.zones, limit, why, fix)])
    return list(network.availability_zones) or names[: network.zones]


def check_existing_network(settings: Settings, context: AwsContext) -> SelectedNetwork:
    """Return the network of `network.vpcId` and `network.subnetIds`, after reading it from AWS.

    Raises:
        SettingsError: a subnet belongs to another VPC or to a zone without control planes; all subnets are in
            one zone; DNS is off in the VPC; the network of Kubernetes Services overlaps it; or the VPC has a private
            zone with the name of the stack's.
    """
    network = settings.network
    vpc = aws.ec2.get_vpc(id=network.vpc_id)
    subnets = [aws.ec2.get_subnet(id=name) for name in network.subnet_ids]
    problems: list[Problem] = []
    for subnet in subnets:
        if subnet.vpc_id != network.vpc_id:
            limit, why = f"a subnet of {network.vpc_id}", f"it belongs to {subnet.vpc_id}"
            fix = "list only subnets of that VPC"
            problems.append(setting_problem("network.subnetIds", subnet.id, limit, why, fix))
        if subnet.availability_zone_id in constants.ZONES_WITHOUT_CONTROL_PLANE:
            limit = f"no subnet in zone {subnet.availability_zone_id}"
            why, fix = "EKS has no control planes there", "use subnets of other zones"
            problems.append(setting_problem("network.subnetIds", subnet.id, limit, why, fix))
    by_zone = {subnet.availability_zone: subnet.id for subnet in reversed(subnets)}
    if len(by_zone) < 2:
        limit = "subnets of at least two zones"
        why = f"EKS requires two zones, and all subnets are in {', '.join(by_zone)}"
        fix = "add a subnet of another zone"
        problems.append(setting_problem("network.subnetIds", list(network.subnet_ids), limit, why, fix))
    if not (vpc.enable_dns_support and vpc.enable_dns_hostnames):
        limit = "a VPC with DNS support and DNS host names"
        why = "the name of the file system does not resolve without them"
        fix = "turn both on: aws ec2 modify-vpc-attribute --enable-dns-hostnames, --enable-dns-support"
        problems.append(setting_problem("network.vpcId", network.vpc_id, limit, why, fix))
    for block in sorted({vpc.cidr_block, *(part.cidr_block for part in vpc.cidr_block_associations or ())}):
        problems += settings_rules.service_network_problems(settings, block)
    name = private_zone_name(settings, context.prefix)
    zone = read_if_exists(
        lambda name: aws.route53.get_zone(name=name, private_zone=True, vpc_id=network.vpc_id), name
    )
    if zone is not None and not context.stack_tags.items() <= zone.tags.items():
        limit = "a name that no other private zone of the VPC has"
        why = f"{network.vpc_id} has the private zone {zone.zone_id} of this name, which is not this stack's"
        problems.append(
            setting_problem("dns.zone", name, limit, why, f"use for example {context.prefix}.{name}")
        )
    if problems:
        raise SettingsError(problems)
    return SelectedNetwork(network.vpc_id, dict(sorted(by_zone.items())), list(network.subnet_ids))
