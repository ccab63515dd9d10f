"""Measure memory, saving and loading of large embedding tables with one pserver and one trainer.

`python -m benchmarks.embedding_tables [--millions 1] [--brief]` prints

- `ctr_table_memory_<rule>`: megabytes of the pserver per million ids of width 16, compared with Adam's;
- `ctr_table_save_<how>`: CPU seconds of the pservers to save a million ids, compressed as in the product,
  compared with gzip's default level 6, and the bytes per id of each;
- `ctr_table_load`: wall seconds to load a million, compared with saving them;
- `ctr_table_init`: wall seconds to load a million in a new run that starts from the model of an earlier one
  (`training.initModelPath`), compared with `ctr_table_load`.

A rule is an optimizer of the tables: Adam, Adagrad or SGD. `--brief` measures neither Adagrad and SGD nor
gzip's level 6; 20 million ids then took 12 minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks._result_lines import print_ratio
from launcher.paths import Position
from testkit.gang_without_launchers import Process, TrainerProcesses

PROGRAM = """
import numpy as np
import paddle
from launcher.program import Ids, Real

COLUMNS = ("first",)
LABEL = "label"
OPTIONS = {"each": 1000, "rule": "adam"}
MIX = 0x9E3779B97F4A7C15  # a row stands for `each` ids that no other row has

def inputs(job):
    return {"label": Real(), "ids": Ids(job.options["each"])}

def parse(row, job):
    first = int(row["first"]) * job.options["each"]
    return {"label": 0.0, "ids": [(first + n + 1) * MIX % 2**64 for n in range(job.options["each"])]}

def network(data, job):
    own = {"adam": paddle.optimizer.Adam(0.001), "sgd": paddle.optimizer.SGD(0.1),
           "adagrad": paddle.optimizer.Adagrad(0.1, initial_accumulator_value=0.1)}[job.options["rule"]]
    found = job.embedding(data["ids"], 16, "vectors", optimizer=own, pool="mean")
    guess = paddle.static.nn.fc(found, 1, name="guess")
    return guess, paddle.mean(paddle.square(guess - data["label"] - 1))

def metrics(prediction, label):
    return {"rmse": float(np.sqrt(np.mean(np.square(prediction - label))))}

def optimizer(job):
    return paddle.optimizer.Adam(0.001)
"""


def gang(folder: Path, lines: list[str], training: dict[str, Any], **environ: str) -> TrainerProcesses:
    """Return a pserver and a trainer on the rows `lines` (the first 100 are the test set).

    `training` has values of the chart below that key; `environ` further variables.
    """
    data, own = folder / "data", folder / "own"
    (data / "tables").mkdir(parents=True)
    own.mkdir()
    (own / "trainer_config.py").write_text(PROGRAM)
    (data / "train.txt").write_text("".join(f"{line}\n" for line in lines))
    (data / "test.txt").write_text("".join(f"{line}\n" for line in lines[:100]))
    few = {"logPeriod": 1000, "dotPeriod": 1000}
    return TrainerProcesses(folder, [data], own, values={"training": few | training}, environ=environ)


class Watched:
    """Runs a training to its end and reads the pserver's memory and CPU time before and after its checkpoint."""

    def __init__(self, started: TrainerProcesses) -> None:
        self.started = started
        self.resident = self.before = self.after = 0.0
        started.finish(seconds=3600, watch=self._look)

    def _look(self, running: dict[str, Process]) -> None:
        try:
            state = json.loads((self.started.root / "work0" / "progress.json").read_text())
            pserver = psutil.Process(running["0/pserver 0"].pid)
            cpu = sum(pserver.cpu_times()[:4])  # with its child processes
            resident = pserver.memory_info().rss / 1e6
        except (OSError, ValueError, psutil.Error):
            return
        if state["saved"] is None:
            self.resident = max(self.resident, resident)
            if state["state"] not in ("saving", "waiting"):
                self.before = cpu
        elif not self.after:
            self.after = cpu

    @property
    def cpu(self) -> float:
        """Return the CPU seconds that the pserver and its child processes spent to save the checkpoint."""
        return self.after - self.before


