"""Start, stop and inspect the local cluster.

The cluster is one process tree, the `supervisor` and its daemons, in separate process, mount and network namespaces.
Outside of these namespaces the cluster has only one network link, the routes of this link, four iptables rules and its
cgroups. It also turns on this machine's IPv4 forwarding. etcd's data and the nodes' images are kept between runs. The
command `down --wipe` deletes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from local import console, launcher_image
from local.cluster import api_requests, certificates, daemon_configs, images_on_nodes
from local.cluster.daemon_configs import (
    HOST_LINK,
    LOGS,
    NODE_SUBNET,
    POD_SUBNET,
    SERVICE_SUBNET,
    Node,
    plan_nodes,
)
from local.cluster.supervisor import HELD, RUNNING, STATES, cgroup_hierarchies
from local.external_commands import LocalError, command_succeeds, indent_last_lines, run_command
from local.files_and_locks import hold_file_lock, require_free_space, write_file_atomically
from local.go_tools import find_tool
from local.paths import CLONE, EKS_TOKEN, KUBECONFIG, PASSPHRASE, POD_UID, SHARED, SOURCES, STATE

READY_SECONDS = 180
_PLAN = STATE / "plan.json"
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_FORWARD_BEFORE = STATE / "ip_forward"  # the machine's original value, which `down` restores
# Pods reach the outside with the machine's address. Rules of the machine's own firewall come after these.
_RULES = (
    ("filter", "FORWARD", f"-i {HOST_LINK} -j ACCEPT"),
    ("filter", "FORWARD", f"-o {HOST_LINK} -j ACCEPT"),
    *(
        ("nat", "POSTROUTING", f"-s {subnet} ! -o {HOST_LINK} -j MASQUERADE")
        for subnet in (NODE_SUBNET, POD_SUBNET)
    ),
)


def lock_cluster() -> contextlib.AbstractContextManager[None]:
    """Return the lock of the cluster. Starting, stopping and image imports hold it, so that only one runs at a time."""
    return hold_file_lock(STATE / "lock", "the local cluster")


def require_root() -> None:
    """Raise LocalError unless the user is root."""
    if os.geteuid() != 0:
        raise LocalError(
            f"The local cluster and the demo need root (user id 0, not {os.geteuid()}), because they write to {STATE}, "
            "and the cluster creates network namespaces and mounts. Fix: run the command as root; without root, "
            "`make try` trains an example, and docs/how-to/clusters.md installs the chart in your own cluster"
        )


def supervisor_process() -> int | None:
    """Return the process id of the running cluster's supervisor.

    Return 0 if the supervisor has just been started and has not written its id yet, and None if no cluster runs.
    """
    with contextlib.suppress(FileNotFoundError), RUNNING.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read() or 0)
    return None


def running_nodes() -> tuple[Node, ...]:
    """Return the nodes of the running cluster; empty if no cluster runs."""
    return plan_nodes(json.loads(_PLAN.read_text())["nodes"]) if supervisor_process() is not None else ()


def start_cluster(count: int) -> bool:
    """Start a cluster of `count` nodes, and wait until its nodes are Ready.

    A running cluster with another number of nodes, other settings or other programs is restarted. Node objects of an
    earlier cluster with more nodes are deleted.

    Returns:
        Whether a cluster was started; False if it was already running with the same nodes, settings and programs.

    Raises:
        LocalError: The user is not root, `count` is not 1 to 5, the disk is full, a subnet is in use, a node did not
            become Ready, or the supervisor exited.
    """
    require_root()
    nodes = plan_nodes(count)
    with lock_cluster():
        plan, old = _write_files(nodes), _PLAN.read_text() if _PLAN.exists() else ""
        started = 0
        if supervisor_process() is None or plan != old:
            _stop()
            require_free_space(STATE, 3, "The local cluster")
            started = int(time.time())
            write_file_atomically(_PLAN, plan)
            _connect_machine()
            _start_supervisor(count)
        _wait_until_ready([node.name for node in nodes], started)
        for removed in set(api_requests.list_nodes()) - {node.name for node in nodes}:
            api_requests.send_request(f"/api/v1/nodes/{removed}", "DELETE")
    return bool(started)


def _write_files(nodes: tuple[Node, ...]) -> str:
    """Create the cluster's folders, keys, configuration files and pause image.

    Return the text for the file `_PLAN`, by which a later start recognizes a change: it depends on the nodes, the
    settings and the programs.
    """
    for folder in (STATE, LOGS, SHARED, SOURCES):
        folder.mkdir(parents=True, exist_ok=True)
    STATE.chmod(0o755)
    for folder in (SHARED, SOURCES):
        os.chown(folder, POD_UID, POD_UID)
    (STATE / "etcd").mkdir(mode=0o700, exist_ok=True)
    certificates.ensure_certificates()
    certificates.ensure_token()
    launcher_image.ensure_pause_image(daemon_configs.PAUSE_LAYOUT, daemon_configs.PAUSE_IMAGE)
    resolvers = daemon_configs.parse_resolvers(Path("/etc/resolv.conf").read_text())
    files = daemon_configs.cluster_files(nodes, resolvers)
    for path, text in (files | {KUBECONFIG: daemon_configs.kubeconfig("admin")}).items():
        write_file_atomically(path, text, 0o600)
    programs = [find_tool(name).folder for name in ("kubernetes", "coredns")]
    settings = repr((files, daemon_configs.daemon_commands(nodes, *programs)))
    return json.dumps({"nodes": len(nodes), "settings": hashlib.sha256(settings.encode()).hexdigest()}) + "\n"


def overlapping_routes(routes: list[dict[str, str]]) -> list[str]:
    """Return the routes of other networks that overlap the cluster's subnets, as texts `SUBNET of DEVICE`.

    `routes` is the output of `ip -j route`.
    """
    ours = [ipaddress.ip_network(subnet) for subnet in (NODE_SUBNET, POD_SUBNET, SERVICE_SUBNET)]
    found = []
    for route in routes:
        if route.get("dev") != HOST_LINK and route["dst"] != "default":
            theirs = ipaddress.ip_network(route["dst"], strict=False)
            if theirs.version == 4 and any(theirs.overlaps(subnet) for subnet in ours):
                found.append(f"{route['dst']} of {route.get('dev', '?')}")
    return found


def _connect_machine() -> None:
    """Let this machine forward packets of nodes and pods.

    Raises:
        LocalError: The machine already uses one of the cluster's subnets.
    """
    routes = run_command(["ip", "-j", "-4", "route"], why="reading this machine's routes")
    if taken := overlapping_routes(json.loads(routes)):
        raise LocalError(
            f"The local cluster uses {NODE_SUBNET}, {POD_SUBNET} and {SERVICE_SUBNET}, but this machine "
            f"already routes {', '.join(taken)}. Fix: remove that network, or use your own cluster: "
            "make demo CLUSTER_KUBECONFIG=FILE CONTEXT=NAME"
        )
    if _FORWARD.read_text().strip() == "0":
        write_file_atomically(_FORWARD_BEFORE, "0\n")
        _FORWARD.write_text("1")
    for table, chain, rule in _RULES:
        command = ["iptables", "-w", "10", "-t", table, "-I", chain, *rule.split()]
        run_command(command, why="adding a rule for the packets of pods")


def _disconnect_machine() -> None:
    """Undo `_connect_machine`."""
    for table, chain, rule in _RULES:
        while command_succeeds(["iptables", "-w", "10", "-t", table, "-D", chain, *rule.split()]):
            pass  # an interrupted start may have added it twice
    if _FORWARD_BEFORE.exists():
        _FORWARD.write_text(_FORWARD_BEFORE.read_text())
        _FORWARD_BEFORE.unlink()


def _start_supervisor(count: int) -> None:
    kept = (
        "PATH",
        "HOME",
        "LANG",
        "TZ",
        "TMPDIR",
        "PADDLE_TRAINING_CACHE",
    )  # no credentials, proxies, KUBECONFIG
    environment = {key: os.environ[key] for key in kept if key in os.environ} | {"PYTHONPATH": str(CLONE)}
    for file in LOGS.glob("*.log"):
        file.replace(file.with_suffix(".log.1"))
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--net"]
    with RUNNING.open("a+") as running, (LOGS / "cluster.log").open("wb") as log:
        fcntl.flock(running, fcntl.LOCK_EX)  # free, or held for a moment by a command that reads it
        running.truncate(0)
        subprocess.Popen(
            [*unshare, sys.executable, "-m", "local.cluster.supervisor", str(count), str(os.getpid())],
            cwd="/",
            env=environment,
            stdin=running,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in a terminal stops the command, not the cluster
        )


def _wait_for(holds: Callable[[], bool], seconds: float) -> bool:
    """Poll `holds` and return whether it becomes true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _wait_until_ready(names: list[str], since: float) -> None:
    """Wait until these nodes are Ready. `since` is explained in `unready_reason`.

    Raises:
        LocalError: A node is not Ready after READY_SECONDS, or the supervisor has exited.
    """

    def is_settled() -> bool:
        return supervisor_process() is None or not api_requests.unready_nodes(names, since)

    if _wait_for(is_settled, READY_SECONDS) and supervisor_process() is not None:
        return
    unready = api_requests.unready_nodes(names, since)
    states = daemon_states()
    logs = [
        "cluster",
        *(name for name, state in states.items() if state != "running"),
        *(f"{n}-kubelet" for n in unready),
    ]
    ends = [f"{name}.log:\n{_log_tail(name)}" for name in dict.fromkeys(logs)]
    raise LocalError(
        f"the local cluster is not ready after {READY_SECONDS} s, or its supervisor has exited: "
        f"{', '.join(f'{name} {reason}' for name, reason in unready.items())}. Fix: correct the cause in the logs in "
        f"{LOGS}, then make down and make cluster. The ends of these logs:\n" + "\n".join(ends)
    )


