"""`make doctor`: what stands between a stack and `pulumi up`, found in seconds. It makes nothing.

Each check is one function that yields findings; one that may not look, or finds no answer, says so instead of
failing. The checks run side by side.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from aws import push
from aws.stack import Client, Stack, seen
from infra import cidr, deployer_actions, versions

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


Findings = Iterator[Finding]
Check = Callable[[Stack, Client], Findings]
ok, warn, bad, unknown = (partial(Finding, level) for level in ("ok", "warn", "bad", "unknown"))


def principal(client: Client, kind: str, name: str) -> str | None:
    """The ARN that IAM has for the role or user of this name, its path included; None: there is none.

    A session's ARN has lost its role's path, and EKS takes no ARN but the whole one.
    """
    iam, noun = client("iam"), kind.capitalize()
    found = seen(iam.get_user if kind == "user" else iam.get_role, **{f"{noun}Name": name})
    return found and str(found[noun]["Arn"])


def myself(client: Client) -> str:
    """The caller's own role or user, as IAM has it; the account's root as it is."""
    arn = str(client("sts").get_caller_identity()["Arn"])
    session = re.fullmatch(r"arn:[\w-]+:sts::\d+:assumed-role/([^/]+)/.*", arn)
    return (principal(client, "role", session[1]) if session else None) or arn


def check_access(stack: Stack, client: Client) -> Findings:
    """Admins and viewers are in IAM by just that ARN, who deploys is an admin, and who reaches the API.

    EKS refuses a principal that is not there, when the cluster is up; without an administrator the release
    cannot be made.
    """
    who, cluster = client("sts").get_caller_identity(), stack.settings.cluster
    own = f"arn:{who['Arn'].split(':')[1]}:iam::{who['Account']}:"
    arns = {
        f"cluster.{setting}[{index}]": name if name.startswith("arn:") else own + name
        for setting, names in (("admins", cluster.admins), ("viewers", cluster.viewers))
        for index, name in enumerate(names)
    }
    for setting, arn in arns.items():
        if f":{who['Account']}:" not in arn:
            yield unknown(f"{setting}: {arn} is another account's, so it was not looked for")
            continue
        kind, _, path = arn.rpartition(":")[2].partition("/")
        found = principal(client, kind, path.rpartition("/")[2])
        if found == arn:
            yield ok(f"{setting}: {arn} is in IAM")
        elif found is None:
            yield bad(f"{setting}: {arn} is not in IAM", "name a role or user that is there")
        else:
            told = f"{setting}: IAM has {found}, not {arn}, and EKS wants the whole name"
            yield bad(told, stack.setting(setting, found))
    mine = myself(client)
    if mine in [arn for setting, arn in arns.items() if setting.startswith("cluster.admins")]:
        yield ok(f"{mine} is an administrator of the cluster")
    else:
        mend = stack.setting(f"cluster.admins[{len(cluster.admins)}]", mine)
        yield bad(f"cluster.admins does not name {mine}: the release could not be made", mend)
    world = ", ".join(network for network in cluster.public_cidrs if cidr.is_open(network))
    if world != "":
        mend = stack.setting("cluster.publicCidrs[0]", "YOUR.ADDRESS/32")
        yield warn(f"the API server answers everybody ({world}): only IAM keeps them out", mend)


def offered_zones(client: Client) -> list[str]:
    """Names of the region's ordinary zones in which EKS puts control planes."""
    asked = [{"Name": "opt-in-status", "Values": ["opt-in-not-required"]}]
    found = client("ec2").describe_availability_zones(Filters=asked)["AvailabilityZones"]
    unfit = versions.ZONES_WITHOUT_CONTROL_PLANE
    fit = (zone for zone in found if zone["State"] == "available" and zone["ZoneId"] not in unfit)
    return sorted(zone["ZoneName"] for zone in fit)


def used_zones(stack: Stack, client: Client) -> list[str]:
    """The zones that the stack will use, as infra/aws_stack.py chooses them."""
    network = stack.settings.network
    if network.vpc_id != "":
        found = client("ec2").describe_subnets(SubnetIds=list(network.subnet_ids))["Subnets"]
        return sorted({subnet["AvailabilityZone"] for subnet in found})
    return list(network.availability_zones) or offered_zones(client)[: network.zones]


