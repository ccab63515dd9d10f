"""The same program in one process without servers: what a distributed run is compared with.

    python -m launcher.worker.alone PROGRAM.py DATA_DIR --passes 6 --batch-size 256

DATA_DIR holds train.txt, test.txt and tables/, as a staged shard does. Each pass prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import paddle

from launcher.errors import LauncherError
from launcher.worker import program as programs
from launcher.worker import samples
from launcher.worker.network import build


def train(
    config: Path, data: Path, passes: int, batch_size: int, options: tuple[str, ...]
) -> Iterator[dict[str, float]]:
    """Yields {"pass", "loss", metric…} after each pass. Raises what loading and parsing raise."""
    program = programs.load(config, data / "tables", options)
    rows, test = (samples.read(data / name, program) for name in ("train.txt", "test.txt"))
    paddle.enable_static()
    paddle.seed(int(program.worker_options["seed"]))
    network = build(program, "alone")
    tester = network.main.clone(for_test=True)
    with paddle.static.program_guard(network.main, network.startup):
        program.module.optimizer(program.job).minimize(network.loss)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(network.startup)
    steps = max(1, -(-rows.rows // batch_size))
    for number in range(passes):
        seed = (int(program.worker_options["seed"]), number, 0)
        losses = [
            float(exe.run(network.main, feed=rows.take(batch), fetch_list=[network.loss])[0])
            for batch in samples.batches(rows.rows, steps, seed)
        ]
        [prediction] = exe.run(tester, feed=test.arrays, fetch_list=[network.prediction.name])
        tests = program.module.metrics(prediction, test.arrays[program.label])
        yield {"pass": number, "loss": float(np.mean(losses)), **tests}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line in the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m launcher.worker.alone", description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--passes", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--option", action="append", default=[], help="key=value, an option of the program")
    given = parser.parse_args(arguments)
    options = tuple(f"--{option}" for option in given.option)
    try:
        for line in train(given.program, given.data, given.passes, given.batch_size, options):
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
    except LauncherError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
