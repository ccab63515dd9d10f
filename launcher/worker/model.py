"""The model that stands alone: written by trainer 0, read without any server.

model/
  network.pdmodel, network.pdiparams   Paddle's inference program, embedding tables inside
  model.json                           columns, inputs, label, options
  program/, tables/                    the program's files and side tables: they turn a row into numbers
  score.json                           the metrics of this model on the test set

    python -m launcher.worker.model score output/model test.txt
    python -m launcher.worker.model predict output/model text="what a lovely day"
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from launcher import files
from launcher.data import escape
from launcher.errors import DataError, LauncherError
from launcher.worker import program as programs
from launcher.worker import samples

if TYPE_CHECKING:
    from launcher.worker.program import Program

VERSION = 1
CHUNK = 65536  # rows that are predicted at once
SCORE_SECONDS = 1800


def export(
    folder: Path, program: Program, config: Path, values: Mapping[str, NDArray[Any]], test_file: Path
) -> dict[str, float]:
    """Writes the model beside `folder`, scores it in a process of its own, renames. Returns the score.

    `values`: every trained parameter, embedding tables included, by name. Raises `StorageError`, `DataError`.
    """
    import paddle

    from launcher.worker.network import build

    temp = folder.with_name(f".{folder.name}.tmp")
    network = build(program, "alone")
    scope = paddle.static.Scope()
    exe = paddle.static.Executor(paddle.CPUPlace())
    with files.storage(folder):
        shutil.rmtree(temp, ignore_errors=True)
        temp.mkdir(parents=True)
        with paddle.static.scope_guard(scope):
            exe.run(network.startup)
            for name in [*network.dense(), *(table.name for table in network.tables)]:
                scope.find_var(name).get_tensor().set(values[name], paddle.CPUPlace())
            block = network.main.global_block()
            inputs = [block.var(name) for name in program.features]
            paddle.static.save_inference_model(
                str(temp / "network"), inputs, [network.prediction], exe, program=network.main
            )
        files.copy_folder(config.parent, temp / "program")
        (temp / "tables").mkdir()
        for name in getattr(program.module, "TABLES", ()):
            files.copy_file(program.job.tables[name], temp / "tables" / name)
        description = {
            "version": VERSION,
            "config": config.name,
            "columns": list(program.columns),
            "features": program.features,
            "label": program.label,
            "options": dict(program.job.options),
        }
        files.write_json(temp / "model.json", description)
        result = score_apart(temp, test_file)
        files.write_json(temp / "score.json", result)
        files.fsync_tree(temp)
        shutil.rmtree(folder, ignore_errors=True)
        temp.rename(folder)
        files.fsync_dir(folder.parent)
    return result


def score_apart(folder: Path, test_file: Path) -> dict[str, float]:
    """`score` in a fresh process that knows of no server."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PADDLE_", "TRAINING_ROLE", "POD_IP"))}
    command = [sys.executable, "-m", "launcher.worker.model", "score", str(folder), str(test_file)]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=SCORE_SECONDS, check=False
    )
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).splitlines()[-5:])
        raise DataError(
            f"the model in {folder} cannot be scored with {test_file} (exit code {done.returncode}):\n{tail}"
        )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


class Model:
    """A model in memory."""

    def __init__(self, folder: Path) -> None:
        import paddle

        description = files.read_json(folder / "model.json")
        if description is None or description.get("version") != VERSION:
            raise DataError(
                f"{folder} holds no model of this version: model.json is missing or of another version"
            )
        options = tuple(f"--{key}={value}" for key, value in description["options"].items())
        self.program = programs.load(folder / "program" / description["config"], folder / "tables", options)
        paddle.enable_static()
        self._scope = paddle.static.Scope()
        self._exe = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(self._scope):
            self._main, self._feeds, self._fetches = paddle.static.load_inference_model(
                str(folder / "network"), self._exe
            )

    def predict_samples(self, rows: samples.Samples) -> NDArray[np.float32]:
        """Predictions of parsed rows, shape [rows, …]."""
        found = []
        for first in range(0, rows.rows, CHUNK):
            part = rows.take(slice(first, first + CHUNK))
            feed = {name: part[name] for name in self._feeds}
            found += self._exe.run(self._main, feed=feed, fetch_list=self._fetches, scope=self._scope)
        return np.concatenate(found)

    def predict(self, rows: Sequence[Mapping[str, str]]) -> NDArray[np.float32]:
        """Predictions of rows given as {column: text}; a column that is to be predicted may be left out."""
        blank = getattr(self.program.module, "BLANK", {})
        lines = []
        for row in rows:
            full = {**blank, **row}
            if missing := [column for column in self.program.columns if column not in full]:
                raise DataError(f"a row to predict lacks {', '.join(missing)}: it has only {', '.join(row)}")
            lines.append(escape(full[column] for column in self.program.columns))
        return self.predict_samples(samples.parse(lines, "the rows to predict", self.program))

    def score(self, test_file: Path) -> dict[str, float]:
        """The program's metrics on a file of rows."""
        rows = samples.read(test_file, self.program)
        prediction = self.predict_samples(rows)
        with self.program.calling("metrics()"):
            result = self.program.module.metrics(prediction, rows.arrays[self.program.label])
        return {name: float(value) for name, value in result.items()}


def score(folder: Path, test_file: Path) -> dict[str, float]:
    """The metrics of the model in `folder` on `test_file`: {metric: value}."""
    return Model(folder).score(test_file)


def predict(folder: Path, rows: Sequence[Mapping[str, str]]) -> NDArray[np.float32]:
    """What the model in `folder` says of each row."""
    return Model(folder).predict(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line in the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m launcher.worker.model", description="Use a trained model."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    scoring = commands.add_parser("score", help="the metrics on a file of rows, as one line of JSON")
    scoring.add_argument("model", type=Path)
    scoring.add_argument("file", type=Path)
    one = commands.add_parser("predict", help="what the model says of one row")
    one.add_argument("model", type=Path)
    one.add_argument("columns", nargs="+", metavar="column=value")
    given = parser.parse_args(arguments)
    try:
        if given.command == "score":
            sys.stdout.write(json.dumps(score(given.model, given.file)) + "\n")
        else:
            row = dict(pair.partition("=")[::2] for pair in given.columns)
            sys.stdout.write(f"{float(predict(given.model, [row]).reshape(-1)[0]):.6g}\n")
    except LauncherError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
