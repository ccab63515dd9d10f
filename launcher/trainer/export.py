"""Write the exported model, and score it. `paddle_served` (launcher/serving) loads this model without servers.

model/
  network.pdmodel, .pdiparams   Paddle's inference program; the looked-up vectors are some of its inputs
  ids.pdmodel, .pdiparams       Paddle's program that calculates ids from inputs; only if network() calculates ids
  embeddings/<table>/           ids.npy (uint64, ascending) and vectors.npy (float32), to be memory-mapped
  model.json                    version, columns, inputs, options, lookups, tables, score
  program/, tables/             the program's files, and the side tables that its TABLES names; they convert a row to
                                numbers
  interface.py                  launcher/program.py, which the program imports
  score.json                    the metrics of this model on the test set

`export_model` writes the model with the values of the servers. All trainers call it together after the last checkpoint.
The ids come from the files of a checkpoint and not from this run's data, because the tables also have ids of earlier
runs. The ids of all files together, in ascending order, are the rows of a table. Each rank writes a contiguous range of
these rows, and all ranks write to the two files of a table at the same time.

Then `evaluation.score_model` opens the written files without servers, as `paddle_served` does, and predicts the test
set. Only after that does the folder get its final name.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from launcher import program as interface
from launcher import schema
from launcher.errors import DataError
from launcher.io import checkpoints, files
from launcher.paths import OutputPaths, Position
from launcher.schema import ModelDescription, ModelLookup, ModelTable
from launcher.serving.paddle_served.model import EMBEDDINGS, IDS, VECTORS, VERSION, table_folder
from launcher.trainer import row_files
from launcher.trainer.evaluation import finite_scores, score_model
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.record_files import Records
from launcher.trainer.server_tables import Ids, RowShape, TableRows
from launcher.trainer.training_log import TrainerLog

if TYPE_CHECKING:  # these import Paddle
    from launcher.trainer.fleet_trainer import FleetTrainer
    from launcher.trainer.network import BuiltNetwork
    from launcher.trainer.process_settings import ProcessSettings

HEADER_BYTES = 4096
"""Size of a file's header: a whole page. A network file system may write only whole pages, so no two ranks may write to
the same page."""
ALIGNED_ROWS = 1024  # this number of rows fills whole pages of ids, and of vectors of any width
LOOKUP_ROWS = 1 << 18  # rows that are looked up and written at once


def create_table(folder: Path, rows: int, width: int) -> None:
    """Create `ids.npy` and `vectors.npy` of a table in their final size. All ranks fill them with `write_rows`.

    Args:
        folder: the folder for these two files. It must not exist yet.
        rows: number of the table's rows.
        width: length of a vector.
    """
    folder.mkdir(parents=True)
    for name, shape, dtype in (
        (IDS, (rows,), np.dtype(np.uint64)),
        (VECTORS, (rows, width), np.dtype(np.float32)),
    ):
        with (folder / name).open("wb") as file:
            file.write(_npy_header(shape, dtype))
            file.truncate(HEADER_BYTES + int(np.prod(shape)) * dtype.itemsize)


def _npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the header of a .npy file, padded to HEADER_BYTES."""
    magic = b"\x93NUMPY\x01\x00"
    about = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    length = HEADER_BYTES - len(magic) - 2
    return magic + struct.pack("<H", length) + repr(about).ljust(length - 1).encode() + b"\n"


def select_range(ids_by_file: Sequence[Ids], rank: int, ranks: int, checkpoint: str) -> tuple[int, Ids]:
    """Choose the range of the sorted table that a rank writes. Return the number of its first row, and its ids.

    Args:
        ids_by_file: the ids in each file of the checkpoint, ascending.
        rank: the rank that writes the range.
        ranks: number of all ranks.
        checkpoint: name of the checkpoint's folder, for messages.

    Returns:
        The number of the first row, from 0, and the ids of the range, ascending.

    Raises:
        DataError: two files have the same id.
    """
    total = sum(map(len, ids_by_file))
    first, last = _first_row(total, rank, ranks), _first_row(total, rank + 1, ranks)
    low, high = (_split_points(ids_by_file, row, total) for row in (first, last))
    own = [ids[a:b] for ids, a, b in zip(ids_by_file, low, high, strict=True)]
    merged = np.sort(np.concatenate([*own, np.zeros(0, np.uint64)]), kind="stable")  # merges sorted arrays
    if len(merged) != last - first or (merged[1:] == merged[:-1]).any():
        raise DataError(
            f"cannot export the model: the checkpoint {checkpoint} has an id twice, since two servers saved the same "
            f"row. Fix: remove the folder output/{checkpoint}, then start the run again; it resumes from an earlier "
            "checkpoint"
        )
    return first, merged


