"""Settings and command lines of every daemon: pure functions of the plan, the folders and the tools."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from local.cluster.certs import PKI
from local.cluster.plan import (
    API_PORT,
    BRIDGE_ADDRESS,
    ETCD_PEER_PORT,
    ETCD_PORT,
    POD_SUBNET,
    SERVICE_SUBNET,
    Node,
)
from local.paths import CONTEXT, STATE

SERVER = f"https://{BRIDGE_ADDRESS}:{API_PORT}"
PAUSE_IMAGE = "localhost/pause:1"
CNI_PLUGINS = Path("/usr/lib/cni")  # Debian's containernetworking-plugins


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"  # JSON is YAML: no daemon minds


def kubeconfig(name: str, pki: Path = PKI) -> str:
    """A kubeconfig for the client certificate `name`, with everything inside, context `local`."""

    def data(file: str) -> str:
        return base64.b64encode((pki / file).read_bytes()).decode()

    return _json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": CONTEXT, "cluster": {"server": SERVER, "certificate-authority-data": data("ca.crt")}}
            ],
            "users": [
                {
                    "name": CONTEXT,
                    "user": {
                        "client-certificate-data": data(f"{name}.crt"),
                        "client-key-data": data(f"{name}.key"),
                    },
                }
            ],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
            "current-context": CONTEXT,
        }
    )


def etcd() -> list[str]:
    url, peer = f"https://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PEER_PORT}"
    return [
        "etcd",
        f"--data-dir={STATE}/etcd",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--cert-file={PKI}/etcd.crt",
        f"--key-file={PKI}/etcd.key",
        f"--trusted-ca-file={PKI}/ca.crt",
        "--client-cert-auth",
        "--auto-compaction-retention=1",
        # the log that a start has to read: at etcd's own 100,000 entries, half a gigabyte
        "--snapshot-count=10000",
        # one member: no election needs to be fast, and a busy disk must not start one
        "--heartbeat-interval=500",
        "--election-timeout=5000",
    ]


def apiserver(binary: Path) -> list[str]:
    return [
        str(binary),
        f"--etcd-servers=https://127.0.0.1:{ETCD_PORT}",
        f"--etcd-cafile={PKI}/ca.crt",
        f"--etcd-certfile={PKI}/apiserver.crt",
        f"--etcd-keyfile={PKI}/apiserver.key",
        f"--bind-address={BRIDGE_ADDRESS}",  # not 0.0.0.0: nobody outside this machine is to reach it
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


def controller_manager(binary: Path, config: Path) -> list[str]:
    return [
        str(binary),
        f"--kubeconfig={config}",
        "--bind-address=127.0.0.1",
        f"--service-account-private-key-file={PKI}/sa.key",
        f"--root-ca-file={PKI}/ca.crt",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--node-monitor-period=2s",
        # A claim that is seen before its volume is bound at the next look, by default 15 s later.
        "--pvclaimbinder-sync-period=1s",
        "--node-monitor-grace-period=16s",
        "--profiling=false",
    ]


def scheduler(binary: Path, config: Path) -> list[str]:
    return [
        str(binary),
        f"--kubeconfig={config}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--profiling=false",
    ]


def corefile(config: Path, resolvers: list[str]) -> str:
    """Cluster names from the API server with no caching (a peer's name must be seen at once), others
    forwarded."""
    forward = f"  forward . {' '.join(resolvers)}\n" if resolvers else ""
    return (
        f".:53 {{\n  bind {BRIDGE_ADDRESS}\n  errors\n  kubernetes cluster.local in-addr.arpa ip6.arpa {{\n"
        f"    kubeconfig {config} {CONTEXT}\n    ttl 0\n    pods disabled\n    fallthrough in-addr.arpa "
        "ip6.arpa\n"
        f"  }}\n{forward}}}\n"
    )


def resolvers(resolv_conf: str) -> list[str]:
    """The name servers of a resolv.conf, ours left out."""
    lines = (line.split() for line in resolv_conf.splitlines())
    return [w[1] for w in lines if len(w) > 1 and w[0] == "nameserver" and w[1] != BRIDGE_ADDRESS][:15]


def cni(node: Node) -> str:
    """The node's CNI network: a bridge with its own pod subnet, and host ports."""
    bridge: dict[str, Any] = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,  # the machine's nat chain does that, so that pods see each other's own addresses
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(node.folder / "ipam"),
            "ranges": [[{"subnet": node.pod_subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return _json({"cniVersion": "1.0.0", "name": node.netns, "plugins": [bridge, ports]})


def containerd(node: Node) -> str:
    """TOML of the node's containerd."""
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
  # without CAP_SYS_RESOURCE runc fails at anything below containerd's own score
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{node.folder}/cni"
"""


def kubelet(node: Node) -> str:
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{PKI}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{node.socket}",
            "clusterDNS": [BRIDGE_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": f"{STATE}/resolv.conf",
            "podLogsDir": f"{node.folder}/pod-logs",  # else the kubelets delete each other's logs
            # The disk is the person's: a rather full one must not evict pods, nor images be collected; `up`
            # and the image's import ask for space beforehand.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": "4s",
            "registerWithTaints": [],
            "serializeImagePulls": False,
            "healthzBindAddress": "127.0.0.1",
        }
    )


def kubelet_command(node: Node, binary: Path) -> list[str]:
    return [
        *_in_netns(node),
        str(binary),
        f"--config={node.folder}/kubelet.json",
        f"--kubeconfig={node.folder}/kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--root-dir={node.folder}/kubelet",
        f"--cert-dir={node.folder}/kubelet-pki",
    ]


def proxy(node: Node) -> str:
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": f"{STATE}/admin.kubeconfig"},
            "clusterCIDR": POD_SUBNET,
            "hostnameOverride": node.name,
            # The connection table belongs to the machine; a node must not resize it.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
    )


def proxy_command(node: Node, binary: Path) -> list[str]:
    return [*_in_netns(node), str(binary), f"--config={node.folder}/proxy.json"]


def containerd_command(node: Node) -> list[str]:
    return [*_in_netns(node), "containerd", f"--config={node.folder}/containerd.toml"]


def _in_netns(node: Node) -> list[str]:
    # nsenter and not `ip netns exec`: the latter mounts a fresh /sys, where the kubelet finds no cgroups.
    return ["nsenter", f"--net={node.netns_file}"]
