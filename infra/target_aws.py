"""Target aws: create network, key, storage, bucket, registry, logs, cluster, nodes, add-ons and release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

from infra import aws_checks, chart_values, constants, iam_policies
from infra.artifacts_bucket import Artifacts
from infra.aws_context import AwsContext, create_context
from infra.aws_lookup import LiveCluster, read_live_cluster
from infra.bastion import Bastion
from infra.cluster_autoscaler import Autoscaler
from infra.cost_budget import Budget
from infra.device_plugin import DevicePlugin
from infra.dns_zone import Dns, private_zone_name
from infra.efs_storage import EfsStorage
from infra.eks_cluster import CONTEXT, EksCluster, Logs, endpoint_host
from infra.eks_nodes import Nodes
from infra.image_registry import Registry
from infra.kms_key import Key
from infra.stack_inputs import StackInputs
from infra.training import DATA_LOSS_NOTE, Training
from infra.vpc_network import SelectedNetwork, VpcNetwork, check_existing_network, select_zones

# For each of the three containers of both controllers of the EFS driver. They have no work, because the
# program itself creates the volumes; the add-on's default requests would be 1.2 cores in total.
CONTROLLER = {"requests": {"cpu": "10m", "memory": "40Mi"}, "limits": {"memory": "256Mi"}}

BACKUPS_NOTE = (
    "Backups of the file system stay in AWS Backup for 35 days after they were made, and are paid for, whatever "
    "storage.protect is. Fix: delete the recovery points of the vault aws/efs/automatic-backup-vault."
)


def create_aws_stack(inputs: StackInputs, region: str) -> dict[str, pulumi.Input[Any]]:
    """Create all resources of a stack with target aws in `region`, and return the stack's outputs.

    Raises:
        SettingsError: a check of the settings against files or AWS failed; no resource was registered.
    """
    settings = inputs.settings
    aws_checks.check_uploads(inputs)
    aws_checks.check_access(inputs)
    aws_checks.check_instance_types(inputs)
    context = create_context(inputs, region)
    if settings.network.vpc_id != "":
        network = check_existing_network(settings, context)
    else:
        zones = select_zones(settings)
        with_access = settings.compute == "on"
        network = VpcNetwork(context, settings.network, zones=zones, internet_access=with_access).selected
    live = read_live_cluster(context.prefix) if settings.compute == "on" else LiveCluster()
    # All checks are done: from here on, resources are created.
    key = Key(context, settings.kms.key_arn)
    storage = EfsStorage(
        context, vpc_id=network.vpc_id, subnets=network.subnets, key_arn=key.arn, settings=settings.storage
    )
    bucket = Artifacts(context, key_arn=key.arn, settings=settings.artifacts, project_folder=inputs.folder)
    registry = Registry(context, key.arn)
    logs = Logs(context, settings.cluster)
    if settings.budget.dollars > 0:
        Budget(context, settings.budget)
    outputs: dict[str, pulumi.Input[Any]] = {
        "region": region,
        "vpcId": network.vpc_id,
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
            **{part: group.name for part, group in logs.groups.items()},
            **({"key": key.arn} if settings.kms.key_arn == "" else {}),
        },
        "destroyLoses": f"{DATA_LOSS_NOTE} {BACKUPS_NOTE}" if settings.storage.backup else DATA_LOSS_NOTE,
    }
    api_host: pulumi.Output[str] | None = None
    if settings.compute == "on":
        cluster = EksCluster(
            context,
            subnet_ids=network.cluster_subnets,
            service_cidr=settings.network.service_cidr,
            key_arn=key.arn,
            settings=settings.cluster,
            live=live,
            logs=logs,
            external_name=settings.dns.external_name,
        )
        api_host = cluster.cluster.endpoint.apply(endpoint_host)
        # A pod gets AWS credentials only if its pod identity exists when the pod is created.
        policy = pulumi.Output.all(bucket.arn, key.arn).apply(lambda arns: iam_policies.pods(*arns))
        values = inputs.effective_values
        account = (values.get("serviceAccount") or {}).get("name") or values.get("fullnameOverride")
        account = account or settings.release.name
        identity = cluster.add_pod_identity("pods", settings.namespace.name, account, policy, cluster)
        nodes, ready = create_nodes(
            context, inputs, network, key=key, storage=storage, cluster=cluster, live=live
        )
        after = [*ready, storage.allow_nfs("nodes", cluster.security_group_id), identity]
        outputs |= create_release(
            context, inputs, cluster, nodes, storage=storage, bucket=bucket, after=after
        )
        if settings.bastion.enabled:
            bastion = Bastion(
                context,
                storage,
                vpc_id=network.vpc_id,
                subnet_id=next(iter(network.subnets.values())),
                key_arn=key.arn,
                settings=settings,
                ready=network.ready,
            )
            outputs["bastion"] = bastion.instance.id
    Dns(
        context,
        zone_name=private_zone_name(settings, context.prefix),
        vpc_id=network.vpc_id,
        file_system_host=storage.file_system.dns_name,
        api_host=api_host,
        settings=settings.dns,
    )
    return outputs


def logs_configuration(labels: Mapping[str, str]) -> dict[str, object]:
    """Return the configuration of the EKS add-on for logs: pod and node logs, no metrics and no traces.

    By default, the add-on also turns on Container Insights and Application Signals. The key `agent.config` replaces
    both: with it, the CloudWatch agent only accepts metrics in log lines (EMF), which no pod sends. The agent cannot
    be turned off, because it brings the service account that Fluent Bit uses (templates of the chart
    amazon-cloudwatch-observability). `labels` are those of the system nodes, on which the add-on's operator runs.
    """
    manager: dict[str, object] = {"applicationSignals": {"autoMonitor": {"monitorAllServices": False}}}
    if labels:
        manager["nodeSelector"] = dict(labels)
    small = {"requests": {"cpu": "10m", "memory": "64Mi"}}
    agent = {"config": {"logs": {"metrics_collected": {"emf": {}}}}, "resources": small}
    return {"containerLogs": {"enabled": True}, "agent": agent, "manager": manager}


def create_nodes(
    context: AwsContext,
    inputs: StackInputs,
    network: SelectedNetwork,
    *,
    key: Key,
    storage: EfsStorage,
    cluster: EksCluster,
    live: LiveCluster,
) -> tuple[Nodes, list[pulumi.Resource]]:
    """Create the nodes and the add-ons that run on them.

    Returns:
        The nodes, and the resources that the release must wait for.
    """
    settings = inputs.settings
    nodes = Nodes(
        context,
        cluster_name=cluster.name,
        subnets=network.subnets,
        key_arn=key.arn,
        settings=settings.nodes,
        version=settings.cluster.version,
        live=live,
        after=[*cluster.before_nodes, *cluster.entries, *network.ready],
    )
    ready: list[pulumi.Resource] = [*cluster.entries, *nodes.groups, *storage.mount_targets]
    if not nodes.system_groups:
        return nodes, ready  # without a node for its pods, an add-on never becomes active
    selector = {"nodeSelector": nodes.system_labels} if nodes.system_labels else {}
    ready.append(cluster.add_addon(constants.ADDON_COREDNS, selector or None, nodes.system_groups))
    if settings.storage.type == "efs-csi":
        policies = {
            ("efs-csi", "efs-csi-controller-sa"): storage.file_system.arn.apply(iam_policies.efs_driver),
            # The daemon of each node mounts with this role (mount option `iam`).
            ("efs-node", "efs-csi-node-sa"): storage.with_arns(iam_policies.efs_mount),
        }
        identities = [
            cluster.add_pod_identity(part, "kube-system", account, policy, cluster)
            for (part, account), policy in policies.items()
        ]
        # The driver's daemon needs no selector: it tolerates every taint.
        configuration: dict[str, object] = {"controller": {"resources": CONTROLLER, **selector}}
        after = [*nodes.system_groups, *identities]
        ready.append(cluster.add_addon(constants.ADDON_EFS_CSI, configuration, after))
    if settings.cluster.pod_logs:
        namespace, account = "amazon-cloudwatch", "cloudwatch-agent"
        policy = iam_policies.pod_logs(context.partition, context.prefix)
        identity = cluster.add_pod_identity("pod-logs", namespace, account, policy, cluster)
        configuration = logs_configuration(nodes.system_labels)
        ready.append(cluster.add_addon(constants.ADDON_LOGS, configuration, [*nodes.system_groups, identity]))
    return nodes, ready


def create_release(
    context: AwsContext,
    inputs: StackInputs,
    cluster: EksCluster,
    nodes: Nodes,
    *,
    storage: EfsStorage,
    bucket: Artifacts,
    after: Sequence[pulumi.Resource],
) -> dict[str, pulumi.Input[Any]]:
    """Create the release, the autoscaler (`nodes.auto`) and the device plugin (GPU nodes); return outputs of the stack.

    While the setting `image` is empty, create none of them, and log a warning with the command that pushes an image.
    """
    settings = inputs.settings
    outputs: dict[str, pulumi.Input[Any]] = {"kubeconfig": cluster.kubeconfig, "cluster": cluster.name}
    if inputs.image == "":
        command = f"make push STACK={inputs.stack}"
        pulumi.log.warn(
            f"image is not set, so everything except the release is created. Next: {command}, then pulumi up"
        )
        return {**outputs, "next": f"{command} && pulumi up --stack {inputs.stack}"}
    if settings.nodes.auto:
        scaler = Autoscaler(
            context, cluster, labels=nodes.system_labels, fallback=settings.nodes.fallback, after=after
        )
        after = [*after, scaler.release]
    if settings.nodes.has_gpus:
        plugin = DevicePlugin(context, cluster, after)
        after = [*after, plugin.release]
    values = pulumi.Output.all(
        storage.file_system.id, storage.access_point.id, storage.file_system.dns_name, bucket.bucket
    ).apply(
        lambda ids: chart_values.release_values(
            settings, chart_values.StackOutputs(inputs.image, *ids), inputs.user_values
        )
    )
    training = Training(
        context.prefix,
        inputs,
        values=values,
        kubeconfig=cluster.kubeconfig,
        context=CONTEXT,
        cluster_id=cluster.cluster.endpoint,
        after=after,
    )
    return {
        **outputs,
        "namespace": settings.namespace.name,
        "release": training.release.name,
        "image": inputs.image,
    }