def check_region(stack: Stack, client: Client) -> Findings:
    """The region is on for this account, and has the zones that EKS wants."""
    ec2, network = client("ec2"), stack.settings.network
    regions = {r["RegionName"]: r["OptInStatus"] for r in ec2.describe_regions(AllRegions=True)["Regions"]}
    if regions.get(stack.region, "not-opted-in") == "not-opted-in":
        on = ", ".join(sorted(name for name, status in regions.items() if status != "not-opted-in"))
        yield bad(f"aws:region {stack.region} is not on in this account", f"use one of {on}")
        return
    zones = offered_zones(client)
    refused = sorted(set(used_zones(stack, client)) - set(zones))
    if refused or len(zones) < network.zones:
        lacks = f"no zone {', '.join(refused)} that EKS takes" if refused else f"only {len(zones)} zones"
        yield bad(f"{stack.region} has {lacks}", f"it has {', '.join(zones)}")
    else:
        yield ok(f"region {stack.region} with zones {', '.join(zones)}")


def check_types(stack: Stack, client: Client) -> Findings:
    """Every zone that nodes use offers an instance type of theirs."""
    zones, types = used_zones(stack, client), stack.settings.nodes.instance_types
    pages = client("ec2").get_paginator("describe_instance_type_offerings")
    asked = [{"Name": "instance-type", "Values": list(types)}]
    found = pages.paginate(LocationType="availability-zone", Filters=asked)
    offered = {(one["InstanceType"], one["Location"]) for one in found.search("InstanceTypeOfferings[]")}
    for kind in types:
        missing = [zone for zone in zones if (kind, zone) not in offered]
        if missing:
            other = any((t, z) in offered for t in types for z in missing)
            mend = "choose another type, or list other zones under network.availabilityZones"
            yield (warn if other else bad)(f"{kind} is not offered in {', '.join(missing)}", mend)
        else:
            yield ok(f"{kind} is offered in {', '.join(zones)}")


def _others(stack: Stack, items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the stack's own, which count as needed already."""
    mine = stack.tags.items()
    return [i for i in items if not mine <= {(t["Key"], t["Value"]) for t in i.get("Tags", ())}]


def check_quotas(stack: Stack, client: Client) -> Findings:
    """They hold the node group at its largest (sizes are EC2's own), one more VPC, and its NAT gateways."""
    nodes, network, ec2 = stack.settings.nodes, stack.settings.network, client("ec2")
    running = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    instances = ec2.get_paginator("describe_instances").paginate(Filters=running)
    same_market = [
        one.get("CpuOptions") or {}
        for one in _others(stack, instances.search("Reservations[].Instances[]"))
        if (one.get("InstanceLifecycle") == "spot") == (nodes.capacity == "SPOT")
        and one["InstanceType"][0] in _STANDARD
    ]
    types = ec2.describe_instance_types(InstanceTypes=list(nodes.instance_types))["InstanceTypes"]
    largest = max(kind["VCpuInfo"]["DefaultVCpus"] for kind in types)
    used = sum(cpu.get("CoreCount", 1) * cpu.get("ThreadsPerCore", 2) for cpu in same_market)
    needs = [(VCPU[nodes.capacity], used, nodes.max * largest)]
    if network.vpc_id == "":
        vpcs = ec2.get_paginator("describe_vpcs").paginate().search("Vpcs[]")
        needs.append((VPCS, len(_others(stack, vpcs)), 1))
        if network.nat != "none" and stack.settings.compute == "on":
            gateways = 1 if network.nat == "single" else network.zones
            held = _others(stack, ec2.describe_addresses()["Addresses"])
            needs.append((ADDRESSES, len(held), gateways))
    quotas = client("service-quotas")
    for (service, code, name), used, needed in needs:
        asked = {"ServiceCode": service, "QuotaCode": code}
        # An account that never asked for another one has AWS' default.
        own = seen(quotas.get_service_quota, **asked)
        limit = (own or quotas.get_aws_default_service_quota(**asked))["Quota"]["Value"]
        told = f"{name}: {used} used by others, {needed} needed, quota {limit:g}"
        asks = f"--service-code {service} --quota-code {code} --desired-value {used + needed}"
        mend = f"aws service-quotas request-service-quota-increase {asks} --region {stack.region}"
        yield ok(told) if used + needed <= limit else bad(told, mend)


def check_existing(stack: Stack, client: Client) -> Findings:
    """What the settings name as being there already: network, key pair, key and public zone."""
    settings, ec2, kms, dns = stack.settings, client("ec2"), client("kms"), client("route53")
    asked: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
        ("network.vpcId", settings.network.vpc_id, lambda it: ec2.describe_vpcs(VpcIds=[it])),
        ("nodes.sshKeyName", settings.nodes.ssh_key_name, lambda it: ec2.describe_key_pairs(KeyNames=[it])),
        ("kms.keyArn", settings.kms.key_arn, lambda it: kms.describe_key(KeyId=it)),
        ("dns.publicZoneId", settings.dns.public_zone_id, lambda it: dns.get_hosted_zone(Id=it)),
    )
    for setting, name, look in asked:
        if name == "":
            continue
        found = seen(look, name)
        state = found.get("KeyMetadata", {}).get("KeyState", "Enabled") if found else "not there"
        mend = f"correct it, or leave {setting} empty"
        yield ok(f"{setting} {name}") if state == "Enabled" else bad(f"{setting} {name} is {state}", mend)


