"""`training.initFrom`: the parameters of an earlier run, from its folder or from its export in a bucket.

Tables are read where they lie, a stretch of rows at a time, by each rank for its own servers.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher import fetch, files, s3
from launcher.errors import DataError, GangError, SettingsError, setting
from launcher.layout import Output
from launcher.served.errors import ServedError
from launcher.served.model import description, table_folder
from launcher.served.table import Table
from launcher.worker import checkpoint, outputs, parts
from launcher.worker.books import Log
from launcher.worker.network import Network
from launcher.worker.network import Table as Described
from launcher.worker.parts import Rows
from launcher.worker.settings import WorkerSettings
from launcher.worker.trainer import Trainer

KEY = "training.initFrom (PADDLE_LAUNCHER_INIT_FROM)"
Values = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Stored:
    """A table of an earlier run, where it lies."""

    width: int
    stretches: Callable[[int, Collection[int]], Iterator[Rows]]
    """Of a number of shards and some of them: at least the rows whose id modulo the former is of the latter.
    Raises `DataError` for files that are not what was saved."""


@dataclass(frozen=True)
class Initial:
    """All trained parameters by name; of embedding tables, the rows that were trained."""

    values: Values
    """Dense ones."""
    tables: dict[str, Stored]
    source: str

    @classmethod
    def find(cls, settings: WorkerSettings) -> Initial:
        """Reads what `init_from` names. Raises `SettingsError` when nothing whole is there; `DataError`."""
        given = settings.init_from
        if given.startswith(s3.SCHEME):
            folder = fetch.model(given, settings.work_dir / "init", KEY)
            try:
                return cls(*_model(folder), given)
            finally:
                shutil.rmtree(folder.parent, ignore_errors=True)
        path = PurePosixPath(given)
        if path.is_absolute() or ".." in path.parts:
            raise _wrong(given, "a run's folder is named from JOB_PATH on, without ..")
        output = Output(settings.job_path / path)
        if outputs.model_whole(output.model):
            return cls(*_model(output.model), f"{given}/model")
        newest = outputs.newest_save(output.root)
        if newest is None:
            raise _wrong(given, f"there is neither a whole model nor a whole save in {output.root}")
        return cls(*_save(output.save(newest)), f"{given}/{newest.folder}")

    def check(self, network: Network) -> None:
        """Raises `SettingsError` when this is another network than the program's."""
        wanted = {table.name: f"a table of width {table.width}" for table in network.tables}
        for name in network.dense():
            wanted[name] = str(tuple(network.main.global_block().var(name).shape))
        found = {name: str(values.shape) for name, values in self.values.items()}
        found |= {name: f"a table of width {table.width}" for name, table in self.tables.items()}
        faults = [
            f"{name} is {found.get(name, 'absent')} there and {wanted.get(name, 'absent')} here"
            for name in sorted({*wanted, *found})
            if found.get(name) != wanted.get(name)
        ]
        if faults:
            raise _wrong(self.source, f"it is another network: {'; '.join(faults)}")

    def whole(self, table: Described) -> NDArray[np.float32]:
        """geo: a table as the plain array that each trainer has. Raises `SettingsError` for ids beyond it."""
        values = np.zeros((table.rows or 0, table.width), np.float32)
        for ids, vectors in self.tables[table.name].stretches(1, (0,)):
            if len(ids) and ids.max() >= len(values):
                raise _wrong(
                    self.source, f"{table.name} has the id {ids.max()} there and {table.rows} rows here"
                )
            values[ids] = vectors
        return values


def _wrong(value: str, reason: str) -> SettingsError:
    return SettingsError(
        setting(
            KEY,
            value,
            "an earlier run of the same network: its folder below JOB_PATH (such as other-job/output or "
            "other-job/runs/ID), or s3://BUCKET/PREFIX of its export",
            reason,
            "Name such a run, or leave training.initFrom out",
        )
    )


def _model(folder: Path) -> tuple[Values, dict[str, Stored]]:
    """The parameters of an exported model; its tables are mapped."""
    import paddle

    scope = paddle.static.Scope()
    try:
        about = description(folder)
        tables = {name: Table(table_folder(folder, name), **size) for name, size in about["tables"].items()}
    except ServedError as error:
        raise DataError(f"training.initFrom: {error}") from error
    with paddle.static.scope_guard(scope):
        exe = paddle.static.Executor(paddle.CPUPlace())
        try:
            program, *_ = paddle.static.load_inference_model(str(folder / "network"), exe)
        except (ValueError, RuntimeError, OSError) as error:
            raise DataError(f"training.initFrom: the model in {folder} cannot be read: {error}") from error
        names = [p.name for p in program.list_vars() if p.persistable and p.name not in ("feed", "fetch")]
        values = {name: np.array(scope.find_var(name).get_tensor()) for name in names}
    return values, {name: _held(Rows(table.ids, table.vectors)) for name, table in tables.items()}


