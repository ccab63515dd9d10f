"""Compare a script under launchers with the same script under Paddle's own launcher, on loopback.

Both train the example `text` (runtime `collective`) with two processes of one thread, each of which reads a shard of
its own: with two launchers, and with `python -m paddle.distributed.launch` started twice. Both save a checkpoint
after each pass.

- `collective_overhead`: seconds per 1000 samples of all processes, in the fastest pass of all runs (`metrics.csv`;
  the first pass of a run does not count). Limit of the ratio: 1.03.
- `collective_overhead_run`: seconds of the whole run, from the start of the launchers until all have exited. Without
  a limit: the run is short, and ours also copies and verifies the data and draws the curve.
- `collective_overhead_processor`: CPU seconds of all processes of the run, which hardly depend on other work on the
  machine. Without a limit, for the same reason.

The runs alternate, and the latter two are means. The benchmark takes about three minutes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks._collective_script import ScriptGang, paddle_logs, run_with_paddle, speed
from benchmarks._processes import read_clocks, since
from benchmarks._result_lines import print_ratio

PROCESSES, ROUNDS, DEADLINE = 2, 2, 400.0
VALUES = {"PADDLE_LAUNCHER_PASSES": "4"}
Cost = tuple[float, float, float]
"""Seconds per 1000 samples; wall and CPU seconds of the run."""


def run_with_launchers(folder: Path) -> Cost:
    """Return what the run under launchers costs."""
    with ScriptGang(folder, PROCESSES, **VALUES) as gang:
        began = read_clocks()
        gang.run(DEADLINE)
        return 1000 / speed(gang.output), *since(began)


def run_by_hand(folder: Path) -> Cost:
    """Return what the run under Paddle's launcher costs."""
    with run_with_paddle(folder, PROCESSES, **VALUES) as processes:
        began = read_clocks()
        codes = [process.wait(DEADLINE) for process in processes]
        spent = since(began)
    if any(codes):
        sys.exit(f"the run under Paddle's launcher failed: exit codes {codes}; {paddle_logs(folder)}")
    return 1000 / speed(folder / "output"), *spent


def main() -> int:
    """Run the benchmark and print its result lines; return 1 if the limit is exceeded."""
    costs: dict[str, list[Cost]] = {"ours": [], "theirs": []}
    for n in range(ROUNDS):
        for name in costs if n % 2 else reversed(costs):
            with tempfile.TemporaryDirectory(prefix="overhead-") as temp:
                run = run_with_launchers if name == "ours" else run_by_hand
                costs[name].append(run(Path(temp) / "run"))
            shown = " ".join(f"{value:.3f}" for value in costs[name][-1])
            print(f"# seconds per 1000 samples, of the run, CPU seconds, {name}: {shown}", flush=True)
    (ours, our_runs, our_cpu), (theirs, their_runs, their_cpu) = (
        zip(*c, strict=True) for c in costs.values()
    )
    kept = print_ratio("collective_overhead", min(ours), min(theirs), digits=3, most=1.03)
    print_ratio("collective_overhead_run", statistics.mean(our_runs), statistics.mean(their_runs))
    print_ratio("collective_overhead_processor", statistics.mean(our_cpu), statistics.mean(their_cpu))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
