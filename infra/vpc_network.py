"""The stack's own VPC: subnets, routes, NAT gateways and endpoints. `cidr.py` calculates the addresses."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from infra import cidr, constants
from infra.aws_context import AwsComponent, AwsContext
from infra.network_selection import SelectedNetwork
from infra.settings import NetworkSettings


class VpcNetwork(AwsComponent):
    """paddle:infra:Network: the VPC with a public and a private subnet in each zone; `selected` describes it.

    Without `internet_access` (while compute is off), there are no NAT gateways or interface endpoints, because they
    cost money by the hour.
    """

    def __init__(
        self, context: AwsContext, settings: NetworkSettings, *, zones: Sequence[str], internet_access: bool
    ) -> None:
        super().__init__("paddle:infra:Network", context, "network")
        vpc_cidr, nat = settings.vpc_cidr, settings.nat
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
        plans = cidr.plan_subnets(vpc_cidr, len(zones))
        self._publics: list[aws.ec2.Subnet] = []
        self._privates: list[aws.ec2.Subnet] = []
        self._tables: list[aws.ec2.RouteTable] = []
        for zone, plan in zip(zones, plans, strict=True):
            public = self._subnet(f"public-{zone}", zone, plan.public, "kubernetes.io/role/elb")
            private = self._subnet(f"private-{zone}", zone, plan.private, "kubernetes.io/role/internal-elb")
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
                service_name=f"com.amazonaws.{context.region}.s3",
                vpc_endpoint_type="Gateway",
                route_table_ids=[table.id for table in self._tables],
                opts=self.child,
            )
        )
        if internet_access:
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
        """Create one NAT gateway (nat per-az: one for each zone); return the private subnets' default routes."""
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
        """Create and return an interface endpoint for each of PRIVATE_SERVICES, reachable from `vpc_cidr`."""
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
            from_port=constants.HTTPS_PORT,
            to_port=constants.HTTPS_PORT,
            description="HTTPS from the network",
            opts=self.child,
        )
        return [
            aws.ec2.VpcEndpoint(
                self.context.named(f"to-{service.replace('.', '-')}"),
                vpc_id=self._vpc.id,
                service_name=f"com.amazonaws.{self.context.region}.{service}",
                vpc_endpoint_type="Interface",
                subnet_ids=[subnet.id for subnet in self._privates],
                security_group_ids=[group.id],
                private_dns_enabled=True,
                opts=self.child,
            )
            for service in constants.PRIVATE_SERVICES
        ]
