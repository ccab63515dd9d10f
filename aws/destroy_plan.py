"""`make destroy`: list what a destroy removes and keeps, and stop when settings and state disagree.

Pulumi follows the stack's state, not the stack file. For example, `storage.protect: true` protects nothing until the
next `up` has written this setting to the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aws.stack_access import AwsStack, CommandError

HOLD_DATA = {
    "aws:efs/fileSystem:FileSystem": "file system",
    "aws:s3/bucket:Bucket": "bucket",
    "aws:ecr/repository:Repository": "registry",
    "aws:kms/key:Key": "key",
    "aws:cloudwatch/logGroup:LogGroup": "log",
}
# Key of storage.adopt → text before the id in the ARN.
_ADOPTED = {
    "fileSystem": ":file-system/",
    "accessPoint": ":access-point/",
    "bucket": ":s3:::",
    "registry": ":repository/",
    "key": ":key/",
}
# Removes the stack's resources and keeps its settings and history.
ARGUMENTS = ("destroy", "--yes", "--skip-preview")


@dataclass(frozen=True)
class DestroyPlan:
    """What a destroy removes and keeps.

    Attributes:
        removed_data: kind and id of each resource with user data that is removed.
        kept_data: kind and id of each resource with user data that is kept.
        removed_count: the number of all resources that are removed.
    """

    removed_data: list[str]
    kept_data: list[str]
    removed_count: int


def plan_destroy(exported: dict[str, Any], stack: str, protect: bool) -> DestroyPlan:
    """Return what a destroy would remove and keep.

    `exported` is the output of `pulumi stack export`, and `protect` is `storage.protect` in the stack file.

    Raises:
        CommandError: the state has no resources, or the protection of resources in the state differs from `protect`.
    """
    resources = (exported.get("deployment") or {}).get("resources") or []
    real = [r for r in resources if r.get("custom") and not r["type"].startswith("pulumi:")]
    if not real:
        raise CommandError(f"the state of stack {stack} has no resources, so there is nothing to destroy")
    names: dict[bool, list[str]] = {True: [], False: []}
    for r in real:
        if r["type"] in HOLD_DATA:
            names[r.get("retainOnDelete", False)].append(f"{HOLD_DATA[r['type']]} {r['id']}")
    wrong = names[not protect]
    if wrong:
        does = "remove" if protect else "keep"
        raise CommandError(
            f"Pulumi.{stack}.yaml has storage.protect: {str(protect).lower()}, but the last `pulumi up` used "
            f"the opposite, and a destroy follows the state: it would {does} {', '.join(wrong)}. "
            f"Fix: run pulumi up --stack {stack} first, or set storage.protect to {str(not protect).lower()}"
        )
    return DestroyPlan(names[False], names[True], sum(not r.get("retainOnDelete") for r in real))


def adopt_commands(stack: AwsStack, arns: Sequence[str]) -> Iterator[str]:
    """Yield the commands that write the resources in `arns` to `storage.adopt`. The next `up` then uses them again."""
    for arn in arns:
        for key, before in _ADOPTED.items():
            _, found, id_ = arn.partition(before)
            if found:
                yield stack.setting(f"storage.adopt.{key}", id_)
