"""Security groups, key pairs, launch templates, placement groups and instances, by moto."""

from __future__ import annotations

import base64
import hashlib

from .cloud import AwsError, Cloud, digest, handles, pick, tag_map
from .network import Ec2Handler
from .wire import Props


def _permission(
    p: Props, *, group: str | None, cidrs: list[str], cidrs6: list[str], prefixes: list[str]
) -> Props:
    permission: Props = {"IpProtocol": str(p.get("ipProtocol", p.get("protocol")))}
    if permission["IpProtocol"] != "-1":
        permission |= pick(p, FromPort="fromPort", ToPort="toPort")
    if group:
        permission["UserIdGroupPairs"] = [{"GroupId": group}]
    permission |= {"IpRanges": [{"CidrIp": cidr} for cidr in cidrs]} if cidrs else {}
    permission |= {"Ipv6Ranges": [{"CidrIpv6": cidr} for cidr in cidrs6]} if cidrs6 else {}
    permission |= {"PrefixListIds": [{"PrefixListId": prefix} for prefix in prefixes]} if prefixes else {}
    return permission


def _inline(p: Props, own: str) -> Props:
    groups = [*(p.get("securityGroups") or []), *([own] if p.get("self") else [])]
    permission = _permission(
        p,
        group=None,
        cidrs=p.get("cidrBlocks") or [],
        cidrs6=p.get("ipv6CidrBlocks") or [],
        prefixes=p.get("prefixListIds") or [],
    )
    return permission | ({"UserIdGroupPairs": [{"GroupId": group} for group in groups]} if groups else {})


@handles("aws:ec2/securityGroup:SecurityGroup")
class SecurityGroup(Ec2Handler):
    kind = "security-group"
    filled = ("ingress", "egress", "vpcId", "description")
    _sides = (("ingress", "ingress"), ("egress", "egress"))

    def create(self, cloud: Cloud, p: Props) -> tuple[str, Props]:
        wanted = pick(p, GroupName="name", VpcId="vpcId")
        description = p.get("description", "Managed by Pulumi")
        rid = self.ec2(cloud).create_security_group(Description=description, **wanted)["GroupId"]
        everything = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        # EC2 opens all egress in a new group; the provider closes it again, so that only what is said is
        # open.
        self.ec2(cloud).revoke_security_group_egress(GroupId=rid, IpPermissions=[everything])
        self._rules(cloud, rid, {}, p)
        outputs = {side: p.get(side) or [] for side, _ in self._sides} | {"description": description}
        return self.made(cloud, rid, p, outputs)

    def _rules(self, cloud: Cloud, rid: str, old: Props, new: Props) -> None:
        ec2 = self.ec2(cloud)
        for side, call in self._sides:
            before, after = old.get(side) or [], new.get(side) or []
            gone = [_inline(rule, rid) for rule in before if rule not in after]
            made = [_inline(rule, rid) for rule in after if rule not in before]
            if gone:
                getattr(ec2, f"revoke_security_group_{call}")(GroupId=rid, IpPermissions=gone)
            if made:
                getattr(ec2, f"authorize_security_group_{call}")(GroupId=rid, IpPermissions=made)

    def read(self, cloud: Cloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_security_groups(GroupIds=[rid])["SecurityGroups"][0]
        return self.seen(
            found, name=found["GroupName"], description=found["Description"], vpcId=found["VpcId"]
        )

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props) -> Props:
        self._rules(cloud, rid, old, new)
        return super().update(cloud, rid, old, new)

    def delete(self, cloud: Cloud, rid: str, p: Props) -> None:
        self.ec2(cloud).delete_security_group(GroupId=rid)


class Rule(Ec2Handler):
    """A rule as a resource of its own; AWS knows it by its content, so a change is a new rule."""

    side = "ingress"
    peer_fields = ("referencedSecurityGroupId", "cidrIpv4", "cidrIpv6", "prefixListId")

    def permission(self, p: Props) -> Props:
        one = {name: [p[name]] if p.get(name) else [] for name in self.peer_fields[1:]}
        return _permission(
            p,
            group=p.get("referencedSecurityGroupId"),
            cidrs=one["cidrIpv4"],
            cidrs6=one["cidrIpv6"],
            prefixes=one["prefixListId"],
        )

    def direction(self, p: Props) -> str:
        return self.side

    def create(self, cloud: Cloud, p: Props) -> tuple[str, Props]:
        if not any(p.get(name) for name in self.peer_fields):
            raise AwsError("InvalidParameterValue: a rule needs one of " + ", ".join(self.peer_fields))
        authorize = getattr(self.ec2(cloud), f"authorize_security_group_{self.direction(p)}")
        authorize(GroupId=p["securityGroupId"], IpPermissions=[self.permission(p)])
        rid = "sgr-" + digest(
            self.direction(p), p["securityGroupId"], sorted(self.permission(p).items(), key=str)
        )
        return rid, {"arn": cloud.arn("ec2", f"security-group-rule/{rid}"), "securityGroupRuleId": rid}

    def read(self, cloud: Cloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_security_groups(GroupIds=[p["securityGroupId"]])["SecurityGroups"][0]
        rules = found["IpPermissions" if self.direction(p) == "ingress" else "IpPermissionsEgress"]
        wanted = self.permission(p)
        peers = ("IpRanges", "Ipv6Ranges", "UserIdGroupPairs", "PrefixListIds")
        keys = {name: next(iter(wanted[name][0].values())) for name in peers if name in wanted}
        for rule in rules:
            ports = all(rule.get(name) == wanted.get(name) for name in ("IpProtocol", "FromPort", "ToPort"))
            if ports and all(value in str(rule.get(name)) for name, value in keys.items()):
                return {}
        return None

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props) -> Props:
        if self.permission(old) != self.permission(new):
            self.delete(cloud, rid, old)
            self.create(cloud, new)
        return {}

    def delete(self, cloud: Cloud, rid: str, p: Props) -> None:
        revoke = getattr(self.ec2(cloud), f"revoke_security_group_{self.direction(p)}")
        revoke(GroupId=p["securityGroupId"], IpPermissions=[self.permission(p)])


