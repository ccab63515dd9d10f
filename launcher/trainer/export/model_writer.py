"""Write the exported model, which `paddle_served` (launcher/serving) loads without parameter servers.

model/
  network.pdmodel, .pdiparams   Paddle's inference program; vectors of looked-up ids are inputs of it
  ids.pdmodel, .pdiparams       only if network() calculates ids: inputs → ids
  embeddings/<table>/           ids.npy (uint64, ascending) and vectors.npy (float32), to be memory-mapped
  model.json                    version, columns, inputs, options, lookups, tables, score
  program/, tables/             the program's files and side tables, which convert a row to numbers
  interface.py                  launcher/program.py, which the program imports
  score.json                    the metrics of this model on the test set
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from launcher import program as interface
from launcher import schema
from launcher.errors import DataError
from launcher.io import disk_space, files
from launcher.schema import ModelDescription, ModelLookup, ModelTable
from launcher.serving.paddle_served.model import EMBEDDINGS, VERSION, Model, table_folder
from launcher.trainer.checkpoint.table_files import TableRows
from launcher.trainer.evaluation import evaluate_model, finite_scores
from launcher.trainer.export import table_writer
from launcher.trainer.records.record_files import Records

if TYPE_CHECKING:
    from launcher.trainer.graph.network_builder import BuiltNetwork
    from launcher.trainer.program_loader import TrainingProgram
    from launcher.trainer.single_process.single_process_trainer import SingleProcessTrainer

MARGIN_BYTES = 64 << 20  # the network, the program's files and its side tables
Values = Mapping[str, NDArray[np.float32]]
ScoreModel = Callable[[Path], dict[str, float]]
"""Returns metric → value of the model in a folder."""


class ModelWriter:
    """Writes the folder of one exported model under a temporary name, and renames it when it is complete.

    Trainer 0 calls `create` and `finish`; between these, all trainers fill the tables in `temp`.
    """

    def __init__(self, folder: Path, attempt: int = 0, checkpoint: str = "") -> None:
        """Prepare to write the model with the values of the folder `checkpoint`; "" if there is no checkpoint."""
        self.folder, self.checkpoint = folder, checkpoint
        self.temp = folder.with_name(f".{folder.name}.attempt-{attempt}.tmp")

    def create(self, tables: Mapping[str, ModelTable]) -> None:
        """Create the temporary folder with the tables' files; remove temporary folders of earlier attempts.

        Raises:
            StorageError: the volume has not enough free space; raised before anything is created.
        """
        needed = MARGIN_BYTES + sum(table.rows * (8 + 4 * table.width) for table in tables.values())
        with files.storage_errors(self.folder):
            for unfinished in self.folder.parent.glob(f".{self.folder.name}.attempt-*.tmp"):
                shutil.rmtree(unfinished)
            disk_space.require_space(self.folder, needed, "the exported model", disk_space.RESTART_RUN)
            self.temp.mkdir(parents=True)
            for name, table in tables.items():
                table_writer.create_table(table_folder(self.temp, name), table.rows, table.width)

    def finish(
        self, program: TrainingProgram, values: Values, tables: Mapping[str, ModelTable], score: ScoreModel
    ) -> dict[str, float]:
        """Write everything but the tables, score the model, and give the folder its final name.

        Returns:
            The metrics: metric → value. Those that are NaN or infinite are not in model.json and score.json.

        Raises:
            DataError: the model cannot be scored.
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
    writer: ModelWriter,
    program: TrainingProgram,
    values: Values,
    tables: Mapping[str, TableRows],
    score: ScoreModel,
) -> dict[str, float]:
    """Write a model of tables that this process holds. Return its metrics."""
    shapes = {name: ModelTable(*rows.vectors.shape) for name, rows in tables.items()}
    writer.create(shapes)
    for name, (ids, vectors) in tables.items():
        table_writer.write_rows(table_folder(writer.temp, name), 0, vectors.shape[1], ids, [vectors])
    return writer.finish(program, values, shapes, score)


def export_single_process(folder: Path, trainer: SingleProcessTrainer, test: Records) -> dict[str, float]:
    """Write the model of a program that was trained in this process. Return its metrics."""
    tables = {name: TableRows(*table.rows()) for name, table in trainer.tables.items()}
    score = partial(_score, trainer.program, test)
    return export_from_memory(ModelWriter(folder), trainer.program, trainer.parameters(), tables, score)


def _score(program: TrainingProgram, test: Records, folder: Path) -> dict[str, float]:
    return evaluate_model(program, Model(folder), test)


def _write_networks(
    folder: Path, program: TrainingProgram, values: Values
) -> tuple[list[ModelLookup], list[str]]:
    """Write Paddle's inference programs to `folder`.

    Returns:
        The network's look-ups of tables, and the names of the variables of ids that network() calculates.
    """
    import paddle

    from launcher.trainer.graph.network_builder import build_network

    network = build_network(program, "served")
    dense = network.dense()
    calculated = {ids.name: ids for _, ids, _ in network.lookups if ids.name not in program.inputs}
    scope, exe = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(scope), paddle.static.program_guard(network.main, network.startup):
        outputs = []
        if calculated:
            # Paddle's inference cannot load a program without parameters.
            zero = paddle.static.create_global_var([1], 0, "int64", persistable=True, name="zero@ids")
            with paddle.utils.unique_name.guard("computed_"):  # build_network() had its own names
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
    """Write an inference program with those of the inputs that the outputs depend on; Paddle rejects others."""
    import paddle

    needed = network.names_needed(outputs)
    feeds = [network.main.global_block().var(name) for name in inputs if name in needed]
    paddle.static.save_inference_model(str(path), feeds, outputs, exe, program=network.main)
