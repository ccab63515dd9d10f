"""The model that stands alone: written by all trainers, read without any server (launcher/served).

model/
  network.pdmodel, .pdiparams   Paddle's inference program; looked-up vectors are inputs of it
  ids.pdmodel, .pdiparams       only where network() computes ids: inputs → ids
  embeddings/<table>/           ids.npy (uint64, ascending) and vectors.npy (float32), to be mapped
  model.json                    version, columns, inputs, options, lookups, tables, score
  program/, tables/             the program's files and side tables: they turn a row into numbers
  interface.py                  what the program was written with
  score.json                    the metrics of this model on the test set
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from launcher import files
from launcher.errors import DataError, StorageError
from launcher.served.errors import ServedError
from launcher.served.model import CHUNK, EMBEDDINGS, VERSION, Model, table_folder
from launcher.worker import interface, samples, shares
from launcher.worker import program as programs
from launcher.worker.parts import Rows
from launcher.worker.records import INDEX, Records
from launcher.worker.samples import Arrays

if TYPE_CHECKING:
    from launcher.worker.network import Network
    from launcher.worker.program import Program
    from launcher.worker.single import Single

MARGIN_BYTES = 64 << 20  # the network, the program's files and its side tables
Values = Mapping[str, NDArray[np.float32]]


class Export:
    """One model being written beside its name: trainer 0 begins and ends, all fill tables between."""

    def __init__(self, folder: Path, attempt: int = 0, checkpoint: str = "") -> None:
        """`checkpoint`: the folder's name of the one that the model is of; empty: there is none."""
        self.folder, self.checkpoint = folder, checkpoint
        self.temp = folder.with_name(f".{folder.name}.attempt-{attempt}.tmp")

    def begin(self, tables: Mapping[str, tuple[int, int]]) -> None:
        """`tables`: name → (rows, width). Raises `StorageError` before anything is made without room."""
        need = MARGIN_BYTES + sum(rows * (8 + 4 * width) for rows, width in tables.values())
        with files.storage(self.folder):
            for left in self.folder.parent.glob(f".{self.folder.name}.attempt-*.tmp"):
                shutil.rmtree(left)
            if (free := files.free_bytes(self.folder)) < need:
                raise StorageError(
                    f"no space left to write {self.folder}: the model needs about {need:,} bytes, and "
                    f"{free:,} are free. Make room on that volume (earlier runs are in runs/), then start "
                    "the run again."
                )
            self.temp.mkdir(parents=True)
            for name, (rows, width) in tables.items():
                shares.create(table_folder(self.temp, name), rows, width)

    def end(
        self,
        program: Program,
        config: Path,
        values: Values,
        tables: Mapping[str, tuple[int, int]],
        judge: Callable[[Path], dict[str, float]],
    ) -> dict[str, float]:
        """Writes all but the tables, lets `judge` score the folder, renames. Returns the score.

        `values`: dense parameters by name. Raises `StorageError`, `DataError`.
        """
        temp = self.temp
        with files.storage(self.folder):
            lookups, computed = _write_networks(temp, program, values)
            files.copy_folder(config.parent, temp / "program")
            files.copy_file(Path(interface.__file__), temp / "interface.py")
            (temp / "tables").mkdir()
            for name in getattr(program.module, "TABLES", ()):
                files.copy_file(program.job.tables[name], temp / "tables" / name)
            about = {
                "version": VERSION,
                "checkpoint": self.checkpoint,
                "config": config.name,
                "columns": list(program.columns),
                "features": program.features,
                "label": program.label,
                "options": dict(program.job.options),
                "lookups": lookups,
                "ids": computed,
                "tables": {name: {"rows": rows, "width": width} for name, (rows, width) in tables.items()},
                "files": {
                    path.relative_to(temp).as_posix(): path.stat().st_size
                    for path in files.folder_files(temp)
                    if temp / EMBEDDINGS not in path.parents
                },
            }
            files.write_json(temp / "model.json", about)
            found = judge(temp)
            if not found:
                raise DataError(f"metrics() of the program {program.path} gave nothing")
            files.write_json(temp / "model.json", about | {"score": found})
            files.write_json(temp / "score.json", found)
            files.fsync_tree(temp)
            shutil.rmtree(self.folder, ignore_errors=True)
            temp.rename(self.folder)
            files.fsync_dir(self.folder.parent)
        return found


