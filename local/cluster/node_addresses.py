"""Addresses, ports, names and folders of the local cluster and its nodes.

Used by the commands that start the cluster (`up`), stop it (`down`) and list its leftovers (`residue`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from local.errors import LocalError
from local.paths import STATE

BRIDGE = "pt0"
BRIDGE_ADDRESS = "10.87.0.1"  # the control plane and CoreDNS listen here, and the nodes route through it
NODE_SUBNET = "10.87.0.0/24"
POD_SUBNET = "10.88.0.0/16"  # one /24 per node
SERVICE_SUBNET = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"  # `kubernetes.default`, the first of SERVICE_SUBNET
API_PORT = 6443
ETCD_PORT = 12379  # not 2379: Debian's etcd service may have that
ETCD_PEER_PORT = 12380
CHAIN = "PADDLE-TRAINING"  # chain in the filter and nat tables of the machine
PREFIX = "pt-"  # of network namespaces, cgroups and CNI networks
MAX_NODES = 5  # each node is a kubelet, a containerd and a proxy: about 250 MB


@dataclass(frozen=True)
class Node:
    """Names, addresses and folder of one node; `index` counts from 1."""

    index: int

    @property
    def name(self) -> str:
        return f"node{self.index}"

    @property
    def address(self) -> str:
        return f"10.87.0.{self.index + 1}"

    @property
    def pod_subnet(self) -> str:
        return f"10.88.{self.index}.0/24"

    @property
    def netns(self) -> str:
        return f"{PREFIX}{self.name}"

    @property
    def netns_file(self) -> Path:
        return Path("/run/netns") / self.netns

    @property
    def link(self) -> str:
        return f"pt{self.index}"

    @property
    def cgroup(self) -> str:
        return f"{PREFIX}{self.name}"

    @property
    def folder(self) -> Path:
        return STATE / "nodes" / self.name

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"


def plan_nodes(count: int) -> tuple[Node, ...]:
    """Return the nodes of a cluster of `count` nodes.

    Raises:
        LocalError: `count` is not 1 to 5.
    """
    if not 1 <= count <= MAX_NODES:
        raise LocalError(
            f"NODES={count}: a local cluster has 1 to {MAX_NODES} nodes, because each needs about 250 MB of "
            f"memory and its own containerd. Fix: NODES=1 to NODES={MAX_NODES}"
        )
    return tuple(Node(i) for i in range(1, count + 1))


def all_possible_nodes() -> tuple[Node, ...]:
    """Return all nodes that a cluster can have; the commands `down` and `residue` inspect all of them."""
    return plan_nodes(MAX_NODES)
