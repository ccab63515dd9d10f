"""Measure the cost of parsing rows once, and that a trainer's memory does not grow with the rows.

`python -m benchmarks.records` prints, for generated rows of Criteo's format (program ctr):

- `parse_rows`: CPU microseconds per row from text to records, compared with the program's own parse() and
  splitting of the line alone; the comment contains rows per second and core. Limit of the ratio: 2.
- `parse_parquet`: CPU microseconds per row of the same rows as record batches of a Parquet file, with the program's
  parse_columns(), compared with `parse_rows`. Limit of the ratio: 0.5.
- `parse_cores`: wall time of parsing with one process per core, compared with one process. On more than one
  core it must not take longer.
- `parse_train`: parsing and then training (1 server, 1 trainer, two passes), compared with training alone.
- `memory_rows`: resident memory of a process that loads the program and reads a pass in batches, with 10
  million rows compared with 1 million; limit 50 MB more. (The 10 million are the same rows ten times, by
  links.)
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

from benchmarks._result_lines import print_ratio
from launcher.dataprep.csv_records import split_fields
from launcher.programs.ctr import generated_rows
from launcher.trainer import conversion, record_files
from launcher.trainer import program_loader as programs
from launcher.trainer.record_files import INDEX, RecordFile, Records
from local.paths import CLONE
from testkit.criteo_parquet import write_as_parquet
from testkit.gang_without_launchers import PROGRAMS, TrainerProcesses

CTR = PROGRAMS / "ctr" / "trainer_config.py"
PARSED = 200_000
TRAINED = 200_000
MEMORY = 1_000_000
TIMES = 10
BATCH = 512
MORE_MB = 50.0
READ = """
import json, os, sys
from pathlib import Path
from benchmarks._processes import peak_megabytes
from launcher.trainer import program_loader
from launcher.trainer import record_files
from launcher.trainer.record_files import INDEX, Records
config, folder, batch = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
loaded = program_loader.load_program(config, config.parent / "tables")
key = json.loads((folder / INDEX).read_text())["key"]
rows = Records.open(folder, record_files.record_dtype(loaded.inputs), key)
count = sum(len(arrays[loaded.label]) for arrays in rows.batches(rows.rows // batch, (1, 0, 0)))
assert count == rows.rows
print(peak_megabytes(os.getpid()))
"""


def measure_parsing(folder: Path) -> bool:
    """Print `parse_rows`, `parse_parquet` and `parse_cores`; return False if a limit is exceeded."""
    program = programs.load_program(CTR, folder / "tables")
    text = folder / "train.txt"
    generated_rows.make(text, PARSED, seed=1)
    began = time.process_time()
    with text.open() as file:
        for line in file:
            program.module.parse(dict(zip(program.columns, split_fields(line), strict=True)), program.job)
    theirs = time.process_time() - began
    began, wall = time.process_time(), time.monotonic()
    conversion.convert_text(program, text, "rows", folder / "one", processes=1)
    ours, alone = time.process_time() - began, time.monotonic() - wall
    kept = print_ratio("parse_rows", 1e6 * ours / PARSED, 1e6 * theirs / PARSED, "us", most=2.0)
    print(f"# {PARSED / ours:,.0f} rows a second of one core", flush=True)
    typed = folder / "parquet" / "train.txt"
    typed.parent.mkdir()
    with text.open() as file:
        write_as_parquet(file, typed)
    began = time.process_time()
    conversion.convert_text(program, typed, "rows", folder / "typed", processes=1)
    by_column = time.process_time() - began
    kept &= print_ratio("parse_parquet", 1e6 * by_column / PARSED, 1e6 * ours / PARSED, "us", most=0.5)
    wall = time.monotonic()
    cores = len(os.sched_getaffinity(0))
    conversion.convert_text(program, text, "rows", folder / "all", processes=cores)
    kept &= print_ratio("parse_cores", time.monotonic() - wall, alone, most=1.0 if cores > 1 else None)
    print(f"# {cores} cores", flush=True)
    return kept


def measure_training(folder: Path) -> bool:
    """Print `parse_train`: parsing and training compared with training alone."""
    data = folder / "data"
    (data / "tables").mkdir(parents=True)
    generated_rows.make(data / "train.txt", TRAINED, seed=2)
    generated_rows.make(data / "test.txt", 1000, seed=3)
    values = {"training": {"passes": 2, "batchSize": BATCH}}
    gang = TrainerProcesses(folder, [data], PROGRAMS / "ctr", values=values)
    gang.finish(seconds=400)
    found = re.search(r"train\.txt: parsed [\d,]+ rows in ([\d.]+) s", gang.log())
    assert found is not None
    passes = sum(float(seconds) for seconds in re.findall(r"^.*Pass=.* seconds=([\d.]+)", gang.log(), re.M))
    return print_ratio("parse_train", passes + float(found[1]), passes)


def measure_memory(folder: Path) -> bool:
    """Print `memory_rows` for both sizes."""
    program = programs.load_program(CTR, folder / "tables")
    text = folder / "train.txt"
    generated_rows.make(text, MEMORY, seed=4)
    few, many = folder / "few", folder / "many"
    conversion.convert_text(program, text, "rows", few)
    text.unlink()
    many.mkdir()
    index = json.loads((few / INDEX).read_text())
    parts = []
    for again, part in itertools.product(range(TIMES), index["files"]):
        name = f"{again}-{part['name']}"
        (many / name).hardlink_to(few / part["name"])
        parts.append(RecordFile(**{**part, "name": name}))
    dtype = record_files.record_dtype(program.inputs)
    Records(many, dtype, tuple(parts), index["skipped"]).write_index(index["key"])
    used = []
    for place in (few, many):
        command = [sys.executable, "-c", READ, str(CTR), str(place), str(BATCH)]
        began = time.monotonic()
        done = subprocess.run(command, cwd=CLONE, check=True, capture_output=True, text=True)
        used.append(float(done.stdout))
        count = MEMORY * (TIMES if place is many else 1)
        print(f"# a pass of {count:,} rows was read in {time.monotonic() - began:.1f} s", flush=True)
    return print_ratio("memory_rows", used[1], used[0], "MB", limit=used[0] + MORE_MB)


def main() -> int:
    """Run the benchmark and print its result lines; return 1 if a limit is exceeded."""
    kept = []
    for measure in (measure_parsing, measure_training, measure_memory):
        with tempfile.TemporaryDirectory(prefix="records-") as name:
            kept.append(measure(Path(name)))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
