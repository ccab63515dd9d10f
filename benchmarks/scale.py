"""Measure traffic, memory and CPU time by the number of pods: the rates with which `make plan` estimates.

`python -m benchmarks.scale` prints, compared with the values of aws/rates.yaml (DeepFM of program ctr, all
ids of a batch are different, one trainer and one or eight servers, batches of 512 rows and of 4096):

- `scale_wire_row`, `scale_wire_batch`: bytes between a trainer and its servers, in both directions: per row
  (its ids, vectors and gradients), and per batch (the dense parameters);
- `scale_message`: CPU microseconds of trainer and server for each batch and server;
- `scale_memory`: megabytes of a trainer with eight servers, compared with one;
- `scale_estimate`: bytes per row with batches of 2048, compared with the estimate from the first two results;

and the table of docs/explanation/scale.md (`--table`: nothing else). All traffic of the machine's loopback
is counted, so it runs in a network namespace of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from aws import training_estimate as estimate
from benchmarks._result_lines import print_ratio
from launcher.programs.ctr import generated_rows
from local.gang_without_launchers import PROGRAMS, Process, TrainerProcesses
from local.paths import CLONE

ROWS = 80_000
BATCH, MIDDLE, LARGE = 512, 2048, 4096
SERVERS = 8
PODS = (30, 300)
IDS = 1e9
CORES = 2.0


@dataclass(frozen=True)
class Spent:
    """What a number of batches cost: CPU seconds of trainer and servers together (`cpu`), bytes sent over loopback
    (`wire`), and resident bytes of the trainer at the end (`memory`).
    """

    batches: int
    cpu: float
    wire: float
    memory: float
    """Bytes of the trainer."""


def measure(folder: Path, data: Path, servers: int, batch: int) -> Spent:
    """Train two passes with one trainer and `servers` servers; return what one batch of the second pass cost."""
    values = {
        "CONF_PADDLE_PORTS_NUM": str(servers),
        "CONF_PADDLE_PORTS_NUM_SPARSE": str(servers),
        "PADDLE_LAUNCHER_BATCH_SIZE": str(batch),
        "PADDLE_LAUNCHER_PASSES": "2",
        "PADDLE_LAUNCHER_SAVING_PERIOD": "2",
    }
    gang = TrainerProcesses(folder, [data], PROGRAMS / "ctr", values=values)
    progress = gang.settings(0).work.progress
    seen: list[Spent] = []
    last = [0]

    def watch(running: dict[str, Process]) -> None:
        try:
            changed = progress.stat().st_mtime_ns
            if changed == last[0]:
                return
            last[0] = changed
            state = json.loads(progress.read_text())
            processes = {name: psutil.Process(process.pid) for name, process in running.items()}
            cpu = sum(sum(process.cpu_times()[:2]) for process in processes.values())
            memory = processes["0/trainer"].memory_info().rss
        except (OSError, ValueError, psutil.Error):
            return
        if state["pass"] == 1 and state["state"] not in (
            "testing",
            "waiting",
        ):  # states that begin while gradients are still being sent
            seen.append(Spent(state["batch"], cpu, wire(), memory))
            if state["state"] == "saving":  # only the pass itself is measured
                for process in running.values():
                    process.kill()

    codes = gang.run(600, watch)
    if len(seen) < 2:
        sys.exit(f"{servers} servers: {codes}, {len(seen)} samples\n{gang.log()[-3000:]}")
    shutil.rmtree(folder)
    first, end = seen[0], seen[-1]
    batches = end.batches - first.batches
    cpu, sent = (end.cpu - first.cpu) / batches, (end.wire - first.wire) / batches
    print(f"# {servers} servers, {batches} batches of {batch}: {1e3 * cpu:.2f} ms CPU each")
    return Spent(1, cpu, sent, end.memory)


def wire() -> float:
    """Return the bytes that were sent over loopback so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return float(next(line for line in lines if line.strip().startswith("lo:")).split(":")[1].split()[0])


def rows(file: Path) -> None:
    """Write ROWS rows of Criteo's format to `file`, with random ids that hardly ever occur twice."""
    clicks, ids, counts = generated_rows.rows(0, ROWS, day=0, seed=0)
    ids = np.random.default_rng(1).integers(1, 1 << 32, ids.shape)
    file.write_text(generated_rows.text(clicks, ids, counts))


def constants(folder: Path) -> None:
    """Measure the rates and print a result line for each."""
    known = estimate.read_rates()
    data = folder / "data"
    (data / "tables").mkdir(parents=True)
    rows(data / "train.txt")
    (data / "test.txt").write_text("".join((data / "train.txt").read_text().splitlines(True)[:100]))
    runs = ((1, BATCH), (1, MIDDLE), (1, LARGE), (SERVERS, BATCH))
    small, middle, large, many = (measure(folder / "run", data, *run) for run in runs)
    row = (large.wire - small.wire) / (LARGE - BATCH)
    print_ratio("scale_wire_row", row, known["wire_row"], " bytes")
    print_ratio("scale_wire_batch", small.wire - BATCH * row, known["wire_batch"], " bytes")
    print_ratio("scale_message", 1e6 * (many.cpu - small.cpu) / (SERVERS - 1), known["message_us"], "us")
    print_ratio("scale_memory", many.memory / 1e6, small.memory / 1e6, "MB")
    print_ratio("scale_estimate", middle.wire / MIDDLE, estimate.bytes_per_row(MIDDLE, known), " bytes")


def table() -> None:
    """Print the table of docs/explanation/scale.md."""
    known = estimate.read_rates()
    columns = [(pods, batch) for pods in PODS for batch in (BATCH, LARGE)]
    jobs = [estimate.TrainingJob(rows=0, gigabytes=0, passes=1, ids=IDS, batch=batch) for _, batch in columns]
    loads = [estimate.pod_load(pods, CORES, job, known) for (pods, _), job in zip(columns, jobs, strict=True)]
    print("| pods, batch | " + " | ".join(f"{pods}, {batch}" for pods, batch in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, cells in (
        ("memory per pod, GiB", [f"{each.memory_gib:.2f}" for each in loads]),
        ("CPU per row, µs", [f"{each.row_us:.0f}" for each in loads]),
        (
            "of it for messages to further pservers",
            [f"{1 - known['train_us'] / each.row_us:.0%}" for each in loads],
        ),
        ("network per pod and direction, MB/s", [f"{each.network_mb:.0f}" for each in loads]),
        (
            "rows per second, all pods",
            [f"{each.rows * pods:,.0f}" for each, (pods, _) in zip(loads, columns, strict=True)],
        ),
    ):
        print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> int:
    """Measure in a separate network namespace; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--table", action="store_true", help="only the table, from aws/rates.yaml")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.table and not given.inside:
        own = ["unshare", "--net", "--map-root-user", sys.executable, "-m", "benchmarks.scale", "--inside"]
        os.chdir(CLONE)
        os.execvp(own[0], own)  # so that a signal reaches the process that measures
    if given.inside:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        with tempfile.TemporaryDirectory(prefix="scale-") as folder:
            constants(Path(folder))
    table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
