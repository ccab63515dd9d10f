"""`make doctor`: what stands between a stack and `pulumi up`, found in seconds. It makes nothing.

Each check is one function that yields findings; one that may not look, or finds no answer, says so instead of
failing. The checks run side by side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from aws.stack import Client, Stack
from infra import capacity, policies

# Quotas of an account in a region: service, code, what it is called.
VCPU = {
    "ON_DEMAND": ("ec2", "L-1216C47A", "vCPU of running on-demand standard instances"),
    "SPOT": ("ec2", "L-34B43A08", "vCPU of running spot standard instances"),
}
ADDRESSES = ("ec2", "L-0263D0A3", "elastic addresses")
VPCS = ("vpc", "L-F678F1CE", "VPCs")

_NO_ACCESS = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
# The families that the standard vCPU quota counts.
_STANDARD = "acdhimrtz"
# IAM takes at most this many actions in one simulation.
_ACTIONS_A_CALL = 100


@dataclass(frozen=True)
class Finding:
    """`level`: ok, unknown (could not look), warn (the stack comes up, but) or bad (it cannot)."""

    level: str
    what: str
    mend: str = ""


Check = Callable[[Stack, Client], Iterator[Finding]]


def caller(client: Client) -> tuple[dict[str, str] | None, list[Finding]]:
    """Who the credentials belong to, or None and why not."""
    mend = "sign in (aws sso login, or AWS_PROFILE) and try again"
    try:
        who = client("sts").get_caller_identity()
    except ClientError as error:
        said = error.response["Error"]
        return None, [
            Finding("bad", f"AWS refuses these credentials: {said['Code']}: {said['Message']}", mend)
        ]
    except (BotoCoreError, ValueError) as error:
        said_so = " ".join(str(error).split())
        return None, [Finding("bad", f"no credentials, or AWS cannot be reached: {said_so}", mend)]
    return who, [Finding("ok", f"account {who['Account']} as {who['Arn']}")]


def role_of(arn: str) -> str:
    """The IAM role or user behind a caller's ARN, without its path: sessions become their role."""
    found = re.fullmatch(r"(arn:[\w-]+):sts::(\d+):assumed-role/([^/]+)/.*", arn)
    return f"{found[1]}:iam::{found[2]}:role/{found[3]}" if found else arn


def check_admin(stack: Stack, client: Client) -> Iterator[Finding]:
    """The person who deploys needs to be an administrator of the cluster, or the release cannot be made."""
    mine = role_of(client("sts").get_caller_identity()["Arn"])
    kind, _, name = mine.partition(":iam::")[2].partition(":")[2].partition("/")
    wanted = f"{kind}/{name.rpartition('/')[2]}"
    admins = stack.settings.cluster.admins
    if any(
        a.rpartition(":")[2].partition("/")[0] == kind and a.endswith(f"/{wanted.partition('/')[2]}")
        for a in admins
    ):
        yield Finding("ok", f"{wanted} is an administrator of the cluster")
    else:
        listed = ", ".join(admins) or "none"
        yield Finding(
            "bad",
            f"cluster.admins ({listed}) does not name {wanted}: the release could not be made",
            f"pulumi config set --path 'cluster.admins[{len(admins)}]' {wanted} --stack {stack.name}",
        )


def check_region(stack: Stack, client: Client) -> Iterator[Finding]:
    """The region is on for this account, and has the zones."""
    ec2, network = client("ec2"), stack.settings.network
    regions = {r["RegionName"]: r["OptInStatus"] for r in ec2.describe_regions(AllRegions=True)["Regions"]}
    if regions.get(stack.region, "not-opted-in") == "not-opted-in":
        on = ", ".join(sorted(name for name, status in regions.items() if status != "not-opted-in"))
        yield Finding("bad", f"aws:region {stack.region} is not on in this account", f"use one of {on}")
        return
    zones = offered_zones(client)
    missing = sorted(set(network.availability_zones) - set(zones))
    if missing or len(zones) < network.zones:
        lacks = f"no zone {', '.join(missing)}" if missing else f"only {len(zones)} zones"
        yield Finding("bad", f"{stack.region} has {lacks}", f"it has {', '.join(zones)}")
    else:
        yield Finding("ok", f"region {stack.region} with zones {', '.join(zones)}")


def offered_zones(client: Client) -> list[str]:
    """Names of the region's ordinary zones."""
    asked = [{"Name": "opt-in-status", "Values": ["opt-in-not-required"]}]
    found = client("ec2").describe_availability_zones(Filters=asked)["AvailabilityZones"]
    return sorted(zone["ZoneName"] for zone in found if zone["State"] == "available")


def used_zones(stack: Stack, client: Client) -> list[str]:
    """The zones that the stack will use, as infra/aws_stack.py chooses them."""
    network = stack.settings.network
    if network.vpc_id != "":
        found = client("ec2").describe_subnets(SubnetIds=list(network.subnet_ids))["Subnets"]
        return sorted({subnet["AvailabilityZone"] for subnet in found})
    return list(network.availability_zones) or offered_zones(client)[: network.zones]


