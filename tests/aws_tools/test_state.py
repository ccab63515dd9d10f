"""`make state`: a bucket and a key that a team's clones share."""

from __future__ import annotations

import json

from aws import state
from tests.aws_tools.conftest import REGION


def test_the_bucket_is_private_versioned_encrypted_and_tls_only(account, client) -> None:
    made = state.prepare(client, REGION)
    s3, name = client("s3"), made.bucket
    assert all(s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"].values())
    assert s3.get_bucket_versioning(Bucket=name)["Status"] == "Enabled"
    rule = s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"][0]
    key = client("kms").describe_key(KeyId=state.ALIAS)["KeyMetadata"]["KeyId"]
    assert rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] == key
    statement = json.loads(s3.get_bucket_policy(Bucket=name)["Policy"])["Statement"][0]
    assert (statement["Effect"], statement["Sid"]) == ("Deny", "OnlyTls")
    assert client("kms").get_key_rotation_status(KeyId=key)["KeyRotationEnabled"]


def test_a_second_run_makes_nothing_more(account, client) -> None:
    first = state.prepare(client, REGION)
    assert state.prepare(client, REGION) == first
    assert len(client("kms").list_keys()["Keys"]) == 1
    assert len(client("s3").list_buckets()["Buckets"]) == 1


def test_it_prints_what_to_type_next(account, client) -> None:
    lines = "\n".join(state.next_steps(state.prepare(client, REGION), "dev"))
    assert (
        "pulumi login 's3://paddle-training-state-123456789012-us-west-2?region=us-west-2&awssdk=v2'" in lines
    )
    assert "--secrets-provider 'awskms://alias/paddle-training-state?region=us-west-2&awssdk=v2'" in lines
