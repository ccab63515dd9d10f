"""Addresses of the local cluster and its nodes, and the configuration files and command lines of all daemons.

Everything follows from the number of nodes, the folders of the built programs, the files in `config/`, the
certificates in `PKI` and this machine's name servers.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from string import Template

import yaml

from local.external_commands import LocalError
from local.paths import CONTEXT, STATE

PKI = STATE / "pki"
LOGS = STATE / "logs"
BRIDGE = "pt0"
BRIDGE_ADDRESS = "10.87.0.1"  # the control plane listens here, and the nodes route through it
HOST_LINK = "pt-host"  # the machine's end of the link to the bridge; the other end is `uplink`
HOST_ADDRESS = "10.87.0.254"  # of this machine, as nodes and pods see it; CoreDNS listens here
NODE_SUBNET = "10.87.0.0/24"
POD_SUBNET = "10.88.0.0/16"  # one /24 per node
SERVICE_SUBNET = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"  # `kubernetes.default`, the first of SERVICE_SUBNET
API_PORT = 6443
ETCD_PORT = 2379
GROUP = "paddle-training"  # cgroup with the nodes' cgroups
MAX_NODES = 5  # each node is a kubelet, a containerd and a proxy: about 250 MB
SERVER = f"https://{BRIDGE_ADDRESS}:{API_PORT}"
PAUSE_IMAGE = "localhost/pause:1"
PAUSE_LAYOUT = STATE / "images" / "pause"
CNI_PLUGINS = Path("/usr/lib/cni")  # Debian's containernetworking-plugins
CONFIG = Path(__file__).resolve().parent / "config"
NODE_FILES = {
    "cni/10-pods.conflist": "cni.yaml",
    "containerd.toml": "containerd.toml",
    "kubelet.json": "kubelet.yaml",
    "proxy.json": "kube-proxy.yaml",
}
"""File in the folder of a node → file in `config/` from which it is rendered."""


@dataclass(frozen=True)
class Node:
    """One node of the local Kubernetes cluster: its names, addresses and files.

    Templates in `config/` contain the names of these fields as `$name`.
    """

    name: str
    address: str
    pod_subnet: str
    link: str
    cgroup: str
    folder: Path
    """Folder on this machine in which the node's containerd, kubelet and proxy keep their files."""
    socket: Path


def plan_nodes(count: int) -> tuple[Node, ...]:
    """Return the descriptions of the nodes of a local cluster with `count` nodes. This function creates nothing.

    Raises:
        LocalError: `count` is not 1 to 5.
    """
    if not 1 <= count <= MAX_NODES:
        raise LocalError(
            f"NODES={count}: a local cluster has 1 to {MAX_NODES} nodes, because each needs about 250 MB of "
            f"memory and its own containerd. Fix: NODES=1 to NODES={MAX_NODES}"
        )
    folders = {number: STATE / "nodes" / f"node{number}" for number in range(1, count + 1)}
    return tuple(
        Node(
            name=folder.name,
            address=f"10.87.0.{number + 1}",
            pod_subnet=f"10.88.{number}.0/24",
            link=f"pt{number}",
            cgroup=f"{GROUP}/{folder.name}",
            folder=folder,
            socket=folder / "containerd.sock",
        )
        for number, folder in folders.items()
    )


def render(template: str, node: Node | None = None, /, **more: object) -> str:
    """Return the text of the file `template` in `config/`, with its `$names` replaced.

    The text may contain the names that this function sets, the names in `more`, and, if `node` is passed, the names of
    its fields. A YAML file is returned as JSON, because all daemons accept JSON too.
    """
    names: dict[str, object] = {
        "state": STATE,
        "pki": PKI,
        "context": CONTEXT,
        "server": SERVER,
        "api_port": API_PORT,
        "etcd_url": f"https://127.0.0.1:{ETCD_PORT}",
        "bridge": BRIDGE,
        "bridge_address": BRIDGE_ADDRESS,
        "host_link": HOST_LINK,
        "host_address": HOST_ADDRESS,
        "pod_network": POD_SUBNET,
        "service_network": SERVICE_SUBNET,
        "pause_image": PAUSE_IMAGE,
        "cni_plugins": CNI_PLUGINS,
    }
    of_node = vars(node) if node else {}
    text = Template((CONFIG / template).read_text()).substitute(names | of_node, **more)
    return json.dumps(yaml.safe_load(text), indent=1) + "\n" if template.endswith(".yaml") else text


def kubeconfig(name: str) -> str:
    """Return a kubeconfig that contains the certificate and the key of the client `name`.

    The name of its context is `local`.
    """
    files = {"authority": "ca.crt", "certificate": f"{name}.crt", "key": f"{name}.key"}
    data = {key: base64.b64encode((PKI / file).read_bytes()).decode() for key, file in files.items()}
    return render("kubeconfig.yaml", **data)


def cluster_files(nodes: tuple[Node, ...], resolvers: list[str]) -> dict[Path, str]:
    """Return path → content of all configuration files of the cluster. This function writes nothing.

    `resolvers` are the addresses of this machine's name servers. CoreDNS forwards queries for names outside the cluster
    to them.
    """
    names = ("admin", "controller-manager", "scheduler", "coredns")
    files = {STATE / f"{name}.kubeconfig": kubeconfig(name) for name in names}
    files[STATE / "resolv.conf"] = f"nameserver {HOST_ADDRESS}\n"
    forward = f"forward . {' '.join(resolvers)}" if resolvers else ""
    files[STATE / "Corefile"] = render("Corefile", forward=forward)
    for node in nodes:
        files[node.folder / "kubeconfig"] = kubeconfig(node.name)
        for path, template in NODE_FILES.items():
            files[node.folder / path] = render(template, node)
    return files


def daemon_commands(nodes: tuple[Node, ...], kubernetes: Path, coredns: Path) -> dict[str, list[str]]:
    """Return name → command line of each daemon.

    `kubernetes` and `coredns` are the folders of the built programs.
    """
    folders = {"kubernetes": kubernetes, "coredns": coredns}
    commands: dict[str, list[str]] = json.loads(render("cluster-daemons.yaml", **folders))
    for node in nodes:
        of_node = json.loads(render("node-daemons.yaml", node, **folders))
        commands |= {f"{node.name}-{name}": command for name, command in of_node.items()}
    return commands


def parse_resolvers(resolv_conf: str) -> list[str]:
    """Return the first 15 addresses of name servers in the text of a resolv.conf, without the local cluster's own."""
    lines = (line.split() for line in resolv_conf.splitlines())
    return [w[1] for w in lines if len(w) > 1 and w[0] == "nameserver" and w[1] != HOST_ADDRESS][:15]
