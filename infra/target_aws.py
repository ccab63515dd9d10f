"""Target aws: create network, key, storage, bucket, registry, logs, cluster, nodes, add-ons and release.

The checks against files and AWS come first. Each finds a mistake that would stop an update in the middle, or lose data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import chart_values, cluster_access, iam_policies, naming
from infra.aws_context import AwsComponent, AwsContext, read_if_exists
from infra.aws_facts import GPU_RESOURCE
from infra.bastion import Bastion
from infra.chart_values import StackInputs
from infra.cluster_addons import Autoscaler, DevicePlugin, create_addons
from infra.dns_zone import Dns
from infra.efs_storage import EfsStorage
from infra.eks_cluster import CONTEXT, EksCluster, LiveCluster, endpoint_host, read_live_cluster
from infra.eks_nodes import Nodes
from infra.kept_data import Artifacts, Key, Logs, Registry, check_retained
from infra.settings import Problem, SettingsError
from infra.training import DATA_LOSS_NOTE, Training
from infra.vpc_network import VpcNetwork, check_existing_network, select_zones

# The name of a node group is the tightest: 63 characters, including `-fallback-a` and eight of the provider's.
LONGEST_PREFIX = 44
BACKUPS_NOTE = (
    "Backups of the file system stay in AWS Backup for 35 days after they were made, and are paid for, whatever "
    "storage.protect is. Fix: delete the recovery points of the vault aws/efs/automatic-backup-vault."
)


def check_uploads(inputs: StackInputs) -> None:
    """Check that the files of `artifacts.uploads` exist. A preview logs a warning instead of raising an error.

    Raises:
        SettingsError: a file does not exist, and this is not a preview.
    """
    limit, why = "a file, by its path relative to the project", "the file does not exist"
    fix = "run make sources for the data of the examples, or correct the path"
    missing = [
        inputs.settings.problem("artifacts.uploads", f"{limit}: {why}. Fix: {fix}", f"{key}: {name}")
        for key, name in inputs.settings.artifacts.uploads.items()
        if not (inputs.folder / name).is_file()
    ]
    if missing and not pulumi.runtime.is_dry_run():
        raise SettingsError(missing)
    for problem in missing:
        pulumi.log.warn(f"this preview leaves out the upload of a file that does not exist:\n  {problem}")


def check_access(inputs: StackInputs) -> None:
    """Check that the cluster's administrators and viewers exist in IAM, and that the caller is an administrator.

    A preview accepts a caller that is not an administrator, because the role that previews pull requests is none. If
    that caller is no viewer either, the preview logs a warning. If IAM cannot be read, this function logs a warning and
    raises no error.

    Raises:
        SettingsError: a role or user does not exist in IAM or has another path there; or this is an update, and the
            caller is not an administrator.
    """
    settings, cluster = inputs.settings, inputs.settings.cluster
    if not cluster.public_cidrs:
        pulumi.log.warn(cluster_access.NO_PUBLIC_ACCESS)

    def find(kind: str, name: str) -> str | None:
        found = read_if_exists(
            lambda name: aws.iam.get_user(user_name=name) if kind == "user" else aws.iam.get_role(name=name),
            name,
        )
        return None if found is None else found.arn

    try:
        # Of a session, the ARN of its role with the path.
        caller = aws.iam.get_session_context(arn=aws.get_caller_identity().arn).issuer_arn
        problems = list(cluster_access.principal_problems(settings, caller, find))
    except Exception as error:  # the provider's errors have no type of their own
        pulumi.log.warn(
            f"cluster.admins and cluster.viewers were not compared with IAM: {error}. Fix: make doctor"
        )
        return
    missing = cluster_access.caller_problem(settings, caller)
    if missing is not None and not pulumi.runtime.is_dry_run():
        problems.append(missing)
    elif missing is not None and caller not in cluster_access.principal_arns(cluster, caller).values():
        pulumi.log.warn(f"`pulumi up` would reject these settings:\n  {missing}")
    if problems:
        raise SettingsError(problems)


def check_instance_types(inputs: StackInputs) -> None:
    """Check that each pod fits on a node of each instance type. The sizes of the types are read from AWS.

    Log a warning if a size is unknown, or if the nodes have GPUs that no pod requests.

    Raises:
        SettingsError: a pod is larger than a type, so it would never start.
    """
    nodes, values = inputs.settings.nodes, inputs.effective_values
    if nodes.has_gpus and GPU_RESOURCE not in chart_values.requested_by(values["resources"]):
        # Per vCPU, g4dn to g6e cost 2.7 to 9.7 times as much as m6i in sizes xlarge (aws/prices.yaml).
        pulumi.log.warn(
            f"nodes.instanceTypes: {', '.join(nodes.instance_types)} have GPUs, but the training requests none, so "
            "nothing uses them. They cost several times as much as nodes without. Fix: set the chart value "
            f"resources.limits.{GPU_RESOURCE}, or use types without GPUs"
        )
    machines = {}
    for kind in nodes.instance_types:
        try:
            found = aws.ec2.get_instance_type(instance_type=kind)
        except Exception as error:  # the provider's errors have no type of their own
            pulumi.log.warn(
                f"nodes.instanceTypes: the size of {kind} could not be read from AWS ({error}), so it was not checked "
                "whether the pods fit. Fix: correct the type, or compare its vCPUs and memory with `resources` of the "
                "chart; pods that do not fit stay Pending"
            )
            continue
        machines[kind] = {
            "cpu": str(found.default_vcpus),
            "memory": f"{found.memory_size}Mi",
            GPU_RESOURCE: str(sum(gpu.count for gpu in found.gpuses)),
        }
    if problems := list(chart_values.pod_size_problems(values, machines)):
        raise SettingsError(problems)


def create_context(inputs: StackInputs) -> AwsContext:
    """Return the stack's context: read the account from AWS and check the resources that a destroy kept.

    Raises:
        SettingsError: the stack's name is too long, or `check_retained` found a problem.
    """
    prefix = inputs.prefix
    if len(prefix) > LONGEST_PREFIX:
        limit, why = (
            f"at most {LONGEST_PREFIX} characters",
            "names of buckets and roles begin with it, and have at most 63",
        )
        fix = "create a stack with a shorter name: pulumi stack init NAME"
        raise SettingsError([Problem("the stack's name", prefix, f"{limit}: {why}. Fix: {fix}")])
    caller = aws.get_caller_identity()
    imports = check_retained(inputs.settings, prefix, naming.stack_tags(inputs.project, inputs.stack))
    return AwsContext(inputs, caller.account_id, caller.arn.split(":")[1], imports)


class Budget(AwsComponent):
    """paddle:infra:Budget: an AWS budget with e-mail alarms at 80 % and 100 % of `budget.dollars` a month.

    The budget shows 0 dollars until the account activates KubernetesCluster as a cost allocation tag.
    """

    def __init__(self, context: AwsContext) -> None:
        super().__init__("paddle:infra:Budget", context, "budget")
        settings = context.settings.budget
        aws.budgets.Budget(
            context.named("budget"),
            name=context.named("budget"),
            budget_type="COST",
            time_unit="MONTHLY",
            limit_amount=str(settings.dollars),
            limit_unit="USD",
            cost_filters=[{"name": "TagKeyValue", "values": [f"user:KubernetesCluster${context.prefix}"]}],
            notifications=[
                {
                    "threshold_type": "PERCENTAGE",
                    "comparison_operator": "GREATER_THAN",
                    "notification_type": "ACTUAL",
                    "threshold": percent,
                    "subscriber_email_addresses": [settings.email],
                }
                for percent in (80, 100)
            ],
            opts=self.child,
        )
        self.register_outputs({})


def create_aws_stack(inputs: StackInputs) -> dict[str, pulumi.Input[Any]]:
    """Create all resources of a stack with target aws, and return the stack's outputs.

    Raises:
        SettingsError: a check of the settings against files or AWS failed; no resource was registered.
    """
    settings = inputs.settings
    check_uploads(inputs)
    if settings.compute == "on":
        check_access(inputs)
        check_instance_types(inputs)
    context = create_context(inputs)
    if settings.network.vpc_id != "":
        network = check_existing_network(context)
    else:
        network = VpcNetwork(context, select_zones(settings)).selected
    live = read_live_cluster(context.prefix) if settings.compute == "on" else LiveCluster()
    # All checks were done before the first resource, which is the network.
    key = Key(context)
    storage = EfsStorage(context, network, key.arn)
    bucket = Artifacts(context, key.arn)
    registry = Registry(context, key.arn)
    logs = Logs(context)
    if settings.budget.dollars > 0:
        Budget(context)
    outputs: dict[str, pulumi.Input[Any]] = {
        "region": settings.region,
        "vpcId": network.vpc_id,
        "fileSystemId": storage.file_system.id,
        "bucket": bucket.bucket,
        "registry": registry.url,
        "kept": "nothing: storage.protect is false"
        if not settings.storage.protect
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
        after = list(logs.groups.values())
        cluster = EksCluster(context, network.cluster_subnets, key.arn, live, after)
        api_host = cluster.cluster.endpoint.apply(endpoint_host)
        # A pod gets AWS credentials only if its pod identity exists when the pod is created.
        policy = pulumi.Output.all(bucket=bucket.arn, key=key.arn).apply(
            lambda arns: iam_policies.policy("pods", **arns)
        )
        values = inputs.effective_values
        account = (values.get("serviceAccount") or {}).get("name") or values.get("fullnameOverride")
        account = (settings.namespace.name, account or settings.release.name)
        identity = cluster.add_pod_identity(cluster.name, "pods", account, policy)
        nodes = Nodes(cluster, network, key.arn, live)
        addons = create_addons(cluster, nodes, storage)
        nfs = storage.allow_nfs("nodes", cluster.security_group_id)
        ready = [*cluster.entries, *nodes.groups, *storage.mount_targets, *addons, nfs, identity]
        outputs |= create_release(cluster, nodes, storage, bucket, ready)
        if settings.bastion.enabled:
            outputs["bastion"] = Bastion(context, network, storage, key.arn).instance.id
    Dns(context, network.vpc_id, storage.file_system.dns_name, api_host)
    return outputs


def create_release(
    cluster: EksCluster,
    nodes: Nodes,
    storage: EfsStorage,
    bucket: Artifacts,
    after: Sequence[pulumi.Resource],
) -> dict[str, pulumi.Input[Any]]:
    """Create the release, the autoscaler (`nodes.auto`) and the device plugin (GPU nodes); return outputs of the stack.

    While the setting `image` is empty, create none of these, and log a warning with the command that pushes an image.
    The resources in `after` must exist before all of these.
    """
    inputs, settings = cluster.context.inputs, cluster.context.settings
    outputs: dict[str, pulumi.Input[Any]] = {"kubeconfig": cluster.kubeconfig, "cluster": cluster.name}
    if inputs.image == "":
        command = f"make push STACK={inputs.stack}"
        pulumi.log.warn(
            f"image is not set, so everything except the release is created. Next: {command}, then pulumi up"
        )
        return {**outputs, "next": f"{command} && pulumi up --stack {inputs.stack}"}
    if settings.nodes.auto:
        after = [*after, Autoscaler(cluster, nodes, after).release]
    if settings.nodes.has_gpus:
        after = [*after, DevicePlugin(cluster, after).release]
    values = pulumi.Output.all(
        storage.file_system.id, storage.access_point.id, storage.file_system.dns_name, bucket.bucket
    ).apply(lambda ids: inputs.release_values(*ids))
    training = Training(
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
