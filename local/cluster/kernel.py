"""Control groups and mounts of the nodes."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from local.cluster.plan import Node, every_node
from local.cluster.processes import Identity, identify, stop_all
from local.paths import STATE, cache
from local.run import ok

_ROOT = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """Every mounted cgroup hierarchy: one a controller with version 1, the root alone with version 2."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(words[1]) for words in mounts if words[2] in {"cgroup", "cgroup2"}]


def ensure_cgroups(node: Node) -> None:
    """Make the node's group in every hierarchy, as the kubelet expects its `cgroupRoot` to exist."""
    for root in hierarchies():
        group = root / node.cgroup
        group.mkdir(exist_ok=True)
        for name in (
            "cpuset.cpus",
            "cpuset.mems",
        ):  # version 1 leaves these empty, and then nothing may run there
            file = group / name
            if file.exists() and not file.read_text().strip():
                file.write_text((root / name).read_text())
        if (root / "cgroup.subtree_control").exists() and (root / "cgroup.controllers").read_text().strip():
            wanted = " ".join(f"+{c}" for c in (root / "cgroup.controllers").read_text().split())
            for place in (root, group):
                with contextlib.suppress(OSError):
                    (place / "cgroup.subtree_control").write_text(wanted)


def _groups(node: Node) -> list[Path]:
    return [root / node.cgroup for root in hierarchies() if (root / node.cgroup).is_dir()]


def inhabitants(node: Node) -> list[Identity]:
    """Processes in the node's groups: its pods."""
    pids: set[int] = set()
    for group in _groups(node):
        for file in group.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                pids.update(int(line) for line in file.read_text().split())
    return [who for who in map(identify, pids) if who]


def remove_cgroups(node: Node) -> None:
    """End what still runs in the node's groups and remove them."""
    stop_all(inhabitants(node), seconds=0)
    deadline = time.monotonic() + 5
    while _groups(node) and time.monotonic() < deadline:
        for group in _groups(node):
            inner = sorted((p for p in group.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts))
            for folder in [*inner, group]:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        if _groups(node):
            time.sleep(0.05)


def mounts_below(folder: Path) -> list[Path]:
    """Mount points below `folder`, deepest first. The kernel writes odd characters as octal escapes."""
    points = [
        Path(line.split()[1].encode().decode("unicode_escape"))
        for line in Path("/proc/mounts").read_text().splitlines()
    ]
    return sorted((p for p in points if folder in p.parents), key=lambda p: -len(p.parts))


def unmount_below(folder: Path) -> None:
    """Unmount everything below `folder`, also what is mounted twice or busy."""
    for _ in range(5):
        points = mounts_below(folder)
        if not points:
            return
        for point in points:
            if not ok(["umount", str(point)]):
                ok(["umount", "-l", str(point)])


def leftovers() -> list[str]:
    """Groups and mounts of ours that are still there."""
    found = [f"cgroup {group}" for node in every_node() for group in _groups(node)]
    for folder in (STATE, cache() / "images"):
        found += [f"mount {point}" for point in mounts_below(folder)]
    return found
