"""Target aws: network → key → storage, bucket, registry, logs → cluster → nodes → add-ons → release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_aws as aws

from infra import capacity, chart_values, checks, kubeconfigs, policies, versions
from infra.artifacts import Artifacts
from infra.autoscaler import Autoscaler
from infra.bastion import Bastion
from infra.budget import Budget
from infra.cluster import Cluster, Logs
from infra.context import Context
from infra.dns import Dns
from infra.key import Key
from infra.nodes import Nodes
from infra.places import Place, context_of, existing_place, own_place, zones_of
from infra.problems import SettingsError
from infra.registry import Registry
from infra.storage import Storage
from infra.training import LOST, Training

if TYPE_CHECKING:
    from infra.stack import Plan

# Of each of the three containers of both of the driver's controllers, which have no work here, since volumes
# are made by the program. The add-on's own requests are 1.2 cores in all.
CONTROLLER = {"requests": {"cpu": "10m", "memory": "40Mi"}, "limits": {"memory": "256Mi"}}


def refuse_missing_uploads(known: Plan) -> None:
    """A preview names files that are not there yet; an update refuses them."""
    missing = list(checks.upload_problems(known.settings, known.folder))
    if missing and not pulumi.runtime.is_dry_run():
        raise SettingsError(missing)
    for problem in missing:
        pulumi.log.warn(f"not uploaded in this preview:\n  {problem}")


def refuse_small_nodes(known: Plan) -> None:
    """Nodes that cannot hold the gang. Sizes are AWS' own; what it does not know is not judged.

    Raises:
        SettingsError: not even empty machines could hold it.
    """
    nodes = known.settings.nodes
    if known.settings.compute == "off":
        return
    if nodes.capacity == "SPOT" and len(nodes.instance_types) == 1:
        only = nodes.instance_types[0]
        pulumi.log.warn(f"nodes.instanceTypes has {only} only: when spot has none, no other type is tried")
    machines = {}
    for kind in nodes.instance_types:
        try:
            about = aws.ec2.get_instance_type(instance_type=kind)
        except Exception as error:  # the provider's errors have no type of their own
            pulumi.log.warn(f"nodes.instanceTypes: whether {kind} holds the gang is not known: {error}")
            continue
        machines[kind] = capacity.Size(float(about.default_vcpus), float(about.memory_size * capacity.MIB))
    problems, warnings = checks.capacity_problems(known.settings, known.effective, machines)
    if problems:
        raise SettingsError(problems)
    for warning in warnings:
        pulumi.log.warn(warning)


def build(known: Plan, region: str) -> dict[str, pulumi.Input[Any]]:
    """Makes the stack and returns its outputs.

    Raises:
        SettingsError: something is wrong that can be known before the first resource; none was registered
            then.
    """
    settings = known.settings
    refuse_missing_uploads(known)
    refuse_small_nodes(known)
    context = context_of(known, region)
    existing = None if settings.network.vpc_id == "" else existing_place(known)
    zones = zones_of(known) if existing is None else []
    # From here on nothing is refused any more.
    place = existing if existing is not None else own_place(context, known, zones)
    key = Key(context, settings.kms.key_arn)
    storage = Storage(
        context, vpc_id=place.vpc_id, subnets=place.subnets, key_arn=key.arn, settings=settings.storage
    )
    bucket = Artifacts(context, key_arn=key.arn, settings=settings.artifacts, project_folder=known.folder)
    registry = Registry(context, key.arn)
    logs = Logs(context, settings.cluster.log_retention_days)
    if settings.budget.dollars > 0:
        Budget(context, settings.budget)
    file_system_host = storage.file_system.dns_name
    outputs: dict[str, pulumi.Input[Any]] = {
        "region": region,
        "vpcId": place.vpc_id,
        "fileSystemId": storage.file_system.id,
        "bucket": bucket.bucket,
        "registry": registry.url,
        "kept": "nothing: storage.protect is false"
        if not context.protect
        else {
            "fileSystem": storage.file_system.id,
            "accessPoint": storage.access_point.id,
            "bucket": bucket.bucket,
            "registry": registry.name,
            "logs": logs.group.name,
            **({"key": key.arn} if settings.kms.key_arn == "" else {}),
        },
        "destroyLoses": LOST,
    }
    api_host: pulumi.Output[str] | None = None
    if settings.compute == "on":
        cluster = Cluster(
            context,
            subnet_ids=place.all_subnets,
            service_cidr=settings.network.service_cidr,
            key_arn=key.arn,
            settings=settings.cluster,
            logs=logs.group,
        )
        api_host = cluster.cluster.endpoint.apply(kubeconfigs.host)
        # Long before the first pod that uses it: pods get credentials when they are made, or never.
        access = pulumi.Output.all(bucket.arn, key.arn).apply(lambda two: policies.pods(*two))
        account = (known.effective.get("serviceAccount") or {}).get("name") or settings.release.name
        identity = cluster.identity("pods", settings.namespace.name, account, access, cluster)
        nodes, ready = make_nodes(context, known, place, key=key, storage=storage, cluster=cluster)
        after = [*ready, storage.admit("nodes", cluster.security_group_id), identity]
        outputs |= release(context, known, cluster, nodes, storage=storage, bucket=bucket, after=after)
        if settings.bastion.enabled:
            bastion = Bastion(
                context,
                storage,
                vpc_id=place.vpc_id,
                subnet_id=next(iter(place.subnets.values())),
                file_system_host=file_system_host,
                key_arn=key.arn,
                instance_type=settings.bastion.instance_type,
                ready=place.ready,
            )
            outputs["bastion"] = bastion.instance.id
    Dns(
        context,
        vpc_id=place.vpc_id,
        file_system_host=file_system_host,
        api_host=api_host,
        settings=settings.dns,
    )
    return outputs


def make_nodes(
    context: Context, known: Plan, place: Place, *, key: Key, storage: Storage, cluster: Cluster
) -> tuple[Nodes, list[pulumi.Resource]]:
    """Nodes and what runs on them; with what the release waits for."""
    settings = known.settings
    driver = settings.storage.type == "efs-csi"
    nodes = Nodes(
        context,
        cluster_name=cluster.name,
        subnet_ids=list(place.subnets.values()),
        key_arn=key.arn,
        settings=settings.nodes,
        version=settings.cluster.version,
        wait_for_storage=driver,
        after=[*cluster.before_nodes, *cluster.entries, *place.ready],
    )
    ready: list[pulumi.Resource] = [*cluster.entries, nodes.group, *storage.mount_targets]
    if not nodes.hosts:
        return nodes, ready  # what needs a node for its pods would never become active
    where = {"nodeSelector": nodes.host_labels} if nodes.host_labels else {}
    ready.append(cluster.addon(versions.ADDON_COREDNS, where or None, nodes.hosts))
    if driver:
        access = storage.file_system.arn.apply(policies.efs_driver)
        account = "efs-csi-controller-sa"
        identity = cluster.identity("efs-csi", "kube-system", account, access, cluster)
        # The driver's own daemon tolerates every taint by itself.
        configuration: dict[str, object] = {"controller": {"resources": CONTROLLER, **where}}
        ready.append(cluster.addon(versions.ADDON_EFS_CSI, configuration, [*nodes.hosts, identity]))
    if settings.cluster.pod_logs:
        place_of_logs = ("amazon-cloudwatch", "cloudwatch-agent")
        identity = cluster.identity("pod-logs", *place_of_logs, policies.pod_logs(), cluster)
        only = {"containerLogs": {"enabled": True}}
        ready.append(cluster.addon(versions.ADDON_LOGS, only, [*nodes.hosts, identity]))
    return nodes, ready


def release(
    context: Context,
    known: Plan,
    cluster: Cluster,
    nodes: Nodes,
    *,
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
            external_name=settings.dns.external_name,
            profile=pulumi.Config("aws").get("profile") or "",
        )
    )
    outputs: dict[str, pulumi.Input[Any]] = {"kubeconfig": config, "cluster": cluster.name}
    if known.image == "":
        command = f"make push STACK={known.stack}"
        pulumi.log.warn(
            f"no image is set: everything but the release is made. Next: {command}, then pulumi up"
        )
        return {**outputs, "next": f"{command} && pulumi up --stack {known.stack}"}
    if settings.nodes.auto:
        scaler = Autoscaler(
            context,
            cluster,
            kubeconfig=config,
            kubeconfig_context=kubeconfigs.CONTEXT,
            version=settings.cluster.version,
            labels=nodes.host_labels,
            after=after,
        )
        after = [*after, scaler.release]
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
            after=after,
        ),
    )
    return {
        **outputs,
        "namespace": settings.namespace.name,
        "release": training.release.name,
        "image": known.image,
    }
