"""Wiring of target aws, by mocks: what a destroy keeps, and how the next `up` takes it up."""

from __future__ import annotations

from typing import Any

import pytest

from infra import kept, state
from infra.problems import SettingsError

from .support import AWS, Recorder, aws_stack, default

STATE = state.READ_STATE
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


def test_an_empty_account_has_nothing_to_take_up() -> None:
    assert _imports(default()) == {}


def test_what_a_destroy_kept_is_imported_by_the_stacks_tags() -> None:
    group = "/aws/eks/paddle-training-dev/cluster"
    groups = {GROUPS: {"id": "x", "arns": [], "logGroupNames": [group, f"{group}-other"]}}
    made = aws_stack(answers=_listed() | groups)
    assert _imports(made) == {**IDS, "logs": group}


def test_everything_that_guards_kept_data_is_kept_with_it() -> None:
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


def test_what_the_state_has_is_not_looked_for() -> None:
    types = {part: kind for part, (kind, _, _) in kept._PARTS.items()} | {"logs": kept._LOGS_TYPE}
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
def test_what_is_listed_but_gone_is_made_anew(part: str, call: str, answer: Any) -> None:
    gone = _listed() | {call: answer}
    if part == "key":  # a file system does not outlive its key
        gone["aws:efs/getFileSystem:getFileSystem"] = Exception("FileSystemNotFound: gone")
    assert part not in _imports(aws_stack(answers=gone))


def test_what_may_not_be_looked_at_is_not_taken_for_gone() -> None:
    denied = {"aws:efs/getFileSystem:getFileSystem": Exception("AccessDenied: elasticfilesystem:Describe…")}
    with pytest.raises(Exception, match="AccessDenied"):
        aws_stack(answers=_listed() | denied)


def test_what_a_living_stack_of_another_state_has_is_never_taken() -> None:
    group = ("efs", "arn:aws:ec2:us-west-2:123456789012:security-group/sg-1")
    there = {"aws:ec2/getSecurityGroup:getSecurityGroup": {"id": "sg-1"}}
    with pytest.raises(SettingsError, match="sg-1 is there, and in another state"):
        aws_stack(answers=_listed(group) | there)
    gone = {"aws:ec2/getSecurityGroup:getSecurityGroup": Exception("InvalidGroup.NotFound")}
    assert _imports(aws_stack(answers=_listed(group) | gone)) == IDS


def test_two_file_systems_with_the_stacks_tags_are_refused_by_their_ids() -> None:
    second = ("efs", ARNS["efs"].replace("fs-1", "fs-2"))
    with pytest.raises(SettingsError, match="fs-1, fs-2"):
        aws_stack(answers=_listed(second))


def test_another_key_is_refused_since_it_would_replace_the_file_system() -> None:
    other = "arn:aws:kms:us-west-2:123456789012:key/other"
    with pytest.raises(SettingsError, match=KEY_ARN):
        aws_stack(**AWS | {"kms": {"keyArn": other}}, answers=_listed())
    made = aws_stack(kms={"keyArn": KEY_ARN}, answers=_listed())
    assert made.imports["paddle-training-dev-efs"] == "fs-1"
