"""The EKS managed node group, its launch template, and the small system node group of `nodes.auto`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import constants, node_capacity
from infra.aws_context import AwsComponent, AwsContext
from infra.iam_roles import attach_aws_policy, create_role
from infra.settings import NodesSettings

# The minimum for a node: join the cluster, pull images, pod networking; and Session Manager instead of ssh.
NODE_POLICIES = (
    "AmazonEKSWorkerNodePolicy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEKS_CNI_Policy",
    "AmazonSSMManagedInstanceCore",
)

SYSTEM_LABELS = {"paddle-training/system": "true"}
RELEASES = "/aws/service/eks/optimized-ami/{}/amazon-linux-2023/{}/standard/recommended/release_version"


def image_release(version: str, arm: bool, pinned: str, opts: pulumi.InvokeOptions) -> pulumi.Input[str]:
    """Return the release of the machine image: `pinned`, or the newest one, so that a preview shows it."""
    if pinned != "":
        return pinned
    name = RELEASES.format(version, "arm64" if arm else "x86_64")
    found: pulumi.Output[str] = aws.ssm.get_parameter_output(name=name, opts=opts).insecure_value
    return found


class Nodes(AwsComponent):
    """paddle:infra:Nodes: the node group of the training pods. Its size changes without replacing nodes.

    `system_groups` is the node group (or none) on which add-ons run, and `system_labels` its labels.

    Args:
        context: the stack's context.
        cluster_name: name of the EKS cluster.
        subnet_ids: private subnets.
        key_arn: ARN of the KMS key of the disks.
        settings: the section `nodes`.
        version: minor version of Kubernetes.
        wait_for_storage: keep pods off a node until the EFS driver runs there.
        after: resources that must exist before the nodes.
    """

    def __init__(
        self,
        context: AwsContext,
        *,
        cluster_name: pulumi.Input[str],
        subnet_ids: Sequence[pulumi.Input[str]],
        key_arn: pulumi.Input[str],
        settings: NodesSettings,
        version: str,
        wait_for_storage: bool,
        after: Sequence[pulumi.Resource],
    ) -> None:
        super().__init__("paddle:infra:Nodes", context, "nodes")
        role = create_role(context, "nodes", "ec2.amazonaws.com", self)
        attached = [
            attach_aws_policy(context, f"nodes-{name.lower().replace('_', '-')}", role, name, self)
            for name in NODE_POLICIES
        ]
        template = self._launch_template(settings, key_arn)
        arm = node_capacity.is_arm(settings.instance_types[0])
        release = image_release(version, arm, settings.ami_release, pulumi.InvokeOptions(parent=self))
        storage_taint = aws.eks.NodeGroupTaintArgs(key=constants.EFS_STARTUP_TAINT, effect="NO_EXECUTE")
        startup_taints = [storage_taint] if wait_for_storage else []

        def node_group(name: str, sizes: tuple[int, int, int], **more: Any) -> aws.eks.NodeGroup:
            return aws.eks.NodeGroup(
                context.named(name),
                cluster_name=cluster_name,
                version=version,
                release_version=release,
                node_role_arn=role.arn,
                subnet_ids=list(subnet_ids)[:1] if settings.single_zone else list(subnet_ids),
                ami_type="AL2023_ARM_64_STANDARD" if arm else "AL2023_x86_64_STANDARD",
                launch_template=aws.eks.NodeGroupLaunchTemplateArgs(
                    id=template.id, version=template.latest_version.apply(str)
                ),
                scaling_config=aws.eks.NodeGroupScalingConfigArgs(
                    min_size=sizes[0], desired_size=sizes[1], max_size=sizes[2]
                ),
                update_config=aws.eks.NodeGroupUpdateConfigArgs(max_unavailable=1),
                node_repair_config=aws.eks.NodeGroupNodeRepairConfigArgs(enabled=True),
                **more,
            )

        after = [*after, *attached]
        self.group = node_group(
            "nodes",
            (settings.min, settings.desired, settings.max),
            capacity_type=settings.capacity,
            instance_types=list(settings.instance_types),
            taints=startup_taints or None,
            # With nodes.auto, the autoscaler sets the number of nodes.
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=after,
                ignore_changes=["scalingConfig.desiredSize"] if settings.auto else None,
            ),
        )
        self.system_groups = [self.group] if settings.desired > 0 or settings.auto else []
        self.system_labels: dict[str, str] = {}
        if settings.auto:
            taint = aws.eks.NodeGroupTaintArgs(key="CriticalAddonsOnly", value="true", effect="NO_SCHEDULE")
            self.system_labels = SYSTEM_LABELS
            self.system_groups = [
                node_group(
                    "system",
                    (1, 1, 2),
                    instance_types=list(constants.SYSTEM_TYPES[arm]),
                    labels=SYSTEM_LABELS,
                    taints=[*startup_taints, taint],
                    opts=pulumi.ResourceOptions(parent=self, depends_on=after),
                )
            ]
        self.register_outputs({"name": self.group.node_group_name})

    def _launch_template(self, settings: NodesSettings, key_arn: pulumi.Input[str]) -> aws.ec2.LaunchTemplate:
        name, placement = self.context.named("nodes"), None
        if settings.placement_group:
            group = aws.ec2.PlacementGroup(name, strategy="cluster", opts=self.child)
            placement = aws.ec2.LaunchTemplatePlacementArgs(group_name=group.name)
        return aws.ec2.LaunchTemplate(
            name,
            description="Worker nodes: encrypted disk, IMDSv2, one hop so that pods do not become the node",
            update_default_version=True,
            key_name=settings.ssh_key_name if settings.ssh_key_name != "" else None,
            block_device_mappings=[
                aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
                    device_name="/dev/xvda",
                    ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
                        volume_size=settings.disk_gib,
                        volume_type="gp3",
                        encrypted="true",
                        kms_key_id=key_arn,
                        delete_on_termination="true",
                    ),
                )
            ],
            metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
                http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
            ),
            placement=placement,
            # EKS passes the node group's tags to neither instances nor volumes.
            tag_specifications=[
                aws.ec2.LaunchTemplateTagSpecificationArgs(
                    resource_type=kind, tags=self.context.tagged("node")
                )
                for kind in ("instance", "volume")
            ],
            opts=self.child,
        )
