"""`make aws-smoke`: one whole round in a real account. It costs money, and says how much an hour first.

doctor → up → push → up with the release → training → results → destroy → residue by tag. Whatever fails,
destroy and the search for residue still run, unless the person keeps the stack.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aws import destroy
from aws.stack import Client, CommandError, Stack, outputs, run

# An hour for a training that takes some minutes; nodes that never come end it before that.
TRAINING_SECONDS = 3600


def residue(stack: Stack, client: Client) -> list[str]:
    """ARNs of what carries the stack's tags and still costs or is in the way.

    A KMS key whose deletion is scheduled costs nothing and is left out; so is what is gone but still listed
    for a while: instances that were terminated and NAT gateways that were deleted.
    """
    filters = [{"Key": key, "Values": [value]} for key, value in stack.prefix_tags.items()]
    pages = client("resourcegroupstaggingapi").get_paginator("get_resources").paginate(TagFilters=filters)
    arns = [item["ResourceARN"] for page in pages for item in page["ResourceTagMappingList"]]
    return sorted(arn for arn in arns if not _gone(arn, client))


def _gone(arn: str, client: Client) -> bool:
    service, resource = arn.split(":", 5)[2], arn.split(":", 5)[5]
    kind, _, name = resource.partition("/")
    if service == "kms" and kind == "key":
        return bool(client("kms").describe_key(KeyId=name)["KeyMetadata"]["KeyState"] == "PendingDeletion")
    if service == "ec2" and kind == "instance":
        found = client("ec2").describe_instances(InstanceIds=[name])["Reservations"]
        return all(i["State"]["Name"] == "terminated" for r in found for i in r["Instances"])
    if service == "ec2" and kind == "natgateway":
        gateways = client("ec2").describe_nat_gateways(NatGatewayIds=[name])["NatGateways"]
        return all(gateway["State"] == "deleted" for gateway in gateways)
    return False


def smoke(
    stack: Stack, client: Client, *, base: str, results: Path, say: Callable[[str], None], keep: bool
) -> list[str]:
    """The whole round; returns the residue (nothing is removed nor looked for with `keep`).

    Raises:
        CommandError: a step failed; the destroy and the search ran nevertheless.
    """
    up = ["pulumi", "up", "--yes", "--skip-preview", "--non-interactive", "--stack", stack.name]
    launcher, left = [sys.executable, "-m", "launcher"], []
    with tempfile.TemporaryDirectory(prefix="paddle-training-smoke.") as made:
        kubeconfig = Path(made) / "kubeconfig"
        access = ["--kubeconfig", str(kubeconfig)]
        steps = {
            "everything but the release": up,
            "image": [sys.executable, "-m", "aws", "push", "--stack", stack.name, "--base", base],
            "release": up,
            "train": [*launcher, "wait", "--timeout", str(TRAINING_SECONDS), *access],
            "results": [*launcher, "results", "--to", str(results), *access],
        }
        try:
            for name, argv in steps.items():
                say(name)
                if name == "train":
                    write_kubeconfig(outputs(stack.folder, stack.name), kubeconfig)
                run(argv, stack.folder)
        finally:
            if not keep:
                say("destroy")
                run(destroy.argv(stack.name), stack.folder)
                say("residue by tag")
                left = residue(stack, client)
    return left


def write_kubeconfig(known: dict[str, Any], path: Path) -> None:
    """The stack's kubeconfig, readable by this person only. It holds no secret."""
    config = known.get("kubeconfig")
    if config is None:
        raise CommandError("the stack has no output kubeconfig: is compute off?")
    path.touch(mode=0o600)
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
