"""Measure the export of a model with many ids, the start of a model server, and predictions.

`python -m benchmarks.serving [--millions 20]` prints

- `export_cpu`: the trainers' CPU microseconds per id for the whole export, compared with the look-up of the
  vectors in the pservers alone. The difference may be at most 1 us. Two servers and two trainers on loopback,
  ids of 64 bits, vectors of width 16.
- `export_wall`: seconds per million ids for the export, including the scoring, compared
  with the seconds per million ids that saving the checkpoint before it took.
- `serve_start`: seconds until `python -m launcher serve` has answered a row, compared with `import paddle`
  alone in a new process; limit 2 s.
- `serve_open`: seconds of the part of `serve_start` that opens the model (mapped files, network, program) when
  the files are in the page cache, compared with the first opening, when they are not.
- `serve_rows`: predictions per second and core for parsed rows (DeepFM: 26 ids, 13 counts), compared with the
  network alone, whose vectors were looked up before.
- `serve_texts`: the same for rows of text that the program's parse() reads, compared with parsed rows.
- `serve_http_p50`, `serve_http_p99`: median and 99th percentile in milliseconds for one row over HTTP, compared
  with one row without HTTP.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from benchmarks._processes import cpu_seconds
from benchmarks._result_lines import print_ratio
from benchmarks.embedding_tables import PROGRAM
from launcher.schema import ModelTable
from launcher.serving.paddle_served import Model
from launcher.serving.paddle_served.model import table_folder
from launcher.trainer import program_loader as programs
from launcher.trainer.export import ModelWriter, write_rows
from launcher.trainer.network import build_network
from local.try_example import serve_model
from testkit.gang_without_launchers import PROGRAMS, TrainerProcesses

WIDTH = 16
SLOTS = 26
A_ROW = 1000  # ids in a row of benchmarks/embedding_tables.py's program
BATCH = 50
PATTERN = re.compile(r"vectors: wrote (\d+) of \d+ rows; CPU seconds: ([\d.]+) to look them up, ([\d.]+) for")


def export(root: Path, millions: float) -> bool:
    """Train `millions` million ids once and export the model; print `export_cpu` and `export_wall`."""
    program = root / "filling"
    program.mkdir(parents=True)
    (program / "trainer_config.py").write_text(PROGRAM)
    rows = int(millions * 1e6) // A_ROW
    data = []
    for rank in range(2):
        folder = root / "data" / str(rank)
        (folder / "tables").mkdir(parents=True)
        lines = "".join(f"{row}\n" for row in range(rank, rows, 2))
        (folder / "train.txt").write_text(lines)
        (folder / "test.txt").write_text("0\n")
        data.append(folder)
    values = {"training": {"passes": 1, "batchSize": BATCH}}
    gang = TrainerProcesses(root, data, program, values=values)
    gang.finish(seconds=600 + 60 * millions)
    found = [PATTERN.search(log) for log in (gang.log(0), gang.log(1))]
    assert all(found)
    counts, transfer, rest = (sum(float(each[n]) for each in found if each) for n in range(1, 4))
    total, alone = (transfer + rest) / counts * 1e6, transfer / counts * 1e6
    saved = float(re.findall(r"saved .* in ([\d.]+) s", gang.log())[-1])
    wall = float(re.findall(r"model in .*\(([\d.]+) s\)", gang.log())[-1])
    print(
        f"# {counts:,.0f} ids of width {WIDTH}; without the transfer {total - alone:.2f} us per id (limit 1)"
    )
    kept = print_ratio("export_cpu", total, alone, "us", limit=alone + 1)
    print_ratio("export_wall", wall / millions, saved / millions, "s")
    return kept


def make_model(root: Path, millions: float) -> tuple[Path, Callable[[int, int], list[dict[str, str]]]]:
    """Create a model (DeepFM) in `root` whose table has `millions` million generated ids.

    Returns:
        Its folder, and a function that takes a number of rows and a seed and returns so many rows with these ids.
    """
    paddle.enable_static()
    config = PROGRAMS / "ctr" / "trainer_config.py"
    program = programs.load_program(config, root / "tables")
    network = build_network(program, "served")
    rng = np.random.default_rng(1)
    block = network.main.global_block()
    values = {n: rng.normal(0, 0.1, block.var(n).shape).astype(np.float32) for n in network.dense()}
    [table] = network.tables
    each = int(millions * 1e6) // SLOTS
    writer = ModelWriter(root / "model")
    shapes = {table.name: ModelTable(each * SLOTS, table.width)}
    writer.create(shapes)
    folder = table_folder(writer.temp, table.name)
    for slot in range(SLOTS):  # as the program's parse() numbers them
        ids = (np.uint64(slot + 1) << np.uint64(40)) + np.arange(1, each + 1, dtype=np.uint64)
        vectors = rng.normal(0, 0.05, (each, table.width)).astype(np.float32)
        write_rows(folder, slot * each, table.width, ids, [vectors])
    writer.finish(program, values, shapes, lambda _: {"auc": 0.5})

    columns = [column for column in program.columns if column != program.label]

    def rows(count: int, seed: int) -> list[dict[str, str]]:
        random = np.random.default_rng(seed)
        ids = random.integers(0, each, (count, SLOTS)).tolist()
        counts = random.integers(0, 500, (count, 13)).tolist()
        return [
            dict(zip(columns, [*map(str, numbers), *(f"{value:08x}" for value in own)], strict=True))
            for numbers, own in zip(counts, ids, strict=True)
        ]

    return root / "model", rows


def cpu(work: Callable[[], Any], times: int) -> float:
    """Return the median CPU seconds of this process over several calls."""
    spent = []
    for _ in range(times):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def wall(work: Callable[[], Any], times: int) -> list[float]:
    """Return the wall seconds of each call, in ascending order."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return sorted(spent)