def _first_row(total: int, rank: int, ranks: int) -> int:
    return total if rank == ranks else total * rank // ranks // ALIGNED_ROWS * ALIGNED_ROWS


def _split_points(ids_by_file: Sequence[Ids], rows: int, total: int) -> list[int]:
    """Find the `rows` smallest ids of all files, and return how many of them each file has.

    `total` is the number of ids in all files together.
    """
    if rows == total:
        return [len(ids) for ids in ids_by_file]
    low, high = 0, (1 << 64) - 1
    while low < high:  # binary search for the smallest id that has `rows` ids below it
        middle = (low + high) // 2
        if sum(int(np.searchsorted(ids, np.uint64(middle))) for ids in ids_by_file) < rows:
            low = middle + 1
        else:
            high = middle
    return [int(np.searchsorted(ids, np.uint64(low))) for ids in ids_by_file]


def write_rows(
    folder: Path, first: int, width: int, ids: Ids, vectors: Iterable[NDArray[np.float32]]
) -> None:
    """Write rows to the table's files in `folder`, which `create_table` has created.

    Args:
        folder: the folder of the table.
        first: number of the first row to write.
        width: length of a vector.
        ids: the ids of the rows.
        vectors: the vectors in the order of the ids, as arrays of some rows each, shape [n, width].
    """
    with (
        files.storage_errors(folder),
        (folder / IDS).open("r+b") as ids_file,
        (folder / VECTORS).open("r+b") as vectors_file,
    ):
        ids_file.seek(HEADER_BYTES + first * ids.itemsize)
        ids_file.write(np.ascontiguousarray(ids).data)
        vectors_file.seek(HEADER_BYTES + first * width * 4)
        for found in vectors:
            vectors_file.write(np.ascontiguousarray(found, np.float32).data)
        for file in (ids_file, vectors_file):
            file.flush()
            os.fsync(file.fileno())


MARGIN_BYTES = 64 << 20  # disk space for the network, the program's files and its side tables
Values = Mapping[str, NDArray[np.float32]]
ScoreModel = Callable[[Path], dict[str, float]]
"""Takes the folder of a model, and returns metric → value of this model; see `evaluation.score_model`."""


class ModelWriter:
    """Writes the folder of one exported model under a temporary name, and renames it when it is complete.

    Trainer 0 calls `create`, then all trainers write their rows to the tables in `temp`, then trainer 0 calls `finish`.
    """

    def __init__(self, folder: Path, attempt: int = 0, checkpoint: str = "") -> None:
        """Prepare to write a model.

        Args:
            folder: the final folder of the model.
            attempt: number of this attempt, for the name of the temporary folder.
            checkpoint: folder name of the checkpoint from which the values come; "" if there is no checkpoint.
        """
        self.folder, self.checkpoint = folder, checkpoint
        self.temp = folder.with_name(f".{folder.name}.attempt-{attempt}.tmp")

    def create(self, tables: Mapping[str, ModelTable]) -> None:
        """Remove the temporary folders of all attempts, and create a new one with the files of the tables.

        Args:
            tables: name of each table → its number of rows and width.

        Raises:
            StorageError: the volume has not enough free space (nothing is created in this case), or cannot be written.
            StorageFailedError: the volume fails.
        """
        needed = MARGIN_BYTES + sum(table.rows * (8 + 4 * table.width) for table in tables.values())
        with files.storage_errors(self.folder):
            for unfinished in self.folder.parent.glob(f".{self.folder.name}.attempt-*.tmp"):
                shutil.rmtree(unfinished)
            files.require_space(self.folder, needed, "the exported model", files.RESTART_RUN)
            self.temp.mkdir(parents=True)
            for name, table in tables.items():
                create_table(table_folder(self.temp, name), table.rows, table.width)

    def finish(
        self, program: TrainingProgram, values: Values, tables: Mapping[str, ModelTable], score: ScoreModel
    ) -> dict[str, float]:
        """Write everything except the tables, score the model, sync all files, and give the folder its final name.

        This replaces an earlier model with the same name.

        Args:
            program: the training program.
            values: name of each dense parameter → its value.
            tables: name of each table → its number of rows and width.
            score: calculates the metrics of the model in the temporary folder.

        Returns:
            The metrics: metric → value. NaN and infinite values are returned too, but model.json and score.json do not
            have them.

        Raises:
            DataError: the model cannot be scored, or metrics() returned nothing.
            SettingsError: metrics() of the program failed.
            StorageError, StorageFailedError: the volume is full or fails.
        """
        temp = self.temp
        with files.storage_errors(self.folder):
            lookups, calculated = _write_networks(temp, program, values)
            files.copy_folder(program.path.parent, temp / "program")
            files.copy_file(Path(interface.__file__), temp / "interface.py")
            (temp / "tables").mkdir()
            for name in getattr(program.module, "TABLES", ()):
                files.copy_file(program.job.tables[name], temp / "tables" / name)
            description = ModelDescription(
                version=VERSION,
                created=time.time(),
                checkpoint=self.checkpoint,
                config=program.path.name,
                columns=list(program.columns),
                features=program.features,
                label=program.label,
                options=dict(program.job.options),
                lookups=lookups,
                ids=calculated,
                tables=dict(tables),
                files={
                    path.relative_to(temp).as_posix(): path.stat().st_size
                    for path in files.folder_files(temp)
                    if temp / EMBEDDINGS not in path.parents
                },
            )
            files.write_json(temp / "model.json", schema.to_json(description))
            found = score(temp)
            if not found:
                raise DataError(
                    f"metrics() of the program {program.path} returned nothing. Fix: return at least one metric."
                )
            scored = dataclasses.replace(description, score=finite_scores(found))
            files.write_json(temp / "model.json", schema.to_json(scored))
            files.write_json(temp / "score.json", finite_scores(found))
            files.fsync_tree(temp)
            shutil.rmtree(self.folder, ignore_errors=True)
            temp.rename(self.folder)
            files.fsync_dir(self.folder.parent)
        return found


