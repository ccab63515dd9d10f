"""Whether a node group can hold the data pod beside all trainers. Pure.

All of them must fit at once: training pods start first and hold their requests while they wait for the data,
so a data pod that finds no room would never run, and they would wait until their deadline.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.quantities import number

GIB = 2**30
MIB = 2**20

# What the add-ons' daemons ask for on each node (CNI with network policy, kube-proxy, pod identity agent,
# efs-csi) and one node's part of CoreDNS and the efs-csi controllers, rounded up.
DAEMON_CPU = 0.35
DAEMON_MEMORY = 768 * MIB


@dataclass(frozen=True)
class Size:
    """Cores and bytes."""

    cpu: float
    memory: float

    def __str__(self) -> str:
        return f"{self.cpu:.2f} cores and {self.memory / GIB:.1f} GiB"


def is_arm(instance_type: str) -> bool:
    """Whether an instance type has Graviton processors.

    The family's generation is followed by a g (m7g, t4g).
    """
    family = instance_type.partition(".")[0]
    return any(char.isdigit() and after == "g" for char, after in itertools.pairwise(family))


def for_pods(whole: Size) -> Size:
    """What is left of a node for this project's pods.

    EKS keeps 6% of the first core, 1% of the second, 0.5% of the next two and 0.25% of the rest; and 255 MiB
    plus 11 MiB a pod (29 pods on the smallest nodes that fit, 110 at most) plus 100 MiB before eviction.
    Firmware and kernel take some 4% of what the type promises.
    """
    cores = int(whole.cpu)
    kept = (
        0.06
        + 0.01 * min(max(cores - 1, 0), 1)
        + 0.005 * min(max(cores - 2, 0), 2)
        + 0.0025 * max(cores - 4, 0)
    )
    pods = 29 if cores <= 2 else 58 if cores <= 8 else 110
    memory = whole.memory * 0.96 - (255 + 11 * pods + 100) * MIB
    return Size(whole.cpu - kept - DAEMON_CPU, memory - DAEMON_MEMORY)


def requests(resources: Mapping[str, Any]) -> Size:
    """The requests of a pod's `resources`; a missing request counts as the limit, as Kubernetes counts it."""
    limits = resources.get("limits") or {}
    asked = {**limits, **(resources.get("requests") or {})}
    return Size(number(asked.get("cpu", 0)), number(asked.get("memory", 0)))


def held(
    *, node: Size, nodes: int, trainers: int, trainer: Size, data: Size, one_a_node: bool
) -> tuple[int, bool]:
    """How many trainers find room (first fit), and whether the data pod finds room beside them."""
    free = [[node.cpu, node.memory] for _ in range(nodes)]

    def place(pod: Size, among: Sequence[int]) -> int | None:
        for index in among:
            if free[index][0] >= pod.cpu and free[index][1] >= pod.memory:
                free[index][0] -= pod.cpu
                free[index][1] -= pod.memory
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
