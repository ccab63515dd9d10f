"""Measure the program ctr: samples per second, CPU time per sample, and the AUC of its model.

`python -m benchmarks.ctr` prints, on generated rows of Criteo's shape (launcher/programs/ctr/generated_rows.py):

- `ctr_<network>_<servers>+<trainers>_<threads>t`: samples/s of all trainers together, with the launcher's
  loop over records (ours), and with Paddle's `train_from_dataset` over text (theirs), on the same program and
  servers. The ratio must be at least 1; it is the median over pairs of passes, one of each kind. `…_cpu` has
  the CPU microseconds per sample of both, trainers and servers together. Both read their rows in the measured
  pass; the records were parsed once, before (benchmark `records`), while Paddle parses in each pass.
- `ctr_sync_<network>_<servers>+<trainers>`: the same with `training.mode: sync` and one thread. Our loop waits in
  each step for all trainers and servers. In this mode `train_from_dataset` waits for nothing, and trains no dense
  parameter: the servers apply dense gradients when all trainers are at their barrier. So its speed is what the
  network needs without any wait, and ours must be at least 0.6 of it. `…_async` compares ours with
  `train_from_dataset` in mode async, which does train the dense parameters; that runs in another gang.
- `ctr_threads_<network>`: microseconds a sample of our loop with two threads compared with one, pass by pass
  in the same gang of one server and one trainer. Then how many cores each of the two kept busy. Two threads must
  be 1.4 times as fast (a ratio of 0.714), or as fast as all cores allow, less a tenth: if one thread and its server
  keep 1.5 of 2 cores busy, two threads can be at most 1.33 times as fast.
- `ctr_pass_<network>_<trainers>`: seconds of a pass over the same rows by one to three trainers, each with a
  server, compared with one trainer. All share this machine's cores.
- `ctr_auc_limit`, `ctr_auc_one_process`: AUC of the model that three ranks train in three passes over a million
  rows, compared with the AUC of the true click probabilities from which the rows were generated (the best
  possible one), and with that of a model trained by one process. It may be at most 0.005 lower than either.
  `--seed` sets the seed of the training's random numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._result_lines import print_ratio
from launcher.dataprep.csv_records import RowPlaces
from launcher.programs.ctr import generated_rows, scores
from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.trainer import program_loader as programs
from launcher.trainer import record_files
from local.paths import CLONE
from testkit.gang_without_launchers import PROGRAMS, Process, TrainerProcesses

CTR = programs.load_program(PROGRAMS / "ctr" / "trainer_config.py", Path("/none"))
NETWORKS = {"small": ("32,16", 120_000), "large": ("400,400,400", 40_000)}  # hidden layers, rows a trainer
BATCH = 512
GAP = 0.005
FASTER, OF_POSSIBLE = 1.4, 0.9
SYNC = 0.6
LEARN = {"rows": 1_000_000, "passes": 3}


@dataclass
class Bench(TrainerProcesses):
    """Pservers and trainers of the program ctr whose trainer processes are benchmarks/_ctr_trainer.py.

    `hows`, `repeats` and `files` are passed on to these processes; see their module.
    """

    hows: tuple[str, ...] = ("ours",)
    repeats: int = 1
    files: list[str] = field(default_factory=list)

    def start_process(self, spec: ProcessSpec) -> Process:
        """Start one process. Trainers read from a file the ids of the pservers, whose CPU time they measure."""
        pids = self.root / "pids.json"
        if spec.role == "trainer":
            task = {"hows": self.hows, "repeats": self.repeats, "files": self.files, "pids": str(pids)}
            env = {**spec.env, "BENCH_CTR": json.dumps(task), "PYTHONPATH": str(CLONE)}
            argv = (sys.executable, "-m", "benchmarks._ctr_trainer")
            return super().start_process(dataclasses.replace(spec, argv=argv, env=env))
        process = super().start_process(spec)
        known = json.loads(pids.read_text()) if pids.exists() else []
        pids.write_text(json.dumps([*known, process.pid]))
        return process


def parse(text: Path) -> record_files.Arrays:
    """Return the rows of a text file as the program ctr parses them."""
    with text.open(encoding="utf-8", newline="\n") as lines:
        found, _ = record_files.parse_records(lines, CTR, RowPlaces(str(text)))
        return record_files.split_inputs(found)


def slots(rows: Path, files: list[Path]) -> None:
    """Write the parsed rows of the file `rows`, alternating, to `files` in Paddle's MultiSlot text format."""
    arrays = parse(rows)
    columns = [
        [f"{array.shape[1]} {' '.join(map(str, row))}" for row in array.tolist()]
        for array in (arrays[name] for name in CTR.inputs)
    ]
    lines = [" ".join(parts) + "\n" for parts in zip(*columns, strict=True)]
    for number, file in enumerate(files):
        file.write_text("".join(lines[number :: len(files)]))


