"""Handlers of types of EC2, S3, logs and Route 53 that need code, with moto."""

from __future__ import annotations

from botocore.exceptions import ClientError

from testkit.aws_emulator.account import AwsError
from testkit.aws_emulator.handler import (
    Handler,
    MotoCloud,
    TableHandler,
    digest,
    pick_arguments,
    register_handler,
    tag_list,
    tag_map,
)
from testkit.aws_emulator.property_values import ASSET_SIGNATURE, SIGNATURE, Props


@register_handler(
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
)
class Rule(Handler):
    """A security-group rule, a separate resource. AWS identifies rules by their content: a change creates a new one."""

    peer_fields = ("referencedSecurityGroupId", "cidrIpv4")

    @property
    def side(self) -> str:
        """Return `ingress` or `egress`."""
        return "ingress" if "Ingress" in self.token else "egress"

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
        authorize = getattr(cloud.client("ec2"), f"authorize_security_group_{self.side}")
        authorize(GroupId=p["securityGroupId"], IpPermissions=[self.permission(p)])
        rid = "sgr-" + digest(self.side, p["securityGroupId"], sorted(self.permission(p).items(), key=str))
        return rid, {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = cloud.client("ec2").describe_security_groups(GroupIds=[p["securityGroupId"]])[
            "SecurityGroups"
        ][0]
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
        revoke = getattr(cloud.client("ec2"), f"revoke_security_group_{self.side}")
        revoke(GroupId=p["securityGroupId"], IpPermissions=[self.permission(p)])


@register_handler("aws:ec2/instance:Instance")
class Instance(TableHandler):
    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        own = [{"Name": "attachment.instance-id", "Values": [rid]}]
        interfaces = cloud.client("ec2").describe_network_interfaces(Filters=own)["NetworkInterfaces"]
        super().delete(cloud, rid, p)
        found = cloud.client("ec2").describe_network_interfaces()["NetworkInterfaces"]
        left = {item["NetworkInterfaceId"] for item in found}
        for interface in interfaces:
            # AWS deletes the instance's network interface; moto keeps it.
            if interface["NetworkInterfaceId"] in left:
                cloud.client("ec2").delete_network_interface(
                    NetworkInterfaceId=interface["NetworkInterfaceId"]
                )


def _delete_versions(cloud: MotoCloud, bucket: str, key: str = "") -> None:
    """Delete all versions of one object, or of all objects of the bucket."""
    found = cloud.client("s3").list_object_versions(Bucket=bucket, Prefix=key)
    for version in [*found.get("Versions", []), *found.get("DeleteMarkers", [])]:
        if key in ("", version["Key"]):
            cloud.client("s3").delete_object(
                Bucket=bucket, Key=version["Key"], VersionId=version["VersionId"]
            )


@register_handler("aws:s3/bucket:Bucket")
class Bucket(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        name = p["bucket"]
        where = {"LocationConstraint": cloud.region}
        cloud.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration=where)
        return name, {"arn": f"arn:aws:s3:::{name}"}

    def _tags(self, cloud: MotoCloud, name: str) -> dict[str, str]:
        try:
            return tag_map(cloud.client("s3").get_bucket_tagging(Bucket=name)["TagSet"])
        except ClientError:  # NoSuchTagSet
            return {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        cloud.client("s3").head_bucket(Bucket=rid)
        return {"bucket": rid, "tags": self._tags(cloud, rid)}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        if p.get("forceDestroy"):
            _delete_versions(cloud, rid)
        cloud.client("s3").delete_bucket(Bucket=rid)

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        everything = tag_list(self._tags(cloud, rid) | tags)
        cloud.client("s3").put_bucket_tagging(Bucket=rid, Tagging={"TagSet": everything})

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        left = {key: value for key, value in self._tags(cloud, rid).items() if key not in keys}
        cloud.client("s3").put_bucket_tagging(Bucket=rid, Tagging={"TagSet": tag_list(left)})


def _content(cloud: MotoCloud, p: Props) -> bytes:
    if p.get("content") is not None:
        return str(p["content"]).encode()
    source = p.get("source")
    if isinstance(source, dict) and source.get(SIGNATURE) == ASSET_SIGNATURE:
        return (cloud.project / source["path"]).read_bytes()
    raise AwsError("InvalidRequest: an object needs content or source (a file asset)")


@register_handler("aws:s3/bucketObjectv2:BucketObjectv2")
class BucketObject(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        if len(p.get("tags") or {}) > 10:
            raise AwsError("BadRequest: Object tags cannot be greater than 10")
        cloud.client("s3").put_object(Bucket=p["bucket"], Key=p["key"], Body=_content(cloud, p))
        return f"{p['bucket']}/{p['key']}", {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        bucket, _, key = rid.partition("/")
        cloud.client("s3").head_object(Bucket=bucket, Key=key)
        return {}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        return self.create(cloud, new)[1]

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        _delete_versions(cloud, p["bucket"], p["key"])


@register_handler("aws:cloudwatch/logGroup:LogGroup")
class LogGroup(TableHandler):
    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        super().delete(cloud, rid, p)
        if cloud.account.situation.late_logs and rid.startswith("/aws/eks/"):
            # The control plane's last lines arrive later and create the group again, without retention and tags.
            cloud.client("logs").create_log_group(logGroupName=rid)


def private_zone(cloud: MotoCloud, vpc: str, name: str) -> str | None:
    """Return the id of the private zone with this name in a VPC, or None."""
    found = cloud.client("route53").list_hosted_zones_by_vpc(VPCId=vpc, VPCRegion=cloud.region)
    for zone in found["HostedZoneSummaries"]:
        if zone["Name"].rstrip(".") == name:
            return str(zone["HostedZoneId"])
    return None


@register_handler("aws:route53/zone:Zone")
class Zone(TableHandler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        vpc = p["vpcs"][0]["vpcId"]
        if zone := private_zone(cloud, vpc, p["name"]):
            raise AwsError(
                f"ConflictingDomainExists: The VPC {vpc} in region {cloud.region} has already been associated "
                f"with the hosted zone {zone} with the same domain name."
            )
        rid = super().create(cloud, p)[0].rpartition("/")[2]
        return rid, {"zoneId": rid}
