"""What the kernel says of this container's memory: its limit, and how often it killed a process at it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 where v2 says "max"


def oom_kills(root: Path = ROOT) -> int:
    """Processes that were killed since the container began, because its memory was used up.

    0 where the kernel does not count them (cgroup v1 before Linux 4.13, or no cgroup to be seen).
    """
    for name in ("memory.events", "memory/memory.oom_control"):
        for line in _text(root / name).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.strip().isdecimal():
                return int(value)
    return 0


def limit(root: Path = ROOT) -> int | None:
    """The container's memory limit in bytes; None without one."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        value = _text(root / name).strip()
        if value.isdecimal() and int(value) < _UNLIMITED:
            return int(value)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
