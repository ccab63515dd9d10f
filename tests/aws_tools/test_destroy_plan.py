"""`make destroy` follows the protection in the state, and stops if the stack file differs from it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from aws import destroy_plan, smoke_test
from aws import stack_access as stacks
from aws.__main__ import app
from aws.stack_access import CommandError


def state(**kept: bool) -> dict:
    """Return the output of `pulumi stack export` for a VPC and, if given, a file system (`files`) and a bucket.

    True: `pulumi destroy` keeps this resource; False: it removes the resource.
    """
    kinds = {"files": "aws:efs/fileSystem:FileSystem", "bucket": "aws:s3/bucket:Bucket"}
    listed = [{"type": "pulumi:pulumi:Stack"}, {"type": "aws:ec2/vpc:Vpc", "id": "vpc-1", "custom": True}]
    for name, retained in kept.items():
        listed.append({"type": kinds[name], "id": f"{name}-1", "custom": True, "retainOnDelete": retained})
    return {"deployment": {"resources": listed}}


def test_destroy_plan_lists_kept_and_removed_resources() -> None:
    kept = destroy_plan.plan_destroy(state(files=True, bucket=True), "dev", protect=True)
    assert (kept.kept_data, kept.removed_data, kept.removed_count) == (
        ["file system files-1", "bucket bucket-1"],
        [],
        1,
    )
    gone = destroy_plan.plan_destroy(state(files=False), "dev", protect=False)
    assert (gone.kept_data, gone.removed_data, gone.removed_count) == ([], ["file system files-1"], 2)


@pytest.mark.parametrize(
    ("protect", "said"),
    [
        (True, "would remove file system files-1. Fix: run"),
        (False, "would keep bucket bucket-1. Fix: run pulumi up"),
    ],
)
def test_destroy_plan_protect_differs_from_state_raises(protect, said) -> None:
    with pytest.raises(CommandError, match=said):
        destroy_plan.plan_destroy(state(files=False, bucket=True), "dev", protect)


def test_destroy_plan_empty_stack_raises() -> None:
    with pytest.raises(CommandError, match="nothing to destroy"):
        destroy_plan.plan_destroy({"deployment": None}, "dev", protect=True)


@pytest.mark.parametrize(("typed", "removed"), [("dev\n", True), ("yes\n", False), ("", False)])
def test_destroy_starts_only_after_stack_name_is_typed(typed, removed, monkeypatch) -> None:
    ran = []

    def run(argv, *, capture=False):
        ran.append(" ".join(argv))
        return json.dumps({**state(files=True), "destroyLoses": "the work since then"})

    monkeypatch.setattr(stacks, "run_command", run)
    done = CliRunner().invoke(app, ["destroy", "--stack", "dev"], input=typed)
    assert "kept: file system files-1" in done.output
    assert "the work since then" in done.output
    assert ("pulumi destroy --yes --skip-preview --non-interactive --stack dev" in ran) == removed


def test_kept_prints_settings_with_which_next_up_uses_resources(monkeypatch) -> None:
    arns = [
        "arn:aws:ecr:us-west-2:123456789012:repository/paddle-training-dev-launcher-1a",
        "arn:aws:elasticfilesystem:us-west-2:123456789012:access-point/fsap-1",
        "arn:aws:elasticfilesystem:us-west-2:123456789012:file-system/fs-1",
        "arn:aws:kms:us-west-2:123456789012:key/k-1",
        "arn:aws:logs:us-west-2:123456789012:log-group:/aws/eks/paddle-training-dev/cluster",
        "arn:aws:s3:::paddle-training-dev-artifacts-1a",
    ]
    monkeypatch.setattr(smoke_test, "find_leftovers", lambda stack, client: arns)
    printed = CliRunner().invoke(app, ["kept", "--stack", "dev"]).output.splitlines()
    assert printed[: len(arns)] == arns
    assert printed[len(arns) + 1 :] == [
        f"pulumi config set --path 'storage.adopt.{key}' {id_} --stack dev"
        for key, id_ in (
            ("registry", "paddle-training-dev-launcher-1a"),
            ("accessPoint", "fsap-1"),
            ("fileSystem", "fs-1"),
            ("key", "k-1"),
            ("bucket", "paddle-training-dev-artifacts-1a"),
        )
    ]
