"""Threads of a trainer, and tables as they grow: memory, saves and loads. One pserver and one trainer.

`python -m benchmarks.tables [--millions 2] [--only threads|tables]` prints

- `ctr_threads`: seconds of a pass with two threads a trainer beside one (DeepFM on 26 ids and 13 numbers);
  a ratio of 0.714 is 1.4 times the speed;
- `ctr_table_memory_<rule>`: the pserver's megabytes a million ids of width 16, beside Adam's;
- `ctr_table_save_<how>`: the pservers' CPU seconds to save a million of them, compressed as we do beside
  gzip's own level 6, with the bytes an id that each takes;
- `ctr_table_load`: seconds of wall time to load a million beside to save them;
- `ctr_table_begin`: the same of a new run that begins with the model (`training.initFrom`), beside that load.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from benchmarks._lines import say  # noqa: E402
from launcher.layout import Position  # noqa: E402
from tests.launcher.worker.loopback import Loopback  # noqa: E402

ROUNDS = 3
ROWS = 120_000
TICK = os.sysconf("SC_CLK_TCK")
DEEP = """
import numpy as np
import paddle
from launcher.worker.interface import Ids, Real

COLUMNS = ("label", "numbers", "ids")
LABEL = "label"

def inputs(job):
    return {"label": Real(), "numbers": Real(13), "ids": Ids(26)}

def parse(row, job):
    return {"label": float(row["label"]), "numbers": [float(x) for x in row["numbers"].split()],
            "ids": [int(x) for x in row["ids"].split()]}

def network(data, job):
    found = job.embedding(data["ids"], 16, "vectors")
    first = paddle.sum(found[:, :, 0], axis=1, keepdim=True)
    rest = found[:, :, 1:]
    pairs = paddle.square(paddle.sum(rest, 1)) - paddle.sum(paddle.square(rest), 1)
    hidden = paddle.concat([paddle.reshape(found, [-1, 26 * 16]), data["numbers"]], axis=1)
    for number, size in enumerate((64, 32)):
        hidden = paddle.static.nn.fc(hidden, size, activation="relu", name=f"hidden{number}")
    score = paddle.static.nn.fc(hidden, 1, name="score") + first + 0.5 * paddle.sum(pairs, 1, keepdim=True)
    loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(score, data["label"]))
    return paddle.nn.functional.sigmoid(score), loss

def metrics(prediction, label):
    return {"error": float(np.mean((prediction > 0.5) != (label > 0.5)))}

def optimizer(job):
    return paddle.optimizer.Adam(0.001)
"""
WIDE = """
import numpy as np
import paddle
from launcher.worker.interface import Ids, Real

COLUMNS = ("first",)
LABEL = "label"
OPTIONS = {"each": 1000, "rule": "adam"}
MIX = 0x9E3779B97F4A7C15  # a row stands for `each` ids that nobody else has

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


def gang(folder: Path, program: str, lines: list[str], **values: str) -> Loopback:
    """One pserver and one trainer on these rows, of which the first 100 are the test set."""
    data, own = folder / "data", folder / "own"
    (data / "tables").mkdir(parents=True)
    own.mkdir()
    (own / "trainer_config.py").write_text(program)
    (data / "train.txt").write_text("".join(f"{line}\n" for line in lines))
    (data / "test.txt").write_text("".join(f"{line}\n" for line in lines[:100]))
    few = {"PADDLE_LAUNCHER_LOG_PERIOD": "1000", "PADDLE_LAUNCHER_DOT_PERIOD": "1000"}
    return Loopback(folder, [data], own, values=few | values)


class Watched:
    """A run, with the pserver's memory and CPU before and after its save."""

    def __init__(self, started: Loopback) -> None:
        self.started = started
        self.resident = self.before = self.after = 0.0
        codes = started.run(3600, self._look)
        if set(codes.values()) != {0}:
            sys.exit(f"{codes}\n{started.log()[-3000:]}\n{started.server_log()[-2000:]}")

    def _look(self, running: dict[str, subprocess.Popen[bytes]]) -> None:
        try:
            state = json.loads((self.started.root / "work0" / "progress.json").read_text())
            pid = running["0/pserver 0"].pid
            cpu = (
                sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])) / TICK
            )
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6
        except (OSError, ValueError):
            return
        if state["saved"] is None:
            self.resident = max(self.resident, resident)
            if state["state"] != "saving":
                self.before = cpu
        elif not self.after:
            self.after = cpu

    @property
    def cpu(self) -> float:
        """Seconds of the pserver, and of what it started, for the save."""
        return self.after - self.before