def check_types(stack: Stack, client: Client) -> Iterator[Finding]:
    """Every zone that nodes use offers an instance type of theirs."""
    zones, types = used_zones(stack, client), stack.settings.nodes.instance_types
    pages = (
        client("ec2")
        .get_paginator("describe_instance_type_offerings")
        .paginate(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": list(types)}]
        )
    )
    offered = {(o["InstanceType"], o["Location"]) for page in pages for o in page["InstanceTypeOfferings"]}
    for kind in types:
        missing = [zone for zone in zones if (kind, zone) not in offered]
        if missing:
            other = any((t, z) in offered for t in types if t != kind for z in missing)
            mend = "choose another type, or list other zones under network.availabilityZones"
            yield Finding("warn" if other else "bad", f"{kind} is not offered in {', '.join(missing)}", mend)
        else:
            yield Finding("ok", f"{kind} is offered in {', '.join(zones)}")


def quota(client: Client, service: str, code: str) -> float:
    """The quota's value, or AWS's default when the account has none of its own."""
    quotas = client("service-quotas")
    try:
        found = quotas.get_service_quota(ServiceCode=service, QuotaCode=code)
    except quotas.exceptions.NoSuchResourceException:
        found = quotas.get_aws_default_service_quota(ServiceCode=service, QuotaCode=code)
    return float(found["Quota"]["Value"])


def _room(stack: Stack, client: Client, of: tuple[str, str, str], used: float, needed: float) -> Finding:
    service, code, name = of
    limit = quota(client, service, code)
    told = f"{name}: {used:g} used by others, {needed:g} needed, quota {limit:g}"
    mend = (
        f"aws service-quotas request-service-quota-increase --service-code {service} --quota-code {code} "
        f"--desired-value {used + needed:g} --region {stack.region}"
    )
    return Finding("ok", told) if used + needed <= limit else Finding("bad", told, mend)


