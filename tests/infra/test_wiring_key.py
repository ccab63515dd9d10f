"""Wiring of target aws, by mocks: the key and all that it encrypts."""

from __future__ import annotations

from typing import Any

from .support import Recorder, aws_stack, default


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


def test_one_own_key_encrypts_everything_and_rotates() -> None:
    key = default().one("aws:kms/key:Key")
    assert key.inputs["enableKeyRotation"] is True
    assert set(_encrypted(default()).values()) == {f"arn:aws:mock:::{key.name}"}
    assert default().one("LaunchTemplate").inputs["blockDeviceMappings"][0]["ebs"]["encrypted"] == "true"
    assert default().one("FileSystem").inputs["encrypted"] is True


def test_a_given_key_is_used_everywhere_and_never_owned() -> None:
    arn = "arn:aws:kms:us-west-2:123456789012:key/1-2"
    made = aws_stack(kms={"keyArn": arn})
    assert not made.of("aws:kms/key:Key")
    assert not made.of("aws:kms/alias:Alias")
    assert set(_encrypted(made).values()) == {arn}
