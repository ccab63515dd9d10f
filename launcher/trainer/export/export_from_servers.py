"""Export the trained model from the servers. All trainers call `ModelExporter.export` together after the last save."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.io import checkpoint_checks
from launcher.paths import OutputPaths, Position
from launcher.schema import ModelTable
from launcher.serving.paddle_served.mapped_table import map_array
from launcher.serving.paddle_served.model import table_folder
from launcher.trainer.checkpoint import contents_file
from launcher.trainer.export import model_writer
from launcher.trainer.export.model_writer import ModelWriter
from launcher.trainer.export.scoring_process import ScoringProcess
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.pserver_client import PserverClient
from launcher.trainer.training_log import TrainerLog


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
        folder = OutputPaths(settings.output_dir).model
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
        folder = OutputPaths(settings.output_dir).checkpoint(at)
        contents = contents_file.read_contents(folder)
        names = {
            table: sorted(name for name in contents.files if name.startswith(f"ids/{about.folder}-"))
            for table, about in contents.tables.items()
        }
        every = [name for own in names.values() for name in own]
        own_share = every[settings.rank :: settings.trainers]  # each rank verifies a share of the files
        if reason := checkpoint_checks.check_files(folder, own_share, contents.files):
            raise checkpoint_checks.reject(folder, reason, settings.attempt)
        return {
            # A file of no ids is smaller than a page.
            table.name: [
                map_array(path, path.stat().st_size < model_writer.HEADER_BYTES)
                for path in (folder / name for name in names[table.name])
            ]
            for table in self.trainer.network.tables
        }
