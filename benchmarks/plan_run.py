"""Compare `make plan` with a real training: what the plan predicts for the example ctr, and what its run took.

`python -m benchmarks.plan_run` trains a million generated rows with two launchers on loopback, each with a pserver
and a trainer, on two cores. The plan gets the same numbers of rows, ids, bytes and passes, and pods with one core and
no limit of the network; all its rates are those of aws/rates.yaml. Lines:

- `plan_hours`: seconds that the plan predicts for everything after the data Job, compared with the seconds from the
  start of the run to its end in run.json. The plan knows neither the start of the processes nor the export. The
  dollars of nodes and control plane are proportional to it.
- `plan_training`: the plan's seconds of the step `training`, compared with those of metrics.csv.
- `plan_cpu`: the plan's CPU seconds of parsing and training, compared with those of all processes of the run. Other
  processes on the machine affect it less than the seconds above.
"""

from __future__ import annotations

import csv
import math
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from aws import training_estimate as estimate
from benchmarks._processes import read_clocks, since
from benchmarks._result_lines import print_ratio
from infra.node_capacity import Size
from infra.settings import Settings
from launcher.programs.ctr import generated_rows
from local import try_example
from local.launcher_gang import LauncherGang

PODS = 2
DEADLINE = 1800.0
# A pod on this machine: its part of two cores, and no network between the pods.
MACHINE = SimpleNamespace(usable=Size(1.0, math.inf), bandwidth=math.inf)


def train(folder: Path) -> tuple[Path, estimate.TrainingJob, float]:
    """Train the example ctr; return the folder with its results, the job as `make plan` gets it, and CPU seconds."""
    env = try_example.prepare_example("ctr", folder, trainers=PODS)
    job = Path(env["OUT_DIR"])
    began = read_clocks()
    with LauncherGang(folder, env).start() as gang:
        codes = gang.wait(DEADLINE)
    if any(codes):
        sys.exit(f"the launchers exited with {codes}; the log of rank 0:\n{gang.pod_log(0)[-3000:]}")
    _, cpu = since(began)
    shards = [job / str(rank) / "data" / "train.txt" for rank in range(PODS)]
    size = sum(shard.stat().st_size for shard in shards)
    rows = sum(shard.read_bytes().count(b"\n") for shard in shards)
    values = try_example.example_values("ctr")
    passes = int(values["training"]["passes"])
    ids = float(sum(generated_rows.SIZES))
    known = estimate.read_job(values, rows=rows, gigabytes=size / 1e9, passes=passes, ids=ids)
    return job / "output", known, cpu


def main() -> int:
    """Run the training and print the result lines."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PODS])
    settings, known = Settings(), estimate.read_rates()
    with (
        tempfile.TemporaryDirectory(prefix="plan-run-") as name,
        mock.patch.object(estimate, "node_type", return_value=MACHINE),
    ):
        results, job, cpu = train(Path(name) / "run")
        planned, run = (
            estimate.estimate_training(job, settings, PODS, known),
            estimate.cost_of_run(results, settings, known),
        )
        with (results / "metrics.csv").open(encoding="utf-8") as table:
            trained = sum(float(row["seconds"]) for row in csv.DictReader(table)) / PODS
    steps = {step: 3600 * hours for step, hours in planned.hours.items() if step != "data"}
    print("# predicted seconds: " + ", ".join(f"{step} {seconds:.1f}" for step, seconds in steps.items()))
    print(f"# train_us of this run: {run.train_us:.1f}")
    print_ratio("plan_hours", sum(steps.values()), 3600 * run.hours)
    print_ratio("plan_training", steps["training"], trained)
    row_us = job.passes * planned.train.row_us + known["parse_us"]
    print_ratio("plan_cpu", job.rows * row_us / 1e6, cpu)
    return 0


if __name__ == "__main__":
    sys.exit(main())
