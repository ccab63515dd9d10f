"""Measure time and memory of one launcher until its child processes start.

Prints `launcher_start ratio=… ours=… theirs=…`, the seconds from the start of the launcher's process to its
first child process, compared with the budget of 0.5 s, and `launcher_rss …` in MB, compared with 60 MB. The
child processes are small substitutes, whose own start is not counted.

"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from testkit.stand_in_gang import StandInGang  # noqa: E402
from testkit.waiting import until  # noqa: E402

BUDGET_SECONDS = 0.5
BUDGET_MB = 60
ROUNDS = 5


def process_start_time(pid: int) -> float:
    """Return when a process was started, in seconds since boot (field 22 of /proc/<pid>/stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def measure_once(folder: Path) -> tuple[float, float]:
    """Return (seconds until the pserver was started, resident MB while training)."""
    with StandInGang(folder, 1) as gang:
        launcher = gang.start().processes[0].pid

        def pserver() -> int | None:
            commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in gang.alive()}
            return next((pid for pid, words in commands.items() if b"pserver" in words), None)

        child = until(pserver, "the pserver's process", 30, 0.01)
        # Two starts of the stand-in (the check of the old binary) are counted too.
        seconds = process_start_time(child) - process_start_time(launcher)
        until(lambda: "Pass=" in gang.trainer_log(0), "the trainer's first pass", 30)
        status = Path(f"/proc/{launcher}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        return seconds, peak / 1024


def main() -> None:
    """Run the benchmark and print its result lines."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = [measure_once(Path(folder) / str(n)) for n in range(ROUNDS)]
    seconds = statistics.median(r[0] for r in rounds)
    mb = max(r[1] for r in rounds)
    ratio = seconds / BUDGET_SECONDS
    print(f"launcher_start ratio={ratio:.2f} ours={seconds:.2f}s theirs={BUDGET_SECONDS:.2f}s")
    print(f"launcher_rss ratio={mb / BUDGET_MB:.2f} ours={mb:.0f}MB theirs={BUDGET_MB}MB")


if __name__ == "__main__":
    main()
