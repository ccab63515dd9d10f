"""Program ctr: how fast, at what cost, and how well it learns.

`python -m benchmarks.ctr` prints, on planted rows of Criteo's shape (launcher/programs/ctr/planted.py):

- `ctr_<network>_<servers>+<trainers>_<threads>t`: samples/s of all trainers together, by our loop over
  records, and by Paddle's own `train_from_dataset` over its text form, on the same program and servers;
  at least 1: the median of pairs of passes, one of each after the other.
  Then CPU microseconds a sample of both (`_cpu`), trainers and servers together. Both read their rows in the
  measured pass; ours were parsed once, before (lines `parse_…`), while Paddle parses in each pass.
- `ctr_threads_<network>`: microseconds a sample of our loop with two threads beside one, pass by pass in the
  same gang of one server and one trainer, which need two cores. A ratio of 0.714 is 1.4 times the speed. Then
  how many cores each of the two kept busy.
- `ctr_pass_<network>_<trainers>`: seconds of a pass over the same rows by one to three trainers, each with a
  server, beside one trainer. All share this machine's cores.
- `ctr_torch`: samples/s of one server and one trainer, large network, beside the same network in one process
  of PyTorch (sparse embedding), if BENCH_TORCH names a Python that has it.
- `ctr_auc_limit`, `ctr_auc_one_process`: AUC of the model of three pods after three passes over a million
  rows, beside the planted model's own on the same test rows, and that of one process of ours. Limit: 0.005
  below. `--seed` starts the program with another one.
"""

from __future__ import annotations

import argparse
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

from benchmarks._lines import say
from launcher.programs.ctr import planted, scores
from launcher.runtimes.base import ProcessSpec
from launcher.served import kernels
from launcher.worker import program as programs
from launcher.worker import samples
from tests.launcher.worker.loopback import PROGRAMS, ROOT, Loopback, Process

CTR = programs.load(PROGRAMS / "ctr" / "trainer_config.py", Path("/none"))
PORT = "23640"
NETWORKS = {"small": ("32,16", 120_000), "large": ("400,400,400", 40_000)}  # hidden layers, rows a trainer
BATCH = 512
GAP = 0.005
FASTER = 1.4
LEARN = {"rows": 1_000_000, "passes": 3}


@dataclass
class Bench(Loopback):
    """A gang whose trainers are benchmarks/_ctr_trainer.py."""

    forked: bool = False
    hows: tuple[str, ...] = ("ours",)
    repeats: int = 1
    files: list[str] = field(default_factory=list)

    def start(self, specs: list[ProcessSpec]) -> list[tuple[ProcessSpec, Process]]:
        pids = self.root / "pids.json"
        told = json.dumps(
            {"hows": self.hows, "repeats": self.repeats, "files": self.files, "pids": str(pids)}
        )
        started: list[tuple[ProcessSpec, Process]] = []
        for spec in specs:
            changed = spec
            if spec.role == "trainer":
                env = {**spec.env, "BENCH_CTR": told, "PYTHONPATH": str(ROOT)}
                changed = ProcessSpec(
                    **{**spec.__dict__, "argv": ("", "-m", "benchmarks._ctr_trainer"), "env": env}
                )
            started += super().start([changed])
        known = json.loads(pids.read_text()) if pids.exists() else []
        known += [process.pid for spec, process in started if spec.role == "pserver"]
        pids.write_text(json.dumps(known))
        return started


def slots(rows: Path, files: list[Path]) -> None:
    """The rows of a file in Paddle's MultiSlot text, as the program ctr sees them, dealt to some files."""
    arrays = samples.read(rows, CTR).arrays
    columns = [
        [f"{array.shape[1]} {' '.join(map(str, row))}" for row in array.tolist()]
        for array in (arrays[name] for name in CTR.inputs)
    ]
    lines = [" ".join(parts) + "\n" for parts in zip(*columns, strict=True)]
    for number, file in enumerate(files):
        file.write_text("".join(lines[number :: len(files)]))


def shards(folder: Path, rows: list[int], threads: int) -> list[Path]:
    """One staged folder a rank, with so many rows as our text and as Paddle's."""
    made = []
    for rank, count in enumerate(rows):
        place = folder / str(rank)
        (place / "tables").mkdir(parents=True)
        planted.make(place / "train.txt", count, seed=rank)
        slots(place / "train.txt", [place / f"slots-{i}.txt" for i in range(threads)])
        made.append(place)
    return made


