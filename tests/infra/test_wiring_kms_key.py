"""Target aws with mocks: the KMS key and everything that it encrypts."""

from __future__ import annotations

import json
from typing import Any

from infra import iam_policies

from .recording_mocks import Recorder, aws_stack, default


def _encrypted(made: Recorder) -> dict[str, Any]:
    rules = made.one("BucketServerSideEncryptionConfiguration").inputs["rules"]
    template = made.one("LaunchTemplate").inputs["blockDeviceMappings"][0]["ebs"]
    return {
        "secrets": made.one("aws:eks/cluster:Cluster").inputs["encryptionConfig"]["provider"]["keyArn"],
        "file system": made.one("FileSystem").inputs["kmsKeyId"],
        "bucket": rules[0]["applyServerSideEncryptionByDefault"]["kmsMasterKeyId"],
        "registry": made.one("Repository").inputs["encryptionConfigurations"][0]["kmsKey"],
        "disks": template["kmsKeyId"],
    }


def test_own_key_encrypts_everything_and_rotates() -> None:
    key = default().one("aws:kms/key:Key")
    assert key.inputs["enableKeyRotation"] is True
    assert set(_encrypted(default()).values()) == {f"arn:aws:mock:::{key.name}"}
    assert default().one("LaunchTemplate").inputs["blockDeviceMappings"][0]["ebs"]["encrypted"] == "true"
    assert default().one("FileSystem").inputs["encrypted"] is True


def test_existing_key_is_used_and_not_created() -> None:
    arn = "arn:aws:kms:us-west-2:123456789012:key/1-2"
    made = aws_stack(kms={"keyArn": arn})
    assert not made.of("aws:kms/key:Key")
    assert not made.of("aws:kms/alias:Alias")
    assert set(_encrypted(made).values()) == {arn}


def test_key_policy_allows_node_disks_without_role() -> None:
    document = json.loads(iam_policies.key_policy("aws", "123456789012", "us-west-2"))
    disks = next(s for s in document["Statement"] if s["Sid"] == "AllowNodeDisks")
    assert disks["Condition"]["StringEquals"]["kms:CallerAccount"] == "123456789012"
    assert not [action for action in disks["Action"] if "*" in action]
    assert "aws-service-role" not in json.dumps(document)
