"""Target aws with mocks: file system, bucket, registry and key."""

from __future__ import annotations

import pytest

from infra.settings_errors import SettingsError

from .recording_mocks import aws_stack, default, everything


def test_file_system_has_backups_only_on_request() -> None:
    made = aws_stack(storage={"backup": True, "protect": False})
    assert made.one("BackupPolicy").inputs["backupPolicy"] == {"status": "ENABLED"}
    assert "stay in AWS Backup for 35 days" in made.outputs["destroyLoses"]
    assert "AWS Backup" not in default().outputs["destroyLoses"]


def test_file_system_without_archive_has_no_lifecycle_policy() -> None:
    files = aws_stack(storage={"archiveAfterDays": 0}).one("FileSystem").inputs
    assert files.get("lifecyclePolicies", []) == []


@pytest.mark.parametrize("protect", [True, False])
def test_unprotected_bucket_and_registry_are_emptied(protect: bool) -> None:
    made = aws_stack(storage={"protect": protect})
    assert made.one("aws:s3/bucket:Bucket").inputs["forceDestroy"] is not protect
    assert made.one("Repository").inputs["forceDelete"] is not protect


def test_pod_identity_is_created_before_nodes() -> None:
    before = default().before(default().one("PodIdentityAssociation", "pods"))
    assert not [name for name in before if "NodeGroup" in name]


def test_upload_object_changes_with_file() -> None:
    made = everything().one("BucketObjectv2").inputs
    assert made["key"] == "sources/readme"
    assert len(made["sourceHash"]) == 64


def test_upload_missing_file_raises() -> None:
    with pytest.raises(SettingsError, match=r"artifacts\.uploads"):
        aws_stack(artifacts={"uploads": {"sources/x": "nowhere.csv"}})


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