def train_and_save(folder: Path, millions: float, rule: str, **environ: str) -> Watched:
    """Train each of `millions` million ids once with the optimizer `rule`, and save a checkpoint."""
    lines = [str(n) for n in range(int(millions * 1000))]
    training = {"passes": 1, "batchSize": 100, "args": [f"--rule={rule}"]}
    return Watched(gang(folder, lines, training, **environ))


def measure_tables(millions: float, brief: bool) -> bool:
    """Run the benchmark and print its result lines; return False if a limit is exceeded."""
    few, kept = 0.001, True
    rules = ("adam",) if brief else ("adam", "adagrad", "sgd")
    memory, saves = {}, {}
    with tempfile.TemporaryDirectory() as root:
        base = train_and_save(Path(root) / "few", few, "adam").resident
        for rule in rules:
            ran = train_and_save(Path(root) / rule, millions, rule)
            memory[rule] = (ran.resident - base) / millions
            if rule == "adam":
                saves["ours"] = ran.cpu / millions, saved_bytes(ran.started) / millions / 1e6
                report_loading(ran.started, millions)
            shutil.rmtree(Path(root) / rule)
        if not brief:
            ran = train_and_save(Path(root) / "level6", millions, "adam", GZIP="-6")
            saves["level6"] = ran.cpu / millions, saved_bytes(ran.started) / millions / 1e6
    for rule, size in memory.items():
        kept &= print_ratio(f"ctr_table_memory_{rule}", size, memory["adam"], " MB a million ids")
    for how, (cpu, size) in saves.items():
        print(f"# saved {how}: {size:.0f} bytes an id")
        theirs = saves["ours" if brief else "level6"][0]
        kept &= print_ratio(f"ctr_table_save_{how}", cpu, theirs, " CPU s a million ids")
    return kept


def saved_bytes(started: TrainerProcesses) -> int:
    """Return the bytes of the tables in the checkpoint that the run `started` saved after its pass."""
    return sum(
        path.stat().st_size for path in (started.output.checkpoint(Position(1)) / "tables").rglob("part-*")
    )


def report_loading(started: TrainerProcesses, millions: float) -> bool:
    """Print `ctr_table_load` of a run that resumes from the checkpoint of `started`, and `ctr_table_init`."""
    [saved] = (float(s) for s in re.findall(r"saved \S+ in (\S+) s", started.log()))
    training = started.values["training"] | {"initModelPath": "earlier/output", "savingPeriod": 1}
    new = replace(started, root=started.root / "new", values={"training": training})
    new.root.mkdir()
    (new.root / "earlier").symlink_to(started.output.root.parent)
    init = time_loading(new)
    shutil.rmtree(new.root)
    shutil.rmtree(started.output.model)
    load = time_loading(replace(started, resume=Position(1), attempt=1))
    kept = print_ratio("ctr_table_load", load / millions, saved / millions, " s a million")
    return print_ratio("ctr_table_init", init / millions, load / millions, " s a million") and kept


def time_loading(gang: TrainerProcesses) -> float:
    """Start `gang`, kill it when the servers have loaded the tables, and return the seconds of the loading."""
    progress = gang.root / "work0" / "progress.json"
    progress.unlink(missing_ok=True)  # an earlier attempt's
    found: list[float] = []

    def look(running: dict[str, Process]) -> None:
        with contextlib.suppress(OSError, ValueError):
            marks = json.loads(progress.read_text())["marks"]
            if "loaded" in marks and not found:
                found.append(marks["loaded"] - marks["joined"])
                for process in running.values():
                    process.kill()

    codes = gang.run(3600, look)
    if not found:
        sys.exit(f"{codes}\n{gang.log()[-3000:]}\n{gang.server_log()[-2000:]}")
    return found[0]


def main() -> int:
    """Run the benchmark and print its result lines; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedding_tables", description=__doc__)
    parser.add_argument("--millions", type=float, default=1.0, help="of ids")
    parser.add_argument("--brief", action="store_true", help="Adam only, compressed as we do")
    given = parser.parse_args()
    return 0 if measure_tables(given.millions, given.brief) else 1


if __name__ == "__main__":
    sys.exit(main())
