"""Handlers of security groups, launch templates, placement groups and instances, with moto."""

from __future__ import annotations

import base64
import hashlib

from testkit.aws_emulator.handler import (
    AwsError,
    MotoCloud,
    digest,
    pick_arguments,
    register_handler,
    tag_map,
)
from testkit.aws_emulator.property_values import Props
from testkit.aws_emulator.vpc_handlers import Ec2Handler


@register_handler("aws:ec2/securityGroup:SecurityGroup")
class SecurityGroup(Ec2Handler):
    kind = "security-group"
    filled = ("ingress", "egress", "vpcId", "description")

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(p, GroupName="name", VpcId="vpcId")
        description = p.get("description", "Managed by Pulumi")
        rid = self.ec2(cloud).create_security_group(Description=description, **wanted)["GroupId"]
        everything = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        # EC2 allows all egress in a new group; the provider removes that rule.
        self.ec2(cloud).revoke_security_group_egress(GroupId=rid, IpPermissions=[everything])
        return self.created(cloud, rid, p, {"ingress": [], "egress": [], "description": description})

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_security_groups(GroupIds=[rid])["SecurityGroups"][0]
        return self.present_inputs(
            found, name=found["GroupName"], description=found["Description"], vpcId=found["VpcId"]
        )

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.ec2(cloud).delete_security_group(GroupId=rid)


class Rule(Ec2Handler):
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
        authorize = getattr(self.ec2(cloud), f"authorize_security_group_{self.side}")
        authorize(GroupId=p["securityGroupId"], IpPermissions=[self.permission(p)])
        rid = "sgr-" + digest(self.side, p["securityGroupId"], sorted(self.permission(p).items(), key=str))
        return rid, {"arn": cloud.arn("ec2", f"security-group-rule/{rid}"), "securityGroupRuleId": rid}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_security_groups(GroupIds=[p["securityGroupId"]])["SecurityGroups"][0]
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
        revoke = getattr(self.ec2(cloud), f"revoke_security_group_{self.side}")
        revoke(GroupId=p["securityGroupId"], IpPermissions=[self.permission(p)])


@register_handler("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")
class IngressRule(Rule):
    side = "ingress"


@register_handler("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule")
class EgressRule(Rule):
    side = "egress"


@register_handler("aws:ec2/launchTemplate:LaunchTemplate")
class LaunchTemplate(Ec2Handler):
    kind = "launch-template"
    volatile = ("latestVersion", "defaultVersion")
    filled = ("defaultVersion",)

    def _data(self, p: Props) -> Props:
        data = pick_arguments(
            p,
            ImageId="imageId",
            InstanceType="instanceType",
            KeyName="keyName",
            UserData="userData",
            SecurityGroupIds="vpcSecurityGroupIds",
            EbsOptimized="ebsOptimized",
        )
        if "UserData" in data:
            base64.b64decode(data["UserData"], validate=True)
        return data or {"EbsOptimized": False}

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        made = self.ec2(cloud).create_launch_template(
            LaunchTemplateName=p["name"], LaunchTemplateData=self._data(p)
        )
        rid = made["LaunchTemplate"]["LaunchTemplateId"]
        return self.created(cloud, rid, p, {"latestVersion": 1, "defaultVersion": 1})

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_launch_templates(LaunchTemplateIds=[rid])["LaunchTemplates"][0]
        own = [{"Name": "resource-id", "Values": [rid]}]
        tags = self.ec2(cloud).describe_tags(Filters=own)["Tags"]
        return {"name": found["LaunchTemplateName"], "tags": tag_map(tags)}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        ec2 = self.ec2(cloud)
        made = ec2.create_launch_template_version(LaunchTemplateId=rid, LaunchTemplateData=self._data(new))
        super().update(cloud, rid, old, new)
        latest = made["LaunchTemplateVersion"]["VersionNumber"]
        return {"latestVersion": latest, "defaultVersion": latest if new.get("updateDefaultVersion") else 1}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self.ec2(cloud).delete_launch_template(LaunchTemplateId=rid)


@register_handler("aws:ec2/placementGroup:PlacementGroup")
class PlacementGroup(Ec2Handler):
    """Handled by the generic model, because moto lacks placement groups; its id is its name."""

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        group = f"pg-{digest(p['name'])}"
        arn = cloud.arn("ec2", f"placement-group/{p['name']}")
        return p["name"], {"arn": arn, "placementGroupId": group}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        return {}


@register_handler("aws:ec2/instance:Instance")
class Instance(Ec2Handler):
    kind = "instance"
    filled = (
        "availabilityZone",
        "privateIp",
        "subnetId",
        "vpcSecurityGroupIds",
        "hostId",
        "cpuOptions",
        "enclaveOptions",
        "rootBlockDevice",
        "metadataOptions",
        "tenancy",
    )

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(
            p,
            ImageId="ami",
            InstanceType="instanceType",
            SubnetId="subnetId",
            KeyName="keyName",
            SecurityGroupIds="vpcSecurityGroupIds",
            UserData="userData",
        )
        wanted.setdefault("ImageId", "ami-" + digest("default"))
        made = self.ec2(cloud).run_instances(MinCount=1, MaxCount=1, **wanted)["Instances"][0]
        outputs = {
            "availabilityZone": made["Placement"]["AvailabilityZone"],
            "privateIp": made.get("PrivateIpAddress", ""),
            "privateDns": made.get("PrivateDnsName", ""),
            "publicIp": "",
            "instanceState": "running",
            "subnetId": made.get("SubnetId", ""),
            "primaryNetworkInterfaceId": (made.get("NetworkInterfaces") or [{}])[0].get(
                "NetworkInterfaceId", ""
            ),
        }
        if p.get("userData"):
            outputs["userData"] = hashlib.sha1(p["userData"].encode(), usedforsecurity=False).hexdigest()
        return self.created(cloud, made["InstanceId"], p, outputs)

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_instances(InstanceIds=[rid])["Reservations"][0]["Instances"][0]
        if found["State"]["Name"] in ("terminated", "shutting-down"):
            return None
        return self.present_inputs(found, instanceType=found["InstanceType"])

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        ec2 = self.ec2(cloud)
        own = [{"Name": "attachment.instance-id", "Values": [rid]}]
        interfaces = ec2.describe_network_interfaces(Filters=own)["NetworkInterfaces"]
        ec2.terminate_instances(InstanceIds=[rid])
        known = {
            item["NetworkInterfaceId"] for item in ec2.describe_network_interfaces()["NetworkInterfaces"]
        }
        for interface in interfaces:
            # AWS deletes the instance's network interface; moto keeps it.
            if interface["NetworkInterfaceId"] in known:
                ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])
