"""`make state`: a bucket and a key that a team's clones share."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from aws import state
from aws.__main__ import app
from aws.stack import clients
from infra import policies
from tests.aws_tools.conftest import REGION


def test_the_bucket_is_private_versioned_encrypted_and_tls_only(account, client) -> None:
    made = state.prepare(client, REGION)
    s3, name = client("s3"), made.bucket
    assert all(s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"].values())
    assert s3.get_bucket_versioning(Bucket=name)["Status"] == "Enabled"
    rule = s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"][0]
    key = client("kms").describe_key(KeyId=policies.STATE_ALIAS)["KeyMetadata"]["KeyId"]
    assert rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] == key
    statement = json.loads(s3.get_bucket_policy(Bucket=name)["Policy"])["Statement"][0]
    assert (statement["Effect"], statement["Sid"]) == ("Deny", "OnlyTls")
    assert client("kms").get_key_rotation_status(KeyId=key)["KeyRotationEnabled"]


def test_a_second_run_makes_nothing_more(account, client) -> None:
    first = state.prepare(client, REGION)
    assert state.prepare(client, REGION) == first
    assert len(client("kms").list_keys()["Keys"]) == 1
    assert len(client("s3").list_buckets()["Buckets"]) == 1


def test_it_prints_what_to_type_next(account) -> None:
    done = CliRunner().invoke(app, ["state", "--stack", "dev"])
    assert done.exit_code == 0, done.output
    lines = done.output
    assert (
        "pulumi login 's3://paddle-training-state-123456789012-us-west-2?region=us-west-2&awssdk=v2'" in lines
    )
    assert "--secrets-provider 'awskms://alias/paddle-training-state?region=us-west-2&awssdk=v2'" in lines


def test_a_bucket_in_another_part_of_aws_is_named_as_there(account) -> None:
    region = "cn-north-1"
    client = clients(region)
    made = state.prepare(client, region)
    policy = json.loads(client("s3").get_bucket_policy(Bucket=made.bucket)["Policy"])
    assert policy["Statement"][0]["Resource"][0] == f"arn:aws-cn:s3:::{made.bucket}"
