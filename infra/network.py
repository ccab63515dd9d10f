"""VPC, subnets, routes and endpoints; or an existing network. Addresses are computed in `cidr.py`."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from infra import cidr, versions
from infra.context import Context


class Network(pulumi.ComponentResource):
    """paddle:infra:Network: what the stack's machines live in.

    `zones` are the names of the availability zones. `ways_out` is false while compute is off: nothing to pay.
    """

    vpc_id: pulumi.Output[str]
    private_subnet_ids: list[pulumi.Output[str]]

    def __init__(
        self, context: Context, *, vpc_cidr: str, zones: Sequence[str], nat: str, ways_out: bool
    ) -> None:
        super().__init__("paddle:infra:Network", context.named("network"))
        self._context, self._zones, self._nat = context, zones, nat
        self._own = pulumi.ResourceOptions(parent=self)
        # EFS names and private zones resolve only with both of these.
        self._vpc = aws.ec2.Vpc(
            context.named("vpc"),
            cidr_block=vpc_cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=context.tagged("vpc"),
            opts=self._own,
        )
        gateway = aws.ec2.InternetGateway(
            context.named("internet"), vpc_id=self._vpc.id, tags=context.tagged("internet"), opts=self._own
        )
        public_table = self._table("public")
        way = aws.ec2.Route(
            context.named("public-out"),
            route_table_id=public_table.id,
            destination_cidr_block="0.0.0.0/0",
            gateway_id=gateway.id,
            opts=self._own,
        )
        plans = cidr.plan(vpc_cidr, len(zones))
        self._publics: list[aws.ec2.Subnet] = []
        self._privates: list[aws.ec2.Subnet] = []
        self._tables: list[aws.ec2.RouteTable] = []
        for zone, plan in zip(zones, plans, strict=True):
            public = self._subnet(f"public-{zone}", zone, plan.public, "kubernetes.io/role/elb")
            private = self._subnet(f"private-{zone}", zone, plan.private, "kubernetes.io/role/internal-elb")
            table = self._table(f"private-{zone}")
            self._associate(f"public-{zone}", public, public_table)
            self._associate(f"private-{zone}", private, table)
            self._publics.append(public)
            self._privates.append(private)
            self._tables.append(table)
        # Images of the registry come out of S3, so this keeps most traffic off the NAT, and it is free.
        aws.ec2.VpcEndpoint(
            context.named("s3"),
            vpc_id=self._vpc.id,
            service_name=f"com.amazonaws.{context.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[table.id for table in self._tables],
            tags=context.tagged("s3"),
            opts=self._own,
        )
        # What nodes must not start before, and what must outlive them.
        self.ready: list[pulumi.Resource] = []
        if ways_out:
            self.ready += self._endpoints(vpc_cidr) if nat == "none" else self._gateways(way)
        self.vpc_id = self._vpc.id
        self.private_subnet_ids = [subnet.id for subnet in self._privates]
        self.register_outputs({"vpcId": self.vpc_id})

    def _subnet(self, part: str, zone: str, block: str, role: str) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            self._context.named(part),
            vpc_id=self._vpc.id,
            cidr_block=block,
            availability_zone=zone,
            map_public_ip_on_launch=False,
            tags={**self._context.tagged(part), role: "1"},
            opts=self._own,
        )

    def _table(self, part: str) -> aws.ec2.RouteTable:
        return aws.ec2.RouteTable(
            self._context.named(part), vpc_id=self._vpc.id, tags=self._context.tagged(part), opts=self._own
        )

    def _associate(self, part: str, subnet: aws.ec2.Subnet, table: aws.ec2.RouteTable) -> None:
        aws.ec2.RouteTableAssociation(
            self._context.named(part), subnet_id=subnet.id, route_table_id=table.id, opts=self._own
        )

    def _gateways(self, way: aws.ec2.Route) -> list[pulumi.Resource]:
        made: list[aws.ec2.NatGateway] = []
        routes: list[pulumi.Resource] = []
        # A NAT gateway needs the public way out first, and must be gone before it.
        after = pulumi.ResourceOptions(parent=self, depends_on=[way])
        for index, (zone, table) in enumerate(zip(self._zones, self._tables, strict=True)):
            if index == 0 or self._nat == "per-az":
                part = f"nat-{zone}"
                address = aws.ec2.Eip(
                    self._context.named(part), domain="vpc", tags=self._context.tagged(part), opts=after
                )
                made.append(
                    aws.ec2.NatGateway(
                        self._context.named(part),
                        subnet_id=self._publics[index].id,
                        allocation_id=address.id,
                        tags=self._context.tagged(part),
                        opts=after,
                    )
                )
            routes.append(
                aws.ec2.Route(
                    self._context.named(f"private-{zone}-out"),
                    route_table_id=table.id,
                    destination_cidr_block="0.0.0.0/0",
                    nat_gateway_id=made[-1].id,
                    opts=self._own,
                )
            )
        return routes

    def _endpoints(self, vpc_cidr: str) -> list[pulumi.Resource]:
        group = aws.ec2.SecurityGroup(
            self._context.named("endpoints"),
            vpc_id=self._vpc.id,
            description="HTTPS from the network to the AWS endpoints",
            tags=self._context.tagged("endpoints"),
            opts=self._own,
        )
        aws.vpc.SecurityGroupIngressRule(
            self._context.named("endpoints-https"),
            security_group_id=group.id,
            cidr_ipv4=vpc_cidr,
            ip_protocol="tcp",
            from_port=versions.HTTPS_PORT,
            to_port=versions.HTTPS_PORT,
            description="HTTPS from the network",
            tags=self._context.tagged("endpoints-https"),
            opts=self._own,
        )
        made: list[pulumi.Resource] = []
        for service in versions.PRIVATE_SERVICES:
            part = f"to-{service.replace('.', '-')}"
            made.append(
                aws.ec2.VpcEndpoint(
                    self._context.named(part),
                    vpc_id=self._vpc.id,
                    service_name=f"com.amazonaws.{self._context.region}.{service}",
                    vpc_endpoint_type="Interface",
                    subnet_ids=[subnet.id for subnet in self._privates],
                    security_group_ids=[group.id],
                    private_dns_enabled=True,
                    tags=self._context.tagged(part),
                    opts=self._own,
                )
            )
        return made