def check_actions(_: Stack, client: Client) -> Findings:
    """The caller may do what the program and these commands do: asks IAM's simulator, which makes no call."""
    arn = myself(client)
    if arn.endswith(":root"):
        yield warn("these are the account's root credentials", "use a role; make iam-policy has its policies")
        return
    # The simulator knows no service that a role is handed to, so it would deny this one.
    actions = [action for action in deployer_actions.actions() if action != "iam:PassRole"]
    denied: list[str] = []
    for start in range(0, len(actions), _ACTIONS_A_CALL):
        asked = {"PolicySourceArn": arn, "ActionNames": actions[start : start + _ACTIONS_A_CALL]}
        pages = client("iam").get_paginator("simulate_principal_policy").paginate(**asked)
        denied += pages.search("EvaluationResults[?EvalDecision!='allowed'].EvalActionName")
    if denied:
        more = f" and {len(denied) - 8} more" if len(denied) > 8 else ""
        listed = ", ".join(sorted(denied)[:8])
        told = f"{len(denied)} of {len(actions)} IAM actions are missing: {listed}{more}"
        yield bad(told, "attach the policies that `make iam-policy` writes")
    else:
        yield ok(f"all {len(actions)} IAM actions are allowed")


def check_image(stack: Stack, client: Client) -> Findings:
    """The image is set, and the registry has it."""
    image = stack.settings.image
    mend = f"make push STACK={stack.name}"
    if image == "":
        told = "no image is set: up makes everything but the release"
        yield warn(told, f"pulumi up --stack {stack.name}, then {mend}, then pulumi up again")
        return
    found = re.fullmatch(push.ECR + r"(?:@(sha256:\w+)|:(.+))", image)
    if found is None:
        yield unknown(f"{image} is not in ECR, so it was not looked for")
        return
    account, name, digest, tag = found.groups()
    wanted = {"imageDigest": digest} if digest else {"imageTag": tag}
    asked = {"registryId": account, "repositoryName": name, "imageIds": [wanted]}
    there = seen(client("ecr").describe_images, **asked)
    absent = bad(f"{image} is not in the registry: pods could not pull it", mend)
    yield ok(f"image {image}") if there else absent


CHECKS = (check_access, check_region, check_types, check_quotas, check_existing, check_actions, check_image)


def _safely(check: Check, stack: Stack, client: Client) -> Findings:
    name = check.__name__.removeprefix("check_")
    try:
        yield from check(stack, client)
    except (ClientError, BotoCoreError) as error:
        if isinstance(error, ClientError) and error.response["Error"]["Code"] in _NO_ACCESS:
            said = f"{name}: may not look: {error.operation_name} is refused"
            yield unknown(said, "attach the policies that `make iam-policy` writes")
        else:
            yield unknown(f"{name}: {' '.join(str(error).split())}")


def examine(stack: Stack, client: Client) -> list[Finding]:
    """All findings, in the order of the checks. Without working credentials only that one."""
    try:
        who = client("sts").get_caller_identity()
    except (ClientError, BotoCoreError, ValueError) as error:
        told = f"credentials: AWS takes none, or cannot be reached: {' '.join(str(error).split())}"
        return [bad(told, "sign in (aws sso login, or AWS_PROFILE) and try again")]
    with ThreadPoolExecutor(len(CHECKS)) as pool:
        found = list(pool.map(lambda check: list(_safely(check, stack, client)), CHECKS))
    return [ok(f"account {who['Account']} as {who['Arn']}"), *itertools.chain.from_iterable(found)]
