"""The network of an AWS stack: its own VPC with subnets, routes, NAT gateways and endpoints, or an existing VPC."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.aws_context import AwsComponent, AwsContext, read_if_exists
from infra.aws_facts import PRIVATE_SERVICES, ZONES_WITHOUT_CONTROL_PLANE
from infra.dns_zone import private_zone_name
from infra.settings import Problem, Settings, SettingsError


@dataclass(frozen=True)
class SelectedNetwork:
    """The network in which the cluster is built: the stack's own VPC, or an existing one.

    Attributes:
        subnets: zone → id of the zone's private subnet. Nodes and the zone's mount target are created in this subnet
            (EFS allows one mount target in a zone).
        cluster_subnets: ids of the subnets of the control plane.
        ready: resources that must exist before the nodes (routes, route tables of the subnets, NAT gateways,
            endpoints).
    """

    vpc_id: pulumi.Input[str]
    subnets: Mapping[str, pulumi.Input[str]]
    cluster_subnets: Sequence[pulumi.Input[str]]
    ready: Sequence[pulumi.Resource] = ()


def select_zones(settings: Settings) -> list[str]:
    """Return the names of the availability zones in which the stack has subnets.

    These are the zones in `network.availabilityZones`. If that setting is empty, they are the first `network.zones`
    zones of the region in alphabetical order.

    Raises:
        SettingsError: the region has fewer zones than `network.zones`, or EKS does not support a zone that is listed.
    """
    network = settings.network
    # Local zones and wavelength zones require an opt-in; EKS control planes support none of them.
    found = aws.get_availability_zones(
        state="available",
        filters=[{"name": "opt-in-status", "values": ["opt-in-not-required"]}],
        exclude_zone_ids=list(ZONES_WITHOUT_CONTROL_PLANE),
    )
    names = sorted(found.names)
    listed = ", ".join(names)
    why = "EKS supports control planes in no other zone of this account"
    text = f"zones of {listed}: {why}. Fix: use zones of {listed}"
    key, chosen = "network.availabilityZones", network.availability_zones
    if problems := [settings.problem(key, text, zone) for zone in chosen if zone not in names]:
        raise SettingsError(problems)
    if len(names) < network.zones:
        fix = f"set network.zones to at most {len(names)}, or use another region"
        text = f"at most {len(names)} (zones {listed}): {why}. Fix: {fix}"
        raise SettingsError([settings.problem("network.zones", text)])
    return list(chosen) or names[: network.zones]


def check_existing_network(context: AwsContext) -> SelectedNetwork:
    """Read the network of `network.vpcId` and `network.subnetIds` from AWS, check it, and return it.

    Raises:
        SettingsError: a subnet belongs to another VPC or to a zone without control planes; all subnets are in one zone;
            DNS is off in the VPC; the network of Kubernetes Services overlaps the VPC; or the VPC already has a private
            DNS zone with the name of the stack's zone, and this zone does not belong to the stack.
    """
    settings, ids = context.settings, "network.subnetIds"
    network = settings.network
    vpc = aws.ec2.get_vpc(id=network.vpc_id)
    subnets = [aws.ec2.get_subnet(id=name) for name in network.subnet_ids]
    problems: list[Problem] = []
    for subnet in subnets:
        if subnet.vpc_id != network.vpc_id:
            limit, why = f"a subnet of {network.vpc_id}", f"it belongs to {subnet.vpc_id}"
            text = f"{limit}: {why}. Fix: list only subnets of that VPC"
            problems.append(settings.problem(ids, text, subnet.id))
        if subnet.availability_zone_id in ZONES_WITHOUT_CONTROL_PLANE:
            limit, why = f"no subnet in zone {subnet.availability_zone_id}", "EKS has no control planes there"
            text = f"{limit}: {why}. Fix: use subnets of other zones"
            problems.append(settings.problem(ids, text, subnet.id))
    by_zone = {subnet.availability_zone: subnet.id for subnet in reversed(subnets)}
    if len(by_zone) < 2:
        why = f"EKS requires two zones, and all subnets are in {', '.join(by_zone)}"
        text = f"subnets of at least two zones: {why}. Fix: add a subnet of another zone"
        problems.append(settings.problem(ids, text))
    if not (vpc.enable_dns_support and vpc.enable_dns_hostnames):
        limit = "a VPC with DNS support and DNS host names"
        why = "the name of the file system does not resolve without them"
        fix = "turn both on: aws ec2 modify-vpc-attribute --enable-dns-hostnames, --enable-dns-support"
        problems.append(settings.problem("network.vpcId", f"{limit}: {why}. Fix: {fix}"))
    for block in sorted({vpc.cidr_block, *(part.cidr_block for part in vpc.cidr_block_associations or ())}):
        problems += network.service_network_problems("paddle-training:network.serviceCidr", block)
    name = private_zone_name(context)
    zone = read_if_exists(
        lambda name: aws.route53.get_zone(name=name, private_zone=True, vpc_id=network.vpc_id), name
    )
    if zone is not None and not context.stack_tags.items() <= zone.tags.items():
        limit = "a name that no other private zone of the VPC has"
        why = f"{network.vpc_id} has the private zone {zone.zone_id} of this name, which is not this stack's"
        text = f"{limit}: {why}. Fix: use for example {context.prefix}.{name}"
        problems.append(settings.problem("dns.zone", text, name))
    if problems:
        raise SettingsError(problems)
    return SelectedNetwork(network.vpc_id, dict(sorted(by_zone.items())), list(network.subnet_ids))


def plan_subnets(vpc_cidr: str, zones: int) -> list[tuple[str, str]]:
    """Return the private and the public subnet of each zone, both as CIDR blocks.

    The block of the VPC is split into eight parts. The first parts are the private subnets, one for each zone. The last
    part is split into eight again for the public subnets, which hold only NAT gateways and load balancers. So
    10.0.0.0/16 has private /19s (8,187 usable addresses) and public /22s.

    The subnets of a zone do not depend on the number of zones: a third zone can be added later without changing the
    first two. settings.py rejects a VPC whose size is not between LARGEST_VPC and SMALLEST_VPC, and more than three
    zones.
    """
    blocks = list(ipaddress.IPv4Network(vpc_cidr).subnets(prefixlen_diff=3))
    publics = list(blocks[-1].subnets(prefixlen_diff=3))
    return [(str(blocks[zone]), str(publics[zone])) for zone in range(zones)]


class VpcNetwork(AwsComponent):
    """paddle:infra:Network: the VPC with a public and a private subnet in each zone.

    `selected` has the ids that other components need. With `compute: off`, there are no NAT gateways or interface
    endpoints, because they cost money by the hour.
    """

    def __init__(self, context: AwsContext, zones: Sequence[str]) -> None:
        super().__init__("paddle:infra:Network", context, "network")
        vpc_cidr, nat = context.settings.network.vpc_cidr, context.settings.network.nat
        self._zones, self._nat = zones, nat
        # The name of the file system and private zones resolve only with both of these.
        self._vpc = aws.ec2.Vpc(
            context.named("vpc"),
            cidr_block=vpc_cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            opts=self.child,
        )
        gateway = aws.ec2.InternetGateway(context.named("internet"), vpc_id=self._vpc.id, opts=self.child)
        public_table = self._route_table("public")
        public_route = aws.ec2.Route(
            context.named("public-out"),
            route_table_id=public_table.id,
            destination_cidr_block="0.0.0.0/0",
            gateway_id=gateway.id,
            opts=self.child,
        )
        # Created before the nodes, and removed after them.
        ready: list[pulumi.Resource] = []
        blocks = plan_subnets(vpc_cidr, len(zones))
        self._publics: list[aws.ec2.Subnet] = []
        self._privates: list[aws.ec2.Subnet] = []
        self._tables: list[aws.ec2.RouteTable] = []
        for zone, (private_block, public_block) in zip(zones, blocks, strict=True):
            public = self._subnet(f"public-{zone}", zone, public_block, "kubernetes.io/role/elb")
            private = self._subnet(f"private-{zone}", zone, private_block, "kubernetes.io/role/internal-elb")
            table = self._route_table(f"private-{zone}")
            ready.append(self._associate(f"public-{zone}", public, public_table))
            ready.append(self._associate(f"private-{zone}", private, table))
            self._publics.append(public)
            self._privates.append(private)
            self._tables.append(table)
        # The layers of images come from S3. This endpoint is free and keeps most traffic off the NAT.
        ready.append(
            aws.ec2.VpcEndpoint(
                context.named("s3"),
                vpc_id=self._vpc.id,
                service_name=f"com.amazonaws.{context.settings.region}.s3",
                vpc_endpoint_type="Gateway",
                route_table_ids=[table.id for table in self._tables],
                opts=self.child,
            )
        )
        if context.settings.compute == "on":
            ready += self._endpoints(vpc_cidr) if nat == "none" else self._nat_gateways(public_route)
        ids = [subnet.id for subnet in self._privates]
        self.selected = SelectedNetwork(self._vpc.id, dict(zip(zones, ids, strict=True)), ids, ready)
        self.register_outputs({"vpcId": self._vpc.id})

    def _subnet(self, part: str, zone: str, block: str, role_tag: str) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            self.context.named(part),
            vpc_id=self._vpc.id,
            cidr_block=block,
            availability_zone=zone,
            map_public_ip_on_launch=False,
            tags={role_tag: "1"},
            opts=self.child,
        )

    def _route_table(self, part: str) -> aws.ec2.RouteTable:
        return aws.ec2.RouteTable(self.context.named(part), vpc_id=self._vpc.id, opts=self.child)

    def _associate(
        self, part: str, subnet: aws.ec2.Subnet, table: aws.ec2.RouteTable
    ) -> aws.ec2.RouteTableAssociation:
        return aws.ec2.RouteTableAssociation(
            self.context.named(part), subnet_id=subnet.id, route_table_id=table.id, opts=self.child
        )

    def _nat_gateways(self, public_route: aws.ec2.Route) -> list[pulumi.Resource]:
        """Create one NAT gateway, or with `network.nat: per-az` one for each zone.

        Return the default routes of the private subnets, which lead to these NAT gateways. The gateways are created
        after `public_route` and removed before it.
        """
        gateways: list[aws.ec2.NatGateway] = []
        routes: list[pulumi.Resource] = []
        # A NAT gateway requires the public route, and must be removed before it.
        after = pulumi.ResourceOptions(parent=self, depends_on=[public_route])
        for index, (zone, table) in enumerate(zip(self._zones, self._tables, strict=True)):
            if index == 0 or self._nat == "per-az":
                name = self.context.named(f"nat-{zone}")
                address = aws.ec2.Eip(name, domain="vpc", opts=after)
                gateways.append(
                    aws.ec2.NatGateway(
                        name, subnet_id=self._publics[index].id, allocation_id=address.id, opts=after
                    )
                )
            routes.append(
                aws.ec2.Route(
                    self.context.named(f"private-{zone}-out"),
                    route_table_id=table.id,
                    destination_cidr_block="0.0.0.0/0",
                    nat_gateway_id=gateways[-1].id,
                    opts=self.child,
                )
            )
        return routes

    def _endpoints(self, vpc_cidr: str) -> list[pulumi.Resource]:
        """Create and return an interface endpoint for each service in PRIVATE_SERVICES, reachable from `vpc_cidr`."""
        group = aws.ec2.SecurityGroup(
            self.context.named("endpoints"),
            vpc_id=self._vpc.id,
            description="HTTPS from the network to the AWS endpoints",
            opts=self.child,
        )
        aws.vpc.SecurityGroupIngressRule(
            self.context.named("endpoints-https"),
            security_group_id=group.id,
            cidr_ipv4=vpc_cidr,
            ip_protocol="tcp",
            from_port=443,
            to_port=443,
            description="HTTPS from the network",
            opts=self.child,
        )
        return [
            aws.ec2.VpcEndpoint(
                self.context.named(f"to-{service.replace('.', '-')}"),
                vpc_id=self._vpc.id,
                service_name=f"com.amazonaws.{self.context.settings.region}.{service}",
                vpc_endpoint_type="Interface",
                subnet_ids=[subnet.id for subnet in self._privates],
                security_group_ids=[group.id],
                private_dns_enabled=True,
                opts=self.child,
            )
            for service in PRIVATE_SERVICES
        ]
