"""Measure how many samples per second one, two and three processes of a script train on this machine.

Launchers train the example `text` (runtime `collective`) on loopback; each process has one thread, its own shard and
batches of 256 texts.

`collective_scaling_<N>`: `ours` is the samples per second of N processes together (in their fastest pass but the
first), `theirs` those of one process, and `ratio` how many times faster N are. There is no limit: the processes share
the cores of one machine and also need them to exchange gradients. With the processes on machines of their own the
network decides; this is not measured here. The benchmark takes about 80 seconds.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchmarks._collective_script import ScriptGang, speed
from benchmarks._result_lines import print_ratio

MOST, DEADLINE = 3, 400.0
VALUES = {"PADDLE_LAUNCHER_PASSES": "3", "PADDLE_LAUNCHER_BATCH_SIZE": "256"}


def measure(folder: Path, processes: int) -> float:
    """Return the samples per second of a run of so many processes."""
    with ScriptGang(folder, processes, **VALUES) as gang:
        gang.run(DEADLINE)
        return speed(gang.output)


def main() -> int:
    """Run the benchmark and print its result lines; return 0."""
    found = []
    for processes in range(1, MOST + 1):
        with tempfile.TemporaryDirectory(prefix="scaling-") as name:
            found.append(measure(Path(name) / "run", processes))
        if processes > 1:
            print_ratio(f"collective_scaling_{processes}", found[-1], found[0], " samples/s", digits=0)
    print(f"# {os.cpu_count()} cores", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
