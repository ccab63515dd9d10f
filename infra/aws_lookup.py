"""Read from AWS what may not exist, and the running EKS cluster of the stack.

The autoscaler changes the number of nodes, and AWS upgrades a control plane at the end of its version's standard
support. The stack's state has only the values of the last `up`, so the program reads the current ones from AWS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import pulumi_aws as aws

from infra import constants

Found = TypeVar("Found")

# Texts of the provider's errors for a resource that does not exist; these errors have no types.
_NOT_FOUND = re.compile(
    r"not.?found|no ?such|no matching .* found|couldn't find|empty result|does not exist|is Pending",
    re.IGNORECASE,
)


def read_if_exists(read: Callable[[str], Found], id_: str) -> Found | None:
    """Return `read(id_)`, or None if it raises because the resource does not exist; raise all other errors."""
    try:
        return read(id_)
    except Exception as error:
        if _NOT_FOUND.search(str(error)):
            return None
        raise


@dataclass(frozen=True)
class LiveGroup:
    """Sizes of a node group, its minor Kubernetes version and the release of its machine image."""

    min: int
    desired: int
    max: int
    version: str
    release: str


@dataclass(frozen=True)
class LiveCluster:
    """The running cluster.

    Attributes:
        version: minor version of the control plane; an empty text if there is no cluster.
        groups: node groups by short name, such as `nodes`.
        addons: version of each running add-on of constants.ADDONS.
    """

    version: str = ""
    groups: Mapping[str, LiveGroup] = field(default_factory=dict)
    addons: Mapping[str, str] = field(default_factory=dict)


def newer_version(first: str, second: str) -> str:
    """Return the newer of two minor versions of Kubernetes (`1.35`); an empty text counts as the oldest."""
    return max(first, second, key=lambda version: [int(number) for number in version.split(".") if number])


def read_live_cluster(prefix: str) -> LiveCluster:
    """Return the cluster named `prefix` and its node groups, whose names are `<prefix>-<short name>-<suffix>`."""
    cluster = read_if_exists(lambda name: aws.eks.get_cluster(name=name), prefix)
    if cluster is None:
        return LiveCluster()
    groups: dict[str, LiveGroup] = {}
    for name in aws.eks.get_node_groups(cluster_name=prefix).names:
        part = name.removeprefix(f"{prefix}-").rpartition("-")[0]
        found = aws.eks.get_node_group(cluster_name=prefix, node_group_name=name)
        sizes = found.scaling_configs[0]
        group = LiveGroup(
            sizes.min_size, sizes.desired_size, sizes.max_size, found.version, found.release_version
        )
        # While a group is replaced there are two: the larger one has the pods.
        if part not in groups or groups[part].desired < group.desired:
            groups[part] = group
    found_addons = {
        name: read_if_exists(lambda name: aws.eks.get_addon(addon_name=name, cluster_name=prefix), name)
        for name in constants.ADDONS
    }
    addons = {name: addon.addon_version for name, addon in found_addons.items() if addon is not None}
    return LiveCluster(cluster.version, groups, addons)
