"""One node: its folder, daemons and pods."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from local.cluster import configs, kernel, network, processes
from local.cluster.plan import Node
from local.errors import LocalError
from local.files import write_whole
from local.images import store
from local.run import ok, run


def daemons(node: Node) -> tuple[str, str, str]:
    """Names of the node's daemons: containerd, kubelet, proxy."""
    return f"{node.name}-containerd", f"{node.name}-kubelet", f"{node.name}-proxy"


def wait(what: str, ready: Callable[[], bool], seconds: float, watched: str | None = None) -> None:
    """Poll `ready` until it holds.

    Raises:
        LocalError: the daemon `watched` ended, or `seconds` passed; with the end of its log.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if watched:
            processes.check(watched)
        if time.monotonic() > deadline:
            log = f"; the end of its log:\n{processes.last_words(watched)}" if watched else ""
            raise LocalError(f"{what} was not ready after {seconds:.0f} s{log}")
        time.sleep(0.1)


def write_settings(node: Node) -> bool:
    """Write the node's files; True when a setting of a daemon changed."""
    # A list, not a generator: every file is written, whatever the first ones say.
    changed = [
        write_whole(node.folder / "cni" / "10-pods.conflist", configs.cni(node)),
        write_whole(node.folder / "containerd.toml", configs.containerd(node)),
        write_whole(node.folder / "kubelet.json", configs.kubelet(node)),
        write_whole(node.folder / "kubeconfig", configs.kubeconfig(node.name), 0o600),
        write_whole(node.folder / "proxy.json", configs.proxy(node)),
    ]
    return any(changed)


def ensure_runtime(node: Node, pause: Path) -> None:
    """Network, control groups, containerd and the pause image. Needs no API server."""
    name = daemons(node)[0]
    changed = write_settings(node)
    if changed or not network.node_whole(node):
        stop(node)  # daemons in a lost namespace, or with other settings, are of no use
    network.ensure_node(node)
    kernel.ensure_cgroups(node)
    processes.start(name, configs.containerd_command(node))  # it removes a socket that an earlier one left
    wait(f"containerd of {node.name}", lambda: ok([*store.ctr(node), "version"]), 60, name)
    store.import_into(node, pause, configs.PAUSE_IMAGE)


def ensure_agents(node: Node, kubernetes: Path) -> None:
    """Kubelet and proxy; the API server is there."""
    _, kubelet, proxy = daemons(node)
    processes.start(kubelet, configs.kubelet_command(node, kubernetes / "kubelet"))
    processes.start(proxy, configs.proxy_command(node, kubernetes / "kube-proxy"))


def stop(node: Node) -> None:
    """End the node's daemons and pods and undo its mounts, network and groups; its images stay."""
    containerd, kubelet, proxy = daemons(node)
    processes.stop(kubelet, proxy)
    if processes.record(containerd):
        _end_pods(node)
    processes.stop(containerd)
    processes.stop_all(_shims(node), seconds=0)
    kernel.remove_cgroups(node)
    kernel.unmount_below(node.folder)
    network.remove_node(node)
    # What a next start would trip over: sandboxes' state, leases of pod addresses, pods' folders.
    for name in ("state", "ipam", "kubelet", "pod-logs"):
        shutil.rmtree(node.folder / name, ignore_errors=True)
    node.socket.unlink(missing_ok=True)
    for folder in (Path("/var/lib/cni/results"), Path("/var/lib/cni/cache/results")):
        for file in folder.glob(f"{node.netns}-*"):
            file.unlink(missing_ok=True)


def _shims(node: Node) -> list[processes.Identity]:
    return processes.marked(daemons(node)[0])


def _end_pods(node: Node) -> None:
    """Kill the containers, then drop their records with their snapshots (which hold disk space)."""
    if not ok([*store.ctr(node), "version"], seconds=5):
        return
    containers = run([*store.ctr(node), "containers", "ls", "-q"], why="listing containers").split()
    kernel_pids = kernel.inhabitants(node)
    processes.stop_all(kernel_pids, seconds=0)
    for container in containers:
        ok([*store.ctr(node), "tasks", "delete", "--force", container], seconds=20)
    if containers:
        ok([*store.ctr(node), "containers", "delete", *containers], seconds=60)


def leftovers(node: Node) -> list[str]:
    """Processes of the node's pods that still run."""
    return [f"process {who.pid} in cgroup {node.cgroup}" for who in kernel.inhabitants(node)]