def _log_tail(name: str) -> str:
    log = LOGS / f"{name}.log"
    return indent_last_lines(log.read_text(errors="replace")) if log.exists() else "    (the log is empty)"


def _stop() -> None:
    """Kill the cluster's processes and wait for their end. Then remove what the kernel leaves behind.

    This is the network link, the iptables rules, the cgroups, and files that would disturb the next start.
    """
    if supervisor_process() is not None:
        _wait_for(lambda: supervisor_process() != 0, 10)
        if pid := supervisor_process():
            os.kill(pid, signal.SIGKILL)
        # `unshare` holds the lock, too, until the kernel has ended all processes of the namespace.
        if not _wait_for(lambda: supervisor_process() is None, 60):
            raise LocalError(
                "processes of the local cluster still run 60 s after SIGKILL, because they hang in the kernel. "
                "Fix: restart this machine"
            )
    command_succeeds(
        ["ip", "link", "del", HOST_LINK]
    )  # at once: the kernel removes a namespace a little later
    _disconnect_machine()
    _wait_for(_remove_cgroups, 10)
    # State that would disturb the next start: sandboxes, leased pod addresses, pod folders.
    for name in ("state", "ipam", "kubelet", "pod-logs"):
        for folder in STATE.glob(f"nodes/*/{name}"):
            shutil.rmtree(folder, ignore_errors=True)
    for file in (STATES, *STATE.glob("nodes/*/containerd.sock"), *HELD.glob("*")):
        file.unlink(missing_ok=True)