def export_from_memory(
    folder: Path,
    program: TrainingProgram,
    values: Values,
    tables: Mapping[str, TableRows],
    score: ScoreModel,
) -> dict[str, float]:
    """Write a model to `folder` whose tables are in this process' memory. Return the metrics that `score` returns.

    Args:
        folder: the final folder of the model.
        program: the training program.
        values: name of each dense parameter → its value.
        tables: name of each table → all its rows, in ascending order of their ids.
        score: calculates the metrics of the model in a folder.
    """
    writer = ModelWriter(folder)
    shapes = {name: ModelTable(*rows.vectors.shape) for name, rows in tables.items()}
    writer.create(shapes)
    for name, (ids, vectors) in tables.items():
        write_rows(table_folder(writer.temp, name), 0, vectors.shape[1], ids, [vectors])
    return writer.finish(program, values, shapes, score)


def _write_networks(
    folder: Path, program: TrainingProgram, values: Values
) -> tuple[list[ModelLookup], list[str]]:
    """Write the network with the dense parameters `values` to `folder`, as Paddle's inference programs.

    Returns:
        Two lists. The first one has the network's look-ups of tables. The second one has the names of the variables
        with calculated ids: network() calculates these ids from the inputs, and looks them up.
    """
    import paddle

    from launcher.trainer.network import build_network

    network = build_network(program, "served")
    dense = network.dense()
    calculated = {ids.name: ids for _, ids, _ in network.lookups if ids.name not in program.inputs}
    scope, exe = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(scope), paddle.static.program_guard(network.main, network.startup):
        outputs = []
        if calculated:
            # Paddle's inference cannot load a program without parameters.
            zero = paddle.static.create_global_var([1], 0, "int64", persistable=True, name="zero@ids")
            with paddle.utils.unique_name.guard("computed_"):  # not the names that build_network() has used
                outputs = [ids + zero for ids in calculated.values()]
        exe.run(network.startup)
        for name in dense:
            scope.find_var(name).get_tensor().set(values[name], paddle.CPUPlace())
        vectors = [vectors.name for _, _, vectors in network.lookups]
        _save_network(folder / "network", network, [*program.features, *vectors], [network.prediction], exe)
        if calculated:
            _save_network(folder / "ids", network, program.features, outputs, exe)
    lookups = [ModelLookup(table, ids.name, vectors.name) for table, ids, vectors in network.lookups]
    return lookups, list(calculated)


def _save_network(
    path: Path, network: BuiltNetwork, inputs: Sequence[str], outputs: list[Any], exe: Any
) -> None:
    """Write Paddle's inference program that calculates `outputs` to `path`.

    `inputs` are the names of all possible inputs. The program gets only the inputs that `outputs` depend on, because
    Paddle rejects others.
    """
    import paddle

    needed = network.names_needed(outputs)
    feeds = [network.main.global_block().var(name) for name in inputs if name in needed]
    paddle.static.save_inference_model(str(path), feeds, outputs, exe, program=network.main)


