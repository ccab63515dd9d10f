"""The trained model out of the servers: all trainers call this together, after the last pass was saved."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from launcher.layout import Output, Position
from launcher.served.model import table_folder
from launcher.worker import checkpoint, model, outputs, parts, shares
from launcher.worker.books import Log
from launcher.worker.program import Program
from launcher.worker.settings import WorkerSettings
from launcher.worker.trainer import Trainer


def writes(settings: WorkerSettings) -> bool:
    """Whether this rank writes a part of the model; with geo it is trainer 0's alone."""
    return settings.mode != "geo" or settings.rank == 0


def export(
    settings: WorkerSettings,
    program: Program,
    trainer: Trainer,
    config: Path,
    log: Log,
    *,
    at: Position,
    judge: Callable[[Path], dict[str, float]],
) -> None:
    """Writes `output/model/`, which rank 0 lets `judge` score. Raises `StorageError`, `DataError`.

    `at`: the checkpoint whose values the servers have.
    """
    began = time.monotonic()
    folder = Output(settings.output_dir).model
    if settings.mode == "geo":
        # Each trainer has the whole tables and they differ a little: the model is trainer 0's, as a save is.
        if settings.rank == 0:
            held = {name: parts.Rows.held(values) for name, values in trainer.tables().items()}
            dense = trainer.parameters()
            export = model.Export(folder, checkpoint=at.folder)
            score = model.export_held(export, program, config, dense, tables=held, judge=judge)
    else:
        found = _ids(settings, trainer, at)
        widths = {table.name: table.width for table in trainer.network.tables}
        tables = {name: (sum(map(len, ids)), widths[name]) for name, ids in found.items()}
        whole = model.Export(folder, settings.attempt, at.folder)
        if settings.rank == 0:
            whole.begin(tables)
        trainer.barrier()
        for name, ids in found.items():
            started = time.process_time()
            first, own = shares.share(ids, settings.rank, settings.trainers)
            rows = functools.partial(trainer.rows, name)
            transfer = shares.look_up(table_folder(whole.temp, name), first, own, widths[name], rows)
            beside = time.process_time() - started - transfer
            log.line(
                f"{name}: wrote {len(own)} of {tables[name][0]} rows; CPU seconds: {transfer:.2f} to look "
                f"them up, {beside:.2f} for the rest"
            )
        trainer.barrier()
        if settings.rank == 0:
            score = whole.end(program, config, trainer.parameters(), tables, judge)
    if settings.rank == 0:
        shown = " ".join(f"{name}={value:.4f}" for name, value in score.items())
        log.line(f"model in {folder}: {shown} on the test set ({time.monotonic() - began:.2f} s)")
    trainer.barrier()


def _ids(settings: WorkerSettings, trainer: Trainer, at: Position) -> dict[str, list[shares.Keys]]:
    """Each table's ids, as every rank's servers saved them; mapped."""
    folder = Output(settings.output_dir).save(at)
    contents = outputs.contents(folder)
    names = {
        table: sorted(name for name in contents["files"] if name.startswith(f"ids/{about['folder']}-"))
        for table, about in contents["tables"].items()
    }
    every = [name for own in names.values() for name in own]
    if reason := checkpoint.check_files(folder, every[settings.rank :: settings.trainers], contents):
        raise checkpoint.refuse(folder, reason, settings.attempt)
    return {
        table.name: [_mapped(folder / name) for name in names[table.name]] for table in trainer.network.tables
    }


def _mapped(path: Path) -> shares.Keys:
    empty = path.stat().st_size < shares.PAGE  # numpy maps no array without items
    return np.asarray(np.load(path, mmap_mode=None if empty else "r"))
