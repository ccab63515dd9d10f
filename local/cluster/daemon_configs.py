"""Addresses of the local cluster and its nodes, and the configuration files and command lines of all daemons.

Everything follows from the number of nodes and from the folders of the built programs.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

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
PAUSE_ARCHIVE = STATE / "images" / "pause.tar"
CNI_PLUGINS = Path("/usr/lib/cni")  # Debian's containernetworking-plugins


@dataclass(frozen=True)
class Node:
    """One node of the local Kubernetes cluster: its names, addresses and files, all derived from `index`.

    `index` is the number of the node, from 1 to MAX_NODES. `folder` is the folder on this machine in which the node's
    containerd, kubelet and proxy keep their files.
    """

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
    def link(self) -> str:
        return f"pt{self.index}"

    @property
    def cgroup(self) -> str:
        return f"{GROUP}/{self.name}"

    @property
    def folder(self) -> Path:
        return STATE / "nodes" / self.name

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"


def plan_nodes(count: int) -> tuple[Node, ...]:
    """Return the descriptions of the nodes of a local cluster with `count` nodes; nothing is created.

    Raises:
        LocalError: `count` is not 1 to 5.
    """
    if not 1 <= count <= MAX_NODES:
        raise LocalError(
            f"NODES={count}: a local cluster has 1 to {MAX_NODES} nodes, because each needs about 250 MB of "
            f"memory and its own containerd. Fix: NODES=1 to NODES={MAX_NODES}"
        )
    return tuple(Node(i) for i in range(1, count + 1))


def cluster_files(nodes: tuple[Node, ...], resolvers: list[str]) -> dict[Path, str]:
    """Return path → content of all configuration files of the cluster; nothing is written.

    `resolvers` are the addresses of the DNS servers of this machine.
    """
    files = {
        STATE / f"{name}.kubeconfig": kubeconfig(name)
        for name in ("admin", "controller-manager", "scheduler", "coredns")
    }
    files[STATE / "resolv.conf"] = f"nameserver {HOST_ADDRESS}\n"
    files[STATE / "Corefile"] = corefile(STATE / "coredns.kubeconfig", resolvers)
    for node in nodes:
        files[node.folder / "cni" / "10-pods.conflist"] = cni_config(node)
        files[node.folder / "containerd.toml"] = containerd_config(node)
        files[node.folder / "kubelet.json"] = kubelet_config(node)
        files[node.folder / "kubeconfig"] = kubeconfig(node.name)
        files[node.folder / "proxy.json"] = proxy_config(node)
    return files


def daemon_commands(nodes: tuple[Node, ...], kubernetes: Path, coredns: Path) -> dict[str, list[str]]:
    """Return the command line of each daemon by its name.

    `kubernetes` and `coredns` are the folders of the built programs.
    """
    commands = {
        "etcd": etcd_command(),
        "apiserver": apiserver_command(kubernetes / "kube-apiserver"),
        "controller-manager": controller_manager_command(
            kubernetes / "kube-controller-manager", STATE / "controller-manager.kubeconfig"
        ),
        "scheduler": scheduler_command(kubernetes / "kube-scheduler", STATE / "scheduler.kubeconfig"),
        # in the machine's own network, so that it reaches every name server that the machine reaches
        "coredns": [*_enter("host"), f"{coredns}/coredns", "-conf", f"{STATE}/Corefile"],
    }
    for node in nodes:
        commands[f"{node.name}-containerd"] = containerd_command(node)
        commands[f"{node.name}-kubelet"] = kubelet_command(node, kubernetes / "kubelet")
        commands[f"{node.name}-proxy"] = proxy_command(node, kubernetes / "kube-proxy")
    return commands


def _enter(namespace: str) -> list[str]:
    # nsenter, not `ip netns exec`: the latter mounts a new /sys, in which the kubelet finds no cgroups.
    return ["nsenter", f"--net=/run/netns/{namespace}"]


def _to_json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"  # all daemons accept JSON instead of YAML


def kubeconfig(name: str) -> str:
    """Return a self-contained kubeconfig (context `local`) that uses the client certificate `name`."""

    def data(file: str) -> str:
        return base64.b64encode((PKI / file).read_bytes()).decode()

    cluster = {"server": SERVER, "certificate-authority-data": data("ca.crt")}
    user = {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": user}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }
    return _to_json(config)


def etcd_command() -> list[str]:
    """Return the command line of etcd."""
    url = f"https://127.0.0.1:{ETCD_PORT}"
    return [
        "etcd",
        f"--data-dir={STATE}/etcd",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--cert-file={PKI}/etcd.crt",
        f"--key-file={PKI}/etcd.key",
        f"--trusted-ca-file={PKI}/ca.crt",
        "--client-cert-auth",
        "--auto-compaction-retention=1",
        # limits the log that etcd reads at a start; with its default of 100,000 entries it is 0.5 GB
        "--snapshot-count=10000",
        # etcd has one member: elections need not be fast, and a busy disk must not cause one
        "--heartbeat-interval=500",
        "--election-timeout=5000",
    ]


def apiserver_command(binary: Path) -> list[str]:
    """Return the command line of the API server."""
    return [
        str(binary),
        f"--etcd-servers=https://127.0.0.1:{ETCD_PORT}",
        f"--etcd-cafile={PKI}/ca.crt",
        f"--etcd-certfile={PKI}/apiserver.crt",
        f"--etcd-keyfile={PKI}/apiserver.key",
        f"--bind-address={BRIDGE_ADDRESS}",  # not 0.0.0.0: unreachable from outside this machine
        f"--advertise-address={BRIDGE_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={PKI}/apiserver.crt",
        f"--tls-private-key-file={PKI}/apiserver.key",
        f"--client-ca-file={PKI}/ca.crt",
        f"--token-auth-file={PKI}/tokens.csv",
        f"--service-account-key-file={PKI}/sa.pub",
        f"--service-account-signing-key-file={PKI}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={SERVICE_SUBNET}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--anonymous-auth=false",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={PKI}/admin.crt",
        f"--kubelet-client-key={PKI}/admin.key",
        "--profiling=false",
    ]


def controller_manager_command(binary: Path, config: Path) -> list[str]:
    """Return the command line of the controller manager; `config` is its kubeconfig."""
    return [
        str(binary),
        f"--kubeconfig={config}",
        "--bind-address=127.0.0.1",
        f"--service-account-private-key-file={PKI}/sa.key",
        f"--root-ca-file={PKI}/ca.crt",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--node-monitor-period=2s",
        # A claim that is created before its volume is bound at the next sync, by default 15 s later.
        "--pvclaimbinder-sync-period=1s",
        "--node-monitor-grace-period=16s",
        "--profiling=false",
    ]


def scheduler_command(binary: Path, config: Path) -> list[str]:
    """Return the command line of the scheduler; `config` is its kubeconfig."""
    return [
        str(binary),
        f"--kubeconfig={config}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--profiling=false",
    ]


def corefile(config: Path, resolvers: list[str]) -> str:
    """Return CoreDNS's configuration.

    It resolves names of the cluster without caching, so that a new pod's name resolves at once, and forwards
    other names to the name servers `resolvers`, if there are any. `config` is CoreDNS's kubeconfig.
    """
    forward = f"  forward . {' '.join(resolvers)}\n" if resolvers else ""
    return (
        f".:53 {{\n  bind {HOST_ADDRESS}\n  errors\n  kubernetes cluster.local in-addr.arpa ip6.arpa {{\n"
        f"    kubeconfig {config} {CONTEXT}\n    ttl 0\n    pods disabled\n    fallthrough in-addr.arpa ip6.arpa\n"
        f"  }}\n{forward}}}\n"
    )


def parse_resolvers(resolv_conf: str) -> list[str]:
    """Return the name servers of a resolv.conf except the local cluster's own."""
    lines = (line.split() for line in resolv_conf.splitlines())
    return [w[1] for w in lines if len(w) > 1 and w[0] == "nameserver" and w[1] != HOST_ADDRESS][:15]


