"""`make destroy`: list what a destroy removes and keeps, and stop when settings and state disagree.

Pulumi decides by the state of the last `up` what it destroys: a `storage.protect: true` that was written to
the stack file later protects nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aws.stack_access import CommandError

HOLD_DATA = {
    "aws:efs/fileSystem:FileSystem": "file system",
    "aws:s3/bucket:Bucket": "bucket",
    "aws:ecr/repository:Repository": "registry",
    "aws:kms/key:Key": "key",
    "aws:cloudwatch/logGroup:LogGroup": "log",
}
# Removes the stack's resources and keeps its settings and history.
ARGUMENTS = ("destroy", "--yes", "--skip-preview")


@dataclass(frozen=True)
class DestroyPlan:
    """Resources that hold user data, by name, and the number of resources that a destroy removes."""

    removed_data: list[str]
    kept_data: list[str]
    removed_count: int


def plan_destroy(exported: dict[str, Any], stack: str, protect: bool) -> DestroyPlan:
    """Return what a destroy would do, from `pulumi stack export` and the file's present `storage.protect`.

    Raises:
        CommandError: there is nothing to destroy, or stack file and state disagree.
    """
    resources = (exported.get("deployment") or {}).get("resources") or []
    real = [r for r in resources if r.get("custom") and not r["type"].startswith("pulumi:")]
    if not real:
        raise CommandError(f"stack {stack} has no resources: there is nothing to destroy")
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
