"""Checks of a stack with target aws, against files and AWS, before its first resource."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra import cluster_access, instance_types, settings_rules
from infra.aws_lookup import read_if_exists
from infra.settings_errors import SettingsError
from infra.stack_inputs import StackInputs


def check_uploads(inputs: StackInputs) -> None:
    """Check that the files of `artifacts.uploads` exist. A preview logs a warning instead of raising.

    Raises:
        SettingsError: a file does not exist, and this is not a preview.
    """
    missing = list(settings_rules.upload_problems(inputs.settings, inputs.folder))
    if missing and not pulumi.runtime.is_dry_run():
        raise SettingsError(missing)
    for problem in missing:
        pulumi.log.warn(f"this preview leaves out the upload of a file that does not exist:\n  {problem}")


def check_access(inputs: StackInputs) -> None:
    """Check that the cluster's administrators and viewers exist in IAM, and that the caller is an administrator.

    A preview only logs a warning if the caller is no administrator: it may be the role that previews pull requests.

    Raises:
        SettingsError: a role or user does not exist, or the caller is no administrator, and this is not a preview.
    """
    cluster = inputs.settings.cluster
    if inputs.settings.compute == "off":
        return
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
        problems = list(cluster_access.principal_problems(cluster, caller, find))
    except Exception as error:  # the provider's errors have no type of their own
        pulumi.log.warn(
            f"cluster.admins and cluster.viewers were not compared with IAM: {error}. Fix: make doctor"
        )
        return
    missing = cluster_access.caller_problem(cluster, caller)
    if missing is not None and not pulumi.runtime.is_dry_run():
        problems.append(missing)
    elif missing is not None and caller not in cluster_access.principal_arns(cluster, caller).values():
        pulumi.log.warn(f"`pulumi up` would reject these settings:\n  {missing}")
    if problems:
        raise SettingsError(problems)


def check_instance_types(inputs: StackInputs) -> None:
    """Check that no pod is larger than an instance type of the nodes, with the sizes that AWS reports.

    Log a warning if a size is unknown, if the nodes have GPUs that no pod requests, or if spot nodes have one type.

    Raises:
        SettingsError: a pod is larger than a type, so it would never start.
    """
    nodes, values = inputs.settings.nodes, inputs.effective_values
    if inputs.settings.compute == "off":
        return
    if nodes.capacity == "SPOT" and len(nodes.instance_types) == 1:
        only = nodes.instance_types[0]
        pulumi.log.warn(
            f"nodes.instanceTypes has only {only}: if AWS has no spot capacity of it, no node starts. "
            "Fix: list several types of the same size"
        )
    if nodes.has_gpus and instance_types.GPU_RESOURCE not in instance_types.requested_by(values["resources"]):
        # Per vCPU, g4dn to g6e cost 2.7 to 9.7 times as much as m6i in sizes xlarge (aws/prices.yaml).
        pulumi.log.warn(
            f"nodes.instanceTypes: {', '.join(nodes.instance_types)} have GPUs, but the training requests none, so "
            "nothing uses them. They cost several times as much as nodes without. Fix: set the chart value "
            f"resources.limits.{instance_types.GPU_RESOURCE}, or use types without GPUs"
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
            instance_types.GPU_RESOURCE: str(sum(gpu.count for gpu in found.gpuses)),
        }
    if problems := list(instance_types.pod_size_problems(values, machines)):
        raise SettingsError(problems)
