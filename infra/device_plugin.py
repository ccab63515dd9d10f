"""NVIDIA's device plugin, which makes the GPUs of a node available to pods as `nvidia.com/gpu`."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

from infra import constants
from infra.aws_context import AwsComponent, AwsContext
from infra.eks_cluster import EksCluster


class DevicePlugin(AwsComponent):
    """paddle:infra:DevicePlugin: the Helm release of the device plugin, created after the resources in `after`."""

    def __init__(self, context: AwsContext, cluster: EksCluster, after: Sequence[pulumi.Resource]) -> None:
        super().__init__("paddle:infra:DevicePlugin", context, "gpus")
        values = {
            "image": constants.DEVICE_PLUGIN_IMAGE,
            "nodeSelector": constants.GPU_LABELS,
            "taints": [constants.GPU_TAINT],
        }
        self.release = cluster.add_release(self, "gpus", "nvidia-device-plugin", values, after)
        self.register_outputs({})
