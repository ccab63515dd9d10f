"""Rules between settings, and between settings and chart values, files or machines. Imports no pulumi.

Each function yields a `Problem` for each violated rule. `setting_types.py` has the rules of single values.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from infra import instance_types
from infra.chart_values import BUCKET_PLACEHOLDER
from infra.iam_policies import MODELS, SOURCES
from infra.settings import Settings
from infra.settings_errors import Problem
from infra.settings_errors import setting_problem as problem

# AWS allows VPCs of /16 to /28. A /22 leaves 123 addresses in a private subnet, which pods use as well.
LARGEST_VPC = 16
SMALLEST_VPC = 22
# EKS allows service networks of /12 to /24, in private ranges.
LARGEST_SERVICE = 12
SMALLEST_SERVICE = 24
_PRIVATE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")


def is_open(cidr: str) -> bool:
    """Return whether a network is /7 or larger, such as 0.0.0.0/0: such a network counts as the whole internet."""
    return ipaddress.IPv4Network(cidr).prefixlen < 8


def settings_problems(settings: Settings, region: str) -> Iterator[Problem]:
    """Yield the problems that can be found without files, clusters or accounts; `region` is `aws:region`."""
    if settings.target == "kubeconfig":
        yield from _kubeconfig(settings)
        return
    yield from _network(settings)
    yield from _zones(settings, region)
    yield from _cluster(settings, region)
    yield from _nodes(settings)
    yield from _pairs(settings)
    yield from _volume(settings)


def _kubeconfig(settings: Settings) -> Iterator[Problem]:
    why, fix = "no other kubeconfig is used", "set kubeconfig.path and kubeconfig.context"
    if settings.kubeconfig.path == "":
        yield problem("kubeconfig.path", None, "the path of a kubeconfig file", why, fix)
    if settings.kubeconfig.context == "":
        yield problem("kubeconfig.context", None, "the name of a context in that file", why, fix)
    if settings.image == "":
        limit = "an image that the cluster can pull"
        yield problem("image", "", limit, "all pods run it", "set image, preferably with a digest")
    storage = settings.storage
    if storage.type == "efs-csi":
        limit, why = "hostPath, nfs or existingClaim", "only target aws creates an EFS file system"
        yield problem("storage.type", storage.type, limit, why, "set storage.type to one of these")
    if storage.type == "nfs" and storage.server == "":
        limit, fix = "the host name or address of an NFS server", "set storage.server to it"
        yield problem("storage.server", "", limit, "pods mount its export", fix)
    yield from _volume(settings)
    if settings.compute == "off":
        why = "this stack does not own an existing cluster, so it cannot stop it"
        yield problem("compute", "off", "on", why, "use pulumi destroy instead")


def _volume(settings: Settings) -> Iterator[Problem]:
    storage = settings.storage
    if storage.type == "hostPath" and storage.path == "":
        limit = "a folder that all nodes share"
        yield problem("storage.path", "", limit, "pods mount it", "set storage.path to its path")
    if storage.type == "existingClaim" and storage.claim == "":
        limit, fix = "the name of a ReadWriteMany PersistentVolumeClaim", "set storage.claim to it"
        yield problem("storage.claim", "", limit, "pods mount it", fix)


def _network(settings: Settings) -> Iterator[Problem]:
    network = settings.network
    vpc, service = ipaddress.IPv4Network(network.vpc_cidr), ipaddress.IPv4Network(network.service_cidr)
    if network.vpc_id == "" and not LARGEST_VPC <= vpc.prefixlen <= SMALLEST_VPC:
        limit = f"/{LARGEST_VPC} to /{SMALLEST_VPC}"
        why = "AWS allows no larger VPC, and pods need the addresses"
        yield problem("network.vpcCidr", network.vpc_cidr, limit, why, "use for example 10.0.0.0/16")
    private = any(service.subnet_of(ipaddress.IPv4Network(block)) for block in _PRIVATE_NETWORKS)
    if not LARGEST_SERVICE <= service.prefixlen <= SMALLEST_SERVICE or not private:
        limit = f"/{LARGEST_SERVICE} to /{SMALLEST_SERVICE} inside {', '.join(_PRIVATE_NETWORKS)}"
        why, fix = "EKS accepts no other service network", "use for example 172.20.0.0/16"
        yield problem("network.serviceCidr", network.service_cidr, limit, why, fix)
    if network.vpc_id == "":
        yield from service_network_problems(settings, network.vpc_cidr)
    ids = list(network.subnet_ids)
    if (network.vpc_id == "") != (not ids):
        limit, why = "set together with network.vpcId, or not at all", "both describe one existing network"
        yield problem("network.subnetIds", ids, limit, why, "set both or remove both")
    elif ids and len(set(ids)) < max(2, len(ids)):
        limit, why = "at least two different subnets", "EKS requires subnets in two zones"
        yield problem("network.subnetIds", ids, limit, why, "add a subnet of another zone")


def service_network_problems(settings: Settings, vpc_cidr: str) -> Iterator[Problem]:
    """Yield a problem if the network of Kubernetes Services overlaps `vpc_cidr`."""
    service = settings.network.service_cidr
    if ipaddress.IPv4Network(service).overlaps(ipaddress.IPv4Network(vpc_cidr)):
        limit = f"a network outside the VPC's {vpc_cidr}"
        why = "EKS rejects overlapping networks, because an address could belong to a pod and to a Service"
        fix = "use another network, for example 172.20.0.0/16"
        yield problem("network.serviceCidr", service, limit, why, fix)


def _zones(settings: Settings, region: str) -> Iterator[Problem]:
    if region == "":
        fix = "pulumi config set aws:region us-west-2"
        yield Problem("aws:region", None, "an AWS region", "all resources are created there", fix)
        return
    listed, zones = settings.network.availability_zones, settings.network.zones
    for zone in listed:
        if zone[:-1] != region or not zone[-1:].isalpha():
            limit, why = f"a zone of {region}", "subnets are created in the stack's region"
            yield problem("network.availabilityZones", zone, limit, why, f"use for example {region}a")
    if listed and (len(listed) != zones or len(set(listed)) != len(listed)):
        limit, why = f"network.zones ({zones}) different zones", "each zone gets its subnets"
        yield problem("network.availabilityZones", list(listed), limit, why, f"list {zones} zones")


def _cluster(settings: Settings, region: str) -> Iterator[Problem]:
    cluster = settings.cluster
    if not cluster.admins:
        limit = "at least one IAM role or user"
        why = "only listed roles and users can use the cluster, and this program installs the release in it"
        yield problem("cluster.admins", [], limit, why, "list the role that deploys, for example role/Admin")
    seen = set()
    for key, names in (("cluster.admins", cluster.admins), ("cluster.viewers", cluster.viewers)):
        for name in names:
            part = name.rpartition(":")[2]
            if part in seen:
                limit = "each role and user once in cluster.admins and cluster.viewers"
                why = "EKS allows one access entry for each principal, and the program names it after role or user"
                yield problem(key, name, limit, why, "list it once")
            seen.add(part)
    namespace = settings.namespace
    if namespace.create and (namespace.name == "default" or namespace.name.startswith("kube-")):
        limit = "a namespace of your own, if namespace.create is true"
        why = "Kubernetes creates or reserves this one"
        yield problem("namespace.name", namespace.name, limit, why, "use for example paddle")
    for network in cluster.public_cidrs:
        if is_open(network) and not cluster.open_to_world:
            limit = "a network of /8 or smaller, unless cluster.openToWorld is true"
            why = "it would open the API server to the whole internet"
            fix = "list your addresses, or set cluster.openToWorld to true"
            yield problem("cluster.publicCidrs", network, limit, why, fix)
    key = settings.kms.key_arn
    if key != "" and region not in ("", key.split(":")[3]):
        why = "services can use only keys of their own region"
        yield problem("kms.keyArn", key, f"a key of {region}", why, f"use a key of {region}")


def _nodes(settings: Settings) -> Iterator[Problem]:
    nodes = settings.nodes
    # With nodes.auto, the autoscaler decides about the number of nodes.
    for low, high in itertools.pairwise(("min", "max") if nodes.auto else ("min", "desired", "max")):
        less, more = getattr(nodes, low), getattr(nodes, high)
        if less > more:
            why = "a node group requires min <= desired <= max"
            fix = f"lower nodes.{low} or raise nodes.{high}"
            yield problem(f"nodes.{low}", less, f"at most nodes.{high} ({more})", why, fix)
    types = list(nodes.instance_types)
    if not types:
        limit, why = "at least one instance type", "EKS starts nodes of these types"
        yield problem("nodes.instanceTypes", types, limit, why, "use for example [m6i.large]")
    if len({instance_types.is_arm(kind) for kind in types}) > 1:
        limit, why = "types of one processor architecture", "the launcher image is built for one"
        fix = "list either Intel and AMD types or Graviton types"
        yield problem("nodes.instanceTypes", types, limit, why, fix)
    else:
        yield from _gpu_types(types)
    group, auto = "nodes.placementGroup", "nodes.auto"
    if nodes.placement_group and not nodes.single_zone:
        limit, why = "false, unless nodes.singleZone is true", "a placement group lies in one zone"
        yield problem(group, True, limit, why, "set nodes.singleZone to true")
    burstable = [kind for kind in types if kind.startswith("t")]
    if nodes.placement_group and burstable:
        limit, why = f"no burstable type with {group}", "EC2 starts no burstable instance there"
        yield problem("nodes.instanceTypes", burstable[0], limit, why, "use for example m6i.large")
    # What adds the small system node: its key, its value, and another value that adds none.
    system, given, other = (
        (auto, True, "false") if nodes.auto else ("nodes.instanceTypes", types, "no GPU types")
    )
    if nodes.has_system_group and nodes.placement_group:
        why = f"the small system node that {system} adds cannot start in a placement group"
        fix = f"set {group} to false, or {system} to {other}"
        yield problem(system, given, f"{other} with {group}", why, fix)
    if nodes.fallback and not (nodes.auto and nodes.capacity == "SPOT"):
        limit = "false, unless nodes.auto is true and nodes.capacity is SPOT"
        fix = "set nodes.auto to true and nodes.capacity to SPOT, or nodes.fallback to false"
        yield problem("nodes.fallback", True, limit, "only the autoscaler adds the fallback nodes", fix)
    if nodes.has_system_group and settings.network.nat == "none" and settings.network.vpc_id == "":
        why = f"the image of the {'cluster autoscaler' if nodes.auto else 'device plugin'} is pulled from outside AWS"
        fix = f"set network.nat to single, or {system} to {other}"
        yield problem(system, given, f"{other} with network.nat none", why, fix)


def _gpu_types(types: list[str]) -> Iterator[Problem]:
    with_gpus = [kind for kind in types if instance_types.has_gpus(kind)]
    families = ", ".join(instance_types.GPU_FAMILIES)
    unknown = [kind for kind in with_gpus if kind.partition(".")[0] not in instance_types.GPU_FAMILIES]
    if unknown:
        why = "other types with GPUs need another machine image or device plugin, or an image for arm64 (g5g)"
        limit = f"types without GPUs, or of {families}"
        yield problem("nodes.instanceTypes", unknown[0], limit, why, "use for example g6.xlarge")
    elif with_gpus and len(with_gpus) < len(types):
        limit, why = "only types with GPUs, or only types without", "a node group has one machine image"
        fix = f"remove either {', '.join(with_gpus)} or the other types"
        yield problem("nodes.instanceTypes", types, limit, why, fix)


def _pairs(settings: Settings) -> Iterator[Problem]:
    dns, budget, fix = settings.dns, settings.budget, "set both or remove both"
    if (dns.external_name == "") != (dns.public_zone_id == ""):
        limit = "set together with dns.publicZoneId, or not at all"
        why = "the name becomes a record of that zone"
        yield problem("dns.externalName", dns.external_name, limit, why, fix)
    if (budget.dollars == 0) != (budget.email == ""):
        limit, why = "set together with budget.dollars, or not at all", "an alarm requires both"
        yield problem("budget.email", budget.email, limit, why, fix)
    names: dict[str, str] = {}
    for key in settings.artifacts.uploads:
        other = names.setdefault(key.replace("/", "-"), key)  # as in artifacts_bucket.py
        if other != key:
            limit, why = (
                f"a key that differs from {other} in more than / and -",
                "both have the same Pulumi name",
            )
            yield problem("artifacts.uploads", key, limit, why, "rename one of the two keys")


def value_problems(settings: Settings, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each chart value that conflicts with the settings; the chart's schema checks the rest."""
    training, data, network = values.get("training") or {}, values.get("data") or {}, settings.network
    source, bucket = str(data.get("source", "")), f"s3://{BUCKET_PLACEHOLDER}/"
    no_way_out = settings.target == "aws" and network.nat == "none" and network.vpc_id == ""
    if no_way_out and source.startswith(("https://", "http://")):
        why = "without NAT, the data pod reaches nothing outside AWS"
        fix = "upload the source to the bucket (artifacts.uploads) and set data.source to s3://{bucket}/sources/…"
        yield Problem("data.source", source, "s3:// or file:// with network.nat none", why, fix)
    for key, url, folders in (
        ("data.source", source, (SOURCES, MODELS)),
        ("data.testSource", str(data.get("testSource", "")), (SOURCES, MODELS)),
        ("training.initModelPath", str(training.get("initModelPath", "")), (MODELS,)),
        ("training.exportTo", f"{training.get('exportTo', '')}/", (MODELS,)),
    ):
        allowed = tuple(f"{bucket}{folder}" for folder in folders)
        if url.startswith(bucket) and not url.startswith(allowed):
            limit, why = f"below {' or '.join(allowed)}", "the pods' role allows no other keys"
            fix = "change the address, and the keys of artifacts.uploads with it"
            yield Problem(key, url.rstrip("/"), limit, why, fix)
    kind, runtime = next(iter(settings.nodes.instance_types), ""), values.get("runtime")
    if settings.target == "aws" and instance_types.is_arm(kind) and runtime == "fleet":
        limit = "Intel or AMD types with the chart value runtime fleet"
        why = "PaddlePaddle's package for arm64 cannot save checkpoints"
        yield problem("nodes.instanceTypes", kind, limit, why, "use for example m7i.large")


def upload_problems(settings: Settings, project_folder: Path) -> Iterator[Problem]:
    """Yield a problem for each entry of `artifacts.uploads` whose local file does not exist."""
    for key, name in settings.artifacts.uploads.items():
        if not (project_folder / name).is_file():
            limit = "a file, by its path relative to the project"
            fix = "run make sources for the data of the examples, or correct the path"
            yield problem("artifacts.uploads", f"{key}: {name}", limit, "the file does not exist", fix)


def secret_problems(keys: Iterable[str], project: str) -> Iterator[Problem]:
    """Yield a problem for each setting of the program among `keys`, those that contain a Pulumi secret."""
    for key in keys:
        if key.startswith(f"{project}:"):
            why = "settings become chart values and names, which are plain text in the release and in AWS"
            fix = (
                "create a Secret (kubectl create secret generic NAME --from-literal=KEY=…), refer to it in `values` by "
                "extraEnv (valueFrom.secretKeyRef) or data.sourceSecret, and remove the secret with pulumi config rm"
            )
            yield Problem(key, "(not shown)", "without Pulumi secrets", why, fix)
