"""Compare a sweep of 12 trials one after the other with `--parallel 3`, and with pruning, on the local cluster.

`python -m benchmarks.sweeps` runs the command `sweep` three times with the same 12 values of `learning_rate` for
`quick_start` (`--sampler grid`, one trainer a trial). It prints

- `sweep_parallel_seconds`: `--parallel 3` beside `--parallel 1`. Limit where the processors allow it: 0.4.
- `sweep_pruned_seconds`: `--parallel 3 --pruner asha` beside `--parallel 1`. Limit: 0.25.
- `sweep_pruned_score`: the best error of the pruned sweep beside that of the first one. Limit: 1.02.

`floor` is the smallest ratio that this machine's processors allow without pruning: the CPU time of the first sweep,
spread over all processors, divided by its seconds. A trial takes about 40 s, so that the training takes most of it: a
pruned trial saves only that. The benchmark needs `make cluster`, and takes about 15 minutes;
`python -m benchmarks.sweeps parallel` runs one sweep and prints its seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from benchmarks._cluster_gang import prepare_cluster
from benchmarks._result_lines import print_ratio
from launcher.cli.releases import merge_values
from testkit.local_cluster import CHART, Cluster, Training, find_cluster

RATES = [0.0001 * 2**power for power in range(12)]
PASSES, DEADLINE = 81, 1200.0
OPTIONS = {
    "serial": ("--parallel", "1"),
    "parallel": ("--parallel", "3"),
    "pruned": ("--parallel", "3", "--pruner", "asha"),
}


@dataclass
class Measured:
    """One sweep: its seconds, the CPU seconds of the machine meanwhile, its best error, and the results of trials."""

    seconds: float
    cpu: float
    error: float
    states: list[str]


def busy_seconds() -> float:
    """Return the CPU seconds that all processes of this machine have used."""
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice + times.softirq + times.irq)


def install_base(cluster: Cluster, namespace: str) -> Training:
    """Install a release whose image and storage the trials use; its own training is suspended."""
    cluster.kubectl("create", "namespace", namespace)
    values = yaml.safe_load((CHART / "examples" / "quick_start.yaml").read_text())
    base = {
        **{
            "image": cluster.image,
            "imagePullPolicy": "Never",
            "jobName": namespace,
            "data": {"enabled": False},
        },
        **{"storage": {"type": "hostPath", "hostPath": {"path": str(cluster.shared)}}, "trainers": 1},
        "resources": {"requests": {"cpu": "999"}},
    }
    training = Training(cluster, namespace, merge_values(values, base))
    training.upgrade()
    job = training.described()["k8sJob"]
    cluster.objects.patch("jobs", namespace, job, {"spec": {"suspend": True}})
    return training


def measure_sweep(kind: str, folder: Path) -> Measured:
    """Run one sweep in a namespace of its own, and remove everything that it made."""
    cluster = find_cluster()
    base = install_base(cluster, f"bench-sweep-{kind}")
    values = yaml.safe_load((CHART / "examples" / "quick_start.yaml").read_text())
    file, name = folder / "values.yaml", f"bench-sw-{kind}"
    file.write_text(yaml.safe_dump({**values, "jobName": name, "trainers": 1}))
    words = [
        "python",
        "-m",
        "launcher",
        "sweep",
        "quick_start",
        "--no-check",
        "-n",
        base.namespace,
        "-f",
        str(file),
    ]
    words += ["--search", "learning_rate=" + ",".join(map(repr, RATES)), "--sampler", "grid", "--by", "error"]
    words += ["--passes", str(PASSES), "-o", "json", *OPTIONS[kind]]
    try:
        started, cpu = time.monotonic(), busy_seconds()
        done = subprocess.run(
            words,
            cwd=folder,
            env=cluster.env,
            stdout=subprocess.PIPE,
            timeout=DEADLINE,
            check=True,
            text=True,
        )
        seconds, cpu = time.monotonic() - started, busy_seconds() - cpu
        trials = json.loads(done.stdout)["trials"]
        error = min(trial["value"] for trial in trials if trial["state"] == "complete")
        return Measured(seconds, cpu, error, [trial["state"] for trial in trials])
    finally:
        base.remove()
        for job in cluster.shared.glob(f"{name}-*"):
            shutil.rmtree(job)
        (cluster.shared / ".sweeps" / f"{name}.journal").unlink(missing_ok=True)


def main() -> int:
    """Run the sweeps of the command line, or all; return the exit code."""
    if not prepare_cluster():
        print("there is no local cluster. Fix: make cluster", file=sys.stderr)
        return 1
    measured = {}
    for kind in sys.argv[1:] or OPTIONS:
        with tempfile.TemporaryDirectory(prefix=f"bench-sweep-{kind}.") as folder:
            measured[kind] = one = measure_sweep(kind, Path(folder))
        pruned = one.states.count("pruned")
        print(
            f"# {kind}: {one.seconds:.0f} s, {one.cpu:.0f} CPU seconds on {os.cpu_count()} processors, best error "
            f"{one.error:.4f}, {pruned} pruned",
            flush=True,
        )
    if measured.keys() < OPTIONS.keys():
        return 0
    serial, parallel, pruned_sweep = (measured[kind] for kind in OPTIONS)
    print(f"# floor: {serial.cpu / (os.cpu_count() or 1) / serial.seconds:.2f}")
    print_ratio("sweep_parallel_seconds", parallel.seconds, serial.seconds)
    print_ratio("sweep_pruned_seconds", pruned_sweep.seconds, serial.seconds)
    print_ratio("sweep_pruned_score", pruned_sweep.error, serial.error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
