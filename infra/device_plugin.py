"""NVIDIA's device plugin, which makes the GPUs of a node available to pods as `nvidia.com/gpu`."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_kubernetes as k8s

from infra import constants
from infra.aws_context import AwsComponent, AwsContext

NAME, NAMESPACE, CHART = "nvidia-device-plugin", "kube-system", "charts/nvidia-device-plugin"


class DevicePlugin(AwsComponent):
    """paddle:infra:DevicePlugin: the Helm release of the device plugin.

    Args:
        context: the stack's context.
        kubeconfig: kubeconfig of the cluster.
        kubeconfig_context: context of that kubeconfig.
        after: resources that must exist before the release.
    """

    def __init__(
        self,
        context: AwsContext,
        *,
        kubeconfig: pulumi.Input[str],
        kubeconfig_context: str,
        after: Sequence[pulumi.Resource],
    ) -> None:
        super().__init__("paddle:infra:DevicePlugin", context, "gpus")
        provider = k8s.Provider(
            context.named("gpus"),
            kubeconfig=kubeconfig,
            context=kubeconfig_context,
            cluster_identifier=context.prefix,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )
        self.release = k8s.helm.v3.Release(
            context.named("gpus"),
            name=NAME,
            namespace=NAMESPACE,
            chart=f"./{CHART}",
            values={
                "image": constants.DEVICE_PLUGIN_IMAGE,
                "nodeSelector": constants.GPU_LABELS,
                "taints": [constants.GPU_TAINT, constants.EFS_STARTUP_TAINT],
            },
            opts=pulumi.ResourceOptions(parent=self, provider=provider, depends_on=list(after)),
        )
        self.register_outputs({})
