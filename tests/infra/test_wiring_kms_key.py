"""Target aws with mocks: an existing KMS key."""

from __future__ import annotations

from .recording_mocks import aws_stack


def test_existing_key_is_used_and_not_created() -> None:
    arn = "arn:aws:kms:us-west-2:123456789012:key/1-2"
    made = aws_stack(kms={"keyArn": arn})
    assert not made.of("aws:kms/key:Key")
    assert not made.of("aws:kms/alias:Alias")
    rules = made.one("BucketServerSideEncryptionConfiguration").inputs["rules"]
    assert {
        made.one("aws:eks/cluster:Cluster").inputs["encryptionConfig"]["provider"]["keyArn"],
        made.one("FileSystem").inputs["kmsKeyId"],
        rules[0]["applyServerSideEncryptionByDefault"]["kmsMasterKeyId"],
        made.one("Repository").inputs["encryptionConfigurations"][0]["kmsKey"],
        made.one("LaunchTemplate").inputs["blockDeviceMappings"][0]["ebs"]["kmsKeyId"],
    } == {arn}
