"""Handlers of S3: the bucket, its settings and its objects, with moto."""

from __future__ import annotations

import hashlib
from typing import Any

from testkit.aws_emulator.handler import AwsError, Handler, MotoCloud, register_handler, tag_list, tag_map
from testkit.aws_emulator.property_values import ASSET_SIGNATURE, SIGNATURE, Props


def _s3(cloud: MotoCloud) -> Any:
    return cloud.client("s3")


@register_handler("aws:s3/bucket:Bucket")
class Bucket(Handler):
    filled = ("bucketNamespace", "policy", "versioning", "grants", "objectLockEnabled")

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        name = p["bucket"]
        where = {"CreateBucketConfiguration": {"LocationConstraint": cloud.region}}
        _s3(cloud).create_bucket(Bucket=name, **({} if cloud.region == "us-east-1" else where))
        self._tag(cloud, name, p)
        outputs = {
            "arn": f"arn:aws:s3:::{name}",
            "bucketDomainName": f"{name}.s3.amazonaws.com",
            "bucketRegionalDomainName": f"{name}.s3.{cloud.region}.amazonaws.com",
            "bucketRegion": cloud.region,
            "hostedZoneId": "Z3BJ6K6RIION7M",
        }
        return name, outputs

    def _tag(self, cloud: MotoCloud, name: str, p: Props) -> None:
        if p.get("tags"):
            _s3(cloud).put_bucket_tagging(Bucket=name, Tagging={"TagSet": tag_list(p["tags"])})
        else:
            _s3(cloud).delete_bucket_tagging(Bucket=name)

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        if rid not in [bucket["Name"] for bucket in _s3(cloud).list_buckets()["Buckets"]]:
            return None
        try:
            tags = tag_map(_s3(cloud).get_bucket_tagging(Bucket=rid)["TagSet"])
        except _s3(cloud).exceptions.ClientError:  # NoSuchTagSet
            tags = {}
        return {"bucket": rid, "tags": tags}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        self._tag(cloud, rid, new)
        return {}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        if p.get("forceDestroy"):
            found = _s3(cloud).list_object_versions(Bucket=rid)
            for version in [*found.get("Versions", []), *found.get("DeleteMarkers", [])]:
                _s3(cloud).delete_object(Bucket=rid, Key=version["Key"], VersionId=version["VersionId"])
        _s3(cloud).delete_bucket(Bucket=rid)


class BucketSetting(Handler):
    """Base class of handlers of a bucket's settings (versioning, …); the id of a setting is its bucket's name."""

    def put(self, cloud: MotoCloud, p: Props) -> None:
        """Apply the setting with the inputs `p` to its bucket; subclasses override this, which does nothing."""

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        _s3(cloud).head_bucket(Bucket=p["bucket"])
        self.put(cloud, p)
        return p["bucket"], {}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        self.put(cloud, new)
        return {}


@register_handler("aws:s3/bucketVersioning:BucketVersioning")
class Versioning(BucketSetting):
    def put(self, cloud: MotoCloud, p: Props) -> None:
        status = p["versioningConfiguration"]["status"]
        if status != "Disabled":
            _s3(cloud).put_bucket_versioning(Bucket=p["bucket"], VersioningConfiguration={"Status": status})

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        status = _s3(cloud).get_bucket_versioning(Bucket=rid).get("Status", "Disabled")
        return {"bucket": rid, "versioningConfiguration": {"status": status}}


@register_handler("aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration")
class Encryption(BucketSetting):
    def put(self, cloud: MotoCloud, p: Props) -> None:
        rules = []
        for rule in p["rules"]:
            default = rule.get("applyServerSideEncryptionByDefault") or {}
            chosen = {"SSEAlgorithm": default.get("sseAlgorithm", "AES256")}
            if default.get("kmsMasterKeyId"):
                chosen["KMSMasterKeyID"] = default["kmsMasterKeyId"]
            key = bool(rule.get("bucketKeyEnabled"))
            rules.append({"ApplyServerSideEncryptionByDefault": chosen, "BucketKeyEnabled": key})
        _s3(cloud).put_bucket_encryption(
            Bucket=p["bucket"], ServerSideEncryptionConfiguration={"Rules": rules}
        )

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        _s3(cloud).delete_bucket_encryption(Bucket=rid)


