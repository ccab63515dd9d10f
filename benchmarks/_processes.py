"""Read CPU time and memory of processes."""

from __future__ import annotations

from pathlib import Path

import psutil


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds (user and system) of a process so far, without those of its children."""
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def peak_megabytes(pid: int) -> float:
    """Return the peak resident memory (VmHWM) of a process so far, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
