"""Compare the example `text` (runtime collective) with `quick_start` (runtime fleet) on the same test set.

Both train with three processes on the same shards of the same texts, with the settings of the chart's examples, and
with three seeds each. `collective_learning`: mean over the seeds of the share of the test set's texts (2,315 that are
positive or negative) whose class is wrong. `theirs` is that of quick_start: logistic regression of the words,
`training.mode: async`. Limit of the ratio: 1, so the script must be better.

`python -m benchmarks.collective_learning` takes about eight minutes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._collective_script import ScriptGang
from benchmarks._result_lines import print_ratio
from benchmarks.learning import prepare_example, train_gang
from launcher.metrics import parse_metrics

PROCESSES, SEEDS, DEADLINE = 3, (1, 2, 3), 900.0


def train_text(folder: Path, seed: int) -> float:
    """Train the example `text` with this seed, print the error after each pass, and return the last one."""
    began = time.monotonic()
    with ScriptGang(folder, PROCESSES, args=[f"--seed={seed}"]) as gang:
        gang.run(DEADLINE)
        errors = [row.tests["error"] for row in parse_metrics((gang.output / "metrics.csv").read_text())]
    shown = " ".join(f"{error:.4f}" for error in errors)
    print(f"# text, seed {seed}: {shown}; {time.monotonic() - began:.0f} s", flush=True)
    return errors[-1]


def main() -> int:
    """Run the benchmark and print its result lines; return how many limits were exceeded."""
    ours, theirs = [], []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory(prefix="learning-") as name:
            data = prepare_example("quick_start", Path(name))
            theirs.append(train_gang("quick_start", Path(name), data, seed)["error"])
            print(f"# quick_start, seed {seed}: {theirs[-1]:.4f}", flush=True)
            ours.append(train_text(Path(name) / "text", seed))
    kept = print_ratio(
        "collective_learning", statistics.mean(ours) * 100, statistics.mean(theirs) * 100, "%", most=1.0
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
