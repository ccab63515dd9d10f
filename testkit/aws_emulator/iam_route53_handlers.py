"""Handlers of IAM and Route53, with moto."""

from __future__ import annotations

import json
from typing import Any

from testkit.aws_emulator.account import AwsError, required_actions
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


def _iam(cloud: MotoCloud) -> Any:
    return cloud.client("iam")


def authorize_role_change(cloud: MotoCloud, action: str, role: str, **context: str) -> None:
    """Raise if the caller may not perform an action of IAM on an existing role, with the role's boundary."""
    found = _iam(cloud).get_role(RoleName=role)["Role"]
    boundary = found.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn")
    keys = {"PermissionsBoundary": boundary} if boundary else {}
    cloud.account.authorize([f"iam:{action}"], found["Arn"], **keys, **context)


@register_handler("aws:iam/role:Role")
class Role(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(
            p,
            RoleName="name",
            Path="path",
            AssumeRolePolicyDocument="assumeRolePolicy",
            PermissionsBoundary="permissionsBoundary",
        )
        arn = cloud.arn("iam", f"role{p.get('path', '/')}{p['name']}", region=False)
        keys = {"PermissionsBoundary": p["permissionsBoundary"]} if p.get("permissionsBoundary") else {}
        cloud.account.authorize(["iam:CreateRole"], arn, **keys)
        _iam(cloud).create_role(**wanted)
        return p["name"], {"arn": arn}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        role = _iam(cloud).get_role(RoleName=rid)["Role"]
        return {
            "name": rid,
            "path": role["Path"],
            "assumeRolePolicy": json.dumps(role["AssumeRolePolicyDocument"]),
            "tags": tag_map(role.get("Tags")),
        }

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        if new["assumeRolePolicy"] != old["assumeRolePolicy"]:
            authorize_role_change(cloud, "UpdateAssumeRolePolicy", rid)
            _iam(cloud).update_assume_role_policy(RoleName=rid, PolicyDocument=new["assumeRolePolicy"])
        if new.get("permissionsBoundary"):
            boundary = new["permissionsBoundary"]
            _iam(cloud).put_role_permissions_boundary(RoleName=rid, PermissionsBoundary=boundary)
        elif old.get("permissionsBoundary"):
            cloud.account.authorize(required_actions("role that loses its boundary"))
            _iam(cloud).delete_role_permissions_boundary(RoleName=rid)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        authorize_role_change(cloud, "DeleteRole", rid)
        _iam(cloud).delete_role(RoleName=rid)

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        _iam(cloud).tag_role(RoleName=rid, Tags=tag_list(tags))

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        _iam(cloud).untag_role(RoleName=rid, TagKeys=keys)


@register_handler("aws:iam/rolePolicy:RolePolicy")
class RolePolicy(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        self.update(cloud, "", {}, p)
        return f"{p['role']}:{p['name']}", {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        role, name = rid.split(":", 1)
        found = _iam(cloud).get_role_policy(RoleName=role, PolicyName=name)
        return {"role": role, "name": name, "policy": json.dumps(found["PolicyDocument"])}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        authorize_role_change(cloud, "PutRolePolicy", new["role"])
        wanted = pick_arguments(new, RoleName="role", PolicyName="name", PolicyDocument="policy")
        _iam(cloud).put_role_policy(**wanted)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        authorize_role_change(cloud, "DeleteRolePolicy", p["role"])
        _iam(cloud).delete_role_policy(RoleName=p["role"], PolicyName=p["name"])


@register_handler("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
class RolePolicyAttachment(Handler):
    """Attachment of a policy that AWS manages; not passed to moto, whose list of these is older than the SDK."""

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        authorize_role_change(cloud, "AttachRolePolicy", p["role"], PolicyARN=p["policyArn"])
        return f"{p['role']}/{p['policyArn']}", {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        role, arn = rid.split("/", 1)
        return {"role": role, "policyArn": arn}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        authorize_role_change(cloud, "DetachRolePolicy", p["role"], PolicyARN=p["policyArn"])


@register_handler("aws:iam/instanceProfile:InstanceProfile")
class InstanceProfile(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        name, role = p["name"], p["role"]
        arn = cloud.arn("iam", f"instance-profile{p.get('path', '/')}{name}", region=False)
        cloud.account.authorize(["iam:CreateInstanceProfile", "iam:AddRoleToInstanceProfile"], arn)
        authorize_role_change(cloud, "PassRole", role, PassedToService="ec2.amazonaws.com")
        _iam(cloud).create_instance_profile(**pick_arguments(p, InstanceProfileName="name", Path="path"))
        _iam(cloud).add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)
        return name, {"arn": arn}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = _iam(cloud).get_instance_profile(InstanceProfileName=rid)["InstanceProfile"]
        return {"name": rid, "role": found["Roles"][0]["RoleName"]}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        _iam(cloud).remove_role_from_instance_profile(InstanceProfileName=rid, RoleName=p["role"])
        _iam(cloud).delete_instance_profile(InstanceProfileName=rid)


def _route53(cloud: MotoCloud) -> Any:
    return cloud.client("route53")


def private_zone(cloud: MotoCloud, vpc: str, name: str) -> str | None:
    """Return the id of the private zone with this name in a VPC, or None."""
    found = _route53(cloud).list_hosted_zones_by_vpc(VPCId=vpc, VPCRegion=cloud.region)
    for zone in found["HostedZoneSummaries"]:
        if zone["Name"].rstrip(".") == name:
            return str(zone["HostedZoneId"])
    return None


@register_handler("aws:route53/zone:Zone")
class Zone(Handler):
    """A private zone of one VPC."""

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        (vpc,) = p["vpcs"]
        if zone := private_zone(cloud, vpc["vpcId"], p["name"]):
            raise AwsError(
                f"ConflictingDomainExists: The VPC {vpc['vpcId']} in region {cloud.region} has already been associated "
                f"with the hosted zone {zone} with the same domain name."
            )
        made = _route53(cloud).create_hosted_zone(
            Name=p["name"],
            CallerReference=digest(p, id(p)),
            HostedZoneConfig={"Comment": p["comment"], "PrivateZone": True},
            VPC={"VPCId": vpc["vpcId"], "VPCRegion": cloud.region},
        )
        rid = made["HostedZone"]["Id"].rpartition("/")[2]
        return rid, {"zoneId": rid}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        name = _route53(cloud).get_hosted_zone(Id=rid)["HostedZone"]["Name"].rstrip(".")
        found = _route53(cloud).list_tags_for_resource(ResourceType="hostedzone", ResourceId=rid)
        return {"name": name, "tags": tag_map(found["ResourceTagSet"]["Tags"])}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        _route53(cloud).delete_hosted_zone(Id=rid)

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        _route53(cloud).change_tags_for_resource(
            ResourceType="hostedzone", ResourceId=rid, AddTags=tag_list(tags)
        )

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        _route53(cloud).change_tags_for_resource(
            ResourceType="hostedzone", ResourceId=rid, RemoveTagKeys=keys
        )


@register_handler("aws:route53/record:Record")
class Record(Handler):
    """A record whose `name` is fully qualified."""

    def _change(self, cloud: MotoCloud, action: str, p: Props) -> None:
        record = pick_arguments(p, Name="name", Type="type", TTL="ttl")
        record["ResourceRecords"] = [{"Value": value} for value in p["records"]]
        change = {"Changes": [{"Action": action, "ResourceRecordSet": record}]}
        _route53(cloud).change_resource_record_sets(HostedZoneId=p["zoneId"], ChangeBatch=change)

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        if self.read(cloud, "", p) is not None:
            raise AwsError(
                f"InvalidChangeBatch: tried to create {p['name']} {p['type']} but it already exists"
            )
        self._change(cloud, "UPSERT", p)  # moto rejects CREATE for a record that was deleted
        return f"{p['zoneId']}_{p['name']}_{p['type']}", {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        sets = _route53(cloud).list_resource_record_sets(HostedZoneId=p["zoneId"])["ResourceRecordSets"]
        for found in sets:
            if (found["Name"].rstrip("."), found["Type"]) == (p["name"], p["type"]):
                return {"records": [each["Value"] for each in found["ResourceRecords"]], "ttl": found["TTL"]}
        return None

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        self._change(cloud, "UPSERT", new)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self._change(cloud, "DELETE", p)
