"""Compare a script under launchers with the same script under Paddle's own launcher, on loopback.

Both train the example `text` (runtime `collective`) with two processes of one thread, each of which reads a shard of
its own: with two launchers, and with `python -m paddle.distributed.launch` started twice. Both save a checkpoint
after each pass.

- `collective_overhead`: seconds per 1000 samples of all processes, in the fastest pass but the first of each run
  (`metrics.csv`). Limit of the ratio: 1.03.
- `collective_overhead_run`: seconds of the whole run, from the start of the launchers until all have exited. Without
  a limit: the run is short, and ours also copies and verifies the data and draws the curve.
- `collective_overhead_processor`: CPU seconds of all processes of the run, which hardly depend on other work on the
  machine. Without a limit, for the same reason.

The runs alternate, and each ratio is the median over the pairs. `python -m benchmarks.collective_overhead` takes
about ten minutes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks._collective_script import ScriptGang, paddle_logs, run_with_paddle, speed
from benchmarks._result_lines import print_ratio
from benchmarks.launcher_overhead import read_clocks

PROCESSES, ROUNDS, DEADLINE = 2, 5, 400.0
VALUES = {"PADDLE_LAUNCHER_PASSES": "5"}
LINES = {"collective_overhead": 1.03, "collective_overhead_run": None, "collective_overhead_processor": None}
"""Name of each result line → limit of its ratio."""
Cost = tuple[float, float, float]
"""Seconds per 1000 samples; wall and CPU seconds of the run."""


def run_with_launchers(folder: Path) -> Cost:
    """Return what the run under launchers costs."""
    with ScriptGang(folder, PROCESSES, **VALUES) as gang:
        began = read_clocks()
        codes = gang.start().wait(DEADLINE)
        ended = read_clocks()
        if any(codes):
            sys.exit(f"the run under launchers failed: exit codes {codes}; {gang.pod_log(0)[-3000:]}")
        return 1000 / speed(gang.output), ended[0] - began[0], ended[1] - began[1]


def run_by_hand(folder: Path) -> Cost:
    """Return what the run under Paddle's launcher costs."""
    with run_with_paddle(folder, PROCESSES, **VALUES) as processes:
        began = read_clocks()
        codes = [process.wait(DEADLINE) for process in processes]
        ended = read_clocks()
    if any(codes):
        sys.exit(f"the run under Paddle's launcher failed: exit codes {codes}; {paddle_logs(folder)}")
    return 1000 / speed(folder / "output"), ended[0] - began[0], ended[1] - began[1]


def main() -> int:
    """Run the benchmark and print its result lines; return how many limits were exceeded."""
    pairs = []
    for n in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="overhead-") as name:
            first, second = (run_with_launchers, run_by_hand) if n % 2 else (run_by_hand, run_with_launchers)
            found = {run: run(Path(name) / run.__name__) for run in (first, second)}
        pairs.append((found[run_with_launchers], found[run_by_hand]))
        shown = " ".join(f"{ours:.3f}/{theirs:.3f}" for ours, theirs in zip(*pairs[-1], strict=True))
        print(f"# seconds per 1000 samples, of the run, CPU seconds, ours/theirs: {shown}", flush=True)
    kept = []
    for what, (line, most) in enumerate(LINES.items()):
        theirs = statistics.median(pair[1][what] for pair in pairs)
        ratio = statistics.median(pair[0][what] / pair[1][what] for pair in pairs)
        kept.append(print_ratio(line, ratio * theirs, theirs, most=most))
    print(f"# load {os.getloadavg()[0]:.1f}", flush=True)
    return kept.count(False)


if __name__ == "__main__":
    sys.exit(main())
