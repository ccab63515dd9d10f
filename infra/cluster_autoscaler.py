"""The cluster autoscaler (`nodes.auto`): adds nodes for pending pods and removes empty nodes.

This project does not use EKS Auto Mode, because its nodes cannot use the stack's launch template or zones and cost
an eighth more (docs/adr/0005-kept-data-and-empty-node-groups.md). Both need one node that
always runs, for the controller of the storage driver; here it is a small system node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
import pulumi_kubernetes as k8s

from infra import constants, iam_policies
from infra.aws_context import AwsComponent, AwsContext
from infra.eks_cluster import EksCluster

NAME, NAMESPACE, CHART = "cluster-autoscaler", "kube-system", "charts/cluster-autoscaler"
IMAGE = "registry.k8s.io/autoscaling/cluster-autoscaler:v{}.{}"


class Autoscaler(AwsComponent):
    """paddle:infra:Autoscaler: the Helm release of the cluster autoscaler, and its IAM role.

    Args:
        context: the stack's context.
        cluster: the EKS cluster.
        kubeconfig: kubeconfig of the cluster.
        kubeconfig_context: context of that kubeconfig.
        version: minor version of Kubernetes; the autoscaler has the same minor version.
        labels: labels of the nodes on which it runs.
        fallback: `nodes.fallback`: whether to add nodes to the group `fallback` while `nodes` gets no spot capacity.
        after: resources that must exist before the release.
    """

    def __init__(
        self,
        context: AwsContext,
        cluster: EksCluster,
        *,
        kubeconfig: pulumi.Input[str],
        kubeconfig_context: str,
        version: str,
        labels: Mapping[str, str],
        fallback: bool,
        after: Sequence[pulumi.Resource],
    ) -> None:
        super().__init__("paddle:infra:Autoscaler", context, "autoscaler")
        policy = iam_policies.autoscaler(context.prefix)
        identity = cluster.add_pod_identity("scaler", NAMESPACE, NAME, policy, self)
        provider = k8s.Provider(
            context.named("autoscaler"),
            kubeconfig=kubeconfig,
            context=kubeconfig_context,
            cluster_identifier=context.prefix,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*after, identity]),
        )
        self.release = k8s.helm.v3.Release(
            context.named("autoscaler"),
            name=NAME,
            namespace=NAMESPACE,
            chart=f"./{CHART}",
            values={
                "cluster": context.prefix,
                "region": context.region,
                "image": IMAGE.format(version, constants.AUTOSCALER_PATCHES.get(version, 0)),
                "nodeSelector": dict(labels),
                "startupTaint": constants.EFS_STARTUP_TAINT,
                "fallback": fallback,
            },
            opts=pulumi.ResourceOptions(parent=self, provider=provider, depends_on=[*after, identity]),
        )
        self.register_outputs({})
