"""Measure memory, saving and loading of large embedding tables with one pserver and one trainer.

`python -m benchmarks.embedding_tables [--millions 1] [--brief]` prints, for ids of width 16,

- `ctr_table_memory_<rule>`: megabytes of the pserver per million ids, compared with Adam's;
- `ctr_table_save`: wall seconds from the start of a save of a million ids to the published checkpoint;
- `ctr_table_wait`: those of them in which the training waited;
- `ctr_table_save_cpu`: CPU seconds of the pserver and its child processes to save a million ids;
- `ctr_table_load`: wall seconds to load a million;
- `ctr_table_init`: wall seconds to load a million in a new run that starts from the model of an earlier one
  (`training.initModelPath`).

A rule is an optimizer of the tables: Adam, Adagrad or SGD; `--brief` measures Adam only. All lines but the first are
compared with the goals for 20 million ids: save 15 s, load and start 30 s, wait 2 s.
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

GOALS = {"save": 15 / 20, "wait": 2 / 20, "save_cpu": 1.0, "load": 30 / 20, "init": 30 / 20}
"""Seconds per million ids, of the goals for 20 million."""


def gang(folder: Path, lines: list[str], training: dict[str, Any]) -> TrainerProcesses:
    """Return a pserver and a trainer on the rows `lines` (the first 100 are the test set).

    `training` has values of the chart below that key.
    """
    data, own = folder / "data", folder / "own"
    (data / "tables").mkdir(parents=True)
    own.mkdir()
    (own / "trainer_config.py").write_text(PROGRAM)
    (data / "train.txt").write_text("".join(f"{line}\n" for line in lines))
    (data / "test.txt").write_text("".join(f"{line}\n" for line in lines[:100]))
    few = {"logPeriod": 1000, "dotPeriod": 1000}
    return TrainerProcesses(folder, [data], own, values={"training": few | training})


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


def train_and_save(folder: Path, millions: float, rule: str) -> Watched:
    """Train each of `millions` million ids once with the optimizer `rule`, and save a checkpoint."""
    lines = [str(n) for n in range(int(millions * 1000))]
    training = {"passes": 1, "batchSize": 100, "args": [f"--rule={rule}"]}
    return Watched(gang(folder, lines, training))


def measure_tables(millions: float, brief: bool) -> bool:
    """Run the benchmark and print its result lines; return False if a limit is exceeded."""
    kept = True
    with tempfile.TemporaryDirectory() as root:
        base = train_and_save(Path(root) / "few", 0.001, "adam").resident
        ran = train_and_save(Path(root) / "adam", millions, "adam")
        memory = {"adam": (ran.resident - base) / millions}
        ours = measure_files(ran, millions)
        shutil.rmtree(Path(root) / "adam")
        for rule in () if brief else ("adagrad", "sgd"):
            memory[rule] = (train_and_save(Path(root) / rule, millions, rule).resident - base) / millions
            shutil.rmtree(Path(root) / rule)
    for rule, size in memory.items():
        kept &= print_ratio(f"ctr_table_memory_{rule}", size, memory["adam"], " MB a million ids")
    for what, seconds in ours.items():
        kept &= print_ratio(f"ctr_table_{what}", seconds, GOALS[what], " s a million ids", most=1.0, digits=3)
    return kept


def measure_files(ran: Watched, millions: float) -> dict[str, float]:
    """Return seconds per million ids of the run's save, of a restore, and of a run that starts from its model."""
    started = ran.started
    [(saved, waited)] = re.findall(r"saved \S+ in (\S+) s; training waited (\S+) s", started.log())
    files = (started.output.checkpoint(Position(1)) / "tables").rglob("*")
    size = sum(path.stat().st_size for path in files if path.is_file())
    print(
        f"# {size / millions / 1e6:.0f} bytes an id; saved in {saved} s; training waited {waited} s",
        flush=True,
    )
    training = started.values["training"] | {"initModelPath": "earlier/output", "savingPeriod": 1}
    new = replace(started, root=started.root / "new", values={"training": training})
    new.root.mkdir()
    (new.root / "earlier").symlink_to(started.output.root.parent)
    init = time_loading(new)
    shutil.rmtree(new.root)
    shutil.rmtree(started.output.model)
    load = time_loading(replace(started, resume=Position(1), attempt=1))
    seconds = {"save": float(saved), "wait": float(waited), "save_cpu": ran.cpu, "load": load, "init": init}
    return {what: value / millions for what, value in seconds.items()}


def time_loading(gang: TrainerProcesses) -> float:
    """Start `gang`, kill it when the servers have loaded the tables, and return the seconds of the loading."""
    progress = gang.root / "work0" / "progress.json"
    progress.unlink(missing_ok=True)  # an earlier attempt's
    found: list[float] = []
    cpu: list[float] = []

    def look(running: dict[str, Process]) -> None:
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            marks = json.loads(progress.read_text())["marks"]
            times = [psutil.Process(each.pid).cpu_times() for each in running.values()]
            cpu.append(sum(each.user + each.system for each in times))
            if "joined" not in marks:
                del cpu[:-1]
            if "loaded" in marks and not found:
                found.append(marks["loaded"] - marks["joined"])
                print(f"# loaded in {found[0]:.2f} s with {cpu[-1] - cpu[0]:.2f} s of CPU, both processes")
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
    parser.add_argument("--brief", action="store_true", help="Adam only")
    given = parser.parse_args()
    return 0 if measure_tables(given.millions, given.brief) else 1


if __name__ == "__main__":
    sys.exit(main())
