"""Start, stop and inspect the local cluster.

`start_cluster` ensures, in this order: network, containerds, etcd, API server, other daemons, Ready nodes. A
step changes nothing that is already in the right state. So a second start does nothing, and a start after a
crash repairs what is broken. etcd's data and the nodes' images are kept between runs; `down --wipe` deletes
them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from local.cluster import (
    api_requests,
    certificates,
    daemon_configs,
    daemon_processes,
    node_cgroups_and_unmounting,
    node_lifecycle,
    node_network,
)
from local.cluster.node_addresses import BRIDGE_ADDRESS, Node, all_possible_nodes, plan_nodes
from local.errors import LocalError
from local.files_and_locks import hold_file_lock, require_free_space, write_file_atomically
from local.images import pause_image
from local.paths import EKS_TOKEN, KUBECONFIG, PASSPHRASE, POD_UID, SHARED, SOURCES, STATE, cache

# In the order in which they are stopped: an API server whose etcd was stopped first keeps running for a
# minute and keeps its port.
CONTROL_PLANE = ("coredns", "scheduler", "controller-manager", "apiserver", "etcd")
_LOCK = STATE / "lock"
_PLAN = STATE / "plan.json"


def lock_cluster() -> contextlib.AbstractContextManager[None]:
    """Return the lock that starting, stopping and image imports hold."""
    return hold_file_lock(_LOCK, "the local cluster")


def _need_root() -> None:
    if os.geteuid() != 0:
        raise LocalError(
            f"The local cluster needs root (user id 0, not {os.geteuid()}), because it creates network "
            "namespaces and mounts. Fix: run it as root, or use your own cluster: make demo "
            "CLUSTER_KUBECONFIG=FILE CONTEXT=NAME"
        )


def _read_plan() -> str:
    """Return the content of plan.json, which the last successful start wrote; empty if there is none."""
    return _PLAN.read_text() if _PLAN.exists() else ""


def running_nodes() -> tuple[Node, ...]:
    """Return the nodes of the last successful start; empty if there was none."""
    try:
        return plan_nodes(json.loads(_PLAN.read_text())["nodes"])
    except (FileNotFoundError, ValueError, KeyError):
        return ()


def is_running(wanted: tuple[Node, ...]) -> bool:
    """Return whether a cluster of exactly these nodes runs.

    All daemons and networks must be intact, the API server and the nodes ready.
    """
    names = [*CONTROL_PLANE, *(d for n in wanted for d in node_lifecycle.daemon_names(n))]
    return (
        running_nodes() == wanted
        and all(daemon_processes.running_daemon(name) for name in names)
        and all(node_network.is_node_network_complete(n) for n in wanted)
        and api_requests.is_api_server_ready()
        and not api_requests.unready_nodes([n.name for n in wanted], since=0)
    )


def start_cluster(count: int, kubernetes: Path, coredns: Path) -> bool:
    """Start or repair a cluster of `count` nodes.

    Args:
        count: Number of nodes.
        kubernetes: Folder of the built Kubernetes programs.
        coredns: Folder of the built CoreDNS.

    Returns:
        False if the cluster was already running and nothing was changed.

    Raises:
        LocalError: The user is not root, the disk is full, ports or subnets are in use, or a daemon did not
            become ready.
    """
    _need_root()
    wanted = plan_nodes(count)
    with lock_cluster():
        commands = _control_plane_commands(kubernetes, coredns)
        plan = json.dumps({"nodes": count, "control plane": commands}) + "\n"
        if _read_plan() == plan and is_running(wanted):
            return False
        require_free_space(STATE, 3, "The local cluster")
        _prepare_machine(wanted, plan)
        started = int(time.time())
        with ThreadPoolExecutor(len(wanted) + 1) as pool:
            runtimes = [pool.submit(node_lifecycle.start_runtime, n, _pause_archive()) for n in wanted]
            plane = pool.submit(_start_control_plane, commands)
            for future in (plane, *runtimes):
                future.result()
        for n in wanted:
            node_lifecycle.start_kubelet_and_proxy(n, kubernetes)
        for removed in set(api_requests.list_nodes()) - {n.name for n in wanted}:
            api_requests.delete_node(removed)
        names = [n.name for n in wanted]
        if not node_lifecycle.becomes_true(lambda: not api_requests.unready_nodes(names, started), 90):
            raise LocalError(_why_unready(api_requests.unready_nodes(names, started)))
        write_file_atomically(_PLAN, plan)
    return True


def _prepare_machine(wanted: tuple[Node, ...], plan: str) -> None:
    """Create folders, keys, kubeconfigs and the bridge; stop daemons that were started with another plan."""
    STATE.mkdir(parents=True, exist_ok=True)
    STATE.chmod(0o755)
    SOURCES.mkdir(parents=True, exist_ok=True)
    for folder in (SHARED, SOURCES):
        os.chown(folder, POD_UID, POD_UID)
    if certificates.ensure_certificates() or (
        _read_plan() and json.loads(_read_plan()) | {"nodes": 0} != json.loads(plan) | {"nodes": 0}
    ):
        _stop_everything(
            all_possible_nodes()
        )  # other keys, programs or flags: every daemon must be restarted
    for extra in set(all_possible_nodes()) - set(wanted):
        node_lifecycle.stop_node(extra)
    certificates.ensure_token()
    write_file_atomically(STATE / "admin.kubeconfig", daemon_configs.kubeconfig("admin"), 0o600)
    for name in ("controller-manager", "scheduler", "coredns"):
        write_file_atomically(STATE / f"{name}.kubeconfig", daemon_configs.kubeconfig(name), 0o600)
    write_file_atomically(KUBECONFIG, daemon_configs.kubeconfig("admin"), 0o600)
    write_file_atomically(STATE / "resolv.conf", f"nameserver {BRIDGE_ADDRESS}\n")
    node_network.ensure_bridge()


def _pause_archive() -> Path:
    return pause_image.write_pause_archive(STATE / "images" / "pause.tar", daemon_configs.PAUSE_IMAGE)


def _control_plane_commands(kubernetes: Path, coredns: Path) -> dict[str, list[str]]:
    """Return the command line of each daemon of the control plane."""
    return {
        "etcd": daemon_configs.etcd_command(),
        "apiserver": daemon_configs.apiserver_command(kubernetes / "kube-apiserver"),
        "controller-manager": daemon_configs.controller_manager_command(
            kubernetes / "kube-controller-manager", STATE / "controller-manager.kubeconfig"
        ),
        "scheduler": daemon_configs.scheduler_command(
            kubernetes / "kube-scheduler", STATE / "scheduler.kubeconfig"
        ),
        "coredns": [str(coredns / "coredns"), "-conf", str(STATE / "Corefile")],
    }


def _start_control_plane(commands: dict[str, list[str]]) -> None:
    (STATE / "etcd").mkdir(mode=0o700, exist_ok=True)
    if not daemon_processes.running_daemon("etcd"):
        daemon_processes.stop_daemons("apiserver")  # it would wait a minute for the stopped etcd
    daemon_processes.start_daemon("etcd", commands["etcd"])
    # An API server exits after 20 s without etcd, which may need longer to read its log from a cold disk.
    node_lifecycle.wait_until_ready("etcd", api_requests.is_etcd_ready, 180, "etcd")
    if not daemon_processes.running_daemon("apiserver") and not node_lifecycle.becomes_true(
        node_network.is_api_port_free, 5
    ):
        raise LocalError(
            f"Another program listens on {daemon_configs.SERVER}, the address of the local API server. "
            "Fix: find it with `ss -ltnp`, stop it and try again"
        )
    daemon_processes.start_daemon("apiserver", commands["apiserver"])
    node_lifecycle.wait_until_ready("the API server", api_requests.is_api_server_ready, 90, "apiserver")
    for name in ("controller-manager", "scheduler"):
        daemon_processes.start_daemon(name, commands[name])
    outside = daemon_configs.parse_resolvers(Path("/etc/resolv.conf").read_text())
    if write_file_atomically(
        STATE / "Corefile", daemon_configs.corefile(STATE / "coredns.kubeconfig", outside)
    ):
        daemon_processes.stop_daemons("coredns")
    daemon_processes.start_daemon("coredns", commands["coredns"])


def _why_unready(unready: dict[str, str]) -> str:
    lines = [
        f"{name}: {reason}; the end of its kubelet's log:\n{daemon_processes.log_tail(name + '-kubelet')}"
        for name, reason in unready.items()
    ]
    return "These nodes were not ready after 90 s. Fix: make down, then make cluster:\n" + "\n".join(lines)


def _stop_everything(which: tuple[Node, ...]) -> None:
    """Stop all daemons and pods of these nodes and the control plane, in the fastest order."""
    for n in which:
        daemon_processes.stop_daemons(*node_lifecycle.daemon_names(n)[1:])
    with ThreadPoolExecutor(len(which)) as pool:
        list(pool.map(node_lifecycle.stop_node, which))
    daemon_processes.stop_daemons(*CONTROL_PLANE[:-1])
    daemon_processes.stop_daemons(CONTROL_PLANE[-1])
    daemon_processes.terminate_processes(
        daemon_processes.find_marked_processes(), seconds=3
    )  # daemons whose record was lost
    for file in daemon_processes.RECORDS.glob("*.json"):
        file.unlink()
    node_cgroups_and_unmounting.unmount_below(STATE)


def stop_cluster(wipe: bool = False) -> list[str]:
    """Stop the cluster and undo its changes to the machine; return a description of each leftover.

    `wipe` also deletes the data: etcd, images, keys, logs, Pulumi state.
    """
    _need_root()
    if not STATE.exists():
        return find_leftovers()
    with lock_cluster():
        _stop_everything(all_possible_nodes())
        node_network.remove_bridge()
        builds = cache() / "images"
        with hold_file_lock(builds / "lock", "the launcher image"):  # a killed image build leaves mounts
            node_cgroups_and_unmounting.unmount_below(builds)
        _PLAN.unlink(missing_ok=True)
        if wipe:
            # The Pulumi state is deleted too: it describes resources of the deleted cluster.
            for name in ("etcd", "nodes", "images", "pki", "logs", "run", "pulumi", "pulumi-home"):
                shutil.rmtree(STATE / name, ignore_errors=True)
            for file in (
                KUBECONFIG,
                PASSPHRASE,
                EKS_TOKEN,
                *STATE.glob("*.kubeconfig"),
                *STATE.glob("*.yaml"),
            ):
                file.unlink(missing_ok=True)
    return find_leftovers()


def find_leftovers() -> list[str]:
    """Return a line for each object of the cluster that exists on this machine.

    These are processes, cgroups, mounts, network namespaces, links, routes and iptables rules.
    """
    return [
        *(
            f"process {process.pid} (daemon or shim of the local cluster)"
            for process in daemon_processes.find_marked_processes()
        ),
        *(line for n in all_possible_nodes() for line in node_lifecycle.find_pod_processes(n)),
        *node_cgroups_and_unmounting.find_cgroups_and_mounts(),
        *node_network.find_network_leftovers(),
    ]


def describe_status() -> list[tuple[str, str]]:
    """Return (name, state) of each daemon and node."""
    wanted = running_nodes()
    names = [*reversed(CONTROL_PLANE), *(d for n in wanted for d in node_lifecycle.daemon_names(n))]
    recorded = daemon_processes.recorded_daemons()
    lines = []
    for name in names if recorded else []:
        process = recorded.get(name)
        lines.append((name, f"running (pid {process.pid})" if process else "not running. Fix: make cluster"))
    if wanted and api_requests.is_api_server_ready():
        unready = api_requests.unready_nodes([n.name for n in wanted], 0)
        lines += [(n.name, f"not ready: {unready[n.name]}" if n.name in unready else "Ready") for n in wanted]
    return lines
