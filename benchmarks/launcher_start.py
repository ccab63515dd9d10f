"""Measure time and memory of one launcher until its child processes start.

Prints `launcher_start ratio=… ours=… theirs=…`, the seconds from the start of the launcher's process to its
first child process, compared with the budget of 0.5 s, and `launcher_rss …` in MB, compared with 60 MB. The
child processes are small substitutes, whose own start is not counted.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import psutil

from benchmarks._processes import peak_megabytes
from benchmarks._result_lines import print_ratio
from testkit.stand_in_gang import StandInGang
from testkit.waiting import until

BUDGET_SECONDS = 0.5
BUDGET_MB = 60
ROUNDS = 5


def measure_once(folder: Path) -> tuple[float, float]:
    """Return (seconds until the pserver was started, resident MB while training)."""
    with StandInGang(folder, 1) as gang:
        launcher = gang.start().processes[0].pid

        def pserver() -> int | None:
            commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in gang.alive()}
            return next((pid for pid, words in commands.items() if b"pserver" in words), None)

        child = until(pserver, "the pserver's process", 30, 0.01)
        # Two starts of the stand-in (the check of the old binary) are counted too.
        seconds = psutil.Process(child).create_time() - psutil.Process(launcher).create_time()
        until(lambda: "Pass=" in gang.trainer_log(0), "the trainer's first pass", 30)
        return seconds, peak_megabytes(launcher)


def main() -> None:
    """Run the benchmark and print its result lines."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = [measure_once(Path(folder) / str(n)) for n in range(ROUNDS)]
    seconds = statistics.median(r[0] for r in rounds)
    mb = max(r[1] for r in rounds)
    print_ratio("launcher_start", seconds, BUDGET_SECONDS)
    print_ratio("launcher_rss", mb, BUDGET_MB, "MB")


if __name__ == "__main__":
    main()
