"""Create and remove the nodes' cgroups, list their processes, and unmount what the cluster has mounted."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from local.cluster.daemon_processes import ProcessIdentity, identify_process, terminate_processes
from local.cluster.node_addresses import Node, all_possible_nodes
from local.external_commands import command_succeeds
from local.paths import STATE, cache

_ROOT = Path("/sys/fs/cgroup")


def cgroup_hierarchies() -> list[Path]:
    """Return the mounted cgroup hierarchies: one per controller with version 1, only one with version 2."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(words[1]) for words in mounts if words[2] in {"cgroup", "cgroup2"}]


def ensure_cgroups(node: Node) -> None:
    """Create the node's cgroup in every hierarchy: the kubelet requires that its `cgroupRoot` exists."""
    for root in cgroup_hierarchies():
        group = root / node.cgroup
        group.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):  # empty with version 1, and then no process may join
            file = group / name
            if file.exists() and not file.read_text().strip():
                file.write_text((root / name).read_text())
        if (root / "cgroup.subtree_control").exists() and (root / "cgroup.controllers").read_text().strip():
            wanted = " ".join(f"+{c}" for c in (root / "cgroup.controllers").read_text().split())
            for place in (root, group):
                with contextlib.suppress(OSError):
                    (place / "cgroup.subtree_control").write_text(wanted)


def _node_cgroups(node: Node) -> list[Path]:
    return [root / node.cgroup for root in cgroup_hierarchies() if (root / node.cgroup).is_dir()]


def pod_processes(node: Node) -> list[ProcessIdentity]:
    """Return the processes in the node's cgroups, which are those of its pods."""
    pids: set[int] = set()
    for group in _node_cgroups(node):
        for file in group.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                pids.update(int(line) for line in file.read_text().split())
    return [process for process in map(identify_process, pids) if process]


def remove_cgroups(node: Node) -> None:
    """Kill the processes in the node's cgroups and remove the cgroups."""
    terminate_processes(pod_processes(node), seconds=0)
    deadline = time.monotonic() + 5
    while _node_cgroups(node) and time.monotonic() < deadline:
        for group in _node_cgroups(node):
            inner = sorted((p for p in group.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts))
            for folder in [*inner, group]:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        if _node_cgroups(node):
            time.sleep(0.05)


def mounts_below(folder: Path) -> list[Path]:
    """Return the mount points in `folder`, deepest first.

    /proc/mounts has octal escapes for special characters, which are decoded.
    """
    points = [
        Path(line.split()[1].encode().decode("unicode_escape"))
        for line in Path("/proc/mounts").read_text().splitlines()
    ]
    return sorted((p for p in points if folder in p.parents), key=lambda p: -len(p.parts))


def unmount_below(folder: Path) -> None:
    """Unmount all mount points in `folder`, including busy ones and those mounted twice."""
    for _ in range(5):
        points = mounts_below(folder)
        if not points:
            return
        for point in points:
            if not command_succeeds(["umount", str(point)]):
                command_succeeds(["umount", "-l", str(point)])


def find_cgroups_and_mounts() -> list[str]:
    """Return a line for each cgroup and each mount of the local cluster that exists on this machine."""
    found = [f"cgroup {group}" for node in all_possible_nodes() for group in _node_cgroups(node)]
    for folder in (STATE, cache() / "images"):
        found += [f"mount {point}" for point in mounts_below(folder)]
    return found