def shards(folder: Path, rows: list[int], threads: int) -> list[Path]:
    """Create a folder of training data for each rank, with so many rows; return the folders.

    The rows in Paddle's format are divided into a file for each thread; ours are one file.
    """
    made = []
    for rank, count in enumerate(rows):
        place = folder / str(rank)
        (place / "tables").mkdir(parents=True)
        generated_rows.make(place / "train.txt", count, seed=rank)
        slots(place / "train.txt", [place / f"slots-{i}.txt" for i in range(threads)])
        made.append(place)
    return made


def measure(
    folder: Path, data: list[Path], hidden: str, threads: int, repeats: int, *hows: str, mode: str = "async"
) -> NDArray[np.float64]:
    """Train with one server and one trainer per folder of `data`; return what each pass cost.

    Args:
        folder: work folder; an existing one is deleted.
        data: the ranks' folders, from `shards`.
        hidden: sizes of the hidden layers, such as `32,16`.
        threads: threads of each trainer.
        repeats: measured passes of each way.
        hows: ways to train (`ours`, `theirs`, `alone`), which alternate: see benchmarks/_ctr_trainer.py.
        mode: value `training.mode`.

    Returns:
        Array of shape [repeats, len(hows), 3]. The columns of the last axis are: samples per second of all
        trainers together; CPU microseconds per sample of the trainers; CPU microseconds per sample of the
        servers.
    """
    training = {"batchSize": BATCH, "mode": mode, "args": [f"--hidden={hidden}"]}
    values = {"trainerCount": threads, "training": training}
    shutil.rmtree(folder, ignore_errors=True)
    gang = Bench(folder, data, PROGRAMS / "ctr", values=values, hows=hows, repeats=repeats)
    gang.files = [f"slots-{i}.txt" for i in range(threads)]
    folder.mkdir(parents=True)
    gang.finish(seconds=300 + 60 * repeats)
    results = [
        [json.loads(line) for line in gang.log(rank).splitlines() if line.startswith('{"how"')]
        for rank in range(len(data))
    ]
    passes = []
    for ranks in zip(*results, strict=True):
        samples = sum(one["samples"] for one in ranks)
        cpu = sum(one["cpu"] for one in ranks), max(one["servers"] for one in ranks)
        rate = samples / max(one["seconds"] for one in ranks)
        passes.append((rate, *(1e6 * seconds / samples for seconds in cpu)))
    return np.array(passes).reshape(repeats, len(hows), 3)


def speed(folder: Path, networks: Iterable[str], repeats: int) -> Iterator[bool]:
    """Print the lines `ctr_<network>_…`; the values are medians of `repeats` passes.

    The launcher's loop and Paddle's `train_from_dataset` train alternating passes.
    """
    for network in networks:
        hidden, rows = NETWORKS[network]
        for ranks in (1, 2):
            for threads in (1, 2):
                place = folder / f"{network}-{ranks}-{threads}"
                data = shards(place / "data", [rows] * ranks, threads)
                hows = ("ours", "theirs", "alone")[: 3 if (ranks, threads) == (1, 2) else 2]
                passes = measure(place / "gang", data, hidden, threads, repeats, *hows)
                yield print_speed(f"ctr_{network}_{ranks}+{ranks}_{threads}t", passes, least=1)
                shutil.rmtree(place)
                if "alone" in hows:
                    yield faster(network, passes[:, 0], passes[:, 2])


def print_speed(name: str, passes: NDArray[np.float64], least: float) -> bool:
    """Print the lines `name` and `<name>_cpu` of passes that `measure` returned; return whether the ratio is kept."""
    (_, *ours_cpu), (theirs, *theirs_cpu) = np.median(passes, axis=0)[:2].tolist()
    ratio = float(np.median(passes[:, 0, 0] / passes[:, 1, 0]))
    kept = print_ratio(name, ratio * theirs, theirs, "/s", least=least, digits=0)
    print_ratio(f"{name}_cpu", sum(ours_cpu), sum(theirs_cpu), "us")
    print(f"# servers' part: {ours_cpu[1]:.1f} us of ours, {theirs_cpu[1]:.1f} of theirs", flush=True)
    return kept


def sync(folder: Path, networks: Iterable[str], repeats: int) -> Iterator[bool]:
    """Print the lines `ctr_sync_…`, by passes that alternate as those of `speed`."""
    for network in networks:
        hidden, rows = NETWORKS[network]
        for ranks in (1, 2):
            place = folder / f"sync-{network}-{ranks}"
            data = shards(place / "data", [rows] * ranks, 1)
            passes = measure(place / "gang", data, hidden, 1, repeats, "ours", "theirs", mode="sync")
            other = measure(place / "async", data, hidden, 1, repeats, "theirs")
            shutil.rmtree(place)
            yield print_speed(f"ctr_sync_{network}_{ranks}+{ranks}", passes, least=SYNC)
            ours, theirs = (float(np.median(found[:, 0, 0])) for found in (passes, other))
            print_ratio(f"ctr_sync_{network}_{ranks}+{ranks}_async", ours, theirs, "/s", digits=0)


