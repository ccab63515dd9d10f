"""Rows that are parsed once: what that costs, and that a trainer's memory does not grow with them.

`python -m benchmarks.records` prints, on planted rows of Criteo's shape (program ctr):

- `parse_rows`: microseconds of CPU a row, from text to records, beside those of the program's own parse()
  and the cutting of the line alone; the comment says rows a second of one core. At most 2 times as much.
- `parse_cores`: wall time of one process beside that of as many as there are cores. Not more than one's.
- `parse_train`: parsing and then training (1 server, 1 trainer, two passes) beside the training alone.
- `memory_rows`: resident memory of a process that loads the program and reads a pass in batches, with 10
  million rows beside 1 million; at most 50 MB more. (The former are the latter ten times, by links.)
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._lines import say
from launcher.data import fields
from launcher.programs.ctr import planted
from launcher.worker import convert
from launcher.worker import program as programs
from launcher.worker.records import INDEX
from tests.launcher.worker.loopback import PROGRAMS, ROOT, Loopback

CTR = PROGRAMS / "ctr" / "trainer_config.py"
PARSED = 200_000
TRAINED = 200_000
MEMORY = 1_000_000
TIMES = 10
BATCH = 512
MORE_MB = 50.0
READ = """
import json, re, sys
from pathlib import Path
from launcher.worker import program, samples
from launcher.worker.records import INDEX, Records
config, folder, batch = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
loaded = program.load(config, config.parent / "tables")
key = json.loads((folder / INDEX).read_text())["key"]
rows = Records.open(folder, samples.row_type(loaded.inputs), key)
count = sum(len(arrays[loaded.label]) for arrays in rows.batches(rows.rows // batch, (1, 0, 0)))
assert count == rows.rows
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def parsing(folder: Path) -> bool:
    """The two lines of parsing."""
    program = programs.load(CTR, folder / "tables")
    text = folder / "train.txt"
    planted.make(text, PARSED, seed=1)
    began = time.process_time()
    with text.open() as file:
        for line in file:
            program.module.parse(dict(zip(program.columns, fields(line), strict=True)), program.job)
    theirs = time.process_time() - began
    began, wall = time.process_time(), time.monotonic()
    convert.prepare(program, text, folder / "one", "rows", processes=1)
    ours, alone = time.process_time() - began, time.monotonic() - wall
    kept = say("parse_rows", 1e6 * ours / PARSED, 1e6 * theirs / PARSED, "us", most=2.0)
    print(f"# {PARSED / ours:,.0f} rows a second of one core", flush=True)
    wall = time.monotonic()
    cores = len(os.sched_getaffinity(0))
    convert.prepare(program, text, folder / "all", "rows", processes=cores)
    kept &= say("parse_cores", time.monotonic() - wall, alone, most=1.0 if cores > 1 else None)
    print(f"# {cores} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    return kept


def training(folder: Path) -> bool:
    """Parse and train, beside train alone."""
    data = folder / "data"
    (data / "tables").mkdir(parents=True)
    planted.make(data / "train.txt", TRAINED, seed=2)
    planted.make(data / "test.txt", 1000, seed=3)
    values = {"PADDLE_LAUNCHER_PASSES": "2", "PADDLE_LAUNCHER_BATCH_SIZE": str(BATCH)}
    gang = Loopback(folder, [data], PROGRAMS / "ctr", values=values)
    codes = gang.run(400)
    if set(codes.values()) != {0}:
        sys.exit(f"the training failed: {codes}\n{gang.log()[-3000:]}")
    found = re.search(r"train\.txt: parsed [\d,]+ rows in ([\d.]+) s", gang.log())
    assert found is not None
    passes = sum(float(seconds) for seconds in re.findall(r"^.*Pass=.* seconds=([\d.]+)", gang.log(), re.M))
    return say("parse_train", passes + float(found[1]), passes)


def memory(folder: Path) -> bool:
    """Both sizes."""
    program = programs.load(CTR, folder / "tables")
    text = folder / "train.txt"
    planted.make(text, MEMORY, seed=4)
    few, many = folder / "few", folder / "many"
    convert.prepare(program, text, few, "rows")
    text.unlink()
    many.mkdir()
    index = json.loads((few / INDEX).read_text())
    parts = []
    for again, part in itertools.product(range(TIMES), index["files"]):
        name = f"{again}-{part['name']}"
        (many / name).hardlink_to(few / part["name"])
        parts.append({**part, "name": name})
    (many / INDEX).write_text(json.dumps({**index, "files": parts}))
    used = []
    for place in (few, many):
        command = [sys.executable, "-c", READ, str(CTR), str(place), str(BATCH)]
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        used.append(int(done.stdout) * 1024 / 1e6)
        rows = MEMORY * (TIMES if place is many else 1)
        print(f"# a pass of {rows:,} rows was read in {time.monotonic() - began:.1f} s", flush=True)
    return say("memory_rows", used[1], used[0], "MB", limit=used[0] + MORE_MB)


def main() -> int:
    """Prints the lines; returns 1 when a limit is not kept."""
    kept = []
    for measure in (parsing, training, memory):
        with tempfile.TemporaryDirectory(prefix="records-") as name:
            kept.append(measure(Path(name)))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
