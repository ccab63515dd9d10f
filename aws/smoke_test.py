"""`make aws-smoke`: run one complete cycle in a real AWS account. It costs money.

Without `--yes`, the command only shows the price. The steps are: doctor → up → push → up with the release → training →
results → destroy → search for leftovers by tag and by name. When doctor fails, the command stops. When a step after
doctor fails, destroy and search still run, unless `--keep` was given.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from aws import destroy_plan
from aws.stack_access import AwsStack, Client, run_command

# The training takes some minutes; an hour leaves time for nodes to start.
TRAINING_SECONDS = 3600
UP = ("up", "--yes", "--skip-preview")


def find_leftovers(stack: AwsStack, client: Client) -> list[str]:
    """Return the ARNs of resources with the stack's tags or names that still exist.

    Resources that no longer matter are left out: KMS keys whose deletion is scheduled (they cost nothing), and
    terminated instances and deleted NAT gateways, which AWS still lists for a while.
    """
    filters = [{"Key": key, "Values": [value]} for key, value in stack.tags.items()]
    pages = client("resourcegroupstaggingapi").get_paginator("get_resources").paginate(TagFilters=filters)
    tagged = (arn for arn in pages.search("ResourceTagMappingList[].ResourceARN") if not _gone(arn, client))
    return sorted({*tagged, *_named(stack, client)})


def _named(stack: AwsStack, client: Client) -> Iterator[str]:
    """Yield the ARNs of the stack's roles, instance profiles and log groups, which are found by the stack's prefix.

    Tags do not find them, because the tagging API returns no IAM resources, and log groups that AWS creates have no
    tags. A role of another stack may also have a name with this prefix (`dev-eu` begins with `dev`). So a role or
    profile whose tag `Stack` has another stack's name is left out.
    """
    prefix, iam = stack.prefix, client("iam")
    for kind in ("Role", "InstanceProfile"):
        noun = {"Role": "role", "InstanceProfile": "instance_profile"}[kind]
        for found in iam.get_paginator(f"list_{noun}s").paginate().search(f"{kind}s[]"):
            name = found[f"{kind}Name"]
            if name.startswith(f"{prefix}-"):
                about = getattr(iam, f"get_{noun}")(**{f"{kind}Name": name})[kind]
                owner = {tag["Key"]: tag["Value"] for tag in about.get("Tags", ())}.get("Stack", stack.name)
                if owner == stack.name:
                    yield about["Arn"]
    groups = client("logs").get_paginator("describe_log_groups")
    for folder in ("/aws/eks", "/aws/containerinsights"):
        for arn in groups.paginate(logGroupNamePrefix=f"{folder}/{prefix}/").search("logGroups[].arn"):
            yield arn.removesuffix(":*")


def _gone(arn: str, client: Client) -> bool:
    _, _, service, _, _, resource = arn.split(":", 5)
    kind, _, name = resource.partition("/")
    if (service, kind) == ("kms", "key"):
        return bool(client("kms").describe_key(KeyId=name)["KeyMetadata"]["KeyState"] == "PendingDeletion")
    if (service, kind) == ("ec2", "instance"):
        found = client("ec2").describe_instances(InstanceIds=[name])["Reservations"]
        return all(i["State"]["Name"] == "terminated" for r in found for i in r["Instances"])
    if (service, kind) == ("ec2", "natgateway"):
        gateways = client("ec2").describe_nat_gateways(NatGatewayIds=[name])["NatGateways"]
        return all(gateway["State"] == "deleted" for gateway in gateways)
    return False


def run_smoke_test(
    stack: AwsStack, client: Client, *, base: str, results: Path, show_step: Callable[[str], None], keep: bool
) -> list[str]:
    """Run the cycle and return the ARNs of resources that still exist after destroy.

    The function `show_step` is called with the name of each step. `base` is the base image of the launcher image, and
    `results` the folder for the results. With `keep`, destroy and search do not run, and the returned list is empty.

    Raises:
        CommandError: a step failed. Without `keep`, destroy was still run, and after a successful destroy the search.
    """
    python, left = [sys.executable, "-m"], []
    with tempfile.TemporaryDirectory(prefix="paddle-training-smoke.") as made:
        kubeconfig, settings = Path(made) / "kubeconfig", stack.settings
        access = ["--kubeconfig", str(kubeconfig)]
        access += ["--namespace", settings.namespace.name, "--release", settings.release.name]
        try:
            show_step("everything but the release")
            stack.pulumi(*UP)
            show_step("image")
            run_command([*python, "aws", "push", "--stack", stack.name, "--base", base])
            show_step("release")
            stack.pulumi(*UP)
            show_step("train")
            kubeconfig.write_text(stack.outputs()["kubeconfig"], encoding="utf-8")
            run_command([*python, "launcher", "wait", "--timeout", str(TRAINING_SECONDS), *access])
            show_step("results")
            run_command([*python, "launcher", "results", "--to", str(results), *access])
        finally:
            if not keep:
                show_step("destroy")
                stack.pulumi(*destroy_plan.ARGUMENTS)
                show_step("leftovers by tag and name")
                left = find_leftovers(stack, client)
    return left
