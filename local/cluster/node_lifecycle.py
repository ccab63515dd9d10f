"""Start and stop one node: its folder, containerd, kubelet, kube-proxy and pods."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from local.cluster import daemon_configs, daemon_processes, node_cgroups_and_unmounting, node_network
from local.cluster.node_addresses import Node
from local.errors import LocalError
from local.external_commands import command_succeeds, run_command
from local.files_and_locks import write_file_atomically
from local.images import images_on_nodes

CONTAINER_LOGS = Path("/var/log/containers")
"""Where a kubelet makes a link to each container's log, whatever its `podLogsDir` is (kuberuntime/legacy.go)."""


def daemon_names(node: Node) -> tuple[str, str, str]:
    """Return the names of the node's daemons: containerd, kubelet, kube-proxy."""
    return f"{node.name}-containerd", f"{node.name}-kubelet", f"{node.name}-proxy"


def becomes_true(holds: Callable[[], bool], seconds: float) -> bool:
    """Poll `holds` and return whether it becomes true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def wait_until_ready(what: str, ready: Callable[[], bool], seconds: float, daemon: str) -> None:
    """Wait until `ready` returns true; `what` it waits for is in the error message.

    Raises:
        LocalError: The timeout expired, or the daemon exited; with the end of its log.
    """

    def is_ready() -> bool:
        if ready():
            return True
        daemon_processes.check_daemon_runs(daemon)
        return False

    if not becomes_true(is_ready, seconds):
        raise LocalError(
            f"{what} was not ready after {seconds:.0f} s. Fix: make down, then make cluster. The end of its log:\n"
            f"{daemon_processes.log_tail(daemon)}"
        )


def write_node_files(node: Node) -> bool:
    """Write the configuration files of the node's daemons; return whether one of them changed."""
    # A list, not a generator: all files must be written even if the first one changed.
    changed = [
        write_file_atomically(node.folder / "cni" / "10-pods.conflist", daemon_configs.cni_config(node)),
        write_file_atomically(node.folder / "containerd.toml", daemon_configs.containerd_config(node)),
        write_file_atomically(node.folder / "kubelet.json", daemon_configs.kubelet_config(node)),
        write_file_atomically(node.folder / "kubeconfig", daemon_configs.kubeconfig(node.name), 0o600),
        write_file_atomically(node.folder / "proxy.json", daemon_configs.proxy_config(node)),
    ]
    return any(changed)


def start_runtime(node: Node, pause: Path) -> None:
    """Start the node's network, cgroups and containerd, and import the pause image. Needs no API server."""
    name = daemon_names(node)[0]
    changed = write_node_files(node)
    if changed or not node_network.is_node_network_complete(node):
        stop_node(node)  # daemons with old settings or in a lost namespace must be restarted
    node_network.ensure_node_network(node)
    node_cgroups_and_unmounting.ensure_cgroups(node)
    daemon_processes.start_daemon(
        name, daemon_configs.containerd_command(node)
    )  # removes a stale socket itself
    wait_until_ready(
        f"containerd of {node.name}",
        lambda: command_succeeds([*images_on_nodes.ctr_command(node), "version"]),
        60,
        name,
    )
    images_on_nodes.import_into(node, pause, daemon_configs.PAUSE_IMAGE)


def start_kubelet_and_proxy(node: Node, kubernetes: Path) -> None:
    """Start kubelet and kube-proxy; the API server must be running."""
    _, kubelet, proxy = daemon_names(node)
    daemon_processes.start_daemon(kubelet, daemon_configs.kubelet_command(node, kubernetes / "kubelet"))
    daemon_processes.start_daemon(proxy, daemon_configs.proxy_command(node, kubernetes / "kube-proxy"))


def stop_node(node: Node) -> None:
    """Stop the node's daemons and pods and remove its mounts, network and cgroups; its images stay."""
    containerd, kubelet, proxy = daemon_names(node)
    daemon_processes.stop_daemons(kubelet, proxy)
    if daemon_processes.running_daemon(containerd):
        _remove_pods(node)
    daemon_processes.stop_daemons(containerd)
    daemon_processes.terminate_processes(_shim_processes(node), seconds=0)
    node_cgroups_and_unmounting.remove_cgroups(node)
    node_cgroups_and_unmounting.unmount_below(node.folder)
    node_network.remove_node_network(node)
    # State that would disturb the next start: sandboxes, leased pod addresses, pod folders.
    for name in ("state", "ipam", "kubelet", "pod-logs"):
        shutil.rmtree(node.folder / name, ignore_errors=True)
    node.socket.unlink(missing_ok=True)
    for folder in (Path("/var/lib/cni/results"), Path("/var/lib/cni/cache/results")):
        for file in folder.glob(f"{node.netns}-*"):
            file.unlink(missing_ok=True)
    remove_links_below(CONTAINER_LOGS, node.folder)


def remove_links_below(folder: Path, target: Path) -> None:
    """Remove the links in `folder` that point to a path below `target`, whether or not that path exists."""
    for file in folder.glob("*"):
        if file.is_symlink() and file.readlink().is_relative_to(target):
            file.unlink(missing_ok=True)


def _shim_processes(node: Node) -> list[daemon_processes.ProcessIdentity]:
    return daemon_processes.find_marked_processes(daemon_names(node)[0])


def _remove_pods(node: Node) -> None:
    """Kill the node's containers and delete them with their snapshots, which use disk space."""
    if not command_succeeds([*images_on_nodes.ctr_command(node), "version"], seconds=5):
        return
    containers = run_command(
        [*images_on_nodes.ctr_command(node), "containers", "ls", "-q"], why="listing containers"
    ).split()
    kernel_pids = node_cgroups_and_unmounting.pod_processes(node)
    daemon_processes.terminate_processes(kernel_pids, seconds=0)
    for container in containers:
        command_succeeds(
            [*images_on_nodes.ctr_command(node), "tasks", "delete", "--force", container], seconds=20
        )
    if containers:
        command_succeeds(
            [*images_on_nodes.ctr_command(node), "containers", "delete", *containers], seconds=60
        )


def find_pod_processes(node: Node) -> list[str]:
    """Return a line for each running process of the node's pods."""
    return [
        f"process {process.pid} in cgroup {node.cgroup}"
        for process in node_cgroups_and_unmounting.pod_processes(node)
    ]
