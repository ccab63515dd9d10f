"""One bridge, one network namespace and link a node, routes to each node's pods, and our chains in
iptables."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
from pathlib import Path

from local.cluster.plan import (
    API_PORT,
    BRIDGE,
    BRIDGE_ADDRESS,
    CHAIN,
    ETCD_PEER_PORT,
    ETCD_PORT,
    NODE_SUBNET,
    POD_SUBNET,
    PREFIX,
    SERVICE_SUBNET,
    Node,
)
from local.errors import LocalError
from local.files import write_whole
from local.paths import STATE
from local.run import ok, run

_FORWARD_BEFORE = STATE / "run" / "ip_forward"  # what the person's machine had, put back by `down`
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def _ip(*words: str) -> str:
    return run(["ip", *words], why="setting up the nodes' network")


def _in_namespace(node: Node, *words: str) -> None:
    run(["nsenter", f"--net={node.netns_file}", *words], why=f"setting up the network of {node.name}")


def clashes(routes: list[dict[str, str]]) -> list[str]:
    """Routes of others (`ip -j route`) that overlap our subnets, as `subnet of device` texts."""
    ours = [ipaddress.ip_network(s) for s in (NODE_SUBNET, POD_SUBNET, SERVICE_SUBNET)]
    found = []
    for route in routes:
        if route.get("dev") == BRIDGE or route["dst"] == "default":
            continue
        theirs = ipaddress.ip_network(route["dst"], strict=False)
        if theirs.version == 4 and any(theirs.overlaps(subnet) for subnet in ours):
            found.append(f"{route['dst']} of {route.get('dev', '?')}")
    return found


def check_free() -> None:
    """Refuse when the machine uses our subnets or a port of the control plane.

    Raises:
        LocalError: naming the route or port that is taken.
    """
    taken = clashes(json.loads(_ip("-j", "-4", "route")))
    if taken:
        raise LocalError(
            f"The local cluster uses {NODE_SUBNET}, {POD_SUBNET} and {SERVICE_SUBNET}, but this machine "
            "already "
            f"routes {', '.join(taken)}. Take that network down, or use a cluster of your own: "
            "make demo CLUSTER_KUBECONFIG=FILE CONTEXT=NAME."
        )
    for port in (ETCD_PORT, ETCD_PEER_PORT):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as problem:
                raise LocalError(
                    f"Port {port} of 127.0.0.1, which the local cluster's etcd needs, is taken "
                    f"({problem.strerror}). "
                    f"`ss -ltnp sport = :{port}` says by whom; end that program and try again."
                ) from None


def port_free(address: str = BRIDGE_ADDRESS, port: int = API_PORT) -> bool:
    """Whether nothing listens there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) != 0


