"""Rules between settings: each is a function that yields Problems. Pure."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra import capacity, cidr
from infra.problems import Problem, wrong

if TYPE_CHECKING:
    from infra.settings import Settings


def settings_problems(settings: Settings, region: str) -> Iterator[Problem]:
    """All mistakes that show without looking at files, clusters or accounts."""
    if settings.target == "kubeconfig":
        yield from _kubeconfig(settings)
        return
    yield from _network(settings)
    yield from _zones(settings, region)
    yield from _cluster(settings, region)
    yield from _nodes(settings)
    yield from _rest(settings)


def _kubeconfig(settings: Settings) -> Iterator[Problem]:
    why = "the ambient kubeconfig is never used. Set kubeconfig.path and kubeconfig.context"
    if settings.kubeconfig.path == "":
        yield wrong("kubeconfig.path", None, f"the path of a kubeconfig file: {why}")
    if settings.kubeconfig.context == "":
        yield wrong("kubeconfig.context", None, f"the name of a context in that file: {why}")
    if settings.image == "":
        yield wrong("image", "", "an image that the cluster can pull: the pods run it. Name it by digest")
    if settings.storage.type == "efs-csi":
        said = "hostPath, nfs or existingClaim: EFS is made by target aws only. Set storage.type"
        yield wrong("storage.type", settings.storage.type, said)
    if settings.storage.type == "nfs" and settings.storage.server == "":
        yield wrong("storage.server", "", "an NFS server: it becomes the volume. Set storage.server")
    yield from _volume(settings)
    if settings.compute == "off":
        said = "on: an existing cluster is not this stack's to stop. Use pulumi destroy instead"
        yield wrong("compute", "off", said)


def _volume(settings: Settings) -> Iterator[Problem]:
    storage = settings.storage
    if storage.type == "hostPath" and storage.path == "":
        yield wrong("storage.path", "", "a folder that all nodes share: it is the volume. Set storage.path")
    if storage.type == "existingClaim" and storage.claim == "":
        yield wrong("storage.claim", "", "a ReadWriteMany claim: it is the volume. Set storage.claim")


def _network(settings: Settings) -> Iterator[Problem]:
    network = settings.network
    vpc, service = ipaddress.IPv4Network(network.vpc_cidr), ipaddress.IPv4Network(network.service_cidr)
    if network.vpc_id == "" and not cidr.LARGEST_VPC <= vpc.prefixlen <= cidr.SMALLEST_VPC:
        limit = f"/{cidr.LARGEST_VPC} to /{cidr.SMALLEST_VPC}"
        said = f"{limit}: AWS takes no larger one, and pods need the addresses. Use 10.0.0.0/16"
        yield wrong("network.vpcCidr", network.vpc_cidr, said)
    private = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
    inside = any(service.subnet_of(ipaddress.IPv4Network(block)) for block in private)
    if not cidr.LARGEST_SERVICE <= service.prefixlen <= cidr.SMALLEST_SERVICE or not inside:
        limit = f"/{cidr.LARGEST_SERVICE} to /{cidr.SMALLEST_SERVICE} inside {', '.join(private)}"
        said = f"{limit}: EKS takes no other network for services. Use 172.20.0.0/16"
        yield wrong("network.serviceCidr", network.service_cidr, said)
    if network.vpc_id == "":
        yield from service_problems(settings, network.vpc_cidr)
    ids = list(network.subnet_ids)
    if (network.vpc_id == "") != (not ids):
        said = "set together with network.vpcId, or neither: both name one network. Set or remove both"
        yield wrong("network.subnetIds", ids, said)
    elif ids and len(set(ids)) < max(2, len(ids)):
        said = "at least two subnets, all different: EKS needs two zones. Add a subnet of another zone"
        yield wrong("network.subnetIds", ids, said)


def service_problems(settings: Settings, vpc_cidr: str) -> Iterator[Problem]:
    """Services whose addresses are those of the network that the cluster is in."""
    service = settings.network.service_cidr
    if cidr.overlap(service, vpc_cidr):
        said = (
            f"a network outside the VPC's {vpc_cidr}: EKS refuses it, as an address would be a pod's and a "
        )
        yield wrong(
            "network.serviceCidr", service, said + "service's. Use another one, such as 172.20.0.0/16"
        )


def _zones(settings: Settings, region: str) -> Iterator[Problem]:
    if region == "":
        mend = "pulumi config set aws:region us-west-2"
        yield Problem("aws:region", None, "an AWS region", "every resource is made there", mend)
        return
    listed, zones = settings.network.availability_zones, settings.network.zones
    for zone in listed:
        if zone[:-1] != region or not zone[-1:].isalpha():
            said = f"a zone of {region}, such as {region}a: subnets are made in the stack's region. Use one"
            yield wrong("network.availabilityZones", zone, said)
    if listed and (len(listed) != zones or len(set(listed)) != len(listed)):
        said = f"network.zones ({zones}) different zones: each gets its subnets. List as many"
        yield wrong("network.availabilityZones", list(listed), said)


def _cluster(settings: Settings, region: str) -> Iterator[Problem]:
    cluster = settings.cluster
    if not cluster.admins:
        said = "at least one IAM role or user: without an entry nobody, not even this program, could use the "
        yield wrong("cluster.admins", [], said + "cluster. List the role that deploys, such as role/Admin")
    for name in sorted(set(cluster.admins) & set(cluster.viewers)):
        said = "nobody who is in cluster.admins: EKS takes one entry a principal. Remove it from one list"
        yield wrong("cluster.viewers", name, said)
    for network in cluster.public_cidrs:
        if cidr.is_open(network) and not cluster.open_to_world:
            said = "a network of /8 or smaller, unless cluster.openToWorld is true: it would open the API "
            said += "server to the world without saying so. List your addresses, or set cluster.openToWorld"
            yield wrong("cluster.publicCidrs", network, said)
    key = settings.kms.key_arn
    if key != "" and region not in ("", key.split(":")[3]):
        yield wrong("kms.keyArn", key, f"a key of {region}: services use their region's. Use one of {region}")


def _nodes(settings: Settings) -> Iterator[Problem]:
    nodes = settings.nodes
    for low, high in itertools.pairwise(("min", "desired", "max")):
        less, more = getattr(nodes, low), getattr(nodes, high)
        if less > more:
            said = f"at most nodes.{high} ({more}): a node group needs min <= desired <= max. Change one"
            yield wrong(f"nodes.{low}", less, said)
    types = list(nodes.instance_types)
    if not types:
        said = "at least one instance type: the group needs to know what to start. Use [m6i.large]"
        yield wrong("nodes.instanceTypes", types, said)
    if len({capacity.is_arm(kind) for kind in types}) > 1:
        said = "types of one processor architecture: the launcher's image is built for one. List Intel/AMD "
        yield wrong("nodes.instanceTypes", types, said + "types or Graviton types, not both")
    if nodes.placement_group and not nodes.single_zone:
        said = "false, unless nodes.singleZone is true: such a group lies in one zone. Set nodes.singleZone"
        yield wrong("nodes.placementGroup", True, said)
    burstable = [kind for kind in types if kind.startswith("t")]
    if nodes.placement_group and burstable:
        said = "no burstable type with nodes.placementGroup: EC2 starts none there. Use m6i.large"
        yield wrong("nodes.instanceTypes", burstable[0], said)
    if nodes.auto and nodes.placement_group:
        said = "false with nodes.placementGroup: its small system node starts in none. Set one to false"
        yield wrong("nodes.auto", True, said)
    if nodes.auto and settings.network.nat == "none" and settings.network.vpc_id == "":
        said = "false with network.nat none: the autoscaler's image comes from outside AWS. Use nat single"
        yield wrong("nodes.auto", True, said)


def _rest(settings: Settings) -> Iterator[Problem]:
    dns, budget = settings.dns, settings.budget
    if (dns.external_name == "") != (dns.public_zone_id == ""):
        said = "set together with dns.publicZoneId, or neither: it is that zone's record. Set or remove both"
        yield wrong("dns.externalName", dns.external_name, said)
    if (budget.dollars == 0) != (budget.email == ""):
        said = "set together with budget.dollars, or neither: an alarm needs both. Set or remove both"
        yield wrong("budget.email", budget.email, said)
    yield from _volume(settings)


def value_problems(settings: Settings, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Values that cannot work on this stack. All else about values is the chart's own schema's business."""
    source = str((values.get("data") or {}).get("source", ""))
    outside = source.startswith(("https://", "http://"))
    network = settings.network
    if settings.target == "aws" and network.nat == "none" and network.vpc_id == "" and outside:
        reason = "without NAT the data pod reaches nothing outside AWS"
        mend = "put the source into the bucket (artifacts.uploads) and name it s3://{bucket}/KEY"
        yield Problem("data.source", source, "s3:// or file:// with network.nat none", reason, mend)


