"""`make doctor`: find within seconds what would make `pulumi up` fail. The command changes nothing.

Each check is a function that yields findings. If the caller lacks a right for a check, or AWS does not answer, the
check yields an `unknown` finding and does not fail. The checks run in parallel.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from aws import image_push
from aws.stack_access import AwsStack, Client, call_if_exists
from infra import aws_facts, cluster_access, iam_policies
from infra.settings import is_open

# Quotas of an account in a region: service, quota code, description. Those of vCPU are by market and kind of family;
# codes: `aws service-quotas list-service-quotas --service-code ec2`.
VCPU = {
    ("ON_DEMAND", "standard"): ("ec2", "L-1216C47A", "vCPU of running on-demand standard instances"),
    ("SPOT", "standard"): ("ec2", "L-34B43A08", "vCPU of running spot standard instances"),
    ("ON_DEMAND", "G"): ("ec2", "L-DB2E81BA", "vCPU of running on-demand G and VT instances"),
    ("SPOT", "G"): ("ec2", "L-3819A6DF", "vCPU of running spot G and VT instances"),
    ("ON_DEMAND", "P"): ("ec2", "L-417A185B", "vCPU of running on-demand P instances"),
    ("SPOT", "P"): ("ec2", "L-7212CCBC", "vCPU of running spot P instances"),
    ("ON_DEMAND", "X"): ("ec2", "L-7295265B", "vCPU of running on-demand X instances"),
    ("SPOT", "X"): ("ec2", "L-E3A00192", "vCPU of running spot X instances"),
}
ADDRESSES = ("ec2", "L-0263D0A3", "elastic addresses")
VPCS = ("vpc", "L-F678F1CE", "VPCs")

# How long before the end of standard support the doctor warns: enough for an upgrade between two trainings.
SUPPORT_DAYS = 90

_NO_ACCESS = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
# First letters of the instance families that a vCPU quota counts; the families in _OTHER have quotas of their own.
_COUNTED = {**dict.fromkeys("acdhimrtz", "standard"), "g": "G", "v": "G", "p": "P", "x": "X"}
_OTHER = ("dl", "hpc", "inf", "mac", "trn")


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        level: ok, unknown (could not be checked), warn (`up` works, with a caveat) or bad (`up` fails).
        what: what was found, as one line.
        fix: command or step that removes the problem; an empty text if none is needed.
    """

    level: str
    what: str
    fix: str = ""


Findings = Iterator[Finding]
Check = Callable[[AwsStack, Client], Findings]
ok, warn, bad, unknown = (partial(Finding, level) for level in ("ok", "warn", "bad", "unknown"))


def find_principal_arn(client: Client, kind: str, name: str) -> str | None:
    """Return the ARN, with its path, of a role or user; None if IAM has no role or user with this name.

    `kind` is `role` or `user`. This lookup is needed because the ARN of a session lacks the path of the session's role,
    and EKS accepts only the full ARN of the role.
    """
    iam, noun = client("iam"), kind.capitalize()
    found = call_if_exists(iam.get_user if kind == "user" else iam.get_role, **{f"{noun}Name": name})
    return found and str(found[noun]["Arn"])


def caller_arn(client: Client) -> str:
    """Return the ARN of the caller's role or user with its path. For the root user, return the root user's ARN."""
    arn = str(client("sts").get_caller_identity()["Arn"])
    session = re.fullmatch(r"arn:[\w-]+:sts::\d+:assumed-role/([^/]+)/.*", arn)
    return (find_principal_arn(client, "role", session[1]) if session else None) or arn


