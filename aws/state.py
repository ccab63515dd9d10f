"""`make state`: a bucket for Pulumi's state and a KMS key for its secrets, so that a team shares a stack.

They belong to no stack, since stacks are kept in them, and nothing here ever removes them. Running it again
changes only what is not as it should be.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from aws.stack import Client, partition
from infra import policies

# Old versions of a state are its undo; this many days of them.
KEEP_DAYS = 90
# IAM and KMS answer by several machines: a new key may be unknown to the next call for some seconds.
_SETTLE_SECONDS = 60
_TAGS = {"Project": "paddle-training", "ManagedBy": "make state"}


@dataclass(frozen=True)
class State:
    """What `pulumi login` and `pulumi stack init --secrets-provider` take."""

    bucket: str
    backend: str
    secrets: str


def prepare(client: Client, region: str) -> State:
    """Makes bucket and key if they are not there, and sets what protects them.

    Raises:
        ClientError: AWS refuses a step; nothing is undone, and a second run goes on.
    """
    account = client("sts").get_caller_identity()["Account"]
    bucket = f"{policies.STATE_BUCKETS}{account}-{region}"
    key = _key(client("kms"))
    _bucket(client("s3"), bucket, region, account, key)
    return State(
        bucket=bucket,
        backend=f"s3://{bucket}?region={region}&awssdk=v2",
        secrets=f"awskms://{policies.STATE_ALIAS}?region={region}&awssdk=v2",
    )


def _key(kms: Any) -> str:
    pages = kms.get_paginator("list_aliases").paginate()
    known = {a["AliasName"]: a.get("TargetKeyId") for page in pages for a in page["Aliases"]}
    key = known.get(policies.STATE_ALIAS)
    if key is None:
        tags = [{"TagKey": k, "TagValue": v} for k, v in _TAGS.items()]
        about = "Secrets in Pulumi's state of paddle-training"
        key = kms.create_key(Description=about, Tags=tags)["KeyMetadata"]["KeyId"]
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                kms.create_alias(AliasName=policies.STATE_ALIAS, TargetKeyId=key)
                break
            except kms.exceptions.NotFoundException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(2)
    kms.enable_key_rotation(KeyId=key)
    return str(key)


def _bucket(s3: Any, name: str, region: str, account: str, key: str) -> None:
    try:
        # ExpectedBucketOwner: a bucket of that name in somebody else's account must never hold our state.
        s3.head_bucket(Bucket=name, ExpectedBucketOwner=account)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("404", "NoSuchBucket"):
            raise
        # us-east-1 is the one region that refuses to be named here.
        place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        s3.create_bucket(Bucket=name, **place)
    s3.put_public_access_block(
        Bucket=name,
        PublicAccessBlockConfiguration=dict.fromkeys(
            ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
        ),
    )
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
    s3.put_bucket_encryption(
        Bucket=name, ServerSideEncryptionConfiguration={"Rules": [{**rule, "BucketKeyEnabled": True}]}
    )
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    old = {
        "ID": "old-states",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "NoncurrentVersionExpiration": {"NoncurrentDays": KEEP_DAYS},
    }
    s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": [old]})
    document = policies.bucket_policy(f"arn:{partition(region)}:s3:::{name}")
    s3.put_bucket_policy(Bucket=name, Policy=document)
    tags = [{"Key": k, "Value": v} for k, v in _TAGS.items()]
    s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": tags})


def next_steps(state: State, stack: str) -> list[str]:
    """What the person types next: a new stack, or one that is elsewhere already."""
    return [
        f"pulumi login '{state.backend}'",
        f"pulumi stack init {stack} --secrets-provider '{state.secrets}'",
        "# or, for a stack that is in this backend already:",
        f"pulumi stack change-secrets-provider '{state.secrets}' --stack {stack}",
    ]
