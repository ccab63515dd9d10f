"""The cluster autoscaler (`nodes.auto`): nodes come when pods are pending, and go when they are empty.

Chosen over EKS Auto Mode: its nodes have no launch template or zone of the stack's, cost an eighth more, and
one of them would stay for the storage driver's controller, which a small system node holds for less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
import pulumi_kubernetes as k8s

from infra import policies, versions
from infra.cluster import Cluster
from infra.context import Context

NAME, NAMESPACE, CHART = "cluster-autoscaler", "kube-system", "charts/cluster-autoscaler"
IMAGE = "registry.k8s.io/autoscaling/cluster-autoscaler:v{}.0"


class Autoscaler(pulumi.ComponentResource):
    """paddle:infra:Autoscaler: its role, and its release.

    `labels`: of the nodes it runs on; `version`: Kubernetes' minor, which is the autoscaler's too.
    """

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        *,
        kubeconfig: pulumi.Input[str],
        kubeconfig_context: str,
        version: str,
        labels: Mapping[str, str],
        after: Sequence[pulumi.Resource],
    ) -> None:
        super().__init__("paddle:infra:Autoscaler", context.named("autoscaler"))
        identity = cluster.identity("scaler", NAMESPACE, NAME, policies.autoscaler(context.prefix), self)
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
                "image": IMAGE.format(version),
                "nodeSelector": dict(labels),
                "startupTaint": versions.EFS_STARTUP_TAINT,
            },
            opts=pulumi.ResourceOptions(parent=self, provider=provider, depends_on=[*after, identity]),
        )
        self.register_outputs({})
