"""Handlers of the VPC and its resources, with moto."""

from __future__ import annotations

from typing import Any

from testkit.aws_emulator.handler import (
    AwsError,
    Handler,
    MotoCloud,
    digest,
    pick_arguments,
    register_handler,
    tag_changes,
    tag_list,
    tag_map,
)
from testkit.aws_emulator.property_values import Props


class Ec2Handler(Handler):
    """Base class of EC2 handlers: tags by the common calls, and an ARN `…:<kind>/<id>`."""

    kind = ""

    def ec2(self, cloud: MotoCloud) -> Any:
        return cloud.client("ec2")

    def created(
        self, cloud: MotoCloud, rid: str, p: Props, outputs: Props | None = None
    ) -> tuple[str, Props]:
        if p.get("tags"):
            self.ec2(cloud).create_tags(Resources=[rid], Tags=tag_list(p["tags"]))
        arn = {"arn": cloud.arn("ec2", f"{self.kind}/{rid}"), "ownerId": cloud.account.number}
        return rid, arn | (outputs or {})

    def present_inputs(self, found: Props, **values: Any) -> Props:
        return {"tags": tag_map(found.get("Tags")), **values}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        added, removed = tag_changes(old, new)
        if added:
            self.ec2(cloud).create_tags(Resources=[rid], Tags=tag_list(added))
        if removed:
            self.ec2(cloud).delete_tags(Resources=[rid], Tags=[{"Key": key} for key in removed])
        return {}


