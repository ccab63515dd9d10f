"""The first process of the cluster's namespaces: build the network, start all daemons, restart daemons that exit.

`cluster_lifecycle` starts `unshare … python -m local.cluster.supervisor NODES PID`. NODES is the number of nodes, and
PID is a process in the machine's own network. Standard input is the file `RUNNING`. The supervisor holds the lock of
this file until all processes of the cluster have exited.

The folder `HELD` is for fault tests: a daemon with a file of its name in this folder is killed, and is not restarted
until the file is removed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from local.cluster import api_requests, daemon_configs, images_on_nodes
from local.cluster.daemon_configs import GROUP, LOGS, Node
from local.external_commands import LocalError
from local.files_and_locks import write_file_atomically
from local.go_tools import find_tool
from local.paths import STATE

RUNNING = STATE / "cluster.pid"
"""Lock file of the running cluster. It contains the supervisor's process id in the machine's own namespace."""
STATES = STATE / "daemons.json"
HELD = STATE / "held"
POLL = 0.2
RESTART_SECONDS = 1


def namespace_script(nodes: Iterable[Node], machine: int) -> str:
    """Return the shell script that mounts the private folders and creates the bridge and the nodes' networks.

    `machine` is the id of a process in the machine's own network. The script makes this network available in the
    cluster under the name `host`.
    """
    script = daemon_configs.render("cluster-network.sh", machine=machine)
    return script + "".join(daemon_configs.render("node-network.sh", node) for node in nodes)


def cgroup_hierarchies() -> list[Path]:
    """Return the folders of the mounted cgroup hierarchies.

    Version 1 of cgroups has one hierarchy for each controller. Version 2 has only one hierarchy.
    """
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(words[1]) for words in mounts if words[2] in {"cgroup", "cgroup2"}]


def create_cgroups(root: Path, nodes: Iterable[Node]) -> None:
    """Create the nodes' cgroups in the hierarchy `root`, because a kubelet requires that its `cgroupRoot` exists."""
    is_version_2 = (root / "cgroup.controllers").exists()
    for group in (root / GROUP, *(root / node.cgroup for node in nodes)):
        group.mkdir(exist_ok=True)
        # With version 1 a new cgroup has no CPUs, and then no process may join. Version 2 uses those of the one above.
        for name in () if is_version_2 else ("cpuset.cpus", "cpuset.mems"):
            if (group / name).exists() and not (group / name).read_text().strip():
                (group / name).write_text((root / name).read_text())
        # With version 2 a cgroup has the controllers that the one above it passes on.
        for above in (group.parent, group) if is_version_2 else ():
            for controller in (above / "cgroup.controllers").read_text().split():
                with contextlib.suppress(OSError):  # some cannot be passed on, such as `misc` in a container
                    (above / "cgroup.subtree_control").write_text(f"+{controller}")


@dataclass
class Daemon:
    """A daemon that is started when `may_start()` returns true, and started again after it has exited."""

    name: str
    argv: list[str]
    may_start: Callable[[], bool]
    process: subprocess.Popen[bytes] | None = None
    state: str = "not started yet"
    next_start: float = 0

    def step(self) -> None:
        """Bring the daemon closer to its wanted state.

        Notice that it has exited, kill it if `HELD` has a file for it, or start it if it does not run and may start.
        """
        held = (HELD / self.name).exists()
        if self.process and self.process.poll() is not None:
            self.state = f"exited with {self.process.returncode}"
            with contextlib.suppress(OSError):  # a full disk
                print(time.strftime("%H:%M:%S"), self.name, self.state, flush=True)  # noqa: T201 - the supervisor's log
            self.process, self.next_start = None, time.monotonic() + RESTART_SECONDS
        if self.process and held:
            self.process.kill()
        elif not self.process and not held and time.monotonic() > self.next_start and self.may_start():
            with (LOGS / f"{self.name}.log").open("ab") as log:
                self.process = subprocess.Popen(
                    self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            self.state = "running"


def _may_start_kubelet(node: Node) -> bool:
    """Return whether the node's kubelet may start: the API server is ready, and the node has the pause image.

    If only the image is missing, this function imports it.
    """
    with contextlib.suppress(LocalError):  # containerd does not answer yet
        if api_requests.is_api_server_ready() and node.socket.exists():
            images_on_nodes.import_into(node, daemon_configs.PAUSE_LAYOUT, daemon_configs.PAUSE_IMAGE)
            return True
    return False


def list_daemons(nodes: tuple[Node, ...]) -> list[Daemon]:
    """Return all daemons of the cluster. Each has a condition for its start, such as a ready API server."""
    commands = daemon_configs.daemon_commands(
        nodes, find_tool("kubernetes").folder, find_tool("coredns").folder
    )
    conditions: dict[str, Callable[[], bool]] = dict.fromkeys(commands, api_requests.is_api_server_ready)
    # An API server exits after 20 s without etcd, which may need longer to read its log from a cold disk.
    conditions |= {"etcd": lambda: True, "apiserver": api_requests.is_etcd_ready}
    for node in nodes:
        conditions[f"{node.name}-containerd"] = lambda: True
        conditions[f"{node.name}-kubelet"] = functools.partial(_may_start_kubelet, node)
    return [Daemon(name, argv, conditions[name]) for name, argv in commands.items()]


def write_states(daemons: list[Daemon], written: str) -> str:
    """Write the daemons' states to the file `STATES` unless it has these states already; return its content.

    `written` is the content that the previous call returned; empty for the first call.
    """
    states = json.dumps({daemon.name: daemon.state for daemon in daemons}) + "\n"
    if states != written:
        try:
            write_file_atomically(STATES, states)
        except OSError:  # a full disk: the next call tries again
            return written
    return states


def main(count: int, machine: int) -> None:
    """Run a cluster of `count` nodes until this process is killed. For `machine` see `namespace_script`."""
    pid = Path("/proc/self").readlink().name  # of the machine's /proc, which the script replaces
    os.truncate(0, 0)
    os.pwrite(0, pid.encode(), 0)
    nodes = daemon_configs.plan_nodes(count)
    for root in cgroup_hierarchies():
        create_cgroups(root, nodes)
    subprocess.run(["sh", "-xe"], input=namespace_script(nodes, machine), text=True, check=True)
    daemons, written = list_daemons(nodes), ""
    while True:
        for daemon in daemons:
            daemon.step()
        written = write_states(daemons, written)
        _reap_orphans({daemon.process.pid for daemon in daemons if daemon.process})
        time.sleep(POLL)


def _reap_orphans(daemons: set[int]) -> None:
    """Remove zombies of processes that the cluster's daemons and pods have left.

    The first process of a namespace becomes the parent of processes whose own parents have exited. `daemons` are the
    process ids of running daemons: their exit is left to `Daemon.step`.
    """
    with contextlib.suppress(ChildProcessError):  # there is no child: all daemons have exited
        while child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if child.si_pid in daemons:
                return  # its `step` notices the exit
            os.waitpid(child.si_pid, 0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(int(sys.argv[1]), int(sys.argv[2]))
