"""Target aws: network → key → storage, bucket, registry → cluster → nodes → add-ons → release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_aws as aws

from infra import chart_values, checks, kubeconfigs, naming, policies, versions
from infra.artifacts import Artifacts, ArtifactsArgs
from infra.bastion import Bastion, BastionArgs
from infra.cluster import Cluster, ClusterArgs
from infra.context import Context
from infra.dns import Dns, DnsArgs
from infra.key import Key
from infra.network import Network, NetworkArgs
from infra.nodes import Nodes, NodesArgs
from infra.problems import Problem, SettingsError
from infra.registry import Registry
from infra.storage import Storage, StorageArgs
from infra.training import LOST, Training

if TYPE_CHECKING:
    from infra.stack import Plan


@dataclass(frozen=True)
class Place:
    """A network to build in: its own or an existing one. `subnets`: zone → private subnet."""

    vpc_id: pulumi.Input[str]
    cidr: str
    subnets: Mapping[str, pulumi.Input[str]]
    all_subnets: Sequence[pulumi.Input[str]]
    ready: Sequence[pulumi.Resource]


def context_of(known: Plan, region: str) -> Context:
    """Who and where: asks AWS for the account only, never for the caller's own name."""
    caller = aws.get_caller_identity()
    settings = known.settings
    return Context(
        prefix=naming.prefix(known.project, known.stack),
        tags=naming.tags(known.project, known.stack, settings.tags),
        region=region,
        account=caller.account_id,
        partition=caller.arn.split(":")[1],
        protect=settings.storage.protect,
        permissions_boundary=settings.iam.permissions_boundary,
        iam_path=settings.iam.path,
    )


def zones_of(known: Plan, region: str) -> list[str]:
    """The zones to use: those that are listed, else the region's first ones by name.

    Raises:
        SettingsError: the region has fewer zones than `network.zones`.
    """
    network = known.settings.network
    if network.availability_zones:
        return list(network.availability_zones)
    # Local zones and wavelength zones have an opt-in; EKS control planes take none of them.
    found = aws.get_availability_zones(
        state="available", filters=[{"name": "opt-in-status", "values": ["opt-in-not-required"]}]
    )
    names = sorted(found.names)
    if len(names) < network.zones:
        problem = Problem(
            "paddle-training:network.zones",
            network.zones,
            f"at most {len(names)} in {region}",
            f"this account has the zones {', '.join(names)}",
            "lower network.zones or change aws:region",
        )
        raise SettingsError([problem])
    return names[: network.zones]


def existing_place(known: Plan) -> Place:
    """An existing network, looked at before anything is made.

    Raises:
        SettingsError: the subnets are not of that VPC, or lie in one zone, or names would not resolve in it.
    """
    network = known.settings.network
    vpc = aws.ec2.get_vpc(id=network.vpc_id)
    subnets = [aws.ec2.get_subnet(id=name) for name in network.subnet_ids]
    problems = [
        Problem(
            "paddle-training:network.subnetIds",
            subnet.id,
            f"a subnet of {network.vpc_id}",
            f"it is in {subnet.vpc_id}",
            "list subnets of that VPC only",
        )
        for subnet in subnets
        if subnet.vpc_id != network.vpc_id
    ]
    by_zone = {subnet.availability_zone: subnet.id for subnet in reversed(subnets)}
    if len(by_zone) < 2:
        problems.append(
            Problem(
                "paddle-training:network.subnetIds",
                list(network.subnet_ids),
                "subnets of at least two zones",
                f"all are in {', '.join(by_zone)}, and EKS needs two",
                "add a subnet of another zone",
            )
        )
    if not (vpc.enable_dns_support and vpc.enable_dns_hostnames):
        problems.append(
            Problem(
                "paddle-training:network.vpcId",
                network.vpc_id,
                "a VPC with DNS support and DNS host names",
                "the file system's name and the private zone resolve in no other",
                "turn both on: aws ec2 modify-vpc-attribute --enable-dns-hostnames, --enable-dns-support",
            )
        )
    if problems:
        raise SettingsError(problems)
    return Place(network.vpc_id, vpc.cidr_block, dict(sorted(by_zone.items())), list(network.subnet_ids), ())


def own_place(context: Context, known: Plan, zones: Sequence[str]) -> Place:
    """The stack's own network."""
    settings = known.settings
    ways_out = settings.compute == "on"
    network = Network(context, NetworkArgs(settings.network.vpc_cidr, zones, settings.network.nat, ways_out))
    return Place(
        network.vpc_id,
        settings.network.vpc_cidr,
        dict(zip(zones, network.private_subnet_ids, strict=True)),
        network.private_subnet_ids,
        network.ready,
    )


def refuse_missing_uploads(known: Plan) -> None:
    """A preview names files that are not there yet; an update refuses them."""
    missing = list(checks.upload_problems(known.settings, known.folder))
    if missing and not pulumi.runtime.is_dry_run():
        raise SettingsError(missing)
    for problem in missing:
        pulumi.log.warn(f"not uploaded in this preview:\n  {problem}")