def check_access(stack: AwsStack, client: Client) -> Findings:
    """Check that admins and viewers exist and that the caller is an admin, and report who can reach the API."""
    mine, cluster = caller_arn(client), stack.settings.cluster
    for setting, arn in cluster_access.principal_arns(cluster, mine).items():
        if arn.split(":")[4] != mine.split(":")[4]:
            text = f"{setting}: {arn} belongs to another account, so it was not checked"
            yield unknown(text, "check there that it exists")
    found = list(cluster_access.principal_problems(stack.settings, mine, partial(find_principal_arn, client)))
    if not found:
        yield ok("all cluster.admins and cluster.viewers of this account exist in IAM")
    missing = cluster_access.caller_problem(stack.settings, mine)
    if missing is None:
        yield ok(f"{mine} is an administrator of the cluster")
    for problem in [*found, *([] if missing is None else [missing])]:
        fix = f"{problem.fix} --stack {stack.name}" if problem.fix.startswith("pulumi ") else problem.fix
        yield bad(f"{problem.key.rpartition(':')[2]}: {problem.reason}", fix)
    if not cluster.public_cidrs:
        what, fix = cluster_access.NO_PUBLIC_ACCESS.split(" Fix: ")
        yield warn(what, fix)
    world = ", ".join(network for network in cluster.public_cidrs if is_open(network))
    if world != "":
        fix = stack.setting("cluster.publicCidrs[0]", "YOUR.ADDRESS/32")
        yield warn(f"the API server is reachable from everywhere ({world}); only IAM protects it", fix)


def offered_zones(client: Client) -> list[str]:
    """Return the names of the region's availability zones in which EKS supports control planes."""
    filters = [{"Name": "opt-in-status", "Values": ["opt-in-not-required"]}]
    found = client("ec2").describe_availability_zones(Filters=filters)["AvailabilityZones"]
    unfit = aws_facts.ZONES_WITHOUT_CONTROL_PLANE
    fit = (zone for zone in found if zone["State"] == "available" and zone["ZoneId"] not in unfit)
    return sorted(zone["ZoneName"] for zone in fit)


def used_zones(stack: AwsStack, client: Client) -> list[str]:
    """Return the names of the zones that the stack will use.

    The zones are chosen by the same rules as in infra/vpc_network.py.
    """
    network = stack.settings.network
    if network.vpc_id != "":
        found = client("ec2").describe_subnets(SubnetIds=list(network.subnet_ids))["Subnets"]
        return sorted({subnet["AvailabilityZone"] for subnet in found})
    return list(network.availability_zones) or offered_zones(client)[: network.zones]


def check_region(stack: AwsStack, client: Client) -> Findings:
    """Check that the region is enabled in the account and has enough zones for EKS."""
    ec2, network = client("ec2"), stack.settings.network
    regions = {r["RegionName"]: r["OptInStatus"] for r in ec2.describe_regions(AllRegions=True)["Regions"]}
    if regions.get(stack.region, "not-opted-in") == "not-opted-in":
        on = ", ".join(sorted(name for name, status in regions.items() if status != "not-opted-in"))
        yield bad(f"aws:region {stack.region} is not enabled in this account", f"use one of {on}")
        return
    zones = offered_zones(client)
    unusable = sorted(set(used_zones(stack, client)) - set(zones))
    if unusable or len(zones) < network.zones:
        lacks = (
            f"no EKS support in zone {', '.join(unusable)}"
            if unusable
            else f"only {len(zones)} zones with EKS (network.zones: {network.zones})"
        )
        yield bad(f"{stack.region} has {lacks}", f"use zones of {', '.join(zones)}, or another region")
    else:
        yield ok(f"region {stack.region} with zones {', '.join(zones)}")


def check_types(stack: AwsStack, client: Client) -> Findings:
    """Check that every zone of the nodes offers at least one of the nodes' instance types.

    If a zone lacks one type but offers another type of the nodes, this is only a warning.
    """
    nodes = stack.settings.nodes
    zones, types = used_zones(stack, client)[: 1 if nodes.single_zone else None], nodes.instance_types
    pages = client("ec2").get_paginator("describe_instance_type_offerings")
    filters = [{"Name": "instance-type", "Values": list(types)}]
    found = pages.paginate(LocationType="availability-zone", Filters=filters)
    offered = {(one["InstanceType"], one["Location"]) for one in found.search("InstanceTypeOfferings[]")}
    for kind in types:
        missing = [zone for zone in zones if (kind, zone) not in offered]
        if missing:
            other = all(any((t, z) in offered for t in types) for z in missing)
            fix = "choose another type, or list other zones under network.availabilityZones"
            yield (warn if other else bad)(f"{kind} is not offered in {', '.join(missing)}", fix)
        else:
            yield ok(f"{kind} is offered in {', '.join(zones)}")


