"""Train a script of runtime collective in one process on this machine, for `launcher try`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from launcher.cli.errors import CliError
from launcher.cli.launch.try_options import TryOptions
from launcher.cli.launch.uploads import SCRIPT, defines_script
from launcher.errors import DataError
from launcher.io import files
from launcher.io.program_folders import BUILT_IN, CONFIG
from launcher.metrics import parse_metrics
from launcher.paths import OutputPaths

PACKAGE_ROOT = Path(__file__).parents[3]
"""The folder from which the script imports `launcher.program`."""
SEED, STDERR = 1, 2


def find_script(program: Path) -> Path | None:
    """Return the script that `program` is or contains (or that of an example), or None if it is a program of fleet."""
    if (program / CONFIG).is_file():
        return None
    only = list(program.glob("*.py")) if program.is_dir() else []  # as `run`: the only file of a folder
    for path in (program, program / SCRIPT, *(only if len(only) == 1 else ()), BUILT_IN / program / SCRIPT):
        if path.suffix == ".py" and path.is_file():
            return path.resolve() if defines_script(path) else None
    return None


def split_rows(rows: Iterable[str], held_out: float, train: Path, test: Path) -> tuple[int, int]:
    """Write random rows, a share of `held_out`, to `test` and the others to `train`; return how many each has."""
    draw, counts = random.Random(SEED), [0, 0]  # noqa: S311 - no secret
    with train.open("wb") as first, test.open("wb") as second:
        for row in rows:
            is_test = draw.random() < held_out
            (second if is_test else first).write(f"{row}\n".encode("utf-8", "surrogateescape"))
            counts[is_test] += 1
    return counts[0], counts[1]


def train_script(script: Path, options: TryOptions, report: Callable[[str], None]) -> dict[str, Any]:
    """Run the script as the only process of a run without launchers; its model replaces the folder `options.to`.

    What the script prints goes to stderr.

    Returns:
        `passes` (rows of metrics.csv), `score`, and `model`: the folder, or None if the script saved no model.

    Raises:
        CliError: the script failed.
        DataError: there is no row to train on.
    """
    from launcher.trainer.single_process import trial_data

    def read(file: Path) -> Iterator[str]:
        return trial_data.read_rows(file, options.row_format(), limit=options.rows)

    with tempfile.TemporaryDirectory(prefix="paddle-training-try.") as temporary:
        work = Path(temporary)
        train, test, output = work / "train.txt", work / "test.txt", OutputPaths(work / "output")
        share = 0.0 if options.test else options.held_out
        counts = split_rows(read(options.data), share, train, test)
        if options.test:
            counts = counts[0], split_rows(read(options.test), 1.0, work / "unused.txt", test)[1]
        if not counts[0]:
            raise DataError(
                "there is no row to train on. Fix: use more rows, or set --held-out to another share"
            )
        report(f"{counts[0]:,} rows to train on, {counts[1]:,} to test on")
        options.copy_tables(work / "tables")
        single = {
            "PADDLE_TRAINER_ID": 0,
            "PADDLE_TRAINERS_NUM": 1,
            "PADDLE_LOCAL_RANK": 0,
            "PADDLE_LOCAL_SIZE": 1,
        }
        torchrun = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        launcher = {
            "PADDLE_LAUNCHER_PASSES": options.passes,
            "PADDLE_LAUNCHER_BATCH_SIZE": options.batch_size,
            "PADDLE_LAUNCHER_TRAIN_FILE": train,
            "PADDLE_LAUNCHER_TEST_FILE": test if counts[1] else "",
            "PADDLE_LAUNCHER_TABLES_DIR": work / "tables",
            "PADDLE_LAUNCHER_OUTPUT_DIR": output.root,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")])),
            "PYTHONDONTWRITEBYTECODE": 1,
        }
        env = {**os.environ, **{name: str(value) for name, value in (single | torchrun | launcher).items()}}
        argv = [sys.executable, script.name, *options.arguments]
        code = subprocess.run(argv, cwd=script.parent, env=env, stdout=STDERR, check=False).returncode
        if code:
            raise CliError(
                f"{script} exited with code {code}", "read its messages above, and correct the script"
            )
        text = files.read_bytes(output.metrics_csv) or b""
        rows_of_passes = parse_metrics(text.decode(errors="replace"))
        for row in rows_of_passes:
            shown = " ".join(f"{name}={score:.4f}" for name, score in row.tests.items())
            report(
                f"pass {row.number + 1}: {row.seconds:.1f} s, train_loss={row.train_loss:.4f} {shown}".rstrip()
            )
        score = files.read_json(output.model / "score.json") or {}
        if output.model.is_dir():
            files.copy_folder(output.model, options.to)
            report(f"model written to {options.to}")
        return {
            "passes": [
                {
                    "pass": row.number,
                    "samples": row.samples,
                    "seconds": row.seconds,
                    "train_loss": row.train_loss,
                }
                | {f"test_{name}": value for name, value in row.tests.items()}
                for row in rows_of_passes
            ],
            "score": score,
            "model": str(options.to) if output.model.is_dir() else None,
        }
