"""Calculate whether a node group can hold all trainers and the data pod at the same time. Imports no pulumi.

All of them must fit at once: training pods start first and hold their requests while they wait for the data.
A data pod without room would never start, and the training pods would wait until their deadline.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

GIB = 2**30
MIB = 2**20

# Requests of the add-ons' daemons on each node (CNI with network policy, kube-proxy, pod identity agent,
# efs-csi), and one node's part of CoreDNS and the efs-csi controllers, rounded up.
DAEMON_CPU = 0.35
DAEMON_MEMORY = 768 * MIB

GPU_RESOURCE = "nvidia.com/gpu"
# Families with whole NVIDIA GPUs that the machine image AL2023_x86_64_NVIDIA supports; source: the table of "Use
# EKS-optimized accelerated AMIs for GPU instances" in the EKS user guide (2026-08). Arm types (g5g), AMD GPUs (g4ad)
# and fractions of a GPU (g6f) are not among them.
GPU_FAMILIES = ("g4dn", "g5", "g6", "g6e", "gr6", "p3", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en")
# GPUs by first letter of the family and by size; 1 in sizes that are not here. Source: the EC2 pages of these families,
# compared with DescribeInstanceTypes as of 2026-08.
_GPUS = {
    "g": {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8, "metal": 8},
    "p": {"8xlarge": 4, "16xlarge": 8, "24xlarge": 8, "48xlarge": 8},
}

# Suffixes of Kubernetes quantities.
_FACTORS: dict[str, int | Decimal] = {
    "": 1,
    "m": Decimal("0.001"),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}
_FACTORS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True)
class Size:
    """Size of a machine, or requests of a pod: `cpu` in cores, `memory` in bytes, number of NVIDIA GPUs."""

    cpu: float
    memory: float
    gpus: float = 0

    def __str__(self) -> str:
        gpus = f", {self.gpus:g} GPU{'s' * (self.gpus != 1)}" if self.gpus else ""
        return f"{self.cpu:.2f} cores and {self.memory / GIB:.1f} GiB{gpus}"


def is_arm(instance_type: str) -> bool:
    """Return whether an instance type has Graviton processors: a `g` after the generation (m7g, t4g)."""
    family = instance_type.partition(".")[0]
    return any(char.isdigit() and after == "g" for char, after in itertools.pairwise(family))


def count_gpus(instance_type: str) -> int:
    """Return the number of GPUs of an instance type; 0 for families without GPUs.

    Exact for GPU_FAMILIES. `settings_rules` rejects other families with GPUs, such as g5g.
    """
    family, _, size = instance_type.partition(".")
    return _GPUS[family[0]].get(size, 1) if re.match(r"[gp]r?\d", family) else 0


def usable_size(machine: Size) -> Size:
    """Return the part of a machine that is available to this project's pods.

    Cores: EKS reserves 6% of the first, 1% of the second, 0.5% of the next two and 0.25% of the rest. Memory: EKS
    reserves 255 MiB, 11 MiB for each pod of the node's maximum (29 pods up to 2 cores, 58 up to 8, else 110) and
    100 MiB as the eviction threshold; firmware and kernel take about 4% of the instance type's memory. What the
    daemons request (DAEMON_CPU, DAEMON_MEMORY) is subtracted too.
    """
    cores = int(machine.cpu)
    reserved = (
        0.06
        + 0.01 * min(max(cores - 1, 0), 1)
        + 0.005 * min(max(cores - 2, 0), 2)
        + 0.0025 * max(cores - 4, 0)
    )
    pods = 29 if cores <= 2 else 58 if cores <= 8 else 110
    memory = machine.memory * 0.96 - (255 + 11 * pods + 100) * MIB
    return replace(machine, cpu=machine.cpu - reserved - DAEMON_CPU, memory=memory - DAEMON_MEMORY)


def pod_disk_gib(disk_gib: int) -> int:
    """Return how much of a node's disk its pods can request as `ephemeral-storage`, in GiB, rounded down.

    The kubelet keeps 10% free (its eviction threshold), EKS reserves 1 GiB (ephemeral-storage of kube-reserved), and
    boot partitions and the file system itself take less than 1 GiB.
    """
    return int(disk_gib * 0.9) - 2


def parse_quantity(quantity: object) -> float:
    """Return a quantity in its base unit (cores or bytes): `250m` → 0.25, `2Gi` → 2147483648.0.

    Raises:
        ValueError: `quantity` is not in the notation of Kubernetes.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mkMGT]|[KMGT]i)?", str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity such as 250m or 2Gi")
    return float(Decimal(match[1]) * _FACTORS[match[2] if match[2] is not None else ""])


def pod_requests(resources: Mapping[str, Any]) -> Size:
    """Return the requests of a pod's `resources`; a missing request equals the limit, as in Kubernetes.

    Raises:
        ValueError: a quantity is invalid.
    """
    requested = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    cpu, memory, gpus = (parse_quantity(requested.get(name, 0)) for name in ("cpu", "memory", GPU_RESOURCE))
    return Size(cpu, memory, gpus)


def place_pods(
    *, node: Size, nodes: int, trainers: int, trainer: Size, data: Size, one_a_node: bool
) -> tuple[int, bool]:
    """Return how many training pods fit (first fit), and whether the data pod fits in addition to them.

    `node` is the usable size of each of the `nodes` nodes; with `one_a_node`, it holds at most one training pod.
    """
    free = [node] * nodes

    def place(pod: Size, among: Sequence[int]) -> int | None:
        for index in among:
            left = free[index]
            if left.cpu >= pod.cpu and left.memory >= pod.memory and left.gpus >= pod.gpus:
                free[index] = Size(left.cpu - pod.cpu, left.memory - pod.memory, left.gpus - pod.gpus)
                return index
        return None

    open_nodes = list(range(nodes))
    placed = 0
    for _ in range(trainers):
        index = place(trainer, open_nodes)
        if index is None:
            break
        placed += 1
        if one_a_node:
            open_nodes.remove(index)
    return placed, place(data, range(nodes)) is not None