def cni_config(node: Node) -> str:
    """Return the node's CNI configuration: a bridge with the node's pod subnet, and host ports."""
    ipam = {"type": "host-local", "dataDir": f"{node.folder}/ipam", "routes": [{"dst": "0.0.0.0/0"}]}
    # No `ipMasq`: the machine's NAT rules do that, so that pods see each other's real addresses.
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True}
    bridge["ipam"] = {**ipam, "ranges": [[{"subnet": node.pod_subnet}]]}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return _to_json({"cniVersion": "1.0.0", "name": node.name, "plugins": [bridge, ports]})


def containerd_config(node: Node) -> str:
    """Return the configuration (TOML) of the node's containerd."""
    return f"""\
version = 2
root = "{node.folder}/root"
state = "{node.folder}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  # without CAP_SYS_RESOURCE runc cannot set a score below containerd's
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{node.folder}/cni"
"""


def kubelet_config(node: Node) -> str:
    """Return the configuration of the node's kubelet."""
    authentication = {
        "anonymous": {"enabled": False},
        "webhook": {"enabled": True},
        "x509": {"clientCAFile": f"{PKI}/ca.crt"},
    }
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": authentication,
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "clusterDNS": [HOST_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{STATE}/resolv.conf",
        # in a shared folder the kubelets would delete each other's logs
        "podLogsDir": f"{node.folder}/pod-logs",
        # A rather full disk must not evict pods or collect images: `up` and the image import check the free space
        # before.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "4s",
        "registerWithTaints": [],
        "serializeImagePulls": False,
        "healthzBindAddress": "127.0.0.1",
    }
    return _to_json(config)


def kubelet_command(node: Node, binary: Path) -> list[str]:
    """Return the command line of the node's kubelet."""
    return [
        *_enter(node.name),
        str(binary),
        f"--config={node.folder}/kubelet.json",
        f"--kubeconfig={node.folder}/kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--root-dir={node.folder}/kubelet",
        f"--cert-dir={node.folder}/kubelet-pki",
    ]


def proxy_config(node: Node) -> str:
    """Return the configuration of the node's kube-proxy."""
    # The machine has one connection table, which a node must not resize.
    unchanged = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": f"{STATE}/admin.kubeconfig"},
        "clusterCIDR": POD_SUBNET,
        "hostnameOverride": node.name,
        "conntrack": unchanged,
    }
    return _to_json(config)


def proxy_command(node: Node, binary: Path) -> list[str]:
    """Return the command line of the node's kube-proxy."""
    return [*_enter(node.name), str(binary), f"--config={node.folder}/proxy.json"]


def containerd_command(node: Node) -> list[str]:
    """Return the command line of the node's containerd."""
    return [*_enter(node.name), "containerd", f"--config={node.folder}/containerd.toml"]