@register_handler("aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock")
class PublicAccessBlock(BucketSetting):
    _names = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")

    def put(self, cloud: MotoCloud, p: Props) -> None:
        wanted = {name[0].upper() + name[1:]: bool(p.get(name)) for name in self._names}
        _s3(cloud).put_public_access_block(Bucket=p["bucket"], PublicAccessBlockConfiguration=wanted)

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        found = _s3(cloud).get_public_access_block(Bucket=rid)["PublicAccessBlockConfiguration"]
        return {"bucket": rid} | {name: found[name[0].upper() + name[1:]] for name in self._names}

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        _s3(cloud).delete_public_access_block(Bucket=rid)


@register_handler("aws:s3/bucketPolicy:BucketPolicy")
class BucketPolicy(BucketSetting):
    """Handled by the generic model: moto has no TLS here, and would enforce a policy that requires it."""


@register_handler("aws:s3/bucketOwnershipControls:BucketOwnershipControls")
class OwnershipControls(BucketSetting):
    def put(self, cloud: MotoCloud, p: Props) -> None:
        rules = {"Rules": [{"ObjectOwnership": p["rule"]["objectOwnership"]}]}
        _s3(cloud).put_bucket_ownership_controls(Bucket=p["bucket"], OwnershipControls=rules)

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        _s3(cloud).delete_bucket_ownership_controls(Bucket=rid)


@register_handler("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration")
class LifecycleConfiguration(BucketSetting):
    """Handled by the generic model: moto's checks of a rule's filter differ from S3's."""

    filled = ("rules", "transitionDefaultMinimumObjectSize")


def _content(cloud: MotoCloud, p: Props) -> bytes:
    if p.get("content") is not None:
        return str(p["content"]).encode()
    source = p.get("source")
    if isinstance(source, dict) and source.get(SIGNATURE) == ASSET_SIGNATURE:
        if "text" in source:
            return str(source["text"]).encode()
        return (cloud.project / source["path"]).read_bytes()
    raise AwsError("InvalidRequest: an object needs content or source (a file asset)")


@register_handler("aws:s3/bucketObjectv2:BucketObjectv2")
class BucketObject(Handler):
    filled = (
        "acl",
        "storageClass",
        "contentType",
        "serverSideEncryption",
        "kmsKeyId",
        "etag",
        "bucketKeyEnabled",
        "key",
    )

    def create(self, cloud: MotoCloud, p: Props) -> tuple[str, Props]:
        body, key = _content(cloud, p), p["key"]
        if len(p.get("tags") or {}) > 10:
            raise AwsError("BadRequest: Object tags cannot be greater than 10")
        made = _s3(cloud).put_object(Bucket=p["bucket"], Key=key, Body=body)
        outputs = {
            "arn": f"arn:aws:s3:::{p['bucket']}/{key}",
            "etag": hashlib.md5(body, usedforsecurity=False).hexdigest(),
            "versionId": made.get("VersionId", ""),
            "storageClass": p.get("storageClass", "STANDARD"),
        }
        return f"{p['bucket']}/{key}", outputs

    def read(self, cloud: MotoCloud, rid: str, p: Props) -> Props | None:
        _s3(cloud).head_object(Bucket=p["bucket"], Key=p["key"])
        return {}

    def update(self, cloud: MotoCloud, rid: str, old: Props, new: Props) -> Props:
        return self.create(cloud, new)[1]

    def delete(self, cloud: MotoCloud, rid: str, p: Props) -> None:
        versions = _s3(cloud).list_object_versions(Bucket=p["bucket"], Prefix=p["key"])
        for version in [*versions.get("Versions", []), *versions.get("DeleteMarkers", [])]:
            if version["Key"] == p["key"]:
                _s3(cloud).delete_object(Bucket=p["bucket"], Key=p["key"], VersionId=version["VersionId"])
