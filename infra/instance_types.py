"""Properties of EC2 instance types: processor, GPUs, disk for pods; and pods that are too large. Imports no pulumi."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from infra.settings_errors import Problem

GPU_RESOURCE = "nvidia.com/gpu"
# Families with whole NVIDIA GPUs that the machine image AL2023_x86_64_NVIDIA supports; source: the table of "Use
# EKS-optimized accelerated AMIs for GPU instances" in the EKS user guide (2026-08). Arm types (g5g), AMD GPUs (g4ad)
# and fractions of a GPU (g6f) are not among them.
GPU_FAMILIES = ("g4dn", "g5", "g6", "g6e", "gr6", "p3", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en")


def is_arm(instance_type: str) -> bool:
    """Return whether an instance type has Graviton processors: a `g` after the generation (m7g, t4g)."""
    family = instance_type.partition(".")[0]
    return any(char.isdigit() and after == "g" for char, after in itertools.pairwise(family))


def has_gpus(instance_type: str) -> bool:
    """Return whether an instance type has GPUs, also those that no GPU_FAMILIES have, such as g5g."""
    return re.match(r"[gp]r?\d", instance_type) is not None


def pod_disk_gib(disk_gib: int) -> int:
    """Return how much of a node's disk its pods can request as `ephemeral-storage`, in GiB, rounded down.

    The kubelet keeps 10% free (its eviction threshold), EKS reserves 1 GiB (ephemeral-storage of kube-reserved), and
    boot partitions and the file system itself take less than 1 GiB.
    """
    return int(disk_gib * 0.9) - 2


def requested_by(resources: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the requests of a pod's `resources`; a missing request equals the limit, as in Kubernetes."""
    return {**((resources or {}).get("limits") or {}), **((resources or {}).get("requests") or {})}


def pod_size_problems(
    values: Mapping[str, Any], machines: Mapping[str, Mapping[str, str]]
) -> Iterator[Problem]:
    """Yield a problem for each request of a pod that is larger than an instance type of the nodes.

    `values` have the chart's defaults filled in; `machines` maps each type to its quantities of cpu, memory and GPUs.
    """
    # Takes most of a second.
    from kubernetes.utils.quantity import parse_quantity  # noqa: PLC0415

    for key, section in (("resources", values), ("data.resources", values.get("data") or {})):
        for name, wanted in requested_by(section.get("resources")).items():
            for kind, machine in machines.items():
                try:
                    fits = name not in machine or parse_quantity(wanted) <= parse_quantity(machine[name])
                except ValueError:
                    continue  # the chart's schema rejects it
                if not fits:
                    why = f"a node of type {kind} has no more, so the pod would never start"
                    example = "with GPUs, for example g6.xlarge," if machine[name] == "0" else ""
                    fix = " ".join(
                        f"use larger types {example} in nodes.instanceTypes, or lower the value".split()
                    )
                    yield Problem(f"{key}: {name}", wanted, f"at most {machine[name]}", why, fix)
