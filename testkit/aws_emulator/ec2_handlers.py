"""Handlers of EC2: the VPC and its resources, security groups, launch templates and instances, with moto."""

from __future__ import annotations

from typing import Any, ClassVar

from botocore import xform_name

from testkit.aws_emulator.account import AwsError
from testkit.aws_emulator.handler import (
    Handler,
    MotoCloud,
    digest,
    pick_arguments,
    register_handler,
    tag_list,
    tag_map,
)
from testkit.aws_emulator.property_values import Props


def _ec2(cloud: MotoCloud) -> Any:
    return cloud.client("ec2")


class Ec2Handler(Handler):
    """A resource with the calls Create<noun>, Describe<noun>s and Delete<noun>.

    `arguments` maps the arguments of the first call to inputs; the second call returns fields of the same names.
    """

    noun: ClassVar[str] = ""
    id_field: ClassVar[str] = ""
    arguments: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        cls.id_field = cls.__dict__.get("id_field", f"{cls.noun}Id")

    def call(self, cloud: MotoCloud, operation: str, **arguments: Any) -> Any:
        """Return the response to an operation of EC2, such as `CreateVpc`."""
        return getattr(_ec2(cloud), xform_name(operation))(**arguments)

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        made = self.call(cloud, f"Create{self.noun}", **pick_arguments(p, **self.arguments))[self.noun]
        return made[self.id_field], {}

    def described(self, cloud: MotoCloud, rid: str) -> Props:
        """Return what EC2 says about the resource."""
        found = self.call(cloud, f"Describe{self.noun}s", **{f"{self.id_field}s": [rid]})
        described: Props = found[f"{self.noun}s"][0]
        return described

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.described(cloud, rid)
        if str(found.get("State")).lower() in ("deleting", "deleted"):
            return None
        seen = {name: found[field] for field, name in self.arguments.items() if field in found}
        return {"tags": tag_map(found.get("Tags"))} | seen

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.call(cloud, f"Delete{self.noun}", **{self.id_field: rid})

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        _ec2(cloud).create_tags(Resources=[rid], Tags=tag_list(tags))

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        _ec2(cloud).delete_tags(Resources=[rid], Tags=[{"Key": key} for key in keys])