def export_held(
    export: Export,
    program: Program,
    config: Path,
    values: Values,
    *,
    tables: Mapping[str, Rows],
    judge: Callable[[Path], dict[str, float]],
) -> dict[str, float]:
    """A model of tables that this process holds: its own, or a geo trainer's. Returns the score.

    `values`: dense parameters by name. `tables`: the rows of each.
    """
    sizes = {name: (len(rows.ids), rows.vectors.shape[1]) for name, rows in tables.items()}
    export.begin(sizes)
    for name, (ids, vectors) in tables.items():
        shares.fill(table_folder(export.temp, name), 0, ids, vectors)
    return export.end(program, config, values, sizes, judge)


def export_single(
    folder: Path, program: Program, config: Path, single: Single, test: Records
) -> dict[str, float]:
    """The model of a program that was trained in this process. Returns the score."""
    tables = {name: Rows(*heap.rows()) for name, heap in single.tables.items()}

    def judge(folder: Path) -> dict[str, float]:
        return _score(Model(folder), program, test.blocks(CHUNK))

    return export_held(Export(folder), program, config, single.parameters(), tables=tables, judge=judge)


def _write_networks(folder: Path, program: Program, values: Values) -> tuple[list[dict[str, str]], list[str]]:
    """The inference programs. Returns the lookups and the ids that are computed, as model.json has them."""
    import paddle

    from launcher.worker.network import build

    network = build(program, "served")
    dense = network.dense()
    computed = {ids.name: ids for _, ids, _ in network.lookups if ids.name not in program.inputs}
    scope, exe = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(scope), paddle.static.program_guard(network.main, network.startup):
        outputs = []
        if computed:
            # Paddle's inference opens no program that is without parameters.
            zero = paddle.static.create_global_var([1], 0, "int64", persistable=True, name="zero@ids")
            with paddle.utils.unique_name.guard("computed_"):  # build() had names of its own
                outputs = [ids + zero for ids in computed.values()]
        exe.run(network.startup)
        for name in dense:
            scope.find_var(name).get_tensor().set(values[name], paddle.CPUPlace())
        vectors = [vectors.name for _, _, vectors in network.lookups]
        _save(folder / "network", network, [*program.features, *vectors], [network.prediction], exe)
        if computed:
            _save(folder / "ids", network, program.features, outputs, exe)
    lookups = [{"table": t, "ids": ids.name, "vectors": vectors.name} for t, ids, vectors in network.lookups]
    return lookups, list(computed)


def _save(path: Path, network: Network, inputs: Sequence[str], outputs: list[Any], exe: Any) -> None:
    """Of the inputs, those that the outputs depend on: Paddle takes no others."""
    import paddle

    block = network.main.global_block()
    needed = {output.name for output in outputs}
    for operator in reversed(block.ops):
        if needed.intersection(operator.output_arg_names):
            needed.update(operator.input_arg_names)
    feeds = [block.var(name) for name in inputs if name in needed]
    paddle.static.save_inference_model(str(path), feeds, outputs, exe, program=network.main)


def score(folder: Path, test: Path) -> dict[str, float]:
    """The metrics of the model in `folder`: {metric: value}. `test`: text, or records. Raises `DataError`."""
    try:
        model = Model(folder)
    except ServedError as error:
        raise DataError(str(error)) from error
    options = tuple(f"--{key}={value}" for key, value in model.about["options"].items())
    program = programs.load(folder / "program" / model.about["config"], folder / "tables", options)
    if not test.is_dir():
        return _score(model, program, [samples.read(test, program).arrays])
    key = (files.read_json(test / INDEX) or {}).get("key", "")
    records = Records.open(test, samples.row_type(program.inputs), key)
    if records is None:
        raise DataError(f"{test} holds no whole records of {program.path.name}")
    return _score(model, program, records.blocks(CHUNK))


def _score(model: Model, program: Program, blocks: Iterable[Arrays]) -> dict[str, float]:
    predictions, labels = [], []
    for block in blocks:
        predictions.append(model.predict_arrays(block).predictions)
        labels.append(block[program.label])
    with program.calling("metrics()"):
        result = program.module.metrics(np.concatenate(predictions), np.concatenate(labels))
    return {name: float(value) for name, value in result.items()}
