"""Target aws with mocks: file system, bucket, registry and key."""

from __future__ import annotations

import json

import pulumi
import pytest

from infra.settings import SettingsError
from testkit.aws_emulator import authorization

from .recording_mocks import Recorder, aws_stack, default, everything


def test_file_system_has_backups_only_on_request() -> None:
    made = aws_stack(storage={"backup": True, "protect": False})
    assert made.one("BackupPolicy").inputs["backupPolicy"] == {"status": "ENABLED"}
    assert "stay in AWS Backup for 35 days" in made.outputs["destroyLoses"]
    assert "AWS Backup" not in default().outputs["destroyLoses"]


def test_file_system_without_archive_has_no_lifecycle_policy() -> None:
    files = aws_stack(storage={"archiveAfterDays": 0}).one("FileSystem").inputs
    assert files.get("lifecyclePolicies", []) == []


FILES, POINT = (f"arn:aws:mock:::paddle-training-dev-{part}" for part in ("efs", "pods"))


def _mount(made: Recorder, role: str, **request: str) -> bool:
    """Return whether EFS lets a client mount as `role`; no role: a client without IAM.

    EFS evaluates the file-system policy and the policies of the role together, and a Deny wins. A file system without
    a policy admits everybody.
    """
    policies = made.of("FileSystemPolicy")
    rules = [rule for p in policies for rule in json.loads(p.inputs["policy"])["Statement"]]
    own = [p for p in made.of("RolePolicy") if p.name.endswith(f"-{role}")] if role else []
    rules += [rule for p in own for rule in json.loads(p.inputs["policy"])["Statement"]]
    allowed = [rule for rule in rules if rule["Effect"] == "Allow"]
    denied = [rule for rule in rules if rule["Effect"] == "Deny"]
    given = {"aws:SecureTransport": "true", "elasticfilesystem:AccessPointArn": POINT, **request}
    context = {key: value for key, value in given.items() if value}
    action = "elasticfilesystem:ClientMount"
    if authorization.is_allowed(denied, action, FILES, context):
        return False
    return not policies or authorization.is_allowed(allowed, action, FILES, context)


@pytest.mark.parametrize("role", ["efs-node", "bastion"])
def test_file_system_requires_tls_iam_and_access_point(role: str) -> None:
    made = aws_stack(bastion={"enabled": True})
    assert _mount(made, role)
    assert not _mount(made, ""), "without IAM"
    assert not _mount(made, "efs-csi"), "a role without the right to mount"
    assert not _mount(made, role, **{"aws:SecureTransport": "false"})
    assert not _mount(made, role, **{"elasticfilesystem:AccessPointArn": ""}), "the root of the file system"
    assert not _mount(made, role, **{"elasticfilesystem:AccessPointArn": f"{POINT}2"})
    rights = json.loads(made.one("RolePolicy", role).inputs["policy"])["Statement"]
    clients = {a for rule in rights for a in rule["Action"] if a.startswith("elasticfilesystem:Client")}
    assert clients == {"elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"}, "not as root"


def test_file_system_denies_even_administrators_without_tls_or_access_point() -> None:
    [policy] = default().of("FileSystemPolicy")
    rules = json.loads(policy.inputs["policy"])["Statement"]
    assert {(rule["Effect"], rule["Principal"], rule["Resource"]) for rule in rules} == {("Deny", "*", FILES)}
    assert not [key for key in default().retained if "fileSystemPolicy" in key]


def test_driver_daemon_mounts_with_its_own_role_and_volume_has_option_iam() -> None:
    made = default()
    association = made.one("PodIdentityAssociation", "efs-node").inputs
    assert (association["namespace"], association["serviceAccount"]) == ("kube-system", "efs-csi-node-sa")
    before = made.before(made.one("Addon", "aws-efs-csi-driver"))
    assert [name for name in before if name.endswith("PodIdentityAssociation::paddle-training-dev-efs-node")]
    storage = made.one("Release", "dev-release").inputs["values"]["storage"]
    assert storage["efsCsi"]["mountOptions"] == ["iam"]
    chosen = aws_stack(values={"storage": {"efsCsi": {"mountOptions": ["noac"]}}})
    storage = chosen.one("Release", "dev-release").inputs["values"]["storage"]
    assert storage["efsCsi"]["mountOptions"] == ["noac", "iam"], (
        "a list of the user replaces every other list"
    )


def test_storage_nfs_has_no_file_system_policy_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    made = aws_stack(storage={"type": "nfs"})
    assert not made.of("FileSystemPolicy")
    assert [text for text in said if "storage.type nfs" in text and "without TLS and IAM" in text]


def test_pods_use_the_key_only_through_s3() -> None:
    rights = json.loads(default().one("RolePolicy", "pods").inputs["policy"])["Statement"]
    key = "arn:aws:mock:::paddle-training-dev-key"
    for service, allowed in (("s3", True), ("ec2", False), ("", False)):
        context = {"kms:ViaService": f"{service}.us-west-2.amazonaws.com"} if service else {}
        assert authorization.is_allowed(rights, "kms:Decrypt", key, context) is allowed, service


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
