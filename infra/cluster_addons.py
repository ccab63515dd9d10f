"""Programs that run in the cluster next to the training: EKS add-ons, the autoscaler, and NVIDIA's device plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi

from infra import aws_facts, iam_policies
from infra.aws_context import AwsComponent
from infra.efs_storage import EfsStorage
from infra.eks_cluster import ADDON_NAMESPACE, EksCluster
from infra.eks_nodes import Nodes

# For each of the three containers of both controllers of the EFS driver. They have no work, because the
# program itself creates the volumes; the add-on's default requests would be 1.2 cores in total.
CONTROLLER = {"requests": {"cpu": "10m", "memory": "40Mi"}, "limits": {"memory": "256Mi"}}
AUTOSCALER = "cluster-autoscaler"
AUTOSCALER_IMAGE = "registry.k8s.io/autoscaling/cluster-autoscaler:v{}.{}"
# Newest patch release of the cluster autoscaler for each minor version of Kubernetes; others get patch 0.
AUTOSCALER_PATCHES = {"1.34": 5, "1.35": 2, "1.36": 1}
# NVIDIA's device plugin, which the NVIDIA machine image of EKS does not contain ("Install Kubernetes device plugin for
# GPUs" in the EKS user guide). The version is the newest in deployments/static of NVIDIA/k8s-device-plugin (2026-08).
DEVICE_PLUGIN_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"


def logs_configuration(labels: Mapping[str, str]) -> dict[str, object]:
    """Return the configuration of the EKS add-on for logs: pod and node logs, no metrics and no traces.

    By default, the add-on also turns on Container Insights and Application Signals. A value for the key `agent.config`
    replaces the default configuration, which contains both. With the value here, the CloudWatch agent only accepts
    metrics in log lines (EMF), and no pod sends such lines. The agent itself must stay, because it brings the service
    account that Fluent Bit uses (templates of the chart amazon-cloudwatch-observability).

    `labels` are the labels of the system nodes, on which the add-on's operator runs; empty if there are no system
    nodes.
    """
    manager: dict[str, object] = {"applicationSignals": {"autoMonitor": {"monitorAllServices": False}}}
    if labels:
        manager["nodeSelector"] = dict(labels)
    small = {"requests": {"cpu": "10m", "memory": "64Mi"}}
    agent = {"config": {"logs": {"metrics_collected": {"emf": {}}}}, "resources": small}
    return {"containerLogs": {"enabled": True}, "agent": agent, "manager": manager}


def create_addons(cluster: EksCluster, nodes: Nodes, storage: EfsStorage) -> list[pulumi.Resource]:
    """Create and return the EKS add-ons whose pods need a node. If no node can run add-ons, return an empty list."""
    if not nodes.system_groups:
        return []  # without a node for its pods, an add-on never becomes active
    context, settings = cluster.context, cluster.context.settings
    selector = {"nodeSelector": nodes.system_labels} if nodes.system_labels else {}
    made: list[pulumi.Resource] = [
        cluster.add_addon(aws_facts.ADDON_COREDNS, selector or None, nodes.system_groups)
    ]
    if settings.storage.type == "efs-csi":
        policies = {
            ("efs-csi", "efs-csi-controller-sa"): storage.policy("EFS driver"),
            # The daemon of each node mounts with this role (mount option `iam`).
            ("efs-node", "efs-csi-node-sa"): storage.policy("EFS mount"),
        }
        identities = [
            cluster.add_pod_identity(cluster.name, part, ("kube-system", account), policy)
            for (part, account), policy in policies.items()
        ]
        # The driver's daemon needs no selector: it tolerates every taint.
        configuration: dict[str, object] = {"controller": {"resources": CONTROLLER, **selector}}
        after = [*nodes.system_groups, *identities]
        made.append(cluster.add_addon(aws_facts.ADDON_EFS_CSI, configuration, after))
    if settings.cluster.pod_logs:
        account = ("amazon-cloudwatch", "cloudwatch-agent")
        policy = iam_policies.policy("pod logs", partition=context.partition, cluster=context.prefix)
        identity = cluster.add_pod_identity(cluster.name, "pod-logs", account, policy)
        configuration = logs_configuration(nodes.system_labels)
        made.append(cluster.add_addon(aws_facts.ADDON_LOGS, configuration, [*nodes.system_groups, identity]))
    return made


class Autoscaler(AwsComponent):
    """paddle:infra:Autoscaler: the Helm release of the cluster autoscaler (`nodes.auto`), and its IAM role.

    The autoscaler adds nodes for pending pods and removes empty nodes. With `nodes.fallback`, the autoscaler adds nodes
    to the group `fallback` while AWS has no spot capacity for the group `nodes`.

    This project does not use EKS Auto Mode. Its nodes cannot use the stack's launch template or zones, and they cost an
    eighth more (docs/explanation/decisions.md). Both Auto Mode and the autoscaler need one node that always runs, for
    the controller of the storage driver. This project creates a small system node for it.

    `after` are the resources that must exist before the release.
    """

    def __init__(self, cluster: EksCluster, nodes: Nodes, after: Sequence[pulumi.Resource]) -> None:
        context = cluster.context
        super().__init__("paddle:infra:Autoscaler", context, "autoscaler")
        account = (ADDON_NAMESPACE, AUTOSCALER)
        policy = iam_policies.policy("autoscaler", cluster=context.prefix)
        identity = self.add_pod_identity(cluster.name, "scaler", account, policy)
        # The autoscaler has the minor version of Kubernetes.
        patch = AUTOSCALER_PATCHES.get(cluster.version, 0)
        values = {
            "cluster": context.prefix,
            "region": context.settings.region,
            "image": AUTOSCALER_IMAGE.format(cluster.version, patch),
            "nodeSelector": nodes.system_labels,
            "fallback": context.settings.nodes.fallback,
        }
        self.release = cluster.add_release(self, "autoscaler", AUTOSCALER, values, [*after, identity])
        self.register_outputs({})


class DevicePlugin(AwsComponent):
    """paddle:infra:DevicePlugin: the Helm release of the device plugin, created after the resources in `after`.

    The plugin makes the GPUs of a node available to pods as `nvidia.com/gpu`.
    """

    def __init__(self, cluster: EksCluster, after: Sequence[pulumi.Resource]) -> None:
        super().__init__("paddle:infra:DevicePlugin", cluster.context, "gpus")
        values = {
            "image": DEVICE_PLUGIN_IMAGE,
            "nodeSelector": aws_facts.GPU_LABELS,
            "taints": [aws_facts.GPU_TAINT],
        }
        self.release = cluster.add_release(self, "gpus", "nvidia-device-plugin", values, after)
        self.register_outputs({})
