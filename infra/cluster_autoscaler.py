"""The cluster autoscaler (`nodes.auto`): adds nodes for pending pods and removes empty nodes.

This project does not use EKS Auto Mode, because its nodes cannot use the stack's launch template or zones and cost
an eighth more (docs/explanation/decisions.md). Both need one node that
always runs, for the controller of the storage driver; here it is a small system node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi

from infra import constants, iam_policies
from infra.aws_context import AwsComponent, AwsContext
from infra.eks_cluster import ADDON_NAMESPACE, EksCluster

NAME = "cluster-autoscaler"
IMAGE = "registry.k8s.io/autoscaling/cluster-autoscaler:v{}.{}"


class Autoscaler(AwsComponent):
    """paddle:infra:Autoscaler: the Helm release of the cluster autoscaler, and its IAM role.

    Args:
        labels: labels of the nodes on which it runs.
        fallback: `nodes.fallback`: whether to add nodes to the group `fallback` while `nodes` gets no spot capacity.
        after: resources that must exist before the release.
    """

    def __init__(
        self,
        context: AwsContext,
        cluster: EksCluster,
        *,
        labels: Mapping[str, str],
        fallback: bool,
        after: Sequence[pulumi.Resource],
    ) -> None:
        super().__init__("paddle:infra:Autoscaler", context, "autoscaler")
        policy = iam_policies.autoscaler(context.prefix)
        identity = cluster.add_pod_identity("scaler", ADDON_NAMESPACE, NAME, policy, self)
        # The autoscaler has the minor version of Kubernetes.
        patch = constants.AUTOSCALER_PATCHES.get(cluster.version, 0)
        values = {
            "cluster": context.prefix,
            "region": context.region,
            "image": IMAGE.format(cluster.version, patch),
            "nodeSelector": dict(labels),
            "fallback": fallback,
        }
        self.release = cluster.add_release(self, "autoscaler", NAME, values, [*after, identity])
        self.register_outputs({})