def _remove_cgroups() -> bool:
    """Remove the cluster's cgroups, and return whether all are removed.

    The kernel may reject the removal for a moment after the last process of a cgroup has ended.
    """
    tops = [root / daemon_configs.GROUP for root in cgroup_hierarchies()]
    for top in tops:
        groups = [path for path in top.rglob("*") if path.is_dir()]
        for group in (*sorted(groups, reverse=True), top):
            with contextlib.suppress(OSError):
                group.rmdir()
    return not any(top.exists() for top in tops)


def stop_cluster(wipe: bool = False) -> None:
    """Stop the cluster and undo its changes to the machine.

    With `wipe`, also delete the data of the cluster: etcd, images, keys, logs, Pulumi state. The shared storage is
    kept.
    """
    require_root()
    if not STATE.exists():
        return
    with lock_cluster():
        _stop()
        if wipe:
            # The Pulumi state is deleted too: it describes resources of the deleted cluster.
            for name in ("etcd", "nodes", "images", "pki", "logs", "pulumi", "pulumi-home"):
                shutil.rmtree(STATE / name, ignore_errors=True)
            for file in (
                KUBECONFIG,
                PASSPHRASE,
                EKS_TOKEN,
                *STATE.glob("*.kubeconfig"),
                *STATE.glob("*.yaml"),
            ):
                file.unlink(missing_ok=True)


def daemon_states() -> dict[str, str]:
    """Return the state of each daemon by its name, such as `running`, as the supervisor wrote it last.

    The states are empty if the cluster was stopped with `down`. They stay after the supervisor was killed.
    """
    return dict(json.loads(STATES.read_text())) if STATES.exists() else {}


def describe_status() -> list[tuple[str, str]]:
    """Return (name, state) of each daemon and node; empty if no cluster runs."""
    names = [node.name for node in running_nodes()]
    if not names:
        return []
    unready = api_requests.unready_nodes(names, 0)
    nodes = [(name, f"not ready: {unready[name]}" if name in unready else "Ready") for name in names]
    return [*daemon_states().items(), *nodes]


def import_launcher_image(runtime: str) -> str:
    """Import a runtime's launcher image into every node, and return its name. Build the image if it is missing."""
    image, layout = launcher_image.ensure_image(runtime)
    nodes = running_nodes()
    with lock_cluster():
        if any(image not in images_on_nodes.image_names(node) for node in nodes):
            gigabytes = 1.5 * len(nodes)
            require_free_space(nodes[0].folder, gigabytes, "Importing the launcher image into every node")
            with console.timed_step(f"import of {image} into {len(nodes)} nodes in parallel"):
                images_on_nodes.import_everywhere(nodes, layout, image)
    return image