def capacity_problems(
    settings: Settings, values: Mapping[str, Any], machines: Mapping[str, capacity.Size]
) -> tuple[list[Problem], list[str]]:
    """What cannot fit for certain, and warnings of what may not.

    All must fit at once: training pods hold their requests while they wait for the data pod. Refused is only
    what even empty machines could not hold; what daemons and add-ons take is an estimate, and only warns.

    Args:
        settings: the stack's.
        values: the chart's, its defaults filled in.
        machines: vCPU and memory of each type in `nodes.instanceTypes`.
    """
    nodes = settings.nodes
    count = nodes.max if nodes.auto else nodes.desired
    if count == 0 or not machines:
        return [], []
    try:
        trainer = capacity.requests(values.get("resources") or {})
        data = capacity.requests((values.get("data") or {}).get("resources") or {})
    except ValueError as error:
        mend = "correct it in the stack's valuesFiles or values"
        given = values.get("resources")
        return [Problem("resources", given, "quantities such as 250m and 2Gi", str(error), mend)], []
    trainers, alone = int(values.get("trainers", 1)), values.get("hostPorts") is True
    whole = min(machines.values(), key=lambda size: (size.memory, size.cpu))
    key = "max" if nodes.auto else "desired"
    rule = "one trainer a node (hostPorts)" if alone else "the sum of requests"
    wanted = f"{trainers} trainers of {trainer} and a data pod of {data} at once, by {rule}"
    mend = f"Raise nodes.{key}, use a larger type in nodes.instanceTypes, or lower trainers or resources"

    def fits(node: capacity.Size) -> str:
        placed, beside = capacity.held(
            node=node, nodes=count, trainers=trainers, trainer=trainer, data=data, one_a_node=alone
        )
        if placed < trainers:
            return f"{placed} trainers fit"
        return "" if beside else "no room is left for the data pod"

    types = ", ".join(nodes.instance_types)
    short = fits(whole)
    if short:
        said = f"{count} of {types} have {whole} each, {short}, and the others would wait for ever"
        return [wrong(f"nodes.{key}", count, f"nodes that hold {wanted}: {said}. {mend}")], []
    left = capacity.for_pods(whole)
    short = fits(left)
    said = f"nodes.{key} = {count}: about {left} of each {types} are left to pods, of which {short}"
    return [], [f"{said} (wanted: {wanted}). Pods that find no room stay pending. {mend}"] if short else []


def upload_problems(settings: Settings, project_folder: Path) -> Iterator[Problem]:
    """Uploads whose file is not there."""
    for key, name in settings.artifacts.uploads.items():
        if not (project_folder / name).is_file():
            said = "a file, by its path relative to the project: it is not there. Run make sources for the "
            yield wrong("artifacts.uploads", f"{key}: {name}", said + "examples' data, or correct the path")


# Settings of the AWS provider that say as whom it asks, and that nothing but the provider reads.
_OWN_CREDENTIALS = (
    *("accessKey", "secretKey", "token", "assumeRole", "assumeRoles", "assumeRoleWithWebIdentity"),
    *("sharedConfigFiles", "sharedCredentialsFile", "sharedCredentialsFiles"),
)


def credential_problems(config: Mapping[str, str]) -> Iterator[Problem]:
    """Credentials that `aws eks get-token`, push and doctor would not have; aws:profile reaches all."""
    for name in _OWN_CREDENTIALS:
        if config.get(f"aws:{name}"):
            yield Problem(
                f"aws:{name}",
                "(not shown)",
                "not set",
                "only the provider would use it; cluster tokens, push and doctor would ask as another",
                "write a profile (role_arn, source_profile) into ~/.aws/config, and set aws:profile to it",
            )