def _held(rows: Rows) -> Stored:
    return Stored(rows.vectors.shape[1], lambda *_: rows.stretches())


def _save(folder: Path) -> tuple[Values, dict[str, Stored]]:
    """The parameters of a save inside a run."""
    contents = outputs.contents(folder)
    _check(folder, [checkpoint.PARAMETERS], contents)
    values = checkpoint.load_arrays(folder / checkpoint.PARAMETERS)
    older = [(save, outputs.contents(save)) for save in reversed(outputs.chain(folder, contents))]
    tables = {}
    for name, about in contents["tables"].items():
        if name in values:  # geo keeps tables with the dense parameters
            tables[name] = _held(Rows.held(values.pop(name)))
        else:
            tables[name] = _newest([_parts(*save, about) for save in [(folder, contents), *older]])
    return values, tables


def _parts(folder: Path, contents: Mapping[str, Any], about: Mapping[str, Any]) -> Stored:
    place = f"{checkpoint.TABLES}/{about['folder']}/"
    every = sorted(name for name in contents["files"] if name.startswith(place))

    def stretches(shards: int, own: Collection[int]) -> Iterator[Rows]:
        alike = shards == contents["shards"]
        names = [name for name in every if parts.shard(name) in own] if alike else every
        _check(folder, names, contents)
        return parts.read_rows((folder / name for name in names), about["width"], about["rule"])

    return Stored(about["width"], stretches)


def _newest(saves: list[Stored]) -> Stored:
    """A table of a delta and of what it continues, the newest first: each row as the newest has it."""
    if len(saves) == 1:
        return saves[0]

    def stretches(shards: int, own: Collection[int]) -> Iterator[Rows]:
        seen: set[int] = set()
        for save in saves:
            for ids, vectors in save.stretches(shards, own):
                fresh = [n for n, key in enumerate(ids.tolist()) if key not in seen]
                yield Rows(ids[fresh], vectors[fresh])
                if save is not saves[-1]:  # of the base, which may be large, nothing is kept
                    seen.update(ids.tolist())

    return Stored(saves[0].width, stretches)


def _check(folder: Path, names: list[str], contents: Mapping[str, Any]) -> None:
    if reason := checkpoint.check_files(folder, names, contents):
        raise DataError(f"training.initFrom: {folder}: {reason}. Name another run.")


def bring_in(settings: WorkerSettings, trainer: Trainer, initial: Initial | None, log: Log) -> None:
    """The tables of `training.initFrom` go to the servers; the dense parameters came with the meeting."""
    began = time.monotonic()
    if initial is not None:
        written = {} if settings.mode == "geo" else _bring_tables(settings, trainer, initial)
        _prove(trainer, initial, written)
    total = float(sum(np.abs(values).sum(dtype=np.float64) for values in trainer.parameters().values()))
    totals = trainer.gather([total])[:, 0]
    if not np.allclose(totals, totals[0], rtol=parts.TOLERANCE):
        raise GangError(f"training.initFrom: the ranks begin with other parameters: {totals.tolist()}")
    took = time.monotonic() - began
    log.line(f"began with the parameters of {settings.init_from} ({took:.2f} s)")


def _bring_tables(settings: WorkerSettings, trainer: Trainer, initial: Initial) -> dict[str, Rows]:
    """Each rank writes what its own servers load. Returns some of its rows of each table."""
    temp = settings.output_dir / f".init.attempt-{settings.attempt}.tmp"
    if settings.rank == 0:
        with files.storage(temp):
            shutil.rmtree(temp, ignore_errors=True)
            temp.mkdir()
    trainer.barrier()
    shards, servers = trainer.shards, len(trainer.servers)
    own = {shard: server for server in trainer.own_servers for shard in parts.held(shards, servers, server)}
    written = {}
    with files.storage(temp):
        for table in trainer.network.tables:
            place, rule = temp / trainer.table_folder(table.name), trainer.rules[table.name]
            rows = initial.tables[table.name].stretches(shards, own)
            written[table.name] = parts.write_table(place, rows, rule, own, width=table.width, shards=shards)
    trainer.barrier()
    if settings.rank == 0:
        for table in trainer.network.tables:
            trainer.load_table(table.name, temp)
        with files.storage(temp):
            shutil.rmtree(temp)
    trainer.barrier()
    trainer.pull_dense()
    return written


def _prove(trainer: Trainer, initial: Initial, written: Mapping[str, Rows]) -> None:
    """Raises `GangError` unless the servers give what was brought in."""
    given = trainer.parameters() | (trainer.tables() if trainer.mode == "geo" else {})
    wrong = [name for name, values in given.items() if parts.differ(values, initial.values[name])]
    for name, (ids, vectors) in written.items():
        if parts.differ(trainer.rows(name, ids.view(np.int64)), vectors):
            wrong.append(name)
    if wrong:
        raise GangError(
            f"training.initFrom: the servers do not give what was read from {initial.source}: "
            f"{', '.join(wrong)}. See the logs of the pservers."
        )
