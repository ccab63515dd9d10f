"""`make state`: create an S3 bucket for Pulumi's state and a KMS key for its secrets, for a team to share.

Bucket and key belong to no stack, because the bucket stores the state of all stacks. No command here removes them. The
command is idempotent: a second run changes only settings that differ.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from aws.stack_access import Client, call_if_exists
from infra.iam_policies import STATE_ALIAS, STATE_BUCKETS, STATE_TAG, policy

# Days that old versions of the state are kept, to undo a change.
KEEP_DAYS = 90
# KMS is eventually consistent: for some seconds a new key may be unknown to the next call, and for up to five minutes
# rights that depend on its tag may not apply (infra/deployer_permissions.yaml).
_SETTLE_SECONDS = 300
_UNSETTLED = ("NotFoundException", "AccessDeniedException")
_TAGS = {"Project": "paddle-training", "ManagedBy": STATE_TAG}


@dataclass(frozen=True)
class StateBackend:
    """The state backend that was created: its bucket, and the arguments with which Pulumi uses it.

    Attributes:
        bucket: name of the bucket.
        backend: argument of `pulumi login`.
        secrets: argument of the option `--secrets-provider`.
    """

    bucket: str
    backend: str
    secrets: str


def create_state_backend(client: Client, region: str) -> StateBackend:
    """Create bucket and key if they do not exist, and set encryption, versioning and access rules.

    Raises:
        ClientError: AWS rejected a step. Bucket and key that were created remain, and a second run continues.
    """
    account = client("sts").get_caller_identity()["Account"]
    bucket = f"{STATE_BUCKETS}{account}-{region}"
    key = _key(client("kms"))
    _bucket(client("s3"), bucket, region, account, key)
    query = f"?region={region}&awssdk=v2"
    return StateBackend(bucket, f"s3://{bucket}{query}", f"awskms://{STATE_ALIAS}{query}")


def _key(kms: Any) -> str:
    known = call_if_exists(kms.describe_key, KeyId=STATE_ALIAS)
    if known is None:
        tags = [{"TagKey": k, "TagValue": v} for k, v in _TAGS.items()]
        known = kms.create_key(Description="Secrets in Pulumi's state of paddle-training", Tags=tags)
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                kms.create_alias(AliasName=STATE_ALIAS, TargetKeyId=known["KeyMetadata"]["KeyId"])
                break
            except ClientError as error:
                if error.response["Error"]["Code"] not in _UNSETTLED or time.monotonic() > deadline:
                    raise
                time.sleep(2)
    key = str(known["KeyMetadata"]["KeyId"])
    kms.enable_key_rotation(KeyId=key)
    return key


def _bucket(s3: Any, name: str, region: str, account: str, key: str) -> None:
    # ExpectedBucketOwner: a bucket of that name in another account must never receive our state.
    if call_if_exists(s3.head_bucket, Bucket=name, ExpectedBucketOwner=account) is None:
        # us-east-1 is the one region that S3 rejects as a location constraint.
        place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        s3.create_bucket(Bucket=name, **place)
    blocked = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=dict.fromkeys(blocked, True))
    rule = {
        "ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key},
        "BucketKeyEnabled": True,
    }
    s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [rule]})
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    old = {
        "ID": "old-states",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "NoncurrentVersionExpiration": {"NoncurrentDays": KEEP_DAYS},
    }
    s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": [old]})
    document = policy("bucket", bucket=f"arn:{s3.meta.partition}:s3:::{name}")
    s3.put_bucket_policy(Bucket=name, Policy=document)
    tags = [{"Key": k, "Value": v} for k, v in _TAGS.items()]
    s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": tags})