def measure(
    folder: Path, data: list[Path], hidden: str, threads: int, repeats: int, *hows: str
) -> NDArray[np.float64]:
    """Shape [repeats, hows, 3]: samples a second of all trainers; CPU microseconds a sample of trainers, and
    of servers."""
    values = {
        "PADDLE_LAUNCHER_BATCH_SIZE": str(BATCH),
        "TRAINER_COUNT": str(threads),
        "CONF_PADDLE_PORT": PORT,
        "PADDLE_LAUNCHER_EXTRA_ARGS": json.dumps([f"--hidden={hidden}"]),
    }
    shutil.rmtree(folder, ignore_errors=True)
    gang = Bench(folder, data, PROGRAMS / "ctr", values=values, hows=hows, repeats=repeats)
    gang.files = [f"slots-{i}.txt" for i in range(threads)]
    folder.mkdir(parents=True)
    codes = gang.run(300 + 60 * repeats)
    if set(codes.values()) != {0}:
        sys.exit(f"{hows} failed: {codes}\n{gang.log()[-3000:]}")
    told = [
        [json.loads(line) for line in gang.log(rank).splitlines() if line.startswith('{"how"')]
        for rank in range(len(data))
    ]
    passes = []
    for ranks in zip(*told, strict=True):
        samples = sum(one["samples"] for one in ranks)
        cpu = sum(one["cpu"] for one in ranks), max(one["servers"] for one in ranks)
        rate = samples / max(one["seconds"] for one in ranks)
        passes.append((rate, *(1e6 * seconds / samples for seconds in cpu)))
    return np.array(passes).reshape(repeats, len(hows), 3)


def speed(folder: Path, networks: Iterable[str], repeats: int) -> Iterator[bool]:
    """All combinations, ours and theirs in turn; medians of `repeats`."""
    for network in networks:
        hidden, rows = NETWORKS[network]
        for ranks in (1, 2):
            for threads in (1, 2):
                place = folder / f"{network}-{ranks}-{threads}"
                data = shards(place / "data", [rows] * ranks, threads)
                hows = ("ours", "theirs", "alone")[: 3 if (ranks, threads) == (1, 2) else 2]
                passes = measure(place / "gang", data, hidden, threads, repeats, *hows)
                (ours, *ours_cpu), (theirs, *theirs_cpu) = np.median(passes, axis=0)[:2].tolist()
                ratio = float(np.median(passes[:, 0, 0] / passes[:, 1, 0]))
                name = f"ctr_{network}_{ranks}+{ranks}_{threads}t"
                kept = ratio >= 1
                print(
                    f"{name} ratio={ratio:.3f} ours={ours:.0f}/s theirs={theirs:.0f}/s least=1 "
                    f"{'ok' if kept else 'TOO LITTLE'}",
                    flush=True,
                )
                say(f"{name}_cpu", sum(ours_cpu), sum(theirs_cpu), "us")
                print(
                    f"# servers' part: {ours_cpu[1]:.1f} us of ours, {theirs_cpu[1]:.1f} of theirs",
                    flush=True,
                )
                shutil.rmtree(place)
                yield kept
                if "alone" in hows:
                    yield faster(network, passes[:, 0], passes[:, 2])


def faster(network: str, two: NDArray[np.float64], one: NDArray[np.float64]) -> bool:
    """Prints `ctr_threads_…` of passes by two threads and by one, shape [repeats, 3] each."""
    ours, theirs = (1e6 / float(np.median(passes[:, 0])) for passes in (two, one))
    kept = say(f"ctr_threads_{network}", ours, theirs, "us", most=1 / FASTER)
    cores = [float(np.median(passes[:, 0] * passes[:, 1:].sum(axis=1))) / 1e6 for passes in (two, one)]
    print(f"# cores kept busy: {cores[0]:.2f} by two threads, {cores[1]:.2f} by one", flush=True)
    return kept


