"""Create and remove the bridge, each node's network namespace, link and route, and the iptables chains."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
from pathlib import Path

from local.cluster.node_addresses import (
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
from local.external_commands import command_succeeds, run_command
from local.files_and_locks import write_file_atomically
from local.paths import STATE

_FORWARD_BEFORE = STATE / "run" / "ip_forward"  # the machine's original value, which `down` restores
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def _run_ip(*words: str) -> str:
    return run_command(["ip", *words], why="setting up the nodes' network")


def _run_in_namespace(node: Node, *words: str) -> None:
    run_command(["nsenter", f"--net={node.netns_file}", *words], why=f"setting up the network of {node.name}")


def overlapping_routes(routes: list[dict[str, str]]) -> list[str]:
    """Return the routes (from `ip -j route`) that overlap the cluster's subnets, as `subnet of device`."""
    ours = [ipaddress.ip_network(s) for s in (NODE_SUBNET, POD_SUBNET, SERVICE_SUBNET)]
    found = []
    for route in routes:
        if route.get("dev") == BRIDGE or route["dst"] == "default":
            continue
        theirs = ipaddress.ip_network(route["dst"], strict=False)
        if theirs.version == 4 and any(theirs.overlaps(subnet) for subnet in ours):
            found.append(f"{route['dst']} of {route.get('dev', '?')}")
    return found


def check_addresses_free() -> None:
    """Check that the cluster's subnets and etcd's ports are free.

    Raises:
        LocalError: A subnet or port is in use; the message contains it.
    """
    taken = overlapping_routes(json.loads(_run_ip("-j", "-4", "route")))
    if taken:
        raise LocalError(
            f"The local cluster uses {NODE_SUBNET}, {POD_SUBNET} and {SERVICE_SUBNET}, but this machine "
            f"already routes {', '.join(taken)}. Fix: remove that network, or use your own cluster: "
            "make demo CLUSTER_KUBECONFIG=FILE CONTEXT=NAME"
        )
    for port in (ETCD_PORT, ETCD_PEER_PORT):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as problem:
                raise LocalError(
                    f"Port {port} of 127.0.0.1, which the local cluster's etcd needs, is in use "
                    f"({problem.strerror}). Fix: find the program with `ss -ltnp sport = :{port}`, stop it and "
                    "try again"
                ) from None


def is_api_port_free() -> bool:
    """Return whether no program listens on the address and port of the API server."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((BRIDGE_ADDRESS, API_PORT)) != 0


def ensure_bridge() -> None:
    """Create the bridge with the control plane's address.

    Forwarding is enabled, and the iptables chains for pods are added.
    """
    if not Path(f"/sys/class/net/{BRIDGE}").exists():
        check_addresses_free()
        _run_ip("link", "add", BRIDGE, "type", "bridge")
    _run_ip("addr", "replace", f"{BRIDGE_ADDRESS}/24", "dev", BRIDGE)
    _run_ip("link", "set", BRIDGE, "up")
    if _FORWARD.read_text().strip() == "0":
        write_file_atomically(_FORWARD_BEFORE, "0\n")
        _FORWARD.write_text("1")
    # Traffic between pods is not translated; other traffic of pods gets the machine's address.
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
        # One transaction per table: the chain is replaced atomically, other rules are not changed.
        body = "\n".join(
            [f"*{table}", f":{CHAIN} - [0:0]", *(f"-A {CHAIN} {line}" for line in lines), "COMMIT"]
        )
        run_command(
            ["iptables-restore", "-w", "10", "--noflush"], why="adding the iptables chain", given=body + "\n"
        )
        if not command_succeeds(["iptables", "-w", "10", "-t", table, "-C", hook, "-j", CHAIN]):
            run_command(
                ["iptables", "-w", "10", "-t", table, "-I", hook, "-j", CHAIN],
                why="adding the iptables chain",
            )


def is_node_network_complete(node: Node) -> bool:
    """Return whether the node's namespace has its address and its link is attached to the bridge."""
    link = Path(f"/sys/class/net/{node.link}/master")
    return (
        link.exists()
        and link.readlink().name == BRIDGE
        and os.path.ismount(node.netns_file)
        and node.address
        in _output_of(
            ["nsenter", f"--net={node.netns_file}", "ip", "-4", "-o", "addr", "show", "dev", "eth0"]
        )
    )


def _output_of(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30).stdout


def ensure_node_network(node: Node) -> None:
    """Create the node's namespace, link, address and route unless they are intact.

    If they are broken, no daemon of the node may be running.
    """
    if not is_node_network_complete(node):
        remove_node_network(node)
        _run_ip("netns", "add", node.netns)
        _run_ip("link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", node.netns)
        _run_ip("link", "set", node.link, "master", BRIDGE, "up")
        _run_in_namespace(node, "ip", "link", "set", "lo", "up")
        _run_in_namespace(node, "ip", "addr", "add", f"{node.address}/24", "dev", "eth0")
        _run_in_namespace(node, "ip", "link", "set", "eth0", "up")
        _run_in_namespace(node, "ip", "route", "add", "default", "via", BRIDGE_ADDRESS)
        _run_in_namespace(node, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    _run_ip("route", "replace", node.pod_subnet, "via", node.address, "dev", BRIDGE)


def remove_node_network(node: Node) -> None:
    """Remove the node's link, namespace and route if they exist."""
    command_succeeds(["ip", "route", "del", node.pod_subnet, "dev", BRIDGE])
    command_succeeds(["ip", "link", "del", node.link])
    while os.path.ismount(node.netns_file):  # `ip netns add` mounts twice if a stale file exists
        command_succeeds(["umount", "-l", str(node.netns_file)])
    node.netns_file.unlink(missing_ok=True)


def remove_bridge() -> None:
    """Remove the iptables chains and the bridge with its links, and restore ip_forward."""
    for table, hook in (("filter", "FORWARD"), ("nat", "POSTROUTING")):
        while command_succeeds(["iptables", "-w", "10", "-t", table, "-D", hook, "-j", CHAIN]):
            pass
        command_succeeds(["iptables", "-w", "10", "-t", table, "-F", CHAIN])
        command_succeeds(["iptables", "-w", "10", "-t", table, "-X", CHAIN])
    for link in Path("/sys/class/net").glob(f"*/master/../../{BRIDGE}"):
        command_succeeds(["ip", "link", "del", link.parts[4]])
    command_succeeds(["ip", "link", "del", BRIDGE])
    if _FORWARD_BEFORE.exists():
        _FORWARD.write_text(_FORWARD_BEFORE.read_text())
        _FORWARD_BEFORE.unlink()


def find_network_leftovers() -> list[str]:
    """Return a line for each network namespace, link, route and iptables rule of the cluster."""
    found = [f"network namespace {p.name}" for p in Path("/run/netns").glob(f"{PREFIX}node*")]
    ours = {BRIDGE, *(f"pt{i}" for i in range(1, 6))}
    found += [f"link {p.name}" for p in Path("/sys/class/net").iterdir() if p.name in ours]
    found += [
        f"route {route['dst']}"
        for route in json.loads(_run_ip("-j", "-4", "route"))
        if route["dst"].startswith(("10.87.0.", "10.88."))
    ]
    for table in ("filter", "nat"):
        rules = _output_of(["iptables", "-w", "10", "-t", table, "-S"]).splitlines()
        found += [f"iptables rule ({table}): {rule}" for rule in rules if CHAIN in rule]
    return found
