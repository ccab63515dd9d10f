"""Where a stack of target aws is made: account, zones, and a network of its own or an existing one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pulumi
import pulumi_aws as aws

from infra import checks, kept, naming, versions
from infra.context import Context
from infra.network import Network
from infra.problems import Problem, SettingsError, wrong

if TYPE_CHECKING:
    from infra.stack import Plan


@dataclass(frozen=True)
class Place:
    """A network to build in: its own or an existing one. `subnets`: zone → private subnet."""

    vpc_id: pulumi.Input[str]
    subnets: Mapping[str, pulumi.Input[str]]
    all_subnets: Sequence[pulumi.Input[str]]
    ready: Sequence[pulumi.Resource] = ()


def context_of(known: Plan, region: str) -> Context:
    """Who and where: asks AWS for the account only, never for the caller's own name."""
    naming.refuse_long(known.project, known.stack)
    caller = aws.get_caller_identity()
    settings, prefix = known.settings, naming.prefix(known.project, known.stack)
    own_tags = naming.tags(known.project, known.stack)
    found = kept.find(known.project, known.stack, prefix, own_tags)
    kept.refuse_another_key(found, settings.kms.key_arn)
    return Context(
        prefix=prefix,
        tags=naming.tags(known.project, known.stack, settings.tags),
        own_tags=own_tags,
        region=region,
        account=caller.account_id,
        partition=caller.arn.split(":")[1],
        protect=settings.storage.protect,
        permissions_boundary=settings.iam.permissions_boundary,
        iam_path=settings.iam.path,
        kept=found,
    )


def zones_of(known: Plan) -> list[str]:
    """The zones to use: those that are listed, else the region's first ones by name.

    Raises:
        SettingsError: the region has fewer zones than `network.zones`, or a listed one takes no cluster.
    """
    network = known.settings.network
    # Local zones and wavelength zones have an opt-in; EKS control planes take none of them.
    found = aws.get_availability_zones(
        state="available",
        filters=[{"name": "opt-in-status", "values": ["opt-in-not-required"]}],
        exclude_zone_ids=list(versions.ZONES_WITHOUT_CONTROL_PLANE),
    )
    names = sorted(found.names)
    said = f"zones of {', '.join(names)}: EKS has control planes in no other zone of this account. Use those"
    unfit = [zone for zone in network.availability_zones if zone not in names]
    if unfit:
        raise SettingsError([wrong("network.availabilityZones", zone, said) for zone in unfit])
    if len(names) < network.zones:
        raise SettingsError([wrong("network.zones", network.zones, f"at most {len(names)} {said}")])
    return list(network.availability_zones) or names[: network.zones]


def existing_place(known: Plan) -> Place:
    """An existing network, looked at before anything is made.

    Raises:
        SettingsError: the subnets are not of that VPC, or lie in one zone or in one without control planes;
            names would not resolve in it; or Kubernetes' services have its addresses.
    """
    network = known.settings.network
    vpc = aws.ec2.get_vpc(id=network.vpc_id)
    subnets = [aws.ec2.get_subnet(id=name) for name in network.subnet_ids]
    problems: list[Problem] = []
    for subnet in subnets:
        if subnet.vpc_id != network.vpc_id:
            said = f"a subnet of {network.vpc_id}: it is in {subnet.vpc_id}. List subnets of that VPC only"
            problems.append(wrong("network.subnetIds", subnet.id, said))
        if subnet.availability_zone_id in versions.ZONES_WITHOUT_CONTROL_PLANE:
            said = f"none in {subnet.availability_zone_id}: EKS has no control planes there. Use others"
            problems.append(wrong("network.subnetIds", subnet.id, said))
    by_zone = {subnet.availability_zone: subnet.id for subnet in reversed(subnets)}
    if len(by_zone) < 2:
        said = (
            f"subnets of at least two zones: all are in {', '.join(by_zone)}, and EKS needs two. Add another"
        )
        problems.append(wrong("network.subnetIds", list(network.subnet_ids), said))
    if not (vpc.enable_dns_support and vpc.enable_dns_hostnames):
        said = "a VPC with DNS support and host names: EFS' name resolves in no other. Turn both on: "
        mend = "aws ec2 modify-vpc-attribute --enable-dns-hostnames, --enable-dns-support"
        problems.append(wrong("network.vpcId", network.vpc_id, said + mend))
    blocks = {vpc.cidr_block, *(part.cidr_block for part in vpc.cidr_block_associations or ())}
    problems += [
        problem for block in sorted(blocks) for problem in checks.service_problems(known.settings, block)
    ]
    if problems:
        raise SettingsError(problems)
    return Place(network.vpc_id, dict(sorted(by_zone.items())), list(network.subnet_ids))


def own_place(context: Context, known: Plan, zones: Sequence[str]) -> Place:
    """The stack's own network."""
    settings = known.settings
    cidr, nat = settings.network.vpc_cidr, settings.network.nat
    network = Network(context, vpc_cidr=cidr, zones=zones, nat=nat, ways_out=settings.compute == "on")
    ids = network.private_subnet_ids
    return Place(network.vpc_id, dict(zip(zones, ids, strict=True)), ids, network.ready)