def faster(network: str, two: NDArray[np.float64], one: NDArray[np.float64]) -> bool:
    """Print `ctr_threads_<network>`: how much faster two threads train than one; return whether that is enough.

    The passes are arrays of shape [repeats, 3], with the columns that `measure` returns.
    """
    ours, theirs = (1e6 / float(np.median(passes[:, 0])) for passes in (two, one))
    cores = [float(np.median(passes[:, 0] * passes[:, 1:].sum(axis=1))) / 1e6 for passes in (two, one)]
    least = min(FASTER, OF_POSSIBLE * (os.cpu_count() or 1) / cores[1])
    kept = print_ratio(f"ctr_threads_{network}", ours, theirs, "us", most=1 / least)
    print(f"# cores kept busy: {cores[0]:.2f} by two threads, {cores[1]:.2f} by one", flush=True)
    return kept


def trainers(folder: Path, networks: Iterable[str], repeats: int) -> None:
    """Print `ctr_pass_…`: the same rows split among 1, 2 and 3 trainers, each with a server."""
    for network in networks:
        hidden, rows = NETWORKS[network]
        total, found = 3 * rows, {}
        for ranks in (1, 2, 3):
            data = shards(folder / "data", [total // ranks] * ranks, 1)
            ran = measure(folder / "ours", data, hidden, 1, repeats, "ours")
            shutil.rmtree(folder / "data")
            rate, trainer, server = np.median(ran[:, 0], axis=0).tolist()
            found[ranks] = total / rate
            print_ratio(f"ctr_pass_{network}_{ranks}", found[ranks], found[1])
            print(f"# a sample: {trainer:.1f} us CPU of trainers, {server:.1f} us of servers", flush=True)


def _try(train: Path, test: Path, to: Path, passes: int, *more: str) -> dict[str, Any]:
    """Run `python -m launcher try`: train the program in one process."""
    command = [sys.executable, "-m", "launcher", "try", "ctr", "--data", str(train), "--test", str(test)]
    command += [
        "--passes",
        str(passes),
        "--set",
        f"training.batchSize={BATCH}",
        "--to",
        str(to),
        "-o",
        "json",
        *more,
    ]
    done = subprocess.run(command, cwd=CLONE, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def learning(folder: Path, seed: int) -> Iterator[bool]:
    """Print `ctr_auc_…`: three pods and one process on a million generated rows."""
    rows, passes = LEARN["rows"], LEARN["passes"]
    test = folder / "test.txt"
    generated_rows.make(test, rows // 10, seed=99)
    data = []
    for rank in range(3):
        data.append(folder / "learn" / str(rank))
        (data[-1] / "tables").mkdir(parents=True)
        generated_rows.make(data[-1] / "train.txt", rows // 3, seed=rank)
        (data[-1] / "test.txt").symlink_to(test)
    joined = folder / "joined.txt"
    joined.write_bytes(b"".join((place / "train.txt").read_bytes() for place in data))
    best = scores.metrics(*generated_rows.limit(test))["auc"]
    values = {"training": {"passes": passes, "batchSize": BATCH, "args": [f"--seed={seed}"]}}
    gang = TrainerProcesses(folder / "gang", data, PROGRAMS / "ctr", values=values)
    gang.finish(seconds=580)
    ours = json.loads((gang.output.model / "score.json").read_text())["auc"]
    one = _try(joined, test, folder / "one", passes, "--set", f"seed={seed}")
    for name, theirs in (("ctr_auc_limit", best), ("ctr_auc_one_process", one["score"]["auc"])):
        yield print_ratio(name, ours, theirs, "", least=1 - GAP / theirs, digits=4)


def main() -> int:
    """Run the benchmark and print its result lines; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ctr", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="passes of each way")
    parser.add_argument("--network", choices=list(NETWORKS), action="append", help="all by default")
    parser.add_argument("--only", choices=["speed", "sync", "trainers", "learning"])
    parser.add_argument("--seed", type=int, default=1, help="of `learning`")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paddle-training-ctr.") as made:
        folder = Path(made)
        kept: list[bool] = []
        networks = given.network or list(NETWORKS)
        if given.only in (None, "speed"):
            kept += speed(folder, networks, given.repeats)
        if given.only in (None, "sync"):
            kept += sync(folder, networks, given.repeats)
        if given.only in (None, "trainers"):
            trainers(folder, networks, given.repeats)
        if given.only in (None, "learning"):
            kept += learning(folder, given.seed)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