def build(known: Plan, region: str) -> dict[str, pulumi.Input[Any]]:
    """Makes the stack and returns its outputs.

    Raises:
        SettingsError: something is wrong that can be known before the first resource; none was registered
            then.
    """
    settings = known.settings
    refuse_missing_uploads(known)
    context = context_of(known, region)
    place = None if settings.network.vpc_id == "" else existing_place(known)
    zones = zones_of(known, region) if place is None else []
    # From here on nothing is refused any more.
    if place is None:
        place = own_place(context, known, zones)
    key = Key(context, settings.kms.key_arn)
    storage = Storage(context, StorageArgs(place.vpc_id, place.subnets, key.arn, settings.storage))
    bucket = Artifacts(context, ArtifactsArgs(key.arn, settings.artifacts, known.folder))
    registry = Registry(context, key.arn)
    file_system_host = storage.file_system.dns_name
    outputs: dict[str, pulumi.Input[Any]] = {
        "region": region,
        "vpcId": place.vpc_id,
        "fileSystemId": storage.file_system.id,
        "bucket": bucket.bucket,
        "registry": registry.url,
        "kept": kept(context, storage, bucket, registry, None if settings.kms.key_arn != "" else key),
        "destroyLoses": LOST,
    }
    api_host: pulumi.Output[str] | None = None
    if settings.compute == "on":
        cluster = Cluster(
            context, ClusterArgs(place.all_subnets, settings.network.service_cidr, key.arn, settings.cluster)
        )
        api_host = cluster.cluster.endpoint.apply(kubeconfigs.host)
        admitted = storage.admit("nodes", cluster.security_group_id)
        release_after = make_nodes(context, known, place, key=key, storage=storage, cluster=cluster)
        outputs |= release(
            context, known, cluster, key=key, storage=storage, bucket=bucket, after=[*release_after, admitted]
        )
        if settings.bastion.enabled:
            subnet = next(iter(place.subnets.values()))
            bastion = Bastion(
                context,
                BastionArgs(place.vpc_id, subnet, file_system_host, key.arn, settings.bastion.instance_type),
                storage,
                pulumi.ResourceOptions(depends_on=list(place.ready)),
            )
            outputs["bastion"] = bastion.instance.id
    Dns(context, DnsArgs(place.vpc_id, file_system_host, api_host, settings.dns))
    return outputs


def kept(
    context: Context, storage: Storage, bucket: Artifacts, registry: Registry, own_key: Key | None
) -> pulumi.Input[Any]:
    """What a destroy leaves, by name."""
    if not context.protect:
        return "nothing: storage.protect is false"
    return {
        "fileSystem": storage.file_system.id,
        "accessPoint": storage.access_point.id,
        "bucket": bucket.bucket,
        "registry": registry.name,
        **({"key": own_key.arn} if own_key is not None else {}),
    }


def make_nodes(
    context: Context, known: Plan, place: Place, *, key: Key, storage: Storage, cluster: Cluster
) -> list[pulumi.Resource]:
    """Nodes and what runs on them; returns what the release waits for."""
    settings = known.settings
    driver = settings.storage.type == "efs-csi"
    nodes = Nodes(
        context,
        NodesArgs(
            cluster_name=cluster.name,
            cluster_group_id=cluster.security_group_id,
            vpc_id=place.vpc_id,
            subnet_ids=list(place.subnets.values()),
            key_arn=key.arn,
            settings=settings.nodes,
            wait_for_storage=driver,
            after=[*cluster.before_nodes, *cluster.entries, *place.ready],
        ),
    )
    ready: list[pulumi.Resource] = [
        *cluster.entries,
        cluster.addon(versions.ADDON_COREDNS, None, [nodes.group]),
        *storage.mount_targets,
    ]
    if driver:
        identity = cluster.identity(
            "efs-csi",
            "kube-system",
            "efs-csi-controller-sa",
            storage.file_system.arn.apply(policies.efs_driver),
            cluster,
        )
        memory = {
            "requests": {"memory": versions.EFS_CSI_MEMORY},
            "limits": {"memory": versions.EFS_CSI_MEMORY},
        }
        # The taint that the driver lifts from new nodes keeps everything else off, so the driver itself
        # tolerates all.
        configuration: dict[str, object] = {"node": {"resources": memory, "tolerateAllTaints": True}}
        ready.append(cluster.addon(versions.ADDON_EFS_CSI, configuration, [nodes.group, identity]))
    return ready


def release(
    context: Context,
    known: Plan,
    cluster: Cluster,
    *,
    key: Key,
    storage: Storage,
    bucket: Artifacts,
    after: Sequence[pulumi.Resource],
) -> dict[str, pulumi.Input[Any]]:
    """The release, once there is an image; else says how to get one. Returns outputs."""
    settings = known.settings
    config = pulumi.Output.all(
        cluster.cluster.endpoint, cluster.cluster.certificate_authority, cluster.name
    ).apply(
        lambda known_: kubeconfigs.kubeconfig(
            known_[0],
            known_[1]["data"] if isinstance(known_[1], dict) else known_[1].data,
            known_[2],
            context.region,
            settings.dns.external_name,
        )
    )
    outputs: dict[str, pulumi.Input[Any]] = {"kubeconfig": config, "cluster": cluster.name}
    if known.image == "":
        command = f"make push STACK={known.stack}"
        pulumi.log.warn(
            f"no image is set: everything but the release is made. Next: {command}, then pulumi up"
        )
        return {**outputs, "next": f"{command} && pulumi up --stack {known.stack}"}
    account = (known.effective.get("serviceAccount") or {}).get("name") or settings.release.name
    policy = pulumi.Output.all(bucket.arn, key.arn).apply(lambda two: policies.pods(*two))
    identity = cluster.identity("pods", settings.namespace.name, account, policy, cluster)
    values = pulumi.Output.all(
        storage.file_system.id, storage.access_point.id, storage.file_system.dns_name, bucket.bucket
    ).apply(
        lambda ids: chart_values.build(
            settings, chart_values.Facts(known.image, ids[0], ids[1], ids[2], ids[3]), known.own_values
        )
    )
    training = Training(
        context.prefix,
        known.training_args(
            values,
            kubeconfig=config,
            context=kubeconfigs.CONTEXT,
            cluster_name=context.prefix,
            delete_unreachable=True,
            after=[*after, identity],
        ),
    )
    return {
        **outputs,
        "namespace": settings.namespace.name,
        "release": training.release.name,
        "image": known.image,
    }
