"""The EKS managed node groups of the training, their launch template, and the small system node group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import aws_facts
from infra.aws_context import AwsComponent
from infra.eks_cluster import EksCluster, LiveCluster, LiveGroup, newer_version
from infra.settings import NodesSettings
from infra.vpc_network import SelectedNetwork

# The minimum for a node: join the cluster, pull images, pod networking; and Session Manager instead of ssh.
NODE_POLICIES = (
    "AmazonEKSWorkerNodePolicy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEKS_CNI_Policy",
    "AmazonSSMManagedInstanceCore",
)

NEWEST = "newest"
# Without a running node the autoscaler knows no disk, and adds no node for pods that request one. It reads this tag
# from the node group itself (DescribeNodegroup, in buildNodeFromTemplate of its cloudprovider/aws/aws_manager.go), and
# labels and taints too. The number of GPUs needs no tag: it comes from the instance type.
DISK_TAG = "k8s.io/cluster-autoscaler/node-template/resources/ephemeral-storage"
SYSTEM_LABELS = {"paddle-training/system": "true"}
# Machine images: type of the image in EKS, and its name in the parameters of releases. Source: "Retrieve recommended
# Amazon Linux AMI IDs" in the EKS user guide.
X86, ARM, NVIDIA = (
    ("AL2023_x86_64_STANDARD", "x86_64/standard"),
    ("AL2023_ARM_64_STANDARD", "arm64/standard"),
    ("AL2023_x86_64_NVIDIA", "x86_64/nvidia"),
)
RELEASES = "/aws/service/eks/optimized-ami/{}/amazon-linux-2023/{}/recommended/release_version"


def node_counts(settings: NodesSettings, live: LiveGroup | None) -> tuple[int, int, int]:
    """Return minimum, desired and maximum number of nodes, in this order.

    `live` is the running group, or None for a new group. Without `nodes.auto`, all three numbers are settings.

    With `nodes.auto`, the autoscaler sets the desired number. So the desired number of a new group is the minimum, and
    that of a running group is its current number, limited to minimum and maximum. The current number is needed because
    an update of minimum or maximum sends the desired number to EKS too, and must not undo the autoscaler's choice.
    """
    if not settings.auto:
        return settings.min, settings.desired, settings.max
    desired = settings.min if live is None else live.desired
    return settings.min, min(max(desired, settings.min), settings.max), settings.max


def settings_of_zone(settings: NodesSettings, index: int, zones: int) -> NodesSettings:
    """Return the settings of the node group in one zone, with this zone's share of the nodes.

    `index` is the position of the zone, from 0, and `zones` is the number of zones. With `nodes.auto`, the group of
    each zone may grow to `nodes.max`, so that a training does not stop when one zone has no capacity.
    """
    low, desired, high = (
        total // zones + (index < total % zones) for total in (settings.min, settings.desired, settings.max)
    )
    most = settings.max if settings.auto else max(high, 1)  # EKS allows no maximum of 0
    return settings.model_copy(update={"min": low, "desired": desired, "max": most})


class Nodes(AwsComponent):
    """paddle:infra:Nodes: the node groups of the training pods. A change of their sizes replaces no nodes.

    With several zones, there is one group for each zone. One Auto Scaling group over several zones would terminate
    nodes of a running training to balance the zones (AZRebalance), and EKS has no setting to suspend AZRebalance.

    With `nodes.fallback` there are two kinds of groups: spot nodes, and on-demand nodes for times without spot
    capacity. Nodes with GPUs have a taint, so that only pods that tolerate the taint occupy them.

    Attributes:
        groups: the node groups of the training, without fallback groups.
        system_groups: the node groups on which add-ons run; empty if there is no node for them.
        system_labels: the labels of the small system node group; empty without such a group.

    Args:
        live: the running cluster.
    """

    def __init__(
        self,
        cluster: EksCluster,
        network: SelectedNetwork,
        key_arn: pulumi.Input[str],
        live: LiveCluster,
    ) -> None:
        context = cluster.context
        super().__init__("paddle:infra:Nodes", context, "nodes")
        settings, subnets = context.settings.nodes, network.subnets
        role = self.create_role("nodes", "trust of EC2")
        attached = [
            self.attach_aws_policy(f"nodes-{name.lower().replace('_', '-')}", role, name)
            for name in NODE_POLICIES
        ]
        after = [*cluster.before_nodes, *cluster.entries, *network.ready, *attached]
        template = self._launch_template(settings, key_arn)
        for_gpus: dict[str, Any] = {}
        if settings.has_gpus:
            taint = {"key": aws_facts.GPU_TAINT, "value": "present", "effect": "NO_SCHEDULE"}
            for_gpus = {"labels": aws_facts.GPU_LABELS, "taints": [taint]}

        def node_group(
            name: str,
            sizes: tuple[int, int, int],
            image: tuple[str, str],
            subnet_ids: Sequence[pulumi.Input[str]],
            **more: Any,
        ) -> aws.eks.NodeGroup:
            now = live.groups.get(name)
            wanted = newer_version(
                context.settings.cluster.version, live.version if now is None else now.version
            )
            ignored = []
            if now is not None and now.version == wanted:
                ignored.append("version")
                # A change of the release drains and replaces all nodes, so a group keeps its release until the owner
                # sets `nodes.amiRelease` or upgrades Kubernetes.
                ignored += ["releaseVersion"] if settings.ami_release == "" else []
            # The autoscaler has changed the number of nodes; a change of minimum or maximum sends all three to EKS.
            if now is not None and settings.auto and (now.min, now.desired, now.max) == sizes:
                ignored.append("scalingConfig")
            release = settings.ami_release
            if release in ("", NEWEST):
                parameter = RELEASES.format(wanted, image[1])
                opts = pulumi.InvokeOptions(parent=self)
                release = aws.ssm.get_parameter(name=parameter, opts=opts).insecure_value
            return aws.eks.NodeGroup(
                context.named(name),
                cluster_name=cluster.name,
                version=wanted,
                release_version=release,
                node_role_arn=role.arn,
                subnet_ids=list(subnet_ids),
                ami_type=image[0],
                launch_template={"id": template.id, "version": template.latest_version.apply(str)},
                scaling_config={"min_size": sizes[0], "desired_size": sizes[1], "max_size": sizes[2]},
                # By default EKS starts up to twice as many nodes as the group has zones before it removes one. Quotas
                # of GPUs are small, so a node with GPUs is removed first.
                update_config={
                    "max_unavailable": 1,
                    "update_strategy": "MINIMAL" if image == NVIDIA else None,
                },
                node_repair_config={"enabled": True},
                opts=pulumi.ResourceOptions(parent=self, depends_on=after, ignore_changes=ignored),
                **more,
            )

        standard = ARM if settings.is_arm else X86
        zones = list(subnets)[:1] if settings.single_zone else list(subnets)

        def training_groups(kind: str, settings: NodesSettings) -> list[aws.eks.NodeGroup]:
            made = []
            for index, zone in enumerate(zones):
                name = kind if len(zones) == 1 else f"{kind}-{zone[-1]}"
                part = settings_of_zone(settings, index, len(zones))
                group = node_group(
                    name,
                    node_counts(part, live.groups.get(name)),
                    NVIDIA if settings.has_gpus else standard,
                    [subnets[zone]],
                    capacity_type=settings.capacity,
                    instance_types=list(settings.instance_types),
                    tags={DISK_TAG: f"{aws_facts.pod_disk_gib(settings.disk_gib)}Gi"},
                    **for_gpus,
                )
                made.append(group)
            return made

        self.groups = training_groups("nodes", settings)
        if settings.fallback:
            training_groups(
                "fallback", settings.model_copy(update={"capacity": "ON_DEMAND", "min": 0, "desired": 0})
            )
        self.system_groups = self.groups if settings.desired > 0 else []
        self.system_labels: dict[str, str] = {}
        if settings.has_system_group:
            taint = {"key": "CriticalAddonsOnly", "value": "true", "effect": "NO_SCHEDULE"}
            self.system_labels = SYSTEM_LABELS
            self.system_groups = [
                node_group(
                    "system",
                    (1, 1, 2),
                    standard,
                    [subnets[zone] for zone in zones],
                    instance_types=list(aws_facts.SYSTEM_TYPES[settings.is_arm]),
                    labels=SYSTEM_LABELS,
                    taints=[taint],
                )
            ]
        self.register_outputs({"names": [group.node_group_name for group in self.groups]})

    def _launch_template(self, settings: NodesSettings, key_arn: pulumi.Input[str]) -> aws.ec2.LaunchTemplate:
        name, placement = self.context.named("nodes"), None
        if settings.placement_group:
            group = aws.ec2.PlacementGroup(name, strategy="cluster", opts=self.child)
            placement = {"group_name": group.name}
        return aws.ec2.LaunchTemplate(
            name,
            description="Worker nodes: encrypted disk, IMDSv2, one hop so that pods do not become the node",
            update_default_version=True,
            key_name=settings.ssh_key_name if settings.ssh_key_name != "" else None,
            block_device_mappings=[
                {
                    "device_name": "/dev/xvda",
                    "ebs": {
                        "volume_size": settings.disk_gib,
                        "volume_type": "gp3",
                        "encrypted": "true",
                        "kms_key_id": key_arn,
                        "delete_on_termination": "true",
                    },
                }
            ],
            metadata_options={
                "http_endpoint": "enabled",
                "http_tokens": "required",
                "http_put_response_hop_limit": 1,
            },
            placement=placement,
            # EKS passes the node group's tags to neither instances nor volumes. A change makes a new version of the
            # template, to which EKS updates the groups node by node.
            tag_specifications=[
                {"resource_type": kind, "tags": self.context.tagged("node")}
                for kind in ("instance", "volume")
            ],
            opts=self.child,
        )
