"""Target aws with mocks: resources that a destroy keeps, and their import by the next `up`."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from infra import retained_resources, stack_state
from infra.settings_errors import SettingsError

from .recording_mocks import AWS, ROOT, Recorder, aws_stack, default

STATE = stack_state.READ_STATE
TAGGED = "aws:resourcegroupstaggingapi/getResources:getResources"
GROUPS = "aws:cloudwatch/getLogGroups:getLogGroups"
KEY_ARN = "arn:aws:kms:us-west-2:123456789012:key/k-1"
ARNS = {
    "efs": "arn:aws:elasticfilesystem:us-west-2:123456789012:file-system/fs-1",
    "pods": "arn:aws:elasticfilesystem:us-west-2:123456789012:access-point/fsap-1",
    "artifacts": "arn:aws:s3:::paddle-training-dev-artifacts-1",
    "launcher": "arn:aws:ecr:us-west-2:123456789012:repository/paddle-training-dev-launcher-1",
    "key": KEY_ARN,
}
IDS = {part: arn.replace(":::", "/").rpartition("/")[2] for part, arn in ARNS.items()}
ALIVE: dict[str, Any] = {
    "aws:efs/getFileSystem:getFileSystem": {"id": "fs-1", "kmsKeyId": KEY_ARN},
    "aws:efs/getAccessPoint:getAccessPoint": {"id": "fsap-1", "fileSystemId": "fs-1"},
    "aws:s3/getBucket:getBucket": {"id": "x"},
    "aws:ecr/getRepository:getRepository": {"id": "x"},
    "aws:kms/getKey:getKey": {"id": "x", "arn": KEY_ARN, "keyState": "Enabled"},
}


def _listed(*more: tuple[str, str]) -> dict[str, Any]:
    pairs = [*ARNS.items(), *more]
    found = [{"resourceArn": arn, "tags": {"Name": f"paddle-training-dev-{part}"}} for part, arn in pairs]
    return {TAGGED: {"id": "x", "resourceTagMappingLists": found}, **ALIVE}


def _imports(made: Recorder) -> dict[str, str]:
    return {name.removeprefix("paddle-training-dev-"): id_ for name, id_ in made.imports.items()}


def test_retained_empty_account_imports_nothing() -> None:
    assert _imports(default()) == {}


def test_retained_resources_are_imported_by_tags() -> None:
    group = "/aws/eks/paddle-training-dev/cluster"
    groups = {GROUPS: {"id": "x", "arns": [], "logGroupNames": [group, f"{group}-other"]}}
    made = aws_stack(answers=_listed() | groups)
    assert _imports(made) == {**IDS, "logs": group}


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


def test_retained_resources_in_state_are_not_searched() -> None:
    types = {part: kind.type for part, kind in retained_resources._KINDS.items()}
    types["logs"] = retained_resources._LOGS_TYPE
    urns = {
        f"urn:pulumi:dev::paddle-training::paddle:infra:X${kind}::paddle-training-dev-{part}": {"outputs": {}}
        for part, kind in types.items()
    }
    made = aws_stack(answers=_listed() | {STATE: {"outputs": urns}})
    assert made.imports == {}
    assert not {TAGGED, GROUPS} & set(made.calls)


@pytest.mark.parametrize(
    ("part", "call", "answer"),
    [
        ("efs", "aws:efs/getFileSystem:getFileSystem", Exception("FileSystemNotFound: gone")),
        ("artifacts", "aws:s3/getBucket:getBucket", Exception("couldn't find resource")),
        ("key", "aws:kms/getKey:getKey", {"id": "x", "arn": KEY_ARN, "keyState": "PendingDeletion"}),
    ],
)
def test_retained_deleted_resource_is_created_again(part: str, call: str, answer: Any) -> None:
    gone = _listed() | {call: answer}
    if part == "key":  # without its key, a file system does not exist either
        gone["aws:efs/getFileSystem:getFileSystem"] = Exception("FileSystemNotFound: gone")
    assert part not in _imports(aws_stack(answers=gone))


def test_retained_access_denied_raises() -> None:
    denied = {"aws:efs/getFileSystem:getFileSystem": Exception("AccessDenied: elasticfilesystem:Describe…")}
    with pytest.raises(Exception, match="AccessDenied"):
        aws_stack(answers=_listed() | denied)


def test_engine_without_state_call_says_which_version_works() -> None:
    with pytest.raises(pulumi.RunError, match=r"nothing was changed\. Fix: use Pulumi 3\."):
        aws_stack(answers={STATE: Exception(f"unrecognized function name: {STATE}")})
    tools = (ROOT / "local" / "tools" / "go.mod").read_text(encoding="utf-8")
    assert f"github.com/pulumi/pulumi/pkg/v3 v{stack_state.TESTED} " in tools


def test_retained_stack_with_other_state_raises() -> None:
    group = ("efs", "arn:aws:ec2:us-west-2:123456789012:security-group/sg-1")
    there = {"aws:ec2/getSecurityGroup:getSecurityGroup": {"id": "sg-1"}}
    with pytest.raises(SettingsError, match="sg-1 exists in AWS and is not in this state"):
        aws_stack(answers=_listed(group) | there)
    gone = {"aws:ec2/getSecurityGroup:getSecurityGroup": Exception("InvalidGroup.NotFound")}
    assert _imports(aws_stack(answers=_listed(group) | gone)) == IDS


def test_retained_two_file_systems_raises() -> None:
    second = ("efs", ARNS["efs"].replace("fs-1", "fs-2"))
    with pytest.raises(SettingsError, match="fs-1, fs-2"):
        aws_stack(answers=_listed(second))


def test_retained_file_system_with_other_key_raises() -> None:
    other = "arn:aws:kms:us-west-2:123456789012:key/other"
    with pytest.raises(SettingsError, match=KEY_ARN):
        aws_stack(**AWS | {"kms": {"keyArn": other}}, answers=_listed())
    made = aws_stack(kms={"keyArn": KEY_ARN}, answers=_listed())
    assert made.imports["paddle-training-dev-efs"] == "fs-1"