def _others(stack: Stack, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the stack's own, which count as needed already."""
    mine = stack.prefix_tags.items()
    return [i for i in items if not mine <= {(t["Key"], t["Value"]) for t in i.get("Tags", ())}]


def check_vcpu(stack: Stack, client: Client) -> Iterator[Finding]:
    """The vCPU quota holds the node group at its largest."""
    nodes = stack.settings.nodes
    spot = nodes.capacity == "SPOT"
    running = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    pages = client("ec2").get_paginator("describe_instances").paginate(Filters=running)
    instances = [i for page in pages for r in page["Reservations"] for i in r["Instances"]]
    used = 0
    for instance in _others(stack, instances):
        same_market = (instance.get("InstanceLifecycle") == "spot") == spot
        if same_market and instance["InstanceType"][0] in _STANDARD:
            cpu = instance.get("CpuOptions") or {}
            used += int(cpu.get("CoreCount", 1)) * int(cpu.get("ThreadsPerCore", 2))
    largest = max((m.cpu for m in map(capacity.machine, nodes.instance_types) if m is not None), default=None)
    if largest is None:
        yield Finding("unknown", f"vCPU of {', '.join(nodes.instance_types)} are not known to this program")
        return
    yield _room(stack, client, VCPU[nodes.capacity], used, nodes.max * largest)


def check_addresses(stack: Stack, client: Client) -> Iterator[Finding]:
    """Elastic addresses of the NAT gateways."""
    network = stack.settings.network
    if network.vpc_id != "" or network.nat == "none" or stack.settings.compute == "off":
        return
    held = _others(stack, client("ec2").describe_addresses()["Addresses"])
    needed = 1 if network.nat == "single" else len(network.availability_zones) or network.zones
    yield _room(stack, client, ADDRESSES, len(held), needed)


def check_vpcs(stack: Stack, client: Client) -> Iterator[Finding]:
    """One more VPC, or the existing one."""
    pages = client("ec2").get_paginator("describe_vpcs").paginate()
    found = [vpc for page in pages for vpc in page["Vpcs"]]
    wanted = stack.settings.network.vpc_id
    if wanted == "":
        yield _room(stack, client, VPCS, len(_others(stack, found)), 1)
    elif wanted not in {vpc["VpcId"] for vpc in found}:
        yield Finding("bad", f"network.vpcId {wanted} is not in {stack.region}", "correct it or aws:region")


# Named by a setting, and not there: the code of each service's refusal.
_ABSENT = ("InvalidKeyPair.NotFound", "NotFoundException", "NoSuchHostedZone")


def check_existing(stack: Stack, client: Client) -> Iterator[Finding]:
    """What the settings name as being there already: key pair, key and public zone."""
    settings = stack.settings
    pair, key, zone = settings.nodes.ssh_key_name, settings.kms.key_arn, settings.dns.public_zone_id
    asked: list[tuple[str, str, Callable[[], Any]]] = [
        ("nodes.sshKeyName", pair, lambda: client("ec2").describe_key_pairs(KeyNames=[pair])),
        ("kms.keyArn", key, lambda: client("kms").describe_key(KeyId=key)),
        ("dns.publicZoneId", zone, lambda: client("route53").get_hosted_zone(Id=zone)),
    ]
    for setting, name, look in asked:
        if name == "":
            continue
        mend = f"correct it, or leave {setting} empty"
        try:
            found = look()
        except ClientError as error:
            if error.response["Error"]["Code"] not in _ABSENT:
                raise
            yield Finding("bad", f"{setting} {name} is not there", mend)
            continue
        state = found.get("KeyMetadata", {}).get("KeyState", "Enabled")
        if state == "Enabled":
            yield Finding("ok", f"{setting} {name}")
        else:
            yield Finding("bad", f"{setting} {name} is {state}", f"enable the key, or {mend}")


def check_actions(_: Stack, client: Client) -> Iterator[Finding]:
    """The caller may do what the program does: asks IAM's simulator, which makes no call."""
    arn = role_of(client("sts").get_caller_identity()["Arn"])
    if arn.endswith(":root"):
        yield Finding(
            "warn",
            "these are the account's root credentials",
            "use a role; make iam-policy prints its policy",
        )
        return
    if ":role/" in arn:
        # The session's ARN has lost the role's path, which the simulator wants.
        arn = client("iam").get_role(RoleName=arn.rpartition("/")[2])["Role"]["Arn"]
    statements = json.loads(policies.deployer())["Statement"]
    actions = sorted({action for s in statements for action in s["Action"] if "Condition" not in s})
    denied = []
    for start in range(0, len(actions), _ACTIONS_A_CALL):
        asked = {"PolicySourceArn": arn, "ActionNames": actions[start : start + _ACTIONS_A_CALL]}
        for page in client("iam").get_paginator("simulate_principal_policy").paginate(**asked):
            denied += [
                r["EvalActionName"] for r in page["EvaluationResults"] if r["EvalDecision"] != "allowed"
            ]
    if denied:
        more = f" and {len(denied) - 8} more" if len(denied) > 8 else ""
        yield Finding(
            "bad",
            f"{len(denied)} of {len(actions)} IAM actions are missing: {', '.join(sorted(denied)[:8])}{more}",
            "attach the policy that `make iam-policy` prints",
        )
    else:
        yield Finding("ok", f"all {len(actions)} IAM actions are allowed")


def check_image(stack: Stack, client: Client) -> Iterator[Finding]:
    """The image is set, and the registry has it."""
    image = stack.settings.image
    mend = f"make push STACK={stack.name}"
    if image == "":
        told = "no image is set: up makes everything but the release"
        yield Finding("warn", told, f"pulumi up --stack {stack.name}, then {mend}, then pulumi up again")
        return
    found = re.fullmatch(
        r"(\d+)\.dkr\.ecr\.([\w-]+)\.amazonaws\.com(?:\.cn)?/([^@:]+)(?:@(sha256:\w+)|:(.+))", image
    )
    if found is None:
        yield Finding("unknown", f"{image} is not in ECR, so it was not looked for")
        return
    account, _, name, digest, tag = found.groups()
    ecr = client("ecr")
    try:
        wanted = {"imageDigest": digest} if digest else {"imageTag": tag}
        ecr.describe_images(registryId=account, repositoryName=name, imageIds=[wanted])
    except (ecr.exceptions.ImageNotFoundException, ecr.exceptions.RepositoryNotFoundException):
        yield Finding("bad", f"{image} is not in the registry: pods could not pull it", mend)
    else:
        yield Finding("ok", f"image {image}")


CHECKS: tuple[Check, ...] = (
    check_admin,
    check_region,
    check_types,
    check_vcpu,
    check_addresses,
    check_vpcs,
    check_existing,
    check_actions,
    check_image,
)


def _safely(check: Check, stack: Stack, client: Client) -> list[Finding]:
    name = check.__name__.removeprefix("check_")
    try:
        return list(check(stack, client))
    except ClientError as error:
        said = error.response["Error"]
        if said["Code"] in _NO_ACCESS:
            mend = "make iam-policy prints what a deployer needs; doctor itself also asks for quotas and IAM"
            return [Finding("unknown", f"{name}: may not look: {error.operation_name} is refused", mend)]
        return [Finding("unknown", f"{name}: {said['Code']}: {said['Message']}")]
    except (BotoCoreError, NotImplementedError) as error:
        return [Finding("unknown", f"{name}: {' '.join(str(error).split())}")]


def examine(stack: Stack, client: Client) -> list[Finding]:
    """All findings, in the order of the checks. Without working credentials only that one."""
    who, findings = caller(client)
    if who is None:
        return findings
    with ThreadPoolExecutor(len(CHECKS)) as pool:
        for found in pool.map(lambda check: _safely(check, stack, client), CHECKS):
            findings += found
    return findings
