"""Target aws with mocks: resources that a destroy keeps, and their import by the next `up` (`storage.adopt`)."""

from __future__ import annotations

from typing import Any

import pytest

from infra.settings import SettingsError

from .recording_mocks import Recorder, aws_stack, default

TAGGED = "aws:resourcegroupstaggingapi/getResources:getResources"
GROUPS = "aws:cloudwatch/getLogGroups:getLogGroups"
FILES, POINT = "aws:efs/getFileSystem:getFileSystem", "aws:efs/getAccessPoint:getAccessPoint"
SECURITY_GROUP = "aws:ec2/getSecurityGroup:getSecurityGroup"
KEY_ARN = "arn:aws:kms:us-west-2:123456789012:key/k-1"
FILES_ARN = "arn:aws:elasticfilesystem:us-west-2:123456789012:file-system/fs-1"
GROUP_ARN = "arn:aws:ec2:us-west-2:123456789012:security-group/sg-1"
IDS = {
    "fileSystem": "fs-1",
    "accessPoint": "fsap-1",
    "bucket": "paddle-training-dev-artifacts-1",
    "registry": "paddle-training-dev-launcher-1",
    "key": "k-1",
}
NAMES = dict(zip(IDS, ("efs", "pods", "artifacts", "launcher", "key"), strict=True))
OTHER_KEY = "arn:aws:kms:us-west-2:123456789012:key/other"


def _account(*arns: str, **fields: Any) -> dict[str, Any]:
    """Return the mocked answers of an account in which `arns` have the stack's tags.

    `fields` replace fields in the answer about the file system.
    """
    names = {KEY_ARN: "key"}
    found = [
        {"resourceArn": arn, "tags": {"Name": f"paddle-training-dev-{names.get(arn, 'efs')}"}} for arn in arns
    ]
    return {
        TAGGED: {"id": "x", "resourceTagMappingLists": found},
        FILES: {"id": "fs-1", "kmsKeyId": KEY_ARN, "encrypted": True, "tags": {}, **fields},
        POINT: {"id": "fsap-1", "fileSystemId": "fs-1"},
        SECURITY_GROUP: {"id": "sg-1"},
        "aws:s3/getBucket:getBucket": {"id": "x"},
        "aws:ecr/getRepository:getRepository": {"id": "x"},
        "aws:kms/getKey:getKey": {"id": "x", "arn": KEY_ARN, "keyState": "Enabled"},
    }


def _up(account: dict[str, Any], adopt: dict[str, str], **keys: Any) -> Recorder:
    return aws_stack(storage={"adopt": adopt}, answers=account, **keys)


def test_retained_empty_account_imports_nothing() -> None:
    assert default().imports == {}


def test_retained_adopted_resources_and_existing_log_group_are_imported() -> None:
    group = "/aws/eks/paddle-training-dev/cluster"
    groups = {GROUPS: {"id": "x", "arns": [], "logGroupNames": [group, f"{group}-other"]}}
    made = _up(_account(FILES_ARN, KEY_ARN) | groups, IDS)
    wanted = {f"paddle-training-dev-{NAMES[key]}": id_ for key, id_ in IDS.items()}
    assert made.imports == {**wanted, "paddle-training-dev-logs": group}


def test_retained_data_keeps_its_protection() -> None:
    made = {name.partition("::")[0].rpartition(":")[2] for name in default().retained}
    assert made == {
        "AccessPoint",
        "BackupPolicy",
        "Bucket",
        "BucketLifecycleConfiguration",
        "BucketOwnershipControls",
        "BucketPolicy",
        "BucketPublicAccessBlock",
        "BucketServerSideEncryptionConfiguration",
        "BucketVersioning",
        "FileSystem",
        "Key",
        "LifecyclePolicy",
        "LogGroup",
        "Repository",
    }
    assert aws_stack(storage={"protect": False}).retained == set()


@pytest.mark.parametrize(
    ("changed", "adopt", "reason"),
    [
        (
            {FILES: Exception("no matching EFS file system found")},
            IDS,
            r"adopt\.fileSystem is 'fs-1'.*account and region",
        ),
        ({"aws:s3/getBucket:getBucket": Exception("couldn't find resource")}, IDS, r"adopt\.bucket is "),
        (
            {"aws:kms/getKey:getKey": {"id": "x", "arn": KEY_ARN, "keyState": "PendingDeletion"}},
            IDS,
            r"adopt\.key is 'k-1'.*its deletion is scheduled",
        ),
        ({POINT: {"id": "x", "fileSystemId": "fs-2"}}, IDS, "it belongs to file system fs-2"),
        (_account(encrypted=False), IDS, "must be an encrypted file system"),
        (_account(tags={"Stack": "two"}), IDS, "it belongs to stack two"),
        (_account(kmsKeyId=OTHER_KEY), IDS, rf"kms\.keyArn is ''.*{OTHER_KEY}"),
        ({}, {"fileSystem": "fs-1"}, r"set storage\.adopt\.key to this key"),
    ],
)
def test_retained_resource_that_cannot_be_adopted_raises(
    changed: dict[str, Any], adopt: dict[str, str], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        _up(_account(FILES_ARN) | changed, adopt)


def test_retained_unknown_kind_raises() -> None:
    with pytest.raises(SettingsError, match="ids under fileSystem, accessPoint"):
        _up(_account(), {"vpc": "vpc-1"})


def test_retained_access_denied_raises() -> None:
    with pytest.raises(Exception, match="AccessDenied"):
        _up(_account() | {FILES: Exception("AccessDenied: elasticfilesystem:Describe…")}, IDS)


def test_retained_file_system_that_is_not_adopted_raises_unless_stack_is_up() -> None:
    with pytest.raises(SettingsError, match=r"adopt\.fileSystem is not set.*fs-1.*an earlier destroy"):
        _up(_account(FILES_ARN, KEY_ARN), {})
    gone = {SECURITY_GROUP: Exception("no matching EC2 Security Group found")}
    with pytest.raises(SettingsError, match="an earlier destroy"):
        _up(_account(FILES_ARN, KEY_ARN, GROUP_ARN) | gone, {})
    assert _up(_account(FILES_ARN, KEY_ARN, GROUP_ARN), {}).imports == {}
    deleted = {FILES: Exception("FileSystemNotFound: deleted, and still listed")}
    assert _up(_account(FILES_ARN, KEY_ARN) | deleted, {}).imports == {}


def test_retained_file_system_with_other_key_raises() -> None:
    live = _account(FILES_ARN, KEY_ARN, GROUP_ARN)
    for account, adopt in ((live, {}), (_account(FILES_ARN), {"fileSystem": "fs-1"})):
        with pytest.raises(SettingsError, match=rf"{KEY_ARN}.*would replace it by an empty one"):
            _up(account, adopt, kms={"keyArn": OTHER_KEY})
        made = _up(account, adopt, kms={"keyArn": KEY_ARN})
        assert made.imports == {f"paddle-training-dev-{NAMES[key]}": id_ for key, id_ in adopt.items()}