def export_model(
    program: TrainingProgram, trainer: FleetTrainer, log: TrainerLog, test: Records | None, at: Position
) -> None:
    """Write the model `output/model` with the values of the checkpoint `at`. All trainers call this together.

    The servers and the trainers must already have the values of this checkpoint. Trainer 0 also scores the model, and
    logs the scores.

    Args:
        program: the training program.
        trainer: this trainer.
        log: this trainer's log.
        test: the test set, which only trainer 0 needs; None if this trainer's pod has no test set. If trainer 0 has no
            test set, no model gets its final name.
        at: position of the checkpoint.

    Raises:
        StorageError: the volume is full.
        StorageFailedError: the volume fails. Or a file of the checkpoint is damaged or missing, and the checkpoint was
            marked as rejected.
        CheckpointError: contents.json of the checkpoint is missing or damaged.
        DataError: the model cannot be scored, metrics() returned nothing, or two servers saved the same id.
        SettingsError: metrics() of the program failed.
    """
    began, settings = time.monotonic(), trainer.settings
    folder = OutputPaths(settings.layout.output).model
    writer = ModelWriter(folder, settings.attempt, at.folder)
    ids = _map_ids(settings, at)
    shapes = {
        table.name: ModelTable(sum(map(len, ids[table.name])), table.width)
        for table in trainer.network.tables
    }
    if settings.rank == 0:
        writer.create(shapes)
    trainer.trainers.barrier()
    for name in shapes:
        log.line(_write_share(trainer, table_folder(writer.temp, name), name, ids[name], at))
    trainer.trainers.barrier()
    if settings.rank == 0 and test is not None:
        score = functools.partial(score_model, program, test)
        scores = writer.finish(program, trainer.parameters(), shapes, score)
        shown = " ".join(f"{name}={value:.4f}" for name, value in scores.items())
        log.line(f"model in {folder}: {shown} on the test set ({time.monotonic() - began:.2f} s)")
    trainer.trainers.barrier()


def _write_share(trainer: FleetTrainer, folder: Path, name: str, ids: list[Ids], at: Position) -> str:
    """Read this rank's range of rows of the table `name` from the servers, and write these rows to `folder`.

    Args:
        trainer: this trainer.
        folder: the table's folder in the new model.
        name: name of the table.
        ids: the ids in the files of the checkpoint, each array ascending; see `_map_ids`.
        at: position of the checkpoint, for messages.

    Returns:
        A line for the log.
    """
    began, transfer, trainers = time.process_time(), 0.0, trainer.trainers
    first, own = select_range(ids, trainers.rank, trainers.count, at.folder)

    def look_up() -> Iterator[NDArray[np.float32]]:
        nonlocal transfer
        for start in range(0, len(own), LOOKUP_ROWS):
            before = time.process_time()
            found = trainer.servers.rows(name, own[start : start + LOOKUP_ROWS].view(np.int64))
            transfer += time.process_time() - before
            yield found

    write_rows(folder, first, trainer.network.shapes[name].width, own, look_up())
    rest = time.process_time() - began - transfer
    return (
        f"{name}: wrote {len(own)} of {sum(map(len, ids))} rows; CPU seconds: {transfer:.2f} to look them up, "
        f"{rest:.2f} for the rest"
    )


def _map_ids(settings: ProcessSettings, at: Position) -> dict[str, list[Ids]]:
    """Return the ids in the files of the checkpoint `at`: name of a table → arrays, each with ascending ids.

    The arrays are memory-mapped if possible. Each rank verifies the checksums of the ids in its share of the files.

    Raises:
        StorageFailedError: ids have changed since they were saved, or a file of rows is missing or damaged. The
            checkpoint was marked as rejected.
        CheckpointError: contents.json of the checkpoint is missing or damaged.
    """
    folder = OutputPaths(settings.layout.output).checkpoint(at)
    contents = checkpoints.read_contents(folder)
    shards = range(contents.shards)
    found: dict[str, list[Ids]] = {}
    try:
        for name, table in contents.tables.items():
            own, shape = found.setdefault(name, []), RowShape(table.width, table.rule)
            for shard, (path, _) in enumerate(row_files.list_files(folder, contents, name, shards)):
                own += row_files.map_ids(path, shape, verify=shard % settings.trainers == settings.rank)
    except (DataError, FileNotFoundError) as error:
        raise checkpoints.reject(folder, str(error), settings.attempt) from error
    return found