def trainers(folder: Path, networks: Iterable[str], repeats: int) -> None:
    """The same rows dealt to 1, 2 and 3 trainers, each with a server."""
    for network in networks:
        hidden, rows = NETWORKS[network]
        total, found = 3 * rows, {}
        for ranks in (1, 2, 3):
            data = shards(folder / "data", [total // ranks] * ranks, 1)
            ran = measure(folder / "ours", data, hidden, 1, repeats, "ours")
            shutil.rmtree(folder / "data")
            rate, trainer, server = np.median(ran[:, 0], axis=0).tolist()
            found[ranks] = total / rate
            say(f"ctr_pass_{network}_{ranks}", found[ranks], found[1])
            print(f"# a sample: {trainer:.1f} us CPU of trainers, {server:.1f} us of servers", flush=True)


def torch(folder: Path) -> None:
    """One server and one trainer of ours, and one process of PyTorch's, on the same rows."""
    python = os.environ.get("BENCH_TORCH", "")
    if not python:
        print("# ctr_torch was not measured: BENCH_TORCH names no Python that has PyTorch and numpy")
        return
    hidden, rows = NETWORKS["large"]
    data = shards(folder / "torch", [rows], 1)
    arrays = samples.read(data[0] / "train.txt", CTR).arrays
    unique, places = np.unique(arrays.pop("ids"), return_inverse=True)
    np.savez(folder / "torch.npz", ids=places.reshape(rows, -1), known=len(unique), **arrays)
    kernels.take_fast()  # what we ask of our MKL is asked of PyTorch's, too
    theirs = _json([python, "benchmarks/_ctr_torch.py", str(folder / "torch.npz"), hidden, str(BATCH)])
    ours, *ours_cpu = measure(folder / "torch-ours", data, hidden, 1, 1, "ours")[0, 0].tolist()
    print(
        f"ctr_torch ratio={ours / theirs['rate']:.3f} ours={ours:.0f}/s theirs={theirs['rate']:.0f}/s",
        flush=True,
    )
    say("ctr_torch_cpu", sum(ours_cpu), theirs["cpu"], "us")


def _try(train: Path, test: Path, to: Path, passes: int, *more: str) -> dict[str, Any]:
    """`python -m launcher try`: the program in one process."""
    command = [sys.executable, "-m", "launcher", "try", "ctr", "--data", str(train), "--test", str(test)]
    command += ["--passes", str(passes), "--batch-size", str(BATCH), "--to", str(to), "-o", "json", *more]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def _json(argv: list[str]) -> dict[str, float]:
    done = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def learning(folder: Path, seed: int) -> Iterator[bool]:
    """Three pods and one process on a million planted rows."""
    rows, passes = LEARN["rows"], LEARN["passes"]
    test = folder / "test.txt"
    planted.make(test, rows // 10, seed=99)
    data = []
    for rank in range(3):
        data.append(folder / "learn" / str(rank))
        (data[-1] / "tables").mkdir(parents=True)
        planted.make(data[-1] / "train.txt", rows // 3, seed=rank)
        (data[-1] / "test.txt").symlink_to(test)
    whole = folder / "whole.txt"
    whole.write_bytes(b"".join((place / "train.txt").read_bytes() for place in data))
    best = scores.metrics(*planted.limit(test))["auc"]
    values = {
        "PADDLE_LAUNCHER_PASSES": str(passes),
        "PADDLE_LAUNCHER_BATCH_SIZE": str(BATCH),
        "CONF_PADDLE_PORT": PORT,
        "PADDLE_LAUNCHER_EXTRA_ARGS": json.dumps([f"--seed={seed}"]),
    }
    gang = Loopback(folder / "gang", data, PROGRAMS / "ctr", values=values, forked=False)
    codes = gang.run(580)
    if set(codes.values()) != {0}:
        sys.exit(f"three pods failed: {codes}\n{gang.log()[-3000:]}")
    ours = json.loads((gang.output.model / "score.json").read_text())["auc"]
    one = _try(whole, test, folder / "one", passes, "--set", f"seed={seed}")
    for name, theirs in (("ctr_auc_limit", best), ("ctr_auc_one_process", one["score"]["auc"])):
        kept = ours >= theirs - GAP
        print(
            f"{name} ratio={ours / theirs:.4f} ours={ours:.4f} theirs={theirs:.4f} limit={theirs - GAP:.4f} "
            f"{'ok' if kept else 'TOO LITTLE'}",
            flush=True,
        )
        yield kept


def main() -> int:
    """Returns 1 when a limit is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ctr", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="passes of each way")
    parser.add_argument("--network", choices=list(NETWORKS), action="append", help="all by default")
    parser.add_argument("--only", choices=["speed", "trainers", "learning", "torch"])
    parser.add_argument("--seed", type=int, default=1, help="of `learning`")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paddle-training-ctr.") as made:
        folder = Path(made)
        kept: list[bool] = []
        networks = given.network or list(NETWORKS)
        if given.only in (None, "speed"):
            kept += speed(folder, networks, given.repeats)
        if given.only in (None, "trainers"):
            trainers(folder, networks, given.repeats)
        if given.only in (None, "torch"):
            torch(folder)
        if given.only in (None, "learning"):
            kept += learning(folder, given.seed)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
