"""Read this container's memory limit and use, and how many of its processes the kernel killed for lack of memory.

`root` is the folder where the container's cgroup files are mounted (v1 or v2); only tests pass another one.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 where v2 says "max"


def oom_kills(root: Path = ROOT) -> int:
    """Return how many processes of this container the kernel has killed for lack of memory.

    The reason is that the container reached its memory limit, or rarely that the whole node had no memory left. The
    number counts from the start of the container. It is 0 where the kernel does not count (cgroup v1 before
    Linux 4.13, or no cgroup folder).
    """
    for name in ("memory.events", "memory/memory.oom_control"):
        for line in _text(root / name).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.strip().isdecimal():
                return int(value)
    return 0


def limit(root: Path = ROOT) -> int | None:
    """Return the container's memory limit in bytes from the cgroup files in `root`; None if there is no limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        value = _text(root / name).strip()
        if value.isdecimal() and int(value) < _UNLIMITED:
            return int(value)
    return None


def used_bytes(root: Path = ROOT) -> int:
    """Return how many bytes of memory this container uses without its page cache, which the kernel can reclaim."""
    for use, stat, prefix in (
        ("memory.current", "memory.stat", ""),
        ("memory/memory.usage_in_bytes", "memory/memory.stat", "total_"),
    ):
        value = _text(root / use).strip()
        if value.isdecimal():
            counts = dict(line.split() for line in _text(root / stat).splitlines())
            cache = sum(int(counts.get(f"{prefix}{name}_file", 0)) for name in ("active", "inactive"))
            return int(value) - cache
    return 0


def usable_bytes(root: Path = ROOT) -> int:
    """Return how many bytes of memory this container may use: the smaller of its limit and the machine's memory."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, limit(root) or physical)


def free_bytes(root: Path = ROOT) -> int:
    """Return how many bytes of memory this container can still get.

    This is the smaller of two numbers: what is left below the container's limit, and what the machine has free.
    """
    lines = _text(Path("/proc/meminfo")).splitlines()
    available = 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    return min(available, (limit(root) or available + used_bytes(root)) - used_bytes(root))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
