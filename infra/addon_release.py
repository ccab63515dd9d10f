"""Helm releases of the charts for the cluster itself: autoscaler and device plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra import naming
from infra.aws_context import AwsComponent
from infra.eks_cluster import EksCluster
from infra.eks_kubeconfig import CONTEXT

NAMESPACE = "kube-system"


def create_addon_release(
    component: AwsComponent,
    cluster: EksCluster,
    part: str,
    chart: str,
    values: Mapping[str, Any],
    *,
    kubeconfig: pulumi.Input[str],
    after: Sequence[pulumi.Resource],
) -> k8s.helm.v3.Release:
    """Create a release of `charts/<chart>`, named like the chart, and its provider, after the resources in `after`.

    `part` is the name of both resources without the stack's prefix.
    """
    context, folder = component.context, f"./charts/{chart}"
    provider = k8s.Provider(
        context.named(part),
        kubeconfig=kubeconfig,
        context=CONTEXT,
        cluster_identifier=cluster.cluster.endpoint,
        opts=pulumi.ResourceOptions(parent=component, depends_on=list(after)),
    )
    return k8s.helm.v3.Release(
        context.named(part),
        name=chart,
        namespace=NAMESPACE,
        chart=folder,
        # A local chart with the same version counts as unchanged, so its digest is part of the release's inputs.
        description=f"chart {naming.folder_digest(folder)}",
        values=dict(values),
        opts=pulumi.ResourceOptions(parent=component, provider=provider, depends_on=list(after)),
    )
