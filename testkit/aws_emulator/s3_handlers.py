"""Handlers of S3: the bucket, its settings and its objects, with moto."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from testkit.aws_emulator.account import AwsError
from testkit.aws_emulator.handler import Handler, MotoCloud, register_handler, tag_list, tag_map
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


@register_handler(
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
    "aws:s3/bucketPolicy:BucketPolicy",
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
)
class BucketSetting(Handler):
    """A setting of a bucket, whose id is the bucket's name; not passed to moto, which would enforce some of them."""

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        _s3(cloud).head_bucket(Bucket=p["bucket"])
        return p["bucket"], {}


@register_handler("aws:s3/bucketVersioning:BucketVersioning")
class Versioning(BucketSetting):
    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        status = p["versioningConfiguration"]["status"]
        _s3(cloud).put_bucket_versioning(Bucket=p["bucket"], VersioningConfiguration={"Status": status})
        return p["bucket"], {}

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        status = _s3(cloud).get_bucket_versioning(Bucket=rid).get("Status", "Disabled")
        return {"bucket": rid, "versioningConfiguration": {"status": status}}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        return self.create(cloud, new)[1]


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
