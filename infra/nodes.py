"""The managed node group with its own launch template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra import capacity, versions
from infra.aws_settings import Nodes as NodesSettings
from infra.context import Context, attach, role

# The least that a node needs: join the cluster, pull images, pod networking; and Session Manager in place of
# ssh.
NODE_POLICIES = (
    "AmazonEKSWorkerNodePolicy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEKS_CNI_Policy",
    "AmazonSSMManagedInstanceCore",
)


@dataclass(frozen=True)
class NodesArgs:
    """`wait_for_storage`: keep pods off a node until the EFS driver runs there."""

    cluster_name: pulumi.Input[str]
    cluster_group_id: pulumi.Input[str]
    vpc_id: pulumi.Input[str]
    subnet_ids: Sequence[pulumi.Input[str]]
    key_arn: pulumi.Input[str]
    settings: NodesSettings
    wait_for_storage: bool
    after: Sequence[pulumi.Resource]


class Nodes(pulumi.ComponentResource):
    """paddle:infra:Nodes. The number of nodes changes in place, so 1 → 3 replaces none."""

    def __init__(self, context: Context, args: NodesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("paddle:infra:Nodes", context.named("nodes"), None, opts)
        own = pulumi.ResourceOptions(parent=self)
        settings = args.settings
        node_role = role(context, "nodes", "ec2.amazonaws.com", self)
        attached = [
            attach(context, f"nodes-{name.lower().replace('_', '-')}", node_role, name, self)
            for name in NODE_POLICIES
        ]
        placement = None
        if settings.placement_group:
            group = aws.ec2.PlacementGroup(
                context.named("nodes"), strategy="cluster", tags=context.tagged("nodes"), opts=own
            )
            placement = aws.ec2.LaunchTemplatePlacementArgs(group_name=group.name)
        template = aws.ec2.LaunchTemplate(
            context.named("nodes"),
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
                        kms_key_id=args.key_arn,
                        delete_on_termination="true",
                    ),
                )
            ],
            metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
                http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
            ),
            placement=placement,
            tag_specifications=[
                aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=context.tagged("node"))
                for kind in ("instance", "volume")
            ],
            tags=context.tagged("nodes"),
            opts=own,
        )
        arm = capacity.is_arm(settings.instance_types[0])
        taint = aws.eks.NodeGroupTaintArgs(key=versions.EFS_STARTUP_TAINT, effect="NO_EXECUTE")
        self.group = aws.eks.NodeGroup(
            context.named("nodes"),
            cluster_name=args.cluster_name,
            node_role_arn=node_role.arn,
            subnet_ids=list(args.subnet_ids)[:1] if settings.single_zone else list(args.subnet_ids),
            ami_type="AL2023_ARM_64_STANDARD" if arm else "AL2023_x86_64_STANDARD",
            capacity_type=settings.capacity,
            instance_types=list(settings.instance_types),
            launch_template=aws.eks.NodeGroupLaunchTemplateArgs(
                id=template.id, version=template.latest_version.apply(str)
            ),
            scaling_config=aws.eks.NodeGroupScalingConfigArgs(
                min_size=settings.min, desired_size=settings.desired, max_size=settings.max
            ),
            update_config=aws.eks.NodeGroupUpdateConfigArgs(max_unavailable=1),
            node_repair_config=aws.eks.NodeGroupNodeRepairConfigArgs(enabled=True),
            taints=[taint] if args.wait_for_storage else None,
            tags=context.tagged("nodes"),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*args.after, *attached]),
        )
        self.register_outputs({"name": self.group.node_group_name})