@handles("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")
class IngressRule(Rule):
    side = "ingress"


@handles("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule")
class EgressRule(Rule):
    side = "egress"


@handles("aws:ec2/securityGroupRule:SecurityGroupRule")
class OldRule(Rule):
    peer_fields = ("sourceSecurityGroupId", "cidrBlocks", "ipv6CidrBlocks", "prefixListIds", "self")

    def direction(self, p: Props) -> str:
        return str(p["type"])

    def permission(self, p: Props) -> Props:
        groups = [p["sourceSecurityGroupId"]] if p.get("sourceSecurityGroupId") else []
        return _inline(p | {"securityGroups": groups}, p["securityGroupId"])


@handles("aws:ec2/keyPair:KeyPair")
class KeyPair(Ec2Handler):
    def create(self, cloud: Cloud, p: Props) -> tuple[str, Props]:
        made = self.ec2(cloud).import_key_pair(
            KeyName=p["keyName"], PublicKeyMaterial=p["publicKey"].encode()
        )
        outputs = {
            "arn": cloud.arn("ec2", f"key-pair/{p['keyName']}"),
            "keyPairId": made["KeyPairId"],
            "fingerprint": made["KeyFingerprint"],
            "keyType": "ed25519" if "ed25519" in p["publicKey"] else "rsa",
        }
        return p["keyName"], outputs

    def read(self, cloud: Cloud, rid: str, p: Props) -> Props | None:
        self.ec2(cloud).describe_key_pairs(KeyNames=[rid])
        return {}

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props) -> Props:
        return {}

    def delete(self, cloud: Cloud, rid: str, p: Props) -> None:
        self.ec2(cloud).delete_key_pair(KeyName=rid)


@handles("aws:ec2/launchTemplate:LaunchTemplate")
class LaunchTemplate(Ec2Handler):
    kind = "launch-template"
    volatile = ("latestVersion", "defaultVersion")
    filled = ("defaultVersion",)

    def _data(self, p: Props) -> Props:
        data = pick(
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

    def create(self, cloud: Cloud, p: Props) -> tuple[str, Props]:
        made = self.ec2(cloud).create_launch_template(
            LaunchTemplateName=p["name"], LaunchTemplateData=self._data(p)
        )
        rid = made["LaunchTemplate"]["LaunchTemplateId"]
        return self.made(cloud, rid, p, {"latestVersion": 1, "defaultVersion": 1})

    def read(self, cloud: Cloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_launch_templates(LaunchTemplateIds=[rid])["LaunchTemplates"][0]
        own = [{"Name": "resource-id", "Values": [rid]}]
        tags = self.ec2(cloud).describe_tags(Filters=own)["Tags"]
        return {"name": found["LaunchTemplateName"], "tags": tag_map(tags)}

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props) -> Props:
        ec2 = self.ec2(cloud)
        made = ec2.create_launch_template_version(LaunchTemplateId=rid, LaunchTemplateData=self._data(new))
        super().update(cloud, rid, old, new)
        latest = made["LaunchTemplateVersion"]["VersionNumber"]
        return {"latestVersion": latest, "defaultVersion": latest if new.get("updateDefaultVersion") else 1}

    def delete(self, cloud: Cloud, rid: str, p: Props) -> None:
        self.ec2(cloud).delete_launch_template(LaunchTemplateId=rid)


@handles("aws:ec2/placementGroup:PlacementGroup")
class PlacementGroup(Ec2Handler):
    """moto has no placement groups, so the generic model keeps them; only the id differs."""

    def create(self, cloud: Cloud, p: Props) -> tuple[str, Props]:
        group = f"pg-{digest(p['name'])}"
        arn = cloud.arn("ec2", f"placement-group/{p['name']}")
        return p["name"], {"arn": arn, "placementGroupId": group}

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props) -> Props:
        return {}


@handles("aws:ec2/instance:Instance")
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

    def create(self, cloud: Cloud, p: Props) -> tuple[str, Props]:
        wanted = pick(
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
        return self.made(cloud, made["InstanceId"], p, outputs)

    def read(self, cloud: Cloud, rid: str, p: Props) -> Props | None:
        found = self.ec2(cloud).describe_instances(InstanceIds=[rid])["Reservations"][0]["Instances"][0]
        if found["State"]["Name"] in ("terminated", "shutting-down"):
            return None
        return self.seen(found, instanceType=found["InstanceType"])

    def delete(self, cloud: Cloud, rid: str, p: Props) -> None:
        ec2 = self.ec2(cloud)
        own = [{"Name": "attachment.instance-id", "Values": [rid]}]
        interfaces = ec2.describe_network_interfaces(Filters=own)["NetworkInterfaces"]
        ec2.terminate_instances(InstanceIds=[rid])
        known = {
            item["NetworkInterfaceId"] for item in ec2.describe_network_interfaces()["NetworkInterfaces"]
        }
        for interface in interfaces:
            # moto keeps the machine's interface, which on AWS goes with it.
            if interface["NetworkInterfaceId"] in known:
                ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])
