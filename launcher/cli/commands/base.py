"""`base`: print the chart values that describe the cluster."""

from __future__ import annotations

from launcher.cli.cluster.cluster_api import CHART, NAMESPACE, connect
from launcher.cli.options import Context, Kubeconfig, Namespace, Release, say
from launcher.cli.session import ClusterSession


def base(
    release: Release = CHART,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print the values that describe the cluster, not one training: image, storage, scheduling, network.

    Redirect them to base.yaml: `helm upgrade --reset-values -f base.yaml -f TRAINING.yaml` then applies one
    training, without values of the previous one.
    """
    cluster = connect(kubeconfig, context, namespace)
    print(ClusterSession(cluster, release, say).read_base_values().rstrip("\n"))
