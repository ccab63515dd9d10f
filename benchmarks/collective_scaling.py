"""Measure how many samples per second one, two and three processes of a script train on this machine.

Launchers train the example `text` (runtime `collective`) on loopback; each process has one thread, its own shard and
batches of 256 texts.

`collective_scaling_<N>`: `ours` is the samples per second of N processes together, `theirs` those of one process, and
`ratio` how many times faster N are. There is no limit: the processes share the cores of one machine and also need them
to exchange gradients. With the processes on machines of their own the network decides; this is not measured here.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks._collective_script import ScriptGang, speed
from benchmarks._result_lines import print_ratio

ROUNDS, MOST, DEADLINE = 3, 3, 400.0
VALUES = {"PADDLE_LAUNCHER_PASSES": "5", "PADDLE_LAUNCHER_BATCH_SIZE": "256"}


def measure(folder: Path, processes: int) -> float:
    """Return the samples per second of a run of so many processes."""
    with ScriptGang(folder, processes, **VALUES) as gang:
        codes = gang.start().wait(DEADLINE)
        if any(codes):
            sys.exit(f"{processes} processes: exit codes {codes}; {gang.pod_log(0)[-3000:]}")
        return speed(gang.output)


def main() -> int:
    """Run the benchmark and print its result lines; return 0."""
    found: dict[int, list[float]] = {processes: [] for processes in range(1, MOST + 1)}
    for _ in range(ROUNDS):
        for processes, speeds in found.items():
            with tempfile.TemporaryDirectory(prefix="scaling-") as name:
                speeds.append(measure(Path(name) / "run", processes))
    for processes in range(2, MOST + 1):
        ours, theirs = statistics.median(found[processes]), statistics.median(found[1])
        print_ratio(f"collective_scaling_{processes}", ours, theirs, " samples/s")
    print(f"# {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
