"""Export the trained model from the servers. All trainers call `ModelExporter.export` together after the last save.

`ScoringProcess` scores it in a process without any server's address, forked before Paddle has threads. A new process
would have to import Paddle again, which takes half of the time that the end of a short run takes.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import EXIT_GANG, EXIT_OK, DataError, LauncherError
from launcher.io import checkpoints, files
from launcher.paths import OutputPaths, Position
from launcher.schema import ModelTable
from launcher.serving.paddle_served import Model, ServedError
from launcher.serving.paddle_served.mapped_table import map_array
from launcher.serving.paddle_served.model import table_folder
from launcher.trainer.evaluation import evaluate_model
from launcher.trainer.export import model_writer
from launcher.trainer.export.model_writer import ModelWriter
from launcher.trainer.fork_server import fork_while_alone
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.program_loader import TrainingProgram, is_settable, load_program, with_fix
from launcher.trainer.records.record_files import INDEX, Records
from launcher.trainer.records.row_parsing import record_dtype
from launcher.trainer.training_log import TrainerLog

if TYPE_CHECKING:  # it imports Paddle
    from launcher.trainer.pserver_client import PserverClient

TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True)
class ModelExporter:
    """Writes the exported model, `output/model/`. Each trainer has one, and all call `export` together."""

    settings: ProcessSettings
    program: TrainingProgram
    trainer: PserverClient
    log: TrainerLog
    scorer: ScoringProcess | None
    """Only trainer 0 has one."""

    def export(self, at: Position) -> None:
        """Write the model with the values of the checkpoint `at`, which the servers have; all trainers call this.

        Raises:
            StorageError, StorageFailedError: the volume is full, or a file of the checkpoint is damaged.
            DataError: the model cannot be scored.
        """
        settings, trainer, began = self.settings, self.trainer, time.monotonic()
        folder = OutputPaths(settings.layout.output).model
        writer = ModelWriter(folder, settings.attempt, at.folder)
        scores: dict[str, float] = {}
        ids = self._map_ids(at)
        shapes = {
            table.name: ModelTable(sum(map(len, ids[table.name])), table.width)
            for table in trainer.network.tables
        }
        if settings.rank == 0:
            writer.create(shapes)
        trainer.barrier()
        for name, shape in shapes.items():
            self._write_share(table_folder(writer.temp, name), name, shape, ids[name], at)
        trainer.barrier()
        if self.scorer:
            scores = writer.finish(self.program, trainer.parameters(), shapes, self.scorer.score)
        if settings.rank == 0:
            shown = " ".join(f"{name}={value:.4f}" for name, value in scores.items())
            self.log.line(f"model in {folder}: {shown} on the test set ({time.monotonic() - began:.2f} s)")
        trainer.barrier()

    def _write_share(
        self, folder: Path, name: str, shape: ModelTable, ids: list[model_writer.Ids], at: Position
    ) -> None:
        """Look up this rank's range of the rows of table `name` in the servers, and write it to `folder`."""
        began = time.process_time()
        first, own = model_writer.select_range(ids, self.settings.rank, self.settings.trainers, at.folder)
        look_up = functools.partial(self.trainer.rows, name)
        transfer = model_writer.look_up_rows(folder, first, own, shape.width, look_up)
        rest = time.process_time() - began - transfer
        self.log.line(
            f"{name}: wrote {len(own)} of {shape.rows} rows; CPU seconds: {transfer:.2f} to look "
            f"them up, {rest:.2f} for the rest"
        )

    def _map_ids(self, at: Position) -> dict[str, list[model_writer.Ids]]:
        """Return for each table name one memory-mapped array per rank: the ids that the rank's servers saved.

        Raises:
            StorageFailedError: a file has changed since it was saved; the checkpoint was rejected.
        """
        settings = self.settings
        folder = OutputPaths(settings.layout.output).checkpoint(at)
        contents = checkpoints.read_contents(folder)
        names = {
            table: sorted(name for name in contents.files if name.startswith(f"ids/{about.folder}-"))
            for table, about in contents.tables.items()
        }
        every = [name for own in names.values() for name in own]
        own_share = every[settings.rank :: settings.trainers]  # each rank verifies a share of the files
        if reason := checkpoints.check_files(folder, own_share, contents.files):
            raise checkpoints.reject(folder, reason, settings.attempt)
        return {
            # A file of no ids is smaller than a page.
            table.name: [
                map_array(path, path.stat().st_size < model_writer.HEADER_BYTES)
                for path in (folder / name for name in names[table.name])
            ]
            for table in self.trainer.network.tables
        }


class ScoringProcess:
    """Scores exported models in a child process, which exits when the process that created it exits.

    Create the object before Paddle has threads, since creating it forks this process.
    """

    def __init__(self, test: Path) -> None:
        """Fork the process; `test` is the folder with the test set's records."""
        self._test = test
        self._pipe, theirs = multiprocessing.Pipe()
        self._pid = fork_while_alone()
        if self._pid == 0:
            self._pipe.close()
            try:
                _answer_requests(theirs, test)
            except BaseException:
                traceback.print_exc()
            os._exit(EXIT_GANG)
        theirs.close()

    def score(self, folder: Path) -> dict[str, float]:
        """Return metric → value of the model in `folder` on the test set, or raise `DataError`."""
        try:
            self._pipe.send(folder)
            answer = (
                self._pipe.recv()
                if self._pipe.poll(TIMEOUT_SECONDS)
                else f"timed out after {TIMEOUT_SECONDS:g} s. Fix: use a smaller test set (data.testFraction)"
            )
        except (EOFError, OSError):  # the process exited, which closes its end of the pipe
            _, status = os.waitpid(self._pid, 0)
            answer = (
                f"its process exited with code {os.waitstatus_to_exitcode(status)}. Fix: for code -9 (killed) increase "
                "resources.limits.memory; else see the last lines before this one in the trainer's log"
            )
        if isinstance(answer, str):
            text = f"cannot score the model in {folder} with {self._test}: {answer}"
            raise DataError(with_fix(text, "see the traceback before this line"))
        scores: dict[str, float] = answer
        return scores


def _answer_requests(requests: Connection, test: Path) -> None:
    """Score each model whose folder the parent process sends through the pipe, until the parent exits."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("scorer")
    for name in [name for name in os.environ if name.startswith(("PADDLE_", "TRAINING_ROLE", "POD_IP"))]:
        del os.environ[name]
    while True:
        try:
            folder = requests.recv()
        except EOFError:
            os._exit(EXIT_OK)
        try:
            requests.send(score_model(folder, test))
        except LauncherError as error:
            requests.send(str(error))
        except Exception as error:
            traceback.print_exc()
            requests.send(f"{type(error).__name__}: {error}")


def score_model(folder: Path, test: Path) -> dict[str, float]:
    """Return metric → value of the model in `folder`, from nothing but this folder and the records in `test`.

    Raises:
        DataError: the model or the test set cannot be read.
    """
    try:
        model = Model(folder)
    except ServedError as error:
        raise DataError(str(error)) from error
    given = model.about["options"].items()
    options = tuple(f"--{key}={value}" for key, value in given if is_settable(value))  # others are defaults
    program = load_program(folder / "program" / model.about["config"], folder / "tables", options)
    key = (files.read_json(test / INDEX) or {}).get("key", "")
    records = Records.open(test, record_dtype(program.inputs), key)
    if records is None:
        raise DataError(
            f"{test} has no complete records (parsed rows) of {program.path.name}. Fix: delete that folder; the next "
            "start parses the rows again"
        )
    return evaluate_model(program, model, records)
