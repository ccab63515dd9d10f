"""Start training with the parameters of an earlier run (`training.initModelPath`).

The model is in the output folder of the earlier run, or in an S3 bucket to which it was exported. Each rank reads the
files of the tables, a chunk of rows at a time, and loads the rows of its own servers. From a checkpoint with the same
number of shards, it reads only the files of its own servers; otherwise it reads all rows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from launcher.errors import CheckpointError, DataError, GangError, SettingsError, setting_error
from launcher.io import checkpoints, s3
from launcher.paths import OutputPaths, is_safe_name
from launcher.schema import CheckpointContents
from launcher.serving import download
from launcher.serving.paddle_served import model as served_model
from launcher.serving.paddle_served.model import MappedTable, ServedError
from launcher.trainer import row_files, server_tables
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.server_tables import RowShape, TableRows
from launcher.trainer.training_log import TrainerLog

if TYPE_CHECKING:  # both import Paddle
    from launcher.trainer.fleet_trainer import FleetTrainer
    from launcher.trainer.network import BuiltNetwork

KEY = "training.initModelPath"
Values = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class InitialTable:
    """Reads an embedding table of the earlier run from its files, in chunks of rows."""

    width: int
    read: Callable[[int, Collection[int]], Iterator[TableRows]]
    """`read(shards, own)` yields chunks of rows. They contain all rows whose id modulo `shards` is in `own`, and may
    contain other rows; each id occurs once. It raises `DataError` if a file of a checkpoint has changed since it was
    saved. For an exported model, it verifies nothing."""


@dataclass(frozen=True)
class InitialModel:
    """Holds the parameters of the earlier run, by name."""

    values: Values
    """Dense parameters, also those that are never trained. An exported model has only the parameters from which the
    prediction is calculated."""
    tables: dict[str, InitialTable]
    """Embedding tables, by name. They have only rows that were trained."""
    source: str
    """The place of the model, for messages."""

    @classmethod
    def find(cls, settings: ProcessSettings) -> InitialModel:
        """Read the model that training.initModelPath refers to, or the newest checkpoint if no model is complete.

        An export in S3 is downloaded to the pod's work folder. The downloaded files are removed before this method
        returns; the memory-mapped tables stay readable.

        Raises:
            SettingsError: training.initModelPath is not a valid path, or there is neither a complete model nor a
                checkpoint of a run with parameter servers.
            DataError: the files are damaged, or training cannot resume from any of the checkpoints.
            GangError: S3 cannot be reached.
            UnfitError, StorageError: see `download.download_model`.
        """
        given = settings.init_model
        if given.startswith(s3.SCHEME):
            folder = download.download_model(given, settings.work_dir / "init", KEY)
            try:
                return cls(*_read_model(folder), given)
            finally:
                shutil.rmtree(folder.parent, ignore_errors=True)  # mapped files stay readable
        if not is_safe_name(given.rstrip("/")):
            raise _invalid(given, "the path must be relative to JOB_PATH, without ..")
        output = OutputPaths(settings.job_path / given)
        if checkpoints.is_model_complete(output.model):
            return cls(*_read_model(output.model), f"{given}/model")
        newest = checkpoints.newest_checkpoint(output.root)
        if newest is None:
            raise _invalid(given, f"there is neither a complete model nor a checkpoint in {output.root}")
        source = f"{given}/{newest.folder}"
        try:
            return cls(*_read_checkpoint(output.checkpoint(newest)), source)
        except CheckpointError as error:
            raise _invalid(given, f"{source} cannot be read: {error}") from error
        except DataError as error:
            raise DataError(f"{KEY}: {error}. Fix: specify another run.") from error

    def check(self, network: BuiltNetwork) -> None:
        """Raise `SettingsError` if this model has other parameters or tables than `network`, the program's network.

        Names and shapes of the dense parameters are compared, and names and widths of the tables.
        """
        wanted = {table.name: f"a table of width {table.width}" for table in network.tables}
        for name in network.dense():
            wanted[name] = str(tuple(network.main.global_block().var(name).shape))
        found = {name: str(values.shape) for name, values in self.values.items()}
        found |= {name: f"a table of width {table.width}" for name, table in self.tables.items()}
        differences = [
            f"{name} is {found.get(name, 'absent')} in that model and {wanted.get(name, 'absent')} in the program"
            for name in sorted({*wanted, *found})
            if found.get(name) != wanted.get(name)
        ]
        if differences:
            raise _invalid(self.source, f"its network differs from the program's: {'; '.join(differences)}")


def _invalid(value: str, reason: str) -> SettingsError:
    return setting_error(
        KEY,
        value,
        "an earlier run of the same network: its folder below JOB_PATH (for example other-job/output or "
        "other-job/runs/ID), or s3://BUCKET/PREFIX of its export",
        reason,
        "Specify such a run, or remove training.initModelPath",
    )


def _read_model(folder: Path) -> tuple[Values, dict[str, InitialTable]]:
    """Return the dense parameters and the embedding tables of an exported model, by name. Tables are memory-mapped."""
    import paddle

    scope = paddle.static.Scope()
    try:
        about = served_model.read_description(folder)
        tables = {
            name: MappedTable(served_model.table_folder(folder, name), **shape)
            for name, shape in about["tables"].items()
        }
    except ServedError as error:
        raise DataError(f"training.initModelPath: {error}") from error
    with paddle.static.scope_guard(scope):
        exe = paddle.static.Executor(paddle.CPUPlace())
        try:
            program, *_ = paddle.static.load_inference_model(str(folder / "network"), exe)
        except (ValueError, RuntimeError, OSError) as error:
            raise DataError(
                f"training.initModelPath: cannot read the model in {folder}: {error}. Fix: copy it again, or "
                "specify another run."
            ) from error
        names = [p.name for p in program.list_vars() if p.persistable and p.name not in ("feed", "fetch")]
        values = {name: np.array(scope.find_var(name).get_tensor()) for name in names}
    return values, {name: _in_memory(TableRows(table.ids, table.vectors)) for name, table in tables.items()}


def _in_memory(rows: TableRows) -> InitialTable:
    return InitialTable(rows.vectors.shape[1], lambda *_: rows.chunks())


def _read_checkpoint(folder: Path) -> tuple[Values, dict[str, InitialTable]]:
    """Return the dense parameters and the embedding tables of a checkpoint, by name. The tables are read only later."""
    contents = checkpoints.read_contents(folder)
    if reason := checkpoints.check_files(folder, [server_tables.PARAMETERS], contents.files):
        raise DataError(f"{folder}: {reason}")
    values = server_tables.load_arrays(folder / server_tables.PARAMETERS)
    return values, {name: _checkpoint_table(folder, contents, name) for name in contents.tables}


def _checkpoint_table(folder: Path, contents: CheckpointContents, name: str) -> InitialTable:
    table = contents.tables[name]

    def read(shards: int, own: Collection[int]) -> Iterator[TableRows]:
        numbers = own if shards == contents.shards else range(contents.shards)
        try:
            entries = row_files.list_files(folder, contents, name, numbers)
            yield from row_files.read_rows(entries, RowShape(table.width, table.rule), contents.shards)
        except DataError as error:
            raise DataError(f"{KEY}: {error}. Fix: specify another run.") from error

    return InitialTable(table.width, read)


def prepare(trainer: FleetTrainer) -> InitialModel | None:
    """Read the initial model, compare it with the program's network, and set this trainer's dense parameters.

    Every trainer calls this before the rendezvous. In the rendezvous the servers get trainer 0's dense parameters. The
    servers do not have the parameters that are never trained, so each trainer keeps the values that it sets here.

    Returns:
        The initial model; None if training.initModelPath is not set.

    Raises:
        SettingsError, DataError, GangError, UnfitError, StorageError: see `InitialModel.find` and `InitialModel.check`.
    """
    if not trainer.settings.init_model:
        return None
    initial = InitialModel.find(trainer.settings)
    initial.check(trainer.network)
    trainer.set_parameters(initial.values)
    return initial


def load(trainer: FleetTrainer, initial: InitialModel, log: TrainerLog) -> None:
    """Load the initial model's tables into the servers. Then compare dense parameters and some rows with the model.

    All trainers call this together, after their rendezvous. Each trainer loads the rows of its own servers.

    Raises:
        GangError: the servers or this trainer do not have the initial model's values.
        DataError: a file of the earlier run's checkpoint has changed since it was saved.
    """
    began, layout, samples = time.monotonic(), trainer.layout, {}
    for table in trainer.network.tables:
        rows = initial.tables[table.name].read(layout.shards, layout.own_shards())
        samples[table.name] = trainer.own_servers.fill(table.name, rows)
    trainer.trainers.barrier()
    trainer.servers.pull_dense()
    _verify(trainer, initial, samples)
    took = time.monotonic() - began
    log.line(f"started with the parameters of {trainer.settings.init_model} ({took:.2f} s)")


def _verify(trainer: FleetTrainer, initial: InitialModel, samples: Mapping[str, TableRows]) -> None:
    """Raise `GangError` unless this trainer has the dense parameters of `initial`, and the servers have these rows.

    `samples` has some rows of each table, by the table's name.
    """
    given = trainer.parameters()
    wrong = [name for name, values in given.items() if not np.array_equal(values, initial.values[name])]
    for name, (ids, vectors) in samples.items():
        if not np.array_equal(trainer.servers.rows(name, ids.view(np.int64)), vectors):
            wrong.append(name)
    if wrong:
        raise GangError(
            f"training.initModelPath: loading {initial.source} into the servers failed: afterwards their values "
            f"of {', '.join(wrong)} differ from the files. Fix: look for errors in every rank's server log "
            "(python -m launcher logs --role pserver --rank RANK), correct their cause, and start the training again."
        )