@register_handler("aws:ec2/vpc:Vpc")
class Vpc(Ec2Handler):
    kind = "vpc"
    filled = ("instanceTenancy", "enableDnsSupport", "enableDnsHostnames", "enableNetworkAddressUsageMetrics")
    _flags = (("EnableDnsSupport", "enableDnsSupport"), ("EnableDnsHostnames", "enableDnsHostnames"))

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        ec2 = self.ec2(cloud)
        vpc = ec2.create_vpc(**pick_arguments(p, CidrBlock="cidrBlock", InstanceTenancy="instanceTenancy"))[
            "Vpc"
        ]
        rid = vpc["VpcId"]
        self._set_flags(cloud, rid, {"enableDnsSupport": True, "enableDnsHostnames": False} | p)
        here = [{"Name": "vpc-id", "Values": [rid]}]
        table = ec2.describe_route_tables(Filters=here)["RouteTables"][0]["RouteTableId"]
        outputs = {
            "instanceTenancy": p.get("instanceTenancy", "default"),
            "enableDnsSupport": p.get("enableDnsSupport", True),
            "enableDnsHostnames": p.get("enableDnsHostnames", False),
            "mainRouteTableId": table,
            "defaultRouteTableId": table,
            "defaultSecurityGroupId": ec2.describe_security_groups(Filters=here)["SecurityGroups"][0][
                "GroupId"
            ],
            "defaultNetworkAclId": ec2.describe_network_acls(Filters=here)["NetworkAcls"][0]["NetworkAclId"],
            "dhcpOptionsId": vpc.get("DhcpOptionsId", "default"),
        }
        return self.created(cloud, rid, p, outputs)

    def _set_flags(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        for call, name in self._flags:
            if name in p:
                self.ec2(cloud).modify_vpc_attribute(VpcId=rid, **{call: {"Value": p[name]}})

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        vpc = self.ec2(cloud).describe_vpcs(VpcIds=[rid])["Vpcs"][0]
        flags = {}
        for call, name in self._flags:
            answer = self.ec2(cloud).describe_vpc_attribute(VpcId=rid, Attribute=name)
            flags[name] = answer[call]["Value"]
        return self.present_inputs(vpc, cidrBlock=vpc["CidrBlock"], **flags)

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        self._set_flags(cloud, rid, new)
        return super().update(cloud, rid, old, new)

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.ec2(cloud).delete_vpc(VpcId=rid)

    def owned(self, outputs: Props) -> list[str]:
        return [outputs.get("mainRouteTableId", ""), outputs.get("defaultSecurityGroupId", "")]


@register_handler("aws:ec2/subnet:Subnet")
class Subnet(Ec2Handler):
    kind = "subnet"
    filled = ("availabilityZone", "availabilityZoneId", "mapPublicIpOnLaunch")

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(p, VpcId="vpcId", CidrBlock="cidrBlock", AvailabilityZone="availabilityZone")
        subnet = self.ec2(cloud).create_subnet(**wanted)["Subnet"]
        rid = subnet["SubnetId"]
        self._set(cloud, rid, p)
        outputs = {
            "availabilityZone": subnet["AvailabilityZone"],
            "availabilityZoneId": subnet["AvailabilityZoneId"],
            "mapPublicIpOnLaunch": p.get("mapPublicIpOnLaunch", False),
        }
        return self.created(cloud, rid, p, outputs)

    def _set(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        if "mapPublicIpOnLaunch" in p:
            value = {"Value": p["mapPublicIpOnLaunch"]}
            self.ec2(cloud).modify_subnet_attribute(SubnetId=rid, MapPublicIpOnLaunch=value)

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        subnet = self.ec2(cloud).describe_subnets(SubnetIds=[rid])["Subnets"][0]
        return self.present_inputs(
            subnet,
            vpcId=subnet["VpcId"],
            cidrBlock=subnet["CidrBlock"],
            availabilityZone=subnet["AvailabilityZone"],
            mapPublicIpOnLaunch=subnet["MapPublicIpOnLaunch"],
        )

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        self._set(cloud, rid, new)
        return super().update(cloud, rid, old, new)

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.ec2(cloud).delete_subnet(SubnetId=rid)


@register_handler("aws:ec2/internetGateway:InternetGateway")
class InternetGateway(Ec2Handler):
    kind = "internet-gateway"

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        rid = self.ec2(cloud).create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        if p.get("vpcId"):
            self.ec2(cloud).attach_internet_gateway(InternetGatewayId=rid, VpcId=p["vpcId"])
        return self.created(cloud, rid, p)

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_internet_gateways(InternetGatewayIds=[rid])["InternetGateways"][0]
        attached = [attachment["VpcId"] for attachment in found.get("Attachments", [])]
        return self.present_inputs(found, **({"vpcId": attached[0]} if attached else {}))

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        if old.get("vpcId") != new.get("vpcId"):
            self.ec2(cloud).detach_internet_gateway(InternetGatewayId=rid, VpcId=old["vpcId"])
            self.ec2(cloud).attach_internet_gateway(InternetGatewayId=rid, VpcId=new["vpcId"])
        return super().update(cloud, rid, old, new)

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        if p.get("vpcId"):
            self.ec2(cloud).detach_internet_gateway(InternetGatewayId=rid, VpcId=p["vpcId"])
        self.ec2(cloud).delete_internet_gateway(InternetGatewayId=rid)


@register_handler("aws:ec2/eip:Eip")
class Eip(Ec2Handler):
    kind = "elastic-ip"
    filled = ("domain",)

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        address = self.ec2(cloud).allocate_address(Domain=p.get("domain", "vpc"))
        outputs = {"publicIp": address["PublicIp"], "allocationId": address["AllocationId"], "domain": "vpc"}
        return self.created(cloud, address["AllocationId"], p, outputs)

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        return self.present_inputs(self.ec2(cloud).describe_addresses(AllocationIds=[rid])["Addresses"][0])

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.ec2(cloud).release_address(AllocationId=rid)


@register_handler("aws:ec2/natGateway:NatGateway")
class NatGateway(Ec2Handler):
    kind = "natgateway"
    filled = ("connectivityType", "privateIp", "availabilityMode")

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(
            p, SubnetId="subnetId", AllocationId="allocationId", ConnectivityType="connectivityType"
        )
        nat = self.ec2(cloud).create_nat_gateway(**wanted)["NatGateway"]
        address = (nat.get("NatGatewayAddresses") or [{}])[0]
        outputs = {
            "connectivityType": p.get("connectivityType", "public"),
            "publicIp": address.get("PublicIp", ""),
            "privateIp": address.get("PrivateIp", ""),
            "networkInterfaceId": address.get("NetworkInterfaceId", ""),
        }
        return self.created(cloud, nat["NatGatewayId"], p, outputs)

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_nat_gateways(NatGatewayIds=[rid])["NatGateways"]
        living = [nat for nat in found if nat["State"] not in ("deleting", "deleted")]
        return self.present_inputs(living[0]) if living else None

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        ec2 = self.ec2(cloud)
        nat = ec2.describe_nat_gateways(NatGatewayIds=[rid])["NatGateways"][0]
        ec2.delete_nat_gateway(NatGatewayId=rid)
        for address in nat.get("NatGatewayAddresses", []):
            # AWS deletes the gateway's network interface; moto keeps it.
            if address.get("NetworkInterfaceId"):
                ec2.delete_network_interface(NetworkInterfaceId=address["NetworkInterfaceId"])


@register_handler("aws:ec2/routeTable:RouteTable")
class RouteTable(Ec2Handler):
    kind = "route-table"
    filled = ("routes", "propagatingVgws")

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        rid = self.ec2(cloud).create_route_table(VpcId=p["vpcId"])["RouteTable"]["RouteTableId"]
        for route in p.get("routes") or []:
            self.ec2(cloud).create_route(RouteTableId=rid, **_route(route, "cidrBlock"))
        return self.created(cloud, rid, p, {"routes": p.get("routes") or []})

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        for route in old.get("routes") or []:
            if route not in (new.get("routes") or []):
                self.ec2(cloud).delete_route(RouteTableId=rid, DestinationCidrBlock=route["cidrBlock"])
        for route in new.get("routes") or []:
            if route not in (old.get("routes") or []):
                self.ec2(cloud).create_route(RouteTableId=rid, **_route(route, "cidrBlock"))
        return super().update(cloud, rid, old, new)

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_route_tables(RouteTableIds=[rid])["RouteTables"][0]
        return self.present_inputs(found, vpcId=found["VpcId"])

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.ec2(cloud).delete_route_table(RouteTableId=rid)


def _route(p: Props, destination: str) -> Props:
    return pick_arguments(
        p,
        DestinationCidrBlock=destination,
        GatewayId="gatewayId",
        NatGatewayId="natGatewayId",
        NetworkInterfaceId="networkInterfaceId",
        VpcPeeringConnectionId="vpcPeeringConnectionId",
    )


@register_handler("aws:ec2/route:Route")
class Route(Ec2Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        table, destination = p["routeTableId"], p.get("destinationCidrBlock", "")
        if self._find(cloud, table, destination):
            raise AwsError(f"RouteAlreadyExists: the route {destination} already exists in {table}")
        self.ec2(cloud).create_route(RouteTableId=table, **_route(p, "destinationCidrBlock"))
        return f"r-{table}{digest(destination)[:10]}", {"origin": "CreateRoute", "state": "active"}

    def _find(self, cloud: MotoCloud, table: str, destination: str) -> Props | None:
        routes = self.ec2(cloud).describe_route_tables(RouteTableIds=[table])["RouteTables"][0]["Routes"]
        return next((route for route in routes if route.get("DestinationCidrBlock") == destination), None)

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        return {} if self._find(cloud, p["routeTableId"], p.get("destinationCidrBlock", "")) else None

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        self.ec2(cloud).replace_route(RouteTableId=new["routeTableId"], **_route(new, "destinationCidrBlock"))
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        cidr = p["destinationCidrBlock"]
        self.ec2(cloud).delete_route(RouteTableId=p["routeTableId"], DestinationCidrBlock=cidr)


@register_handler("aws:ec2/routeTableAssociation:RouteTableAssociation")
class RouteTableAssociation(Ec2Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(p, RouteTableId="routeTableId", SubnetId="subnetId", GatewayId="gatewayId")
        return self.ec2(cloud).associate_route_table(**wanted)["AssociationId"], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        tables = self.ec2(cloud).describe_route_tables(RouteTableIds=[p["routeTableId"]])["RouteTables"]
        known = [a["RouteTableAssociationId"] for table in tables for a in table["Associations"]]
        return {} if rid in known else None

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.ec2(cloud).disassociate_route_table(AssociationId=rid)


@register_handler("aws:ec2/vpcEndpoint:VpcEndpoint")
class VpcEndpoint(Ec2Handler):
    kind = "vpc-endpoint"
    filled = (
        "vpcEndpointType",
        "policy",
        "routeTableIds",
        "subnetIds",
        "securityGroupIds",
        "privateDnsEnabled",
        "ipAddressType",
        "dnsOptions",
        "subnetConfigurations",
    )
    _lists = (
        ("RouteTableIds", "routeTableIds"),
        ("SubnetIds", "subnetIds"),
        ("SecurityGroupIds", "securityGroupIds"),
    )

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(
            p,
            VpcId="vpcId",
            ServiceName="serviceName",
            VpcEndpointType="vpcEndpointType",
            PolicyDocument="policy",
            PrivateDnsEnabled="privateDnsEnabled",
        )
        wanted = {"VpcEndpointType": "Gateway"} | wanted
        wanted |= {call: p[name] for call, name in self._lists if p.get(name)}
        endpoint = self.ec2(cloud).create_vpc_endpoint(**wanted)["VpcEndpoint"]
        rid = endpoint["VpcEndpointId"]
        outputs = {
            "vpcEndpointType": p.get("vpcEndpointType", "Gateway"),
            "state": "available",
            "prefixListId": f"pl-{digest(p['serviceName'])[:8]}",
            "cidrBlocks": [],
            "networkInterfaceIds": endpoint.get("NetworkInterfaceIds", []),
            "dnsEntries": [],
            "requesterManaged": False,
        }
        return self.created(cloud, rid, p, outputs)

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_vpc_endpoints(VpcEndpointIds=[rid])["VpcEndpoints"]
        living = [endpoint for endpoint in found if endpoint["State"].lower() not in ("deleting", "deleted")]
        return self.present_inputs(living[0]) if living else None

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        change: Props = pick_arguments(new, PolicyDocument="policy")
        for call, name in self._lists:
            before, after = set(old.get(name) or []), set(new.get(name) or [])
            change |= {f"Add{call}": sorted(after - before)} if after - before else {}
            change |= {f"Remove{call}": sorted(before - after)} if before - after else {}
        if change:
            self.ec2(cloud).modify_vpc_endpoint(VpcEndpointId=rid, **change)
        return super().update(cloud, rid, old, new)

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.ec2(cloud).delete_vpc_endpoints(VpcEndpointIds=[rid])
