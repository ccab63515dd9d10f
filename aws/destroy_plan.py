"""`make destroy`: list what a destroy removes and keeps, and stop when settings and state disagree.

Pulumi decides by the state of the last `up` what it destroys: if `storage.protect: true` was written to the stack
file after that `up`, it protects nothing yet.
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
    """Return what a destroy would remove and keep, by the output of `pulumi stack export`.

    `protect` is `storage.protect` in the stack file.

    Raises:
        CommandError: the state has no resources, or it protects other resources than `protect` says.
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
    """Yield the commands that set `storage.adopt`, so that the next `up` uses the resources in `arns` again."""
    for arn in arns:
        for key, before in _ADOPTED.items():
            _, found, id_ = arn.partition(before)
            if found:
                yield stack.setting(f"storage.adopt.{key}", id_)
