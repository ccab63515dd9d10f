"""Rules between settings: each is a function that yields Problems. Pure."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra import capacity, cidr
from infra.problems import Problem
from infra.rules import is_network

if TYPE_CHECKING:
    from infra.settings import Settings

P = "paddle-training:"


def settings_problems(settings: Settings, region: str) -> Iterator[Problem]:
    """All mistakes that show without looking at files, clusters or accounts."""
    if settings.target == "kubeconfig":
        yield from _kubeconfig(settings)
    elif settings.target == "aws":
        yield from _network(settings)
        yield from _zones(settings, region)
        yield from _cluster(settings, region)
        yield from _nodes(settings)
        yield from _dns(settings)
        yield from _aws_storage(settings)


def _kubeconfig(settings: Settings) -> Iterator[Problem]:
    why = "the ambient kubeconfig is never used: it may be another cluster's"
    if settings.kubeconfig.path == "":
        yield Problem(
            f"{P}kubeconfig.path",
            None,
            "the path of a kubeconfig file",
            why,
            "pulumi config set --path 'paddle-training:kubeconfig.path' FILE",
        )
    if settings.kubeconfig.context == "":
        yield Problem(
            f"{P}kubeconfig.context",
            None,
            "the name of a context in that file",
            why,
            "pulumi config set --path 'paddle-training:kubeconfig.context' NAME",
        )
    if settings.image == "":
        yield Problem(
            f"{P}image",
            "",
            "an image that the cluster can pull",
            "the pods run it",
            "set it, best with a digest",
        )
    storage = settings.storage
    needs = {
        "efs-csi": ("type", storage.type, "hostPath, nfs or existingClaim", "EFS is made by target aws only"),
        "hostPath": ("path", storage.path, "a folder that all nodes share", "it becomes the volume"),
        "nfs": ("server", storage.server, "an NFS server", "it becomes the volume"),
        "existingClaim": ("claim", storage.claim, "a ReadWriteMany claim", "it becomes the volume"),
    }
    if storage.type in needs:
        key, value, limit, reason = needs[storage.type]
        if storage.type == "efs-csi" or value == "":
            yield Problem(
                f"{P}storage.{key}",
                value,
                limit,
                reason,
                f"set storage.{key} for storage.type {storage.type}",
            )
    if settings.compute == "off":
        yield Problem(
            f"{P}compute",
            "off",
            "on",
            "an existing cluster is not this stack's to stop",
            "use pulumi destroy instead",
        )


def _network(settings: Settings) -> Iterator[Problem]:
    network = settings.network
    try:
        vpc, service = ipaddress.IPv4Network(network.vpc_cidr), ipaddress.IPv4Network(network.service_cidr)
    except ValueError:
        return  # the field's own rule has said so
    if network.vpc_id == "" and not cidr.LARGEST_VPC <= vpc.prefixlen <= cidr.SMALLEST_VPC:
        yield Problem(
            f"{P}network.vpcCidr",
            network.vpc_cidr,
            f"/{cidr.LARGEST_VPC} to /{cidr.SMALLEST_VPC}",
            "AWS takes no larger one, and a smaller one leaves too few addresses for pods",
            "use 10.0.0.0/16",
        )
    private = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
    inside = any(service.subnet_of(ipaddress.IPv4Network(block)) for block in private)
    if not cidr.LARGEST_SERVICE <= service.prefixlen <= cidr.SMALLEST_SERVICE or not inside:
        yield Problem(
            f"{P}network.serviceCidr",
            network.service_cidr,
            f"/{cidr.LARGEST_SERVICE} to /{cidr.SMALLEST_SERVICE} inside {', '.join(private)}",
            "EKS takes no other network for services",
            "use 172.20.0.0/16",
        )
    if network.vpc_id == "" and vpc.overlaps(service):
        yield Problem(
            f"{P}network.serviceCidr",
            network.service_cidr,
            f"a network outside vpcCidr {network.vpc_cidr}",
            "an address that is a pod's and a service's at once reaches neither",
            "use 172.20.0.0/16 with a VPC of 10.0.0.0/16",
        )
    if (network.vpc_id == "") != (len(network.subnet_ids) == 0):
        yield Problem(
            f"{P}network.subnetIds",
            list(network.subnet_ids),
            "set together with network.vpcId, or neither",
            "an existing network is its VPC and its subnets",
            "set both, or remove both for an own network",
        )
    elif len(network.subnet_ids) == 1:
        yield Problem(
            f"{P}network.subnetIds",
            list(network.subnet_ids),
            "at least two subnets",
            "EKS needs two zones",
            "add a subnet of another zone",
        )


def _zones(settings: Settings, region: str) -> Iterator[Problem]:
    if region == "":
        yield Problem(
            "aws:region",
            None,
            "an AWS region",
            "every resource is made there",
            "pulumi config set aws:region us-west-2",
        )
        return
    listed = settings.network.availability_zones
    for zone in listed:
        if zone[:-1] != region or not zone[-1:].isalpha():
            yield Problem(
                f"{P}network.availabilityZones",
                zone,
                f"a zone of {region}, such as {region}a",
                "subnets can only be made in the stack's own region",
                f"use a zone of {region}, or change aws:region",
            )
    if listed and (len(listed) != settings.network.zones or len(set(listed)) != len(listed)):
        yield Problem(
            f"{P}network.availabilityZones",
            list(listed),
            f"network.zones ({settings.network.zones}) different zones",
            "each zone gets one private and one public subnet",
            "list as many zones as network.zones says",
        )


def _cluster(settings: Settings, region: str) -> Iterator[Problem]:
    cluster = settings.cluster
    if not cluster.admins:
        yield Problem(
            f"{P}cluster.admins",
            [],
            "at least one IAM role or user",
            "without an access entry nobody, not even this program, could use the cluster",
            "list the role that deploys, such as role/Admin",
        )
    for name in sorted(set(cluster.admins) & set(cluster.viewers)):
        yield Problem(
            f"{P}cluster.viewers",
            name,
            "nobody who is in cluster.admins",
            "EKS takes one access entry a principal",
            "remove it from one of the two lists",
        )
    for network in cluster.public_cidrs:
        if is_network(network) and cidr.is_open(network) and not cluster.open_to_world:
            yield Problem(
                f"{P}cluster.publicCidrs",
                network,
                "a network of /8 or smaller, unless cluster.openToWorld is true",
                "it would open the API server to the world without saying so",
                "list the addresses you work from, or set cluster.openToWorld: true",
            )
    key_region = settings.kms.key_arn.split(":")[3] if settings.kms.key_arn.count(":") >= 5 else region
    if region not in ("", key_region):
        yield Problem(
            f"{P}kms.keyArn",
            settings.kms.key_arn,
            f"a key of {region}",
            "services use keys of their own region only",
            f"use a key of {region}",
        )


def _nodes(settings: Settings) -> Iterator[Problem]:
    nodes = settings.nodes
    for low, high in itertools.pairwise(("min", "desired", "max")):
        if getattr(nodes, low) > getattr(nodes, high):
            yield Problem(
                f"{P}nodes.{low}",
                getattr(nodes, low),
                f"at most nodes.{high} ({getattr(nodes, high)})",
                "a node group needs min <= desired <= max",
                f"raise nodes.{high} or lower nodes.{low}",
            )
    kinds = {capacity.is_arm(kind) for kind in nodes.instance_types}
    if len(kinds) > 1:
        yield Problem(
            f"{P}nodes.instanceTypes",
            list(nodes.instance_types),
            "types of one processor architecture",
            "a node group starts one machine image, and the launcher's is built for one",
            "list Intel/AMD types or Graviton types, not both",
        )
    if nodes.placement_group and not nodes.single_zone:
        yield Problem(
            f"{P}nodes.placementGroup",
            True,
            "false, unless nodes.singleZone is true",
            "a cluster placement group lies in one zone",
            "set nodes.singleZone: true as well",
        )
    burstable = [kind for kind in nodes.instance_types if kind.startswith("t")]
    if nodes.placement_group and burstable:
        yield Problem(
            f"{P}nodes.instanceTypes",
            burstable[0],
            "no burstable type with nodes.placementGroup",
            "EC2 starts none of them in a cluster placement group",
            "use a type such as m6i.large",
        )


def _dns(settings: Settings) -> Iterator[Problem]:
    dns = settings.dns
    if (dns.external_name == "") != (dns.public_zone_id == ""):
        yield Problem(
            f"{P}dns.externalName",
            dns.external_name,
            "set together with dns.publicZoneId, or neither",
            "the name is a record of that zone",
            "set both, or remove both",
        )


def _aws_storage(settings: Settings) -> Iterator[Problem]:
    if settings.storage.type == "hostPath" and settings.storage.path == "":
        yield Problem(
            f"{P}storage.path",
            "",
            "a folder that all nodes share",
            "it becomes the volume",
            "set storage.path",
        )
    if settings.storage.type == "existingClaim" and settings.storage.claim == "":
        yield Problem(
            f"{P}storage.claim", "", "a ReadWriteMany claim", "it becomes the volume", "set storage.claim"
        )


def capacity_problems(settings: Settings, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Nodes that cannot hold all trainers and the data pod.

    Says nothing of instance types that are not known.
    """
    sizes = [capacity.machine(kind) for kind in settings.nodes.instance_types]
    known = [capacity.for_pods(size) for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return
    node = min(known, key=lambda size: (size.memory, size.cpu))
    trainers, host_ports = int(values.get("trainers", 1)), values.get("hostPorts") is True
    try:
        trainer = capacity.requests(values.get("resources") or {})
        data = capacity.requests((values.get("data") or {}).get("resources") or {})
    except ValueError as error:
        yield Problem(
            "resources",
            values.get("resources"),
            "quantities such as 250m and 2Gi",
            str(error),
            "correct it in the stack's valuesFiles or values",
        )
        return
    placed, data_fits = capacity.held(
        node=node,
        nodes=settings.nodes.desired,
        trainers=trainers,
        trainer=trainer,
        data=data,
        one_a_node=host_ports,
    )
    if placed == trainers and data_fits:
        return
    rule = "one trainer a node (hostPorts)" if host_ports else "the sum of requests"
    yield Problem(
        f"{P}nodes.desired",
        settings.nodes.desired,
        f"nodes that hold {trainers} trainers of {trainer} and a data pod of {data} at once, by {rule}",
        f"{settings.nodes.desired} of {', '.join(settings.nodes.instance_types)} leave {node} each to pods: "
        + (f"{placed} trainers fit" if placed < trainers else "no room is left for the data pod")
        + ", and the others would wait for ever",
        "raise nodes.desired, use a larger type in nodes.instanceTypes, or lower trainers or resources",
    )


def value_problems(settings: Settings, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Values that cannot work on this stack. All else about values is the chart's own schema's business."""
    source = str((values.get("data") or {}).get("source", ""))
    if settings.target == "aws":
        outside = source.startswith(("https://", "http://"))
        if settings.network.nat == "none" and settings.network.vpc_id == "" and outside:
            yield Problem(
                "data.source",
                source,
                "s3:// or file:// with network.nat none",
                "without NAT the data pod reaches nothing outside AWS",
                "put the source into the bucket (artifacts.uploads) and name it s3://{bucket}/KEY",
            )
        if settings.compute == "on":
            yield from capacity_problems(settings, values)


def upload_problems(settings: Settings, project_folder: Path) -> Iterator[Problem]:
    """Uploads whose file is not there."""
    for key, name in settings.artifacts.uploads.items():
        if not (project_folder / name).is_file():
            yield Problem(
                f"{P}artifacts.uploads",
                f"{key}: {name}",
                "a file, by its path relative to the project",
                "it is not there",
                "run make sources for the example data sets, or correct the path",
            )