def in_process(folder: Path, rows: Callable[[int, int], list[dict[str, str]]]) -> list[float]:
    """Print `serve_open`, `serve_rows` and `serve_texts`, measured in this process.

    Args:
        folder: folder of the model.
        rows: takes a number of rows and a seed, returns so many rows.

    Returns:
        Seconds of 400 predictions of one row each, in ascending order.
    """
    began = time.perf_counter()
    model = Model(folder)
    opened = time.perf_counter() - began
    own = sorted(wall(lambda: Model(folder), 5))[2]
    print_ratio("serve_open", own, opened, "s")
    count = 8192
    texts = rows(count, 2)
    parsed = model.program.arrays(texts)
    features = {name: parsed[name] for name in model.program.features}
    model.predict_arrays(features)
    [lookup] = model.about["lookups"]
    vectors, unknown = model.tables[lookup["table"]].look_up(parsed[lookup["ids"]])
    assert unknown == 0
    alone = cpu(lambda: model._network.run(features | {lookup["vectors"]: vectors}), 9)
    fresh = iter(rows(count, 10 + n) for n in range(9))
    arrays = iter([model.program.arrays(each) for each in fresh])  # other ids each time
    total = cpu(lambda: model.predict_arrays(next(arrays)), 9)
    print_ratio("serve_rows", count / total, count / alone, "/s")
    print_ratio("serve_texts", count / cpu(lambda: model.predict(texts), 3), count / total, "/s")
    one = rows(400, 3)
    singles = iter(one)
    return wall(lambda: model.answer([next(singles)]), 400)


def ask(connection: http.client.HTTPConnection, row: dict[str, str]) -> None:
    """Send one row and read the prediction."""
    connection.request("POST", "/predict", json.dumps({"rows": [row]}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text


def over_http(folder: Path, rows: Callable[[int, int], list[dict[str, str]]], singles: list[float]) -> bool:
    """Print `serve_start` and `serve_http_…`, measured with a server process.

    `singles` are the sorted seconds of one row without HTTP. Returns False if `serve_start` exceeds its limit.
    """
    starts = []
    for _ in range(3):
        began = time.perf_counter()
        with serve_model(folder, "--workers", "1") as (pid, port):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            ask(connection, rows(1, 5)[0])
            starts.append(time.perf_counter() - began)
            used = cpu_seconds(pid)
            given = iter(rows(1200, 4))
            wall(lambda: ask(connection, next(given)), 200)  # noqa: B023 - called in this round
            asked = wall(lambda: ask(connection, next(given)), 1000)  # noqa: B023
    imports = wall(lambda: subprocess.run([sys.executable, "-c", "import paddle"], check=True), 3)[1]
    print(f"# CPU seconds of the server until its first answer: {used:.2f}")
    kept = print_ratio("serve_start", statistics.median(starts), imports, "s", limit=2)
    for part in (50, 99):
        ours, theirs = (times[len(times) * part // 100] * 1e3 for times in (asked, singles))
        print_ratio(f"serve_http_p{part}", ours, theirs, "ms")
    return kept


def main() -> int:
    """Run the benchmark and print its result lines; return how many limits were exceeded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--millions", type=float, default=1.0, help="of ids")
    millions = parser.parse_args().millions
    with tempfile.TemporaryDirectory(prefix="serving-") as folder:
        root = Path(folder)
        kept = [export(root / "export", millions)]
        model, rows = make_model(root, millions)
        kept.append(over_http(model, rows, in_process(model, rows)))
    return kept.count(False)


if __name__ == "__main__":
    sys.exit(main())
