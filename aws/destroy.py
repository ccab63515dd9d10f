"""`make destroy`: says what goes and what stays, and does not begin when settings and state disagree.

Pulumi destroys by the state alone: a `storage.protect: true` written after the last `up` saves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aws.stack import CommandError

HOLD_DATA = {
    "aws:efs/fileSystem:FileSystem": "file system",
    "aws:s3/bucket:Bucket": "bucket",
    "aws:ecr/repository:Repository": "registry",
    "aws:kms/key:Key": "key",
    "aws:cloudwatch/logGroup:LogGroup": "log",
}
# Removes the stack's resources; its settings and history stay.
ARGUMENTS = ("destroy", "--yes", "--skip-preview")


@dataclass(frozen=True)
class Plan:
    """What holds a person's data, by name, and how many resources a destroy removes in all."""

    goes: list[str]
    stays: list[str]
    removed: int


def plan(exported: dict[str, Any], stack: str, protect: bool) -> Plan:
    """What a destroy would do, by what `pulumi stack export` prints and the file's present `storage.protect`.

    Raises:
        CommandError: there is nothing to destroy, or file and state disagree.
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
        does = "remove" if protect else "leave"
        raise CommandError(
            f"Pulumi.{stack}.yaml says storage.protect: {str(protect).lower()}, but the last up had it "
            f"otherwise, and a destroy goes by the state: it would {does} {', '.join(wrong)}. "
            f"Run pulumi up --stack {stack} first, or set storage.protect to what the state has"
        )
    return Plan(names[False], names[True], sum(not r.get("retainOnDelete") for r in real))