def _others(stack: AwsStack, items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the AWS resources in `items` that do not belong to this stack.

    `items` are from a describe call of EC2, with their `Tags`. `check_quotas` adds the needs of this stack to the use
    by other resources. If the stack's own resources were among these, they would be counted twice.
    """
    mine = stack.tags.items()
    return [i for i in items if not mine <= {(t["Key"], t["Value"]) for t in i.get("Tags", ())}]


def vcpu_quota(instance_type: str) -> str:
    """Return the kind of vCPU quota (see VCPU) that counts an instance type; an empty text if none does."""
    return "" if instance_type.startswith(_OTHER) else _COUNTED.get(instance_type[0], "")


def check_quotas(stack: AwsStack, client: Client) -> Findings:
    """Check that the quotas allow nodes (at `nodes.max`), system node, bastion, VPC, and addresses of NAT gateways.

    Warn if a quota has no room for an update: for nodes without GPUs, an update starts up to two new nodes in each zone
    of a node group before it removes any.
    """
    settings, ec2 = stack.settings, client("ec2")
    bastion, nodes, network = settings.bastion, settings.nodes, settings.network
    zones = 1 if nodes.single_zone else len(used_zones(stack, client))
    markets = ["SPOT", "ON_DEMAND"] if nodes.fallback else [nodes.capacity]
    running = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    instances = ec2.get_paginator("describe_instances").paginate(Filters=running)
    used = dict.fromkeys(VCPU, 0)
    for one in _others(stack, instances.search("Reservations[].Instances[]")):
        market = "SPOT" if one.get("InstanceLifecycle") == "spot" else "ON_DEMAND"
        quota_of = (market, vcpu_quota(one["InstanceType"]))
        if quota_of in VCPU:
            cpu = one.get("CpuOptions") or {}
            used[quota_of] += cpu.get("CoreCount", 1) * cpu.get("ThreadsPerCore", 2)
    single = list(aws_facts.SYSTEM_TYPES[nodes.is_arm][:1]) if nodes.has_system_group else []
    single += [bastion.instance_type] if bastion.enabled else []
    types = ec2.describe_instance_types(InstanceTypes=sorted({*nodes.instance_types, *single}))
    cores = {kind["InstanceType"]: kind["VCpuInfo"]["DefaultVCpus"] for kind in types["InstanceTypes"]}
    largest: dict[str, int] = {}
    for kind in nodes.instance_types:
        largest[vcpu_quota(kind)] = max(largest.get(vcpu_quota(kind), 0), cores[kind])
    needed_cpu = Counter(
        {(market, counted): nodes.max * most for market in markets for counted, most in largest.items()}
    )
    first = 0 if nodes.has_gpus else 2 * zones
    surge = Counter(
        {(market, counted): first * most for market in markets for counted, most in largest.items()}
    )
    for kind in single:
        needed_cpu["ON_DEMAND", vcpu_quota(kind)] += cores[kind]
    if nodes.has_system_group:
        surge["ON_DEMAND", vcpu_quota(single[0])] += 2 * zones * cores[single[0]]
    if "" in largest:
        yield unknown(
            f"vCPU quota of {', '.join(nodes.instance_types)}: not checked", "compare it with nodes.max"
        )
    needs = [(VCPU[key], used[key], count, surge[key]) for key, count in needed_cpu.items() if key in VCPU]
    if network.vpc_id == "":
        vpcs = ec2.get_paginator("describe_vpcs").paginate().search("Vpcs[]")
        needs.append((VPCS, len(_others(stack, vpcs)), 1, 0))
        if network.nat != "none" and settings.compute == "on":
            gateways = 1 if network.nat == "single" else network.zones
            addresses = _others(stack, ec2.describe_addresses()["Addresses"])
            needs.append((ADDRESSES, len(addresses), gateways, 0))
    quotas = client("service-quotas")
    for (service, code, name), held, needed, more in needs:
        quota = {"ServiceCode": service, "QuotaCode": code}
        # An account that never requested another value has AWS' default quota.
        own = call_if_exists(quotas.get_service_quota, **quota)
        limit = (own or quotas.get_aws_default_service_quota(**quota))["Quota"]["Value"]
        text = f"{name}: {held} used by other resources, {needed} needed by this stack, quota {limit:g}"
        options = f"--service-code {service} --quota-code {code} --desired-value {held + needed + more}"
        fix = f"aws service-quotas request-service-quota-increase {options} --region {stack.region}"
        if held + needed <= limit < held + needed + more:
            yield warn(
                f"{text}; an update of the nodes starts up to {more} vCPU more before it removes any", fix
            )
        else:
            yield ok(text) if held + needed <= limit else bad(text, fix)


def check_existing(stack: AwsStack, client: Client) -> Findings:
    """Check that AWS has the resources that the settings refer to: VPC, key pair, KMS key, public zone."""
    settings, ec2, kms, dns = stack.settings, client("ec2"), client("kms"), client("route53")
    existing: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
        ("network.vpcId", settings.network.vpc_id, lambda name: ec2.describe_vpcs(VpcIds=[name])),
        (
            "nodes.sshKeyName",
            settings.nodes.ssh_key_name,
            lambda name: ec2.describe_key_pairs(KeyNames=[name]),
        ),
        ("kms.keyArn", settings.kms.key_arn, lambda name: kms.describe_key(KeyId=name)),
        ("dns.publicZoneId", settings.dns.public_zone_id, lambda name: dns.get_hosted_zone(Id=name)),
    )
    for setting, name, describe in existing:
        if name == "":
            continue
        found = call_if_exists(describe, name)
        state = found.get("KeyMetadata", {}).get("KeyState", "Enabled") if found else "missing"
        fix = f"set {setting} to one that exists, or to an empty text"
        yield ok(f"{setting} {name}") if state == "Enabled" else bad(f"{setting} {name} is {state}", fix)


def check_actions(stack: AwsStack, client: Client) -> Findings:
    """Check with IAM's policy simulator that the caller may call all actions of the program and the aws commands.

    The deployer's policy allows some actions only for the stack's resources or under a condition. Such an action is
    simulated for a resource with the stack's prefix, and with the condition met.
    """
    arn = caller_arn(client)
    if arn.endswith(":root"):
        yield warn(
            "these are the root user's credentials, so the IAM actions were not checked",
            "use a role with the policies that `make iam-policy` writes",
        )
        return
    _, partition, _, _, account, _ = arn.split(":", 5)
    own = stack.settings
    documents = iam_policies.deployer(
        stack.prefix, own.iam, partition=partition, account=account, dns=own.dns, key_arn=own.kms.key_arn
    )
    simulator = client("iam").get_paginator("simulate_principal_policy")
    denied: list[str] = []
    count = 0
    for statement in (each for text in documents for each in json.loads(text)["Statement"]):
        count += len(statement["Action"])
        more: dict[str, Any] = {}
        resources = statement["Resource"]
        if resources != "*":
            arn_pattern = resources if isinstance(resources, str) else resources[0]
            placed = arn_pattern.replace(":*:*:", f":*:{account}:").replace(":*:", f":{stack.region}:")
            more["ResourceArns"] = [placed.replace("*", "doctor")]
        entries = [
            {
                "ContextKeyName": key,
                "ContextKeyValues": [
                    (values if isinstance(values, str) else values[0])
                    .replace(".*.", f".{stack.region}.")
                    .rstrip("*")
                ],
                "ContextKeyType": "boolean" if operator == "Bool" else "string",
            }
            for operator, keys in statement.get("Condition", {}).items()
            for key, values in keys.items()
        ]
        if entries:
            more["ContextEntries"] = entries
        # A statement has less than the 100 actions that IAM accepts in one simulation.
        pages = simulator.paginate(PolicySourceArn=arn, ActionNames=statement["Action"], **more)
        denied += pages.search("EvaluationResults[?EvalDecision!='allowed'].EvalActionName")
    if denied:
        rest = f" and {len(denied) - 8} more" if len(denied) > 8 else ""
        listed = ", ".join(sorted(denied)[:8])
        text = f"{len(denied)} of {count} IAM actions are missing: {listed}{rest}"
        yield bad(text, "attach the policies that `make iam-policy` writes")
    else:
        yield ok(f"all {count} IAM actions are allowed")


def check_version(stack: AwsStack, client: Client) -> Findings:
    """Check that standard support of `cluster.version` does not end soon.

    At the end of standard support, AWS upgrades the control plane.
    """
    version = stack.settings.cluster.version
    found = client("eks").describe_cluster_versions(clusterVersions=[version])["clusterVersions"]
    if not found:
        yield bad(
            f"cluster.version: EKS has no version {version}",
            "set it to one that `aws eks describe-cluster-versions` lists",
        )
        return
    end = found[0]["endOfStandardSupportDate"]
    left = (end - datetime.now(UTC)).days
    text = f"cluster.version {version}: standard support ends on {end:%Y-%m-%d}"
    if left >= SUPPORT_DAYS:
        yield ok(text)
        return
    major, minor = version.split(".")
    fix = stack.setting("cluster.version", f"{major}.{int(minor) + 1}")
    yield warn(f"{text}; then AWS upgrades the control plane, at a time that you do not choose", fix)


def check_image(stack: AwsStack, client: Client) -> Findings:
    """Check that the image is set and exists in the registry."""
    image = stack.settings.image
    fix = f"make push STACK={stack.name}"
    if image == "":
        text = "no image is set: `pulumi up` creates everything except the release"
        yield warn(text, f"pulumi up --stack {stack.name}, then {fix}, then pulumi up again")
        return
    found = re.fullmatch(image_push.ECR + r"(?:@(sha256:\w+)|:(.+))", image)
    if found is None:
        yield unknown(f"{image} is not in ECR, so it was not checked", "check that the nodes can pull it")
        return
    account, name, digest, tag = found.groups()
    wanted = {"imageDigest": digest} if digest else {"imageTag": tag}
    request = {"registryId": account, "repositoryName": name, "imageIds": [wanted]}
    found_image = call_if_exists(client("ecr").describe_images, **request)
    absent = bad(f"{image} is not in the registry, so pods could not pull it", fix)
    yield ok(f"image {image}") if found_image else absent


CHECKS = (
    *(check_access, check_region, check_types, check_quotas, check_existing, check_actions, check_version),
    check_image,
)


def _safely(check: Check, stack: AwsStack, client: Client) -> Findings:
    name = check.__name__.removeprefix("check_")
    try:
        yield from check(stack, client)
    except (ClientError, BotoCoreError) as error:
        if isinstance(error, ClientError) and error.response["Error"]["Code"] in _NO_ACCESS:
            text = f"{name}: not checked: AWS denied {error.operation_name}"
            yield unknown(text, "attach the policies that `make iam-policy` writes")
        else:
            yield unknown(
                f"{name}: not checked: {' '.join(str(error).split())}", "correct the cause and try again"
            )


def run_checks(stack: AwsStack, client: Client) -> list[Finding]:
    """Run all CHECKS. Return a finding about the account, and then their findings in the order of CHECKS.

    If the credentials do not work, return only a finding about the credentials.
    """
    try:
        who = client("sts").get_caller_identity()
    except (ClientError, BotoCoreError, ValueError) as error:
        text = f"credentials: AWS rejected them or cannot be reached: {' '.join(str(error).split())}"
        return [bad(text, "sign in (aws sso login, or AWS_PROFILE) and try again")]
    with ThreadPoolExecutor(len(CHECKS)) as pool:
        found = list(pool.map(lambda check: list(_safely(check, stack, client)), CHECKS))
    return [ok(f"account {who['Account']} as {who['Arn']}"), *itertools.chain.from_iterable(found)]
