"""Measure what a conversion to a program gains: PaddleRec's `dnn` by its own trainer, and as a program.

`PADDLEREC=/path/to/PaddleRec python -m benchmarks.script_conversion` prints `conversion_dnn`: samples per second of two
servers and two trainers on loopback, as a program of runtime fleet (ours: benchmarks/_paddlerec_dnn) and by PaddleRec's
tools/static_ps_trainer.py with a QueueDataset (theirs), on the same random rows, in batches of 512. Both are without
their first pass, which creates the tables' rows. Ours parses the rows once, before the training; theirs in each pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import ctr
from benchmarks._result_lines import print_ratio
from local.launcher_gang import first_port

PROGRAM = Path(__file__).resolve().parent / "_paddlerec_dnn"
RANKS, EPOCHS, SECONDS = 2, 3, 900
LEAST = 4.0


def write_rows(path: Path, count: int, seed: int) -> None:
    """Write random rows as PaddleRec's reader expects them."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 1_000_000, (count, 26))
    dense = random.random((count, 13)).round(4)
    with path.open("w") as file:
        for row, counts, click in zip(
            ids.tolist(), dense.tolist(), random.integers(0, 2, count), strict=True
        ):
            parts = [f"click:{click}", *(f"dense_feature:{value}" for value in counts)]
            file.write(" ".join([*parts, *(f"{slot}:{number}" for slot, number in enumerate(row, 1))]) + "\n")


def measure_paddlerec(checkout: Path, folder: Path, data: list[Path]) -> float:
    """Return samples per second of all trainers of PaddleRec, by the time of its later epochs."""
    model, port = checkout / "models" / "rank" / "dnn", first_port()
    ends = [[f"127.0.0.1:{port + 2 * kind + rank}" for rank in range(RANKS)] for kind in (0, 1)]
    shared = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(ends[0]),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(ends[1]),
        "PADDLE_TRAINERS_NUM": str(RANKS),
        "PADDLE_GLOO_RENDEZVOUS": "3",
        "PADDLE_GLOO_HTTP_ENDPOINT": f"127.0.0.1:{port + 2 * RANKS}",
        "POD_IP": "127.0.0.1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    options = {
        "reader_type": "QueueDataset",
        "pipe_command": f"python {model}/queuedataset_reader.py",
        "train_batch_size": ctr.BATCH,
        "epochs": EPOCHS,
    }
    logs, started = [folder / f"trainer-{rank}.log" for rank in range(RANKS)], []
    try:
        for kind, role in enumerate(("PSERVER", "TRAINER")):
            for rank in range(RANKS):
                chosen = options | {"train_data_dir": data[rank], "model_save_path": folder / f"model-{rank}"}
                given = [f"runner.{name}={value}" for name, value in chosen.items()]
                argv = [sys.executable, "-u", str(checkout / "tools" / "static_ps_trainer.py")]
                place = folder / f"{role}-{rank}"
                place.mkdir()
                own = {"TRAINING_ROLE": role, "PADDLE_TRAINER_ID": str(rank)}
                own["PADDLE_PORT"] = ends[kind][rank].rpartition(":")[2]
                with (logs[rank] if kind else folder / f"server-{rank}.log").open("wb") as log:
                    started.append(
                        subprocess.Popen(
                            [*argv, "-m", str(model / "config.yaml"), "-o", *given],
                            env={**os.environ, **shared, **own},
                            cwd=place,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                        )
                    )
        deadline = time.monotonic() + SECONDS
        for process in started[RANKS:]:
            process.wait(max(1.0, deadline - time.monotonic()))
    finally:
        for process in started:
            process.kill()
            process.wait()
    speeds = [re.findall(r"ips: ([\d.]+)", log.read_text(errors="replace")) for log in logs]
    if any(len(found) != EPOCHS for found in speeds):
        sys.exit(f"PaddleRec failed:\n{logs[0].read_text(errors='replace')[-3000:]}")
    return sum(float(np.median([float(speed) for speed in found[1:]])) for found in speeds)


def measure_program(folder: Path, data: list[Path]) -> float:
    """Return the median of the samples per second of all trainers with the program."""
    folder.mkdir()
    gang = ctr.Bench(folder, data, PROGRAM, values={"training": {"batchSize": ctr.BATCH}}, repeats=EPOCHS)
    gang.finish(seconds=SECONDS)
    logs = [gang.log(rank).splitlines() for rank in range(RANKS)]
    passes = [[json.loads(line) for line in log if line.startswith('{"how"')] for log in logs]
    return float(
        np.median(
            [sum(one["samples"] / one["seconds"] for one in ranks) for ranks in zip(*passes, strict=True)]
        )
    )


def main() -> int:
    """Measure, print the line, and return 1 if the ratio is below LEAST."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000, help="rows of each trainer")
    rows = parser.parse_args().rows
    checkout = Path(os.environ.get("PADDLEREC", "PADDLEREC"))
    if not (checkout / "tools" / "static_ps_trainer.py").is_file():
        sys.exit(
            f"PADDLEREC is {checkout}, but must be a checkout of PaddleRec. Fix: git clone it, and set PADDLEREC"
        )
    with tempfile.TemporaryDirectory() as temp:
        root = Path(temp)
        data = [root / f"data-{rank}" for rank in range(RANKS)]
        for rank, place in enumerate(data):
            (place / "tables").mkdir(parents=True)
            write_rows(place / "train.txt", rows, rank)
        text = [place.with_name(f"text-{place.name}") for place in data]
        for source, target in zip(data, text, strict=True):
            target.mkdir()
            (target / "train.txt").hardlink_to(source / "train.txt")
        (root / "theirs").mkdir()
        theirs = measure_paddlerec(checkout.resolve(), root / "theirs", text)
        ours = measure_program(root / "ours", data)
    return not print_ratio("conversion_dnn", ours, theirs, " samples/s", least=LEAST, digits=0)


if __name__ == "__main__":
    sys.exit(main())
