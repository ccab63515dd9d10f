"""Handlers of S3 buckets and objects, KMS keys and log groups, with moto; and the expiry of images in ECR."""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from testkit.aws_emulator.account import AwsError
from testkit.aws_emulator.handler import (
    Handler,
    MotoCloud,
    pick_arguments,
    register_handler,
    tag_list,
    tag_map,
)
from testkit.aws_emulator.property_values import ASSET_SIGNATURE, SIGNATURE, Props


def _s3(cloud: MotoCloud) -> Any:
    return cloud.client("s3")


def _delete_versions(cloud: MotoCloud, bucket: str, key: str = "") -> None:
    """Delete all versions of one object, or of all objects of the bucket."""
    found = _s3(cloud).list_object_versions(Bucket=bucket, Prefix=key)
    for version in [*found.get("Versions", []), *found.get("DeleteMarkers", [])]:
        if key in ("", version["Key"]):
            _s3(cloud).delete_object(Bucket=bucket, Key=version["Key"], VersionId=version["VersionId"])


@register_handler("aws:s3/bucket:Bucket")
class Bucket(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        name = p["bucket"]
        where = {"CreateBucketConfiguration": {"LocationConstraint": cloud.region}}
        _s3(cloud).create_bucket(Bucket=name, **({} if cloud.region == "us-east-1" else where))
        return name, {"arn": f"arn:aws:s3:::{name}"}

    def _tags(self, cloud: MotoCloud, name: str) -> dict[str, str]:
        try:
            return tag_map(_s3(cloud).get_bucket_tagging(Bucket=name)["TagSet"])
        except ClientError:  # NoSuchTagSet
            return {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        _s3(cloud).head_bucket(Bucket=rid)
        return {"bucket": rid, "tags": self._tags(cloud, rid)}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        if p.get("forceDestroy"):
            _delete_versions(cloud, rid)
        _s3(cloud).delete_bucket(Bucket=rid)

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        everything = tag_list(self._tags(cloud, rid) | tags)
        _s3(cloud).put_bucket_tagging(Bucket=rid, Tagging={"TagSet": everything})

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        left = {key: value for key, value in self._tags(cloud, rid).items() if key not in keys}
        _s3(cloud).put_bucket_tagging(Bucket=rid, Tagging={"TagSet": tag_list(left)})


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
        _s3(cloud).put_object(Bucket=p["bucket"], Key=p["key"], Body=_content(cloud, p))
        return f"{p['bucket']}/{p['key']}", {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        bucket, _, key = rid.partition("/")
        _s3(cloud).head_object(Bucket=bucket, Key=key)
        return {}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        return self.create(cloud, new)[1]

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        _delete_versions(cloud, p["bucket"], p["key"])


@register_handler("aws:kms/key:Key")
class Key(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        wanted = pick_arguments(p, Policy="policy", Description="description")
        rid = cloud.client("kms").create_key(**wanted)["KeyMetadata"]["KeyId"]
        self.update(cloud, rid, p, p)
        return rid, {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        kms = cloud.client("kms")
        about = kms.describe_key(KeyId=rid)["KeyMetadata"]
        if about["KeyState"] == "PendingDeletion":
            return None
        tags = tag_map(kms.list_resource_tags(KeyId=rid).get("Tags"), "TagKey", "TagValue")
        rotates = kms.get_key_rotation_status(KeyId=rid)["KeyRotationEnabled"]
        return {"tags": tags, "description": about.get("Description", ""), "enableKeyRotation": rotates}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        kms = cloud.client("kms")
        if new.get("policy") != old.get("policy"):
            kms.put_key_policy(KeyId=rid, PolicyName="default", Policy=new["policy"])
        (kms.enable_key_rotation if new.get("enableKeyRotation") else kms.disable_key_rotation)(KeyId=rid)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        days = p.get("deletionWindowInDays", 30)
        cloud.client("kms").schedule_key_deletion(KeyId=rid, PendingWindowInDays=days)

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        cloud.client("kms").tag_resource(KeyId=rid, Tags=tag_list(tags, "TagKey", "TagValue"))

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        cloud.client("kms").untag_resource(KeyId=rid, TagKeys=keys)


def expire_images(cloud: MotoCloud) -> None:
    """Remove the images that the lifecycle policies select, as ECR does within a day, with all images a year old."""
    ecr = cloud.client("ecr")
    for record in cloud.account.all("aws:ecr/lifecyclePolicy:LifecyclePolicy"):
        repository = record.inputs["repository"]
        images = ecr.list_images(repositoryName=repository)[
            "imageIds"
        ]  # in the order in which they were pushed
        for rule in json.loads(record.inputs["policy"])["rules"]:
            chosen = rule["selection"]
            found = [each for each in images if chosen["tagStatus"] != "untagged" or not each.get("imageTag")]
            by_number = chosen["countType"] == "imageCountMoreThan"
            old = found[: max(len(found) - chosen["countNumber"], 0)] if by_number else found
            if old:
                ecr.batch_delete_image(repositoryName=repository, imageIds=old)


@register_handler("aws:cloudwatch/logGroup:LogGroup")
class LogGroup(Handler):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        cloud.client("logs").create_log_group(logGroupName=p["name"])
        self.update(cloud, p["name"], {}, p)
        return p["name"], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        logs = cloud.client("logs")
        groups = logs.describe_log_groups(logGroupNamePrefix=rid)["logGroups"]
        found = next((group for group in groups if group["logGroupName"] == rid), None)
        if found is None:
            return None
        seen = {"name": rid, "tags": logs.list_tags_log_group(logGroupName=rid)["tags"]}
        return seen | pick_arguments(found, retentionInDays="retentionInDays")

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        if new.get("retentionInDays"):
            days = new["retentionInDays"]
            cloud.client("logs").put_retention_policy(logGroupName=rid, retentionInDays=days)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        cloud.client("logs").delete_log_group(logGroupName=rid)
        if cloud.account.has_late_logs() and rid.startswith("/aws/eks/"):
            # The control plane's last lines arrive later and create the group again, without retention and tags.
            cloud.client("logs").create_log_group(logGroupName=rid)

    def set_tags(self, cloud: MotoCloud, rid: str, tags: dict[str, str]) -> None:
        cloud.client("logs").tag_log_group(logGroupName=rid, tags=tags)

    def remove_tags(self, cloud: MotoCloud, rid: str, keys: list[str]) -> None:
        cloud.client("logs").untag_log_group(logGroupName=rid, tags=keys)
