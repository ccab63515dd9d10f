"""Handlers of IAM and Route53, with moto."""

from __future__ import annotations

import json
from typing import Any

from testkit.aws_emulator.account import required_actions
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


def _iam(cloud: MotoCloud) -> Any:
    return cloud.client("iam")


def _document(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def authorize_role_change(cloud: MotoCloud, action: str, role: str, **context: str) -> None:
    """Raise if the caller may not perform an action of IAM on an existing role, with the role's boundary."""
    found = _iam(cloud).get_role(RoleName=role)["Role"]
    boundary = found.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn")
    keys = {"PermissionsBoundary": boundary} if boundary else {}
    cloud.account.authorize([f"iam:{action}"], found["Arn"], **keys, **context)


def _roles(p: Props) -> set[str]:
    return {p["role"]} if p.get("role") else set()


@register_handler("aws:iam/role:Role")
class Role(Handler):
    filled = ("path", "maxSessionDuration", "managedPolicyArns", "inlinePolicies", "forceDetachPolicies")

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(
            p,
            RoleName="name",
            Path="path",
            Description="description",
            MaxSessionDuration="maxSessionDuration",
            PermissionsBoundary="permissionsBoundary",
        )
        trust = _document(p["assumeRolePolicy"])
        arn = cloud.arn("iam", f"role{p.get('path', '/')}{p['name']}", region=False)
        keys = {"PermissionsBoundary": p["permissionsBoundary"]} if p.get("permissionsBoundary") else {}
        cloud.account.authorize(["iam:CreateRole"], arn, **keys)
        made = _iam(cloud).create_role(
            AssumeRolePolicyDocument=trust, Tags=tag_list(p.get("tags")), **wanted
        )["Role"]
        outputs = {
            "arn": made["Arn"],
            "uniqueId": made["RoleId"],
            "createDate": made["CreateDate"].isoformat(),
        }
        return p["name"], outputs | {"path": made["Path"]}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        role = _iam(cloud).get_role(RoleName=rid)["Role"]
        trust = json.dumps(role["AssumeRolePolicyDocument"])
        return {
            "name": rid,
            "path": role["Path"],
            "assumeRolePolicy": trust,
            "tags": tag_map(role.get("Tags")),
        }

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        trust = _document(new["assumeRolePolicy"])
        authorize_role_change(cloud, "UpdateAssumeRolePolicy", rid)
        _iam(cloud).update_assume_role_policy(RoleName=rid, PolicyDocument=trust)
        added, removed = tag_changes(old, new)
        if added:
            _iam(cloud).tag_role(RoleName=rid, Tags=tag_list(added))
        if removed:
            _iam(cloud).untag_role(RoleName=rid, TagKeys=removed)
        if new.get("permissionsBoundary"):
            _iam(cloud).put_role_permissions_boundary(
                RoleName=rid, PermissionsBoundary=new["permissionsBoundary"]
            )
        elif old.get("permissionsBoundary"):
            cloud.account.authorize(required_actions("role that loses its boundary"))
            _iam(cloud).delete_role_permissions_boundary(RoleName=rid)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        authorize_role_change(cloud, "DeleteRole", rid)
        _iam(cloud).delete_role(RoleName=rid)


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
        text = _document(new["policy"])
        authorize_role_change(cloud, "PutRolePolicy", new["role"])
        _iam(cloud).put_role_policy(RoleName=new["role"], PolicyName=new["name"], PolicyDocument=text)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        authorize_role_change(cloud, "DeleteRolePolicy", p["role"])
        _iam(cloud).delete_role_policy(RoleName=p["role"], PolicyName=p["name"])


@register_handler("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
class RolePolicyAttachment(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        authorize_role_change(cloud, "AttachRolePolicy", p["role"], PolicyARN=p["policyArn"])
        # Policies that AWS manages are not checked: moto's list of them is older than the SDK.
        if not p["policyArn"].startswith("arn:aws:iam::aws:"):
            _iam(cloud).attach_role_policy(RoleName=p["role"], PolicyArn=p["policyArn"])
        else:
            _iam(cloud).get_role(RoleName=p["role"])
        return f"{p['role']}/{p['policyArn']}", {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        role, arn = rid.split("/", 1)
        if not arn.startswith("arn:aws:iam::aws:"):
            attached = _iam(cloud).list_attached_role_policies(RoleName=role)["AttachedPolicies"]
            if arn not in [policy["PolicyArn"] for policy in attached]:
                return None
        return {"role": role, "policyArn": arn}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        authorize_role_change(cloud, "DetachRolePolicy", p["role"], PolicyARN=p["policyArn"])
        if not p["policyArn"].startswith("arn:aws:iam::aws:"):
            _iam(cloud).detach_role_policy(RoleName=p["role"], PolicyArn=p["policyArn"])


@register_handler("aws:iam/instanceProfile:InstanceProfile")
class InstanceProfile(Handler):
    filled = ("path", "role")

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        arn = cloud.arn("iam", f"instance-profile{p.get('path', '/')}{p['name']}", region=False)
        cloud.account.authorize(["iam:CreateInstanceProfile", "iam:AddRoleToInstanceProfile"], arn)
        wanted = pick_arguments(p, InstanceProfileName="name", Path="path")
        made = _iam(cloud).create_instance_profile(Tags=tag_list(p.get("tags")), **wanted)["InstanceProfile"]
        self.update(cloud, p["name"], {}, p)
        return p["name"], {"arn": made["Arn"], "uniqueId": made["InstanceProfileId"]}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = _iam(cloud).get_instance_profile(InstanceProfileName=rid)["InstanceProfile"]
        roles = [role["RoleName"] for role in found.get("Roles", [])]
        return {"name": rid} | ({"role": roles[0]} if roles else {})

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        for role in _roles(old) - _roles(new):
            _iam(cloud).remove_role_from_instance_profile(InstanceProfileName=rid, RoleName=role)
        for role in _roles(new) - _roles(old):
            authorize_role_change(cloud, "PassRole", role, PassedToService="ec2.amazonaws.com")
            _iam(cloud).add_role_to_instance_profile(InstanceProfileName=rid, RoleName=role)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        for role in _roles(p):
            _iam(cloud).remove_role_from_instance_profile(InstanceProfileName=rid, RoleName=role)
        _iam(cloud).delete_instance_profile(InstanceProfileName=rid)


@register_handler("aws:route53/zone:Zone")
class Zone(Handler):
    filled = ("comment",)

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        route53 = cloud.client("route53")
        vpcs = [
            {"VPCId": v["vpcId"], "VPCRegion": v.get("vpcRegion") or cloud.region}
            for v in p.get("vpcs") or []
        ]
        wanted: Props = {"HostedZoneConfig": {"Comment": p.get("comment", ""), "PrivateZone": bool(vpcs)}}
        wanted |= {"VPC": vpcs[0]} if vpcs else {}
        made = route53.create_hosted_zone(Name=p["name"], CallerReference=digest(p, id(p)), **wanted)
        rid = made["HostedZone"]["Id"].rpartition("/")[2]
        for vpc in vpcs[1:]:
            route53.associate_vpc_with_hosted_zone(HostedZoneId=rid, VPC=vpc)
        self._tag(cloud, rid, {}, p)
        servers = made.get("DelegationSet", {}).get("NameServers", [])
        outputs = {
            "arn": f"arn:aws:route53:::hostedzone/{rid}",
            "zoneId": rid,
            "nameServers": servers,
            "primaryNameServer": servers[0] if servers else "",
            "comment": p.get("comment", "Managed by Pulumi"),
        }
        return rid, outputs

    def _tag(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> None:
        added, removed = tag_changes(old, new)
        wanted: Props = {"AddTags": tag_list(added)} if added else {}
        wanted |= {"RemoveTagKeys": removed} if removed else {}
        if wanted:
            cloud.client("route53").change_tags_for_resource(
                ResourceType="hostedzone", ResourceId=rid, **wanted
            )

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        route53 = cloud.client("route53")
        found = route53.get_hosted_zone(Id=rid)
        tags = route53.list_tags_for_resource(ResourceType="hostedzone", ResourceId=rid)["ResourceTagSet"][
            "Tags"
        ]
        vpcs = [{"vpcId": vpc["VPCId"]} for vpc in found.get("VPCs", [])]
        seen: Props = {"name": found["HostedZone"]["Name"].rstrip("."), "tags": tag_map(tags)}
        return seen | ({"vpcs": vpcs} if vpcs and not p.get("vpcs") else {})

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        route53 = cloud.client("route53")
        before, after = ({vpc["vpcId"] for vpc in p.get("vpcs") or []} for p in (old, new))
        for vpc in after - before:
            route53.associate_vpc_with_hosted_zone(
                HostedZoneId=rid, VPC={"VPCId": vpc, "VPCRegion": cloud.region}
            )
        for vpc in before - after:
            gone = {"VPCId": vpc, "VPCRegion": cloud.region}
            route53.disassociate_vpc_from_hosted_zone(HostedZoneId=rid, VPC=gone)
        self._tag(cloud, rid, old, new)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        route53 = cloud.client("route53")
        sets = route53.list_resource_record_sets(HostedZoneId=rid)["ResourceRecordSets"]
        own = [s for s in sets if s["Type"] not in ("NS", "SOA")]
        if p.get("forceDestroy"):
            # The provider tolerates only the answer that a private zone has no DNSSEC, not a denial.
            cloud.account.authorize(["route53:GetDNSSEC"])
        if own and not p.get("forceDestroy"):
            raise AwsError(f"HostedZoneNotEmpty: {rid} holds {len(own)} record sets of its own")
        for record in own:
            change = {"Changes": [{"Action": "DELETE", "ResourceRecordSet": record}]}
            route53.change_resource_record_sets(HostedZoneId=rid, ChangeBatch=change)
        route53.delete_hosted_zone(Id=rid)


@register_handler("aws:route53/record:Record")
class Record(Handler):
    filled = ("allowOverwrite",)

    def _change(self, cloud: MotoCloud, action: str, p: Props) -> None:
        name = self._fqdn(cloud, p)
        record: Props = {"Name": name, "Type": p["type"]}
        if p.get("aliases"):
            alias = p["aliases"][0]
            record["AliasTarget"] = {
                "HostedZoneId": alias["zoneId"],
                "DNSName": alias["name"],
                "EvaluateTargetHealth": bool(alias.get("evaluateTargetHealth")),
            }
        else:
            record |= {"TTL": p["ttl"], "ResourceRecords": [{"Value": value} for value in p["records"]]}
        change = {"Changes": [{"Action": action, "ResourceRecordSet": record}]}
        cloud.client("route53").change_resource_record_sets(HostedZoneId=p["zoneId"], ChangeBatch=change)

    def _fqdn(self, cloud: MotoCloud, p: Props) -> str:
        zone = cloud.client("route53").get_hosted_zone(Id=p["zoneId"])["HostedZone"]["Name"].rstrip(".")
        name = str(p["name"]).rstrip(".")
        return name if name.endswith(zone) else f"{name}.{zone}".lstrip(".")

    def _find(self, cloud: MotoCloud, p: Props) -> list[Props]:
        name = self._fqdn(cloud, p)
        sets = cloud.client("route53").list_resource_record_sets(HostedZoneId=p["zoneId"])[
            "ResourceRecordSets"
        ]
        return [s for s in sets if s["Name"].rstrip(".") == name and s["Type"] == p["type"]]

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        if not p.get("allowOverwrite") and self._find(cloud, p):
            raise AwsError(
                f"InvalidChangeBatch: tried to create {p['name']} {p['type']} but it already exists"
            )
        self._change(cloud, "UPSERT", p)  # moto rejects CREATE for a record that was deleted
        return f"{p['zoneId']}_{p['name']}_{p['type']}", {"fqdn": self._fqdn(cloud, p)}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = self._find(cloud, p)
        if not found:
            return None
        values = [value["Value"] for value in found[0].get("ResourceRecords", [])]
        return {"records": values, "ttl": found[0]["TTL"]} if values else {}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        self._change(cloud, "UPSERT", new)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        self._change(cloud, "DELETE", p)
