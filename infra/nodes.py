"""The managed node group with its own launch template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import capacity, versions
from infra.context import Context, attach, role
from infra.settings import Nodes as NodesSettings

# The least that a node needs: join the cluster, pull images, pod networking; and Session Manager in place of
# ssh.
NODE_POLICIES = (
    "AmazonEKSWorkerNodePolicy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEKS_CNI_Policy",
    "AmazonSSMManagedInstanceCore",
)

SYSTEM_LABELS = {"paddle-training/system": "true"}
RELEASES = "/aws/service/eks/optimized-ami/{}/amazon-linux-2023/{}/standard/recommended/release_version"


def image_release(version: str, arm: bool, held: str, opts: pulumi.InvokeOptions) -> pulumi.Input[str]:
    """The machine image's release: the one that is held, else the newest, which the preview then shows."""
    if held != "":
        return held
    name = RELEASES.format(version, "arm64" if arm else "x86_64")
    found: pulumi.Output[str] = aws.ssm.get_parameter_output(name=name, opts=opts).insecure_value
    return found


class Nodes(pulumi.ComponentResource):
    """paddle:infra:Nodes. The number of nodes changes in place, so 1 → 3 replaces none.

    `version` is Kubernetes' minor; `wait_for_storage` keeps pods off a node until the EFS driver runs.
    `hosts` and `host_labels`: the group whose nodes hold what is not training, and how they are chosen.
    """

    def __init__(
        self,
        context: Context,
        *,
        cluster_name: pulumi.Input[str],
        subnet_ids: Sequence[pulumi.Input[str]],
        key_arn: pulumi.Input[str],
        settings: NodesSettings,
        version: str,
        wait_for_storage: bool,
        after: Sequence[pulumi.Resource],
    ) -> None:
        super().__init__("paddle:infra:Nodes", context.named("nodes"))
        own = pulumi.ResourceOptions(parent=self)
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
                        kms_key_id=key_arn,
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
        release = image_release(version, arm, settings.ami_release, pulumi.InvokeOptions(parent=self))
        taint = aws.eks.NodeGroupTaintArgs(key=versions.EFS_STARTUP_TAINT, effect="NO_EXECUTE")
        waits = [taint] if wait_for_storage else []

        def node_group(name: str, sizes: tuple[int, int, int], **more: Any) -> aws.eks.NodeGroup:
            return aws.eks.NodeGroup(
                context.named(name),
                cluster_name=cluster_name,
                version=version,
                release_version=release,
                node_role_arn=node_role.arn,
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
                tags=context.tagged(name),
                **more,
            )

        after = [*after, *attached]
        self.group = node_group(
            "nodes",
            (settings.min, settings.desired, settings.max),
            capacity_type=settings.capacity,
            instance_types=list(settings.instance_types),
            taints=waits or None,
            # With auto the autoscaler decides the number.
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=after,
                ignore_changes=["scalingConfig.desiredSize"] if settings.auto else None,
            ),
        )
        # What add-ons with pods of their own wait for, and where they are; empty: no node is there.
        self.hosts = [self.group] if settings.desired > 0 or settings.auto else []
        self.host_labels: dict[str, str] = {}
        if settings.auto:
            alone = aws.eks.NodeGroupTaintArgs(key="CriticalAddonsOnly", value="true", effect="NO_SCHEDULE")
            self.host_labels = SYSTEM_LABELS
            self.hosts = [
                node_group(
                    "system",
                    (1, 1, 2),
                    instance_types=list(versions.SYSTEM_TYPES[arm]),
                    labels=SYSTEM_LABELS,
                    taints=[*waits, alone],
                    opts=pulumi.ResourceOptions(parent=self, depends_on=after),
                )
            ]
        self.register_outputs({"name": self.group.node_group_name})
