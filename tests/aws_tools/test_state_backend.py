"""`make state` creates an S3 bucket for Pulumi's state and a KMS key for its secrets, which a team shares."""

from __future__ import annotations

import json

import pytest
from botocore.exceptions import ClientError
from typer.testing import CliRunner

from aws import state_backend
from aws.__main__ import app
from aws.stack_access import make_clients
from infra import iam_policies
from tests.aws_tools.conftest import REGION


def test_state_bucket_is_private_versioned_encrypted_and_tls_only(account, client) -> None:
    made = state_backend.create_state_backend(client, REGION)
    s3, name = client("s3"), made.bucket
    assert all(s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"].values())
    assert s3.get_bucket_versioning(Bucket=name)["Status"] == "Enabled"
    rule = s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"][0]
    key = client("kms").describe_key(KeyId=iam_policies.STATE_ALIAS)["KeyMetadata"]["KeyId"]
    assert rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] == key
    statement = json.loads(s3.get_bucket_policy(Bucket=name)["Policy"])["Statement"][0]
    assert (statement["Effect"], statement["Sid"]) == ("Deny", "RequireTls")
    assert client("kms").get_key_rotation_status(KeyId=key)["KeyRotationEnabled"]


def test_state_backend_second_run_creates_nothing(account, client) -> None:
    first = state_backend.create_state_backend(client, REGION)
    assert state_backend.create_state_backend(client, REGION) == first
    assert len(client("kms").list_keys()["Keys"]) == 1
    assert len(client("s3").list_buckets()["Buckets"]) == 1


@pytest.mark.parametrize("code", ["NotFoundException", "AccessDeniedException"])
def test_state_backend_waits_until_kms_knows_the_new_key_and_its_tag(account, monkeypatch, code) -> None:
    answers, waited, kms = [code, code], [], make_clients(REGION)("kms")
    really = kms.create_alias

    def create_alias(**request: str) -> None:
        if answers:
            raise ClientError({"Error": {"Code": answers.pop(), "Message": "no"}}, "CreateAlias")
        really(**request)

    monkeypatch.setattr(kms, "create_alias", create_alias)
    monkeypatch.setattr(state_backend.time, "sleep", waited.append)
    state_backend.create_state_backend(
        lambda name: kms if name == "kms" else make_clients(REGION)(name), REGION
    )
    assert len(waited) == 2
    assert len(kms.list_keys()["Keys"]) == 1


def test_state_command_prints_next_commands(account) -> None:
    done = CliRunner().invoke(app, ["state", "--stack", "dev"])
    assert done.exit_code == 0, done.output
    lines = done.output
    assert (
        "pulumi login 's3://paddle-training-state-123456789012-us-west-2?region=us-west-2&awssdk=v2'" in lines
    )
    assert "--secrets-provider 'awskms://alias/paddle-training-state?region=us-west-2&awssdk=v2'" in lines


def test_state_backend_in_other_partition_uses_its_arn(account) -> None:
    region = "cn-north-1"
    client = make_clients(region)
    made = state_backend.create_state_backend(client, region)
    policy = json.loads(client("s3").get_bucket_policy(Bucket=made.bucket)["Policy"])
    assert policy["Statement"][0]["Resource"][0] == f"arn:aws-cn:s3:::{made.bucket}"