def ensure_bridge() -> None:
    """The bridge with the control plane's address, forwarding, and the chains that let pods out."""
    if not Path(f"/sys/class/net/{BRIDGE}").exists():
        check_free()
        _ip("link", "add", BRIDGE, "type", "bridge")
    _ip("addr", "replace", f"{BRIDGE_ADDRESS}/24", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")
    if _FORWARD.read_text().strip() == "0":
        write_whole(_FORWARD_BEFORE, "0\n")
        _FORWARD.write_text("1")
    # Pods reach each other untranslated and the outside world under the machine's own address.
    rules = {
        ("filter", "FORWARD"): [f"-i {BRIDGE} -j ACCEPT", f"-o {BRIDGE} -j ACCEPT"],
        ("nat", "POSTROUTING"): [
            f"-d {NODE_SUBNET} -j RETURN",
            f"-d {POD_SUBNET} -j RETURN",
            f"-s {NODE_SUBNET} -j MASQUERADE",
            f"-s {POD_SUBNET} -j MASQUERADE",
        ],
    }
    for (table, hook), lines in rules.items():
        # One transaction a table: our chain is emptied and filled at once, other rules are not touched.
        body = "\n".join(
            [f"*{table}", f":{CHAIN} - [0:0]", *(f"-A {CHAIN} {line}" for line in lines), "COMMIT"]
        )
        run(["iptables-restore", "-w", "10", "--noflush"], why="adding our iptables chain", given=body + "\n")
        if not ok(["iptables", "-w", "10", "-t", table, "-C", hook, "-j", CHAIN]):
            run(
                ["iptables", "-w", "10", "-t", table, "-I", hook, "-j", CHAIN],
                why="adding our iptables chain",
            )


def node_whole(node: Node) -> bool:
    """Whether the node's namespace exists with its address and its link is on the bridge."""
    link = Path(f"/sys/class/net/{node.link}/master")
    return (
        link.exists()
        and link.readlink().name == BRIDGE
        and os.path.ismount(node.netns_file)
        and node.address
        in _said(["nsenter", f"--net={node.netns_file}", "ip", "-4", "-o", "addr", "show", "dev", "eth0"])
    )


def _said(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30).stdout


def ensure_node(node: Node) -> None:
    """The node's namespace, link and address; the caller has seen that no daemon of it runs if it was
    broken."""
    if not node_whole(node):
        remove_node(node)
        _ip("netns", "add", node.netns)
        _ip("link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", node.netns)
        _ip("link", "set", node.link, "master", BRIDGE, "up")
        _in_namespace(node, "ip", "link", "set", "lo", "up")
        _in_namespace(node, "ip", "addr", "add", f"{node.address}/24", "dev", "eth0")
        _in_namespace(node, "ip", "link", "set", "eth0", "up")
        _in_namespace(node, "ip", "route", "add", "default", "via", BRIDGE_ADDRESS)
        _in_namespace(node, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    _ip("route", "replace", node.pod_subnet, "via", node.address, "dev", BRIDGE)


def remove_node(node: Node) -> None:
    """Drop the node's link, namespace and route; nothing happens when they are gone."""
    ok(["ip", "route", "del", node.pod_subnet, "dev", BRIDGE])
    ok(["ip", "link", "del", node.link])
    while os.path.ismount(node.netns_file):  # `ip netns add` over a stale file mounts twice
        ok(["umount", "-l", str(node.netns_file)])
    node.netns_file.unlink(missing_ok=True)


def remove_all() -> None:
    """Drop our chains, the bridge and what hangs on it, and put ip_forward back."""
    for table, hook in (("filter", "FORWARD"), ("nat", "POSTROUTING")):
        while ok(["iptables", "-w", "10", "-t", table, "-D", hook, "-j", CHAIN]):
            pass
        ok(["iptables", "-w", "10", "-t", table, "-F", CHAIN])
        ok(["iptables", "-w", "10", "-t", table, "-X", CHAIN])
    for link in Path("/sys/class/net").glob(f"*/master/../../{BRIDGE}"):
        ok(["ip", "link", "del", link.parts[4]])
    ok(["ip", "link", "del", BRIDGE])
    if _FORWARD_BEFORE.exists():
        _FORWARD.write_text(_FORWARD_BEFORE.read_text())
        _FORWARD_BEFORE.unlink()


def leftovers() -> list[str]:
    """What of ours is still in the machine's network."""
    found = [f"network namespace {p.name}" for p in Path("/run/netns").glob(f"{PREFIX}node*")]
    ours = {BRIDGE, *(f"pt{i}" for i in range(1, 6))}
    found += [f"link {p.name}" for p in Path("/sys/class/net").iterdir() if p.name in ours]
    found += [
        f"route {route['dst']}"
        for route in json.loads(_ip("-j", "-4", "route"))
        if route["dst"].startswith(("10.87.0.", "10.88."))
    ]
    for table in ("filter", "nat"):
        rules = _said(["iptables", "-w", "10", "-t", table, "-S"]).splitlines()
        found += [f"iptables rule ({table}): {rule}" for rule in rules if CHAIN in rule]
    return found