@register_handler("aws:ec2/vpc:Vpc")
class Vpc(Ec2Handler):
    noun, arguments = "Vpc", {"CidrBlock": "cidrBlock"}
    _flags = (("EnableDnsSupport", "enableDnsSupport"), ("EnableDnsHostnames", "enableDnsHostnames"))

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        rid, _ = super().create(cloud, p)
        self.update(cloud, rid, {}, {"enableDnsSupport": True, "enableDnsHostnames": False} | p)
        return rid, {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        seen = super().read(cloud, rid, p) or {}
        for field, name in self._flags:
            seen[name] = _ec2(cloud).describe_vpc_attribute(VpcId=rid, Attribute=name)[field]["Value"]
        return seen

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        for field, name in self._flags:
            if name in new:
                _ec2(cloud).modify_vpc_attribute(VpcId=rid, **{field: {"Value": new[name]}})
        return {}


@register_handler("aws:ec2/natGateway:NatGateway")
class NatGateway(Ec2Handler):
    noun, arguments = "NatGateway", {"SubnetId": "subnetId", "AllocationId": "allocationId"}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        addresses = self.described(cloud, rid)["NatGatewayAddresses"]
        super().delete(cloud, rid, p)
        for address in addresses:
            # AWS deletes the gateway's network interface; moto keeps it.
            _ec2(cloud).delete_network_interface(NetworkInterfaceId=address["NetworkInterfaceId"])


@register_handler("aws:ec2/route:Route")
class Route(Handler):
    arguments: ClassVar = {
        "RouteTableId": "routeTableId",
        "DestinationCidrBlock": "destinationCidrBlock",
        "GatewayId": "gatewayId",
        "NatGatewayId": "natGatewayId",
    }

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        table, destination = p["routeTableId"], p["destinationCidrBlock"]
        if self.read(cloud, "", p) is not None:
            raise AwsError(f"RouteAlreadyExists: the route {destination} already exists in {table}")
        _ec2(cloud).create_route(**pick_arguments(p, **self.arguments))
        return f"r-{table}{digest(destination)[:10]}", {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        tables = _ec2(cloud).describe_route_tables(RouteTableIds=[p["routeTableId"]])["RouteTables"]
        known = [route.get("DestinationCidrBlock") for route in tables[0]["Routes"]]
        return {} if p["destinationCidrBlock"] in known else None

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        _ec2(cloud).replace_route(**pick_arguments(new, **self.arguments))
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        table, destination = p["routeTableId"], p["destinationCidrBlock"]
        _ec2(cloud).delete_route(RouteTableId=table, DestinationCidrBlock=destination)


@register_handler("aws:ec2/routeTableAssociation:RouteTableAssociation")
class RouteTableAssociation(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(p, RouteTableId="routeTableId", SubnetId="subnetId")
        return _ec2(cloud).associate_route_table(**wanted)["AssociationId"], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        tables = _ec2(cloud).describe_route_tables(RouteTableIds=[p["routeTableId"]])["RouteTables"]
        known = [a["RouteTableAssociationId"] for table in tables for a in table["Associations"]]
        return {} if rid in known else None

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        _ec2(cloud).disassociate_route_table(AssociationId=rid)


@register_handler("aws:ec2/securityGroup:SecurityGroup")
class SecurityGroup(Ec2Handler):
    noun, id_field = "SecurityGroup", "GroupId"
    arguments: ClassVar = {"GroupName": "name", "VpcId": "vpcId", "Description": "description"}

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = {"Description": "Managed by Pulumi"} | pick_arguments(p, **self.arguments)
        rid = _ec2(cloud).create_security_group(**wanted)["GroupId"]
        everything = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        # EC2 allows all egress in a new group; the provider removes that rule.
        _ec2(cloud).revoke_security_group_egress(GroupId=rid, IpPermissions=[everything])
        return rid, {}


class Rule(Handler):
    """A security-group rule, a separate resource. AWS identifies rules by their content: a change creates a new one."""

    side = "ingress"
    peer_fields = ("referencedSecurityGroupId", "cidrIpv4")

    def permission(self, p: Props) -> Props:
        """Return a security-group rule as EC2's API expects it; `p` are the inputs of the Pulumi resource."""
        permission: Props = {"IpProtocol": str(p["ipProtocol"])}
        if permission["IpProtocol"] != "-1":
            permission |= pick_arguments(p, FromPort="fromPort", ToPort="toPort")
        if p.get("referencedSecurityGroupId"):
            permission["UserIdGroupPairs"] = [{"GroupId": p["referencedSecurityGroupId"]}]
        if p.get("cidrIpv4"):
            permission["IpRanges"] = [{"CidrIp": p["cidrIpv4"]}]
        return permission

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        if not any(p.get(name) for name in self.peer_fields):
            raise AwsError("InvalidParameterValue: a rule needs one of " + ", ".join(self.peer_fields))
        authorize = getattr(_ec2(cloud), f"authorize_security_group_{self.side}")
        authorize(GroupId=p["securityGroupId"], IpPermissions=[self.permission(p)])
        rid = "sgr-" + digest(self.side, p["securityGroupId"], sorted(self.permission(p).items(), key=str))
        return rid, {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = _ec2(cloud).describe_security_groups(GroupIds=[p["securityGroupId"]])["SecurityGroups"][0]
        rules = found["IpPermissions" if self.side == "ingress" else "IpPermissionsEgress"]
        wanted = self.permission(p)
        peers = ("IpRanges", "UserIdGroupPairs")
        keys = {name: next(iter(wanted[name][0].values())) for name in peers if name in wanted}
        for rule in rules:
            ports = all(rule.get(name) == wanted.get(name) for name in ("IpProtocol", "FromPort", "ToPort"))
            if ports and all(value in str(rule.get(name)) for name, value in keys.items()):
                return {}
        return None

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        if self.permission(old) != self.permission(new):
            self.delete(cloud, rid, old)
            self.create(cloud, new)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        revoke = getattr(_ec2(cloud), f"revoke_security_group_{self.side}")
        revoke(GroupId=p["securityGroupId"], IpPermissions=[self.permission(p)])


@register_handler("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")
class IngressRule(Rule):
    side = "ingress"


@register_handler("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule")
class EgressRule(Rule):
    side = "egress"


@register_handler("aws:ec2/launchTemplate:LaunchTemplate")
class LaunchTemplate(Ec2Handler):
    noun = "LaunchTemplate"
    volatile = ("latestVersion", "defaultVersion")

    def _data(self, p: Props) -> Props:
        return pick_arguments(p, KeyName="keyName") or {
            "EbsOptimized": False
        }  # moto accepts no empty template

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        made = _ec2(cloud).create_launch_template(
            LaunchTemplateName=p["name"], LaunchTemplateData=self._data(p)
        )
        return made["LaunchTemplate"]["LaunchTemplateId"], {"latestVersion": 1, "defaultVersion": 1}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        name = self.described(cloud, rid)["LaunchTemplateName"]
        own = [{"Name": "resource-id", "Values": [rid]}]
        return {"name": name, "tags": tag_map(_ec2(cloud).describe_tags(Filters=own)["Tags"])}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        made = _ec2(cloud).create_launch_template_version(
            LaunchTemplateId=rid, LaunchTemplateData=self._data(new)
        )
        latest = made["LaunchTemplateVersion"]["VersionNumber"]
        return {"latestVersion": latest, "defaultVersion": latest if new.get("updateDefaultVersion") else 1}


@register_handler("aws:ec2/instance:Instance")
class Instance(Ec2Handler):
    arguments: ClassVar = {
        "ImageId": "ami",
        "InstanceType": "instanceType",
        "SubnetId": "subnetId",
        "SecurityGroupIds": "vpcSecurityGroupIds",
        "UserData": "userData",
    }

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(p, **self.arguments)
        made = _ec2(cloud).run_instances(MinCount=1, MaxCount=1, **wanted)["Instances"][0]
        return made["InstanceId"], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = _ec2(cloud).describe_instances(InstanceIds=[rid])["Reservations"][0]["Instances"][0]
        if found["State"]["Name"] in ("terminated", "shutting-down"):
            return None
        return {"tags": tag_map(found.get("Tags")), "instanceType": found["InstanceType"]}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        ec2 = _ec2(cloud)
        own = [{"Name": "attachment.instance-id", "Values": [rid]}]
        interfaces = ec2.describe_network_interfaces(Filters=own)["NetworkInterfaces"]
        ec2.terminate_instances(InstanceIds=[rid])
        left = {item["NetworkInterfaceId"] for item in ec2.describe_network_interfaces()["NetworkInterfaces"]}
        for interface in interfaces:
            # AWS deletes the instance's network interface; moto keeps it.
            if interface["NetworkInterfaceId"] in left:
                ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])
