"""Read CPU time and memory of processes."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import psutil

Clocks = tuple[float, float]
"""Wall seconds, and CPU seconds of processes."""


def read_clocks() -> Clocks:
    """Return the wall clock's seconds, and the CPU seconds of all exited descendants of this process."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), used.ru_utime + used.ru_stime


def since(earlier: Clocks) -> Clocks:
    """Return how much both clocks have advanced since `earlier`."""
    now = read_clocks()
    return now[0] - earlier[0], now[1] - earlier[1]


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds (user and system) of a process so far, without those of its children."""
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def peak_megabytes(pid: int) -> float:
    """Return the peak resident memory (VmHWM) of a process so far, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