def threads() -> bool:
    """Prints `ctr_threads`."""
    rng = random.Random(1)
    lines = []
    for _ in range(ROWS):
        ids = " ".join(str(slot << 32 | int(rng.paretovariate(0.3)) % 100_000 + 1) for slot in range(26))
        numbers = " ".join(f"{rng.random():.3f}" for _ in range(13))
        lines.append(f"{rng.randint(0, 1)}\t{numbers}\t{ids}")
    values = {
        "PADDLE_LAUNCHER_PASSES": "4",
        "PADDLE_LAUNCHER_BATCH_SIZE": "512",
        "PADDLE_LAUNCHER_SAVING_PERIOD": "100",
    }
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for count, seconds in found.items():
            with tempfile.TemporaryDirectory() as folder:
                started = gang(Path(folder), DEEP, lines, **values, TRAINER_COUNT=str(count))
                Watched(started)
                rows = list(csv.DictReader(started.output.metrics_csv.open()))
                seconds.append(statistics.median(float(row["seconds"]) for row in rows[1:]))
    two, one = (statistics.median(found[count]) for count in (2, 1))
    print(f"# {ROWS / one:,.0f} samples/s with one thread, {ROWS / two:,.0f} with two", flush=True)
    return say("ctr_threads", two, one, most=1 / 1.4)


def grown(folder: Path, millions: float, rule: str, **more: str) -> Watched:
    """A run that trains each of so many million ids once, and saves."""
    lines = [str(n) for n in range(int(millions * 1000))]
    values = {
        "PADDLE_LAUNCHER_PASSES": "1",
        "PADDLE_LAUNCHER_BATCH_SIZE": "100",
        "PADDLE_LAUNCHER_EXTRA_ARGS": json.dumps([f"--rule={rule}"]),
    }
    return Watched(gang(folder, WIDE, lines, **values, **more))


def tables(millions: float) -> bool:
    """Prints the other lines."""
    few, kept = 0.001, True
    memory, saves = {}, {}
    with tempfile.TemporaryDirectory() as root:
        base = grown(Path(root) / "few", few, "adam").resident
        for rule in ("adam", "adagrad", "sgd"):
            ran = grown(Path(root) / rule, millions, rule)
            memory[rule] = (ran.resident - base) / millions
            if rule == "adam":
                saves["ours"] = ran.cpu / millions, saved_bytes(ran.started) / millions / 1e6
                loaded(ran.started, millions)
            shutil.rmtree(Path(root) / rule)
        ran = grown(Path(root) / "level6", millions, "adam", GZIP="-6")
        saves["level6"] = ran.cpu / millions, saved_bytes(ran.started) / millions / 1e6
    for rule, size in memory.items():
        kept &= say(f"ctr_table_memory_{rule}", size, memory["adam"], " MB a million ids")
    for how, (cpu, size) in saves.items():
        print(f"# saved {how}: {size:.0f} bytes an id")
        kept &= say(f"ctr_table_save_{how}", cpu, saves["level6"][0], " CPU s a million ids")
    return kept


def saved_bytes(started: Loopback) -> int:
    """Of the tables in the save."""
    return sum(path.stat().st_size for path in (started.output.save(Position(1)) / "tables").rglob("part-*"))


def loaded(started: Loopback, millions: float) -> bool:
    """Prints `ctr_table_load` of a run that goes on from this one's save, and `ctr_table_begin`."""
    [saved] = (float(s) for s in re.findall(r"saved \S+ in (\S+) s", started.log()))
    anew = {"PADDLE_LAUNCHER_INIT_FROM": "earlier/output", "PADDLE_LAUNCHER_SAVING_PERIOD": "1"}
    began = replace(started, root=started.root / "anew", values=started.values | anew)
    began.root.mkdir()
    (began.root / "earlier").symlink_to(started.root)
    begin = loading(began)
    shutil.rmtree(began.root)
    shutil.rmtree(started.output.model)
    load = loading(replace(started, resume=Position(1), attempt=1))
    kept = say("ctr_table_load", load / millions, saved / millions, " s a million")
    return say("ctr_table_begin", begin / millions, load / millions, " s a million") and kept


def loading(gang: Loopback) -> float:
    """Seconds in which a run's tables come to the servers; it is ended then."""
    progress = gang.root / "work0" / "progress.json"
    progress.unlink(missing_ok=True)  # an earlier attempt's
    found: list[float] = []

    def look(running: dict[str, subprocess.Popen[bytes]]) -> None:
        with contextlib.suppress(OSError, ValueError):
            marks = json.loads(progress.read_text())["marks"]
            if "loaded" in marks and not found:
                found.append(marks["loaded"] - marks["met"])
                for process in running.values():
                    process.kill()

    codes = gang.run(3600, look)
    if not found:
        sys.exit(f"{codes}\n{gang.log()[-3000:]}\n{gang.server_log()[-2000:]}")
    return found[0]


def main() -> int:
    """Returns 1 when a limit is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--millions", type=float, default=2.0, help="of ids")
    parser.add_argument("--only", choices=["threads", "tables"])
    given = parser.parse_args()
    kept = []
    if given.only != "tables":
        kept.append(threads())
    if given.only != "threads":
        kept.append(tables(given.millions))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
