"""Save checkpoints of a running job. All trainers call `CheckpointSaver.save` together.

After the servers wrote their files, each trainer reads back the files of its own servers, in parallel, and
compares some rows of each file with what the servers answer.

With training.incrementalCheckpoints, checkpoints inside a pass hold only the rows that changed since the
checkpoint before, and refer to the chain of checkpoints that they continue: a full one and the incremental
ones after it. The first checkpoint of an attempt is always full, because after a load the servers count all
rows as changed.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launcher import metrics
from launcher.errors import DataError, DivergedError, StorageFailedError
from launcher.io import checkpoints, files
from launcher.io.checkpoints import CheckpointFolder
from launcher.paths import Position
from launcher.schema import (
    ChainLink,
    CheckpointContents,
    CheckpointFile,
    CheckpointRows,
    CheckpointScores,
    CheckpointTable,
    RankFiles,
)
from launcher.trainer.checkpoint import table_files
from launcher.trainer.checkpoint.table_files import PARAMETERS, TABLES
from launcher.trainer.graph.network_builder import EmbeddingTable
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.pserver_client import PserverClient
from launcher.trainer.training_log import PassTotals, TrainerLog

Values = dict[str, NDArray[np.float32]]
CHAIN_SAMPLES = 600
"""Rows per table and rank, saved by earlier checkpoints of the chain, that an incremental checkpoint compares."""


class CheckpointSaver:
    """Saves checkpoints. Each trainer has one, and all trainers call `save` together."""

    def __init__(self, settings: ProcessSettings, trainer: PserverClient, log: TrainerLog, seed: int) -> None:
        self.settings, self.trainer, self.log, self.seed = settings, trainer, log, seed
        self.full_bytes = 0
        """Size of the newest full checkpoint; the same on every rank after a save."""
        self._incremental_bytes = 0
        """Size of the newest incremental checkpoint on trainer 0; 0 before the first one."""
        self._chain: list[ChainLink | None] = []
        """What the next incremental checkpoint continues. Only trainer 0 knows the links."""
        self._chain_ids: dict[str, list[int]] = {}
        """Table name → ids of rows that earlier checkpoints of this chain compared with the servers."""

    def save(self, at: Position, totals: PassTotals, steps: int, scores: metrics.Scores) -> None:
        """Save a checkpoint of the servers' values at the position `at`; call `PserverClient.settle` first.

        `totals` are those of this rank in the unfinished pass, all 0 at the end of a pass; `steps` is the number of
        batches per pass; `scores` has (finished passes, score) by training.keepBest.

        Raises:
            DivergedError: a parameter is NaN or infinite.
            StorageError, StorageFailedError: the checkpoint could not be written or read back.
        """
        trainer, settings, began = self.trainer, self.settings, time.monotonic()
        first = settings.rank == 0
        incremental = bool(at.batches) and 0 < len(self._chain) <= settings.incremental_checkpoints
        if not incremental:
            self._chain, self._chain_ids = [], {}
        folder = CheckpointFolder(settings.layout.output, at, settings.attempt)
        written = RankFiles({}, {})
        parameters = trainer.parameters()
        if not all(np.isfinite(values).all() for values in parameters.values()):
            raise DivergedError(f"a parameter is NaN or infinite at {at}. Fix: lower the learning rate.")
        if first:
            newest = (self._incremental_bytes if incremental else 0) or self.full_bytes
            folder.create(newest or sum(values.nbytes for values in parameters.values()))
            written.files.update(
                folder.write_file(PARAMETERS, lambda file: np.savez(file, **dict(parameters)))
            )
        trainer.barrier()
        if first:
            trainer.save_tables(folder.folder / TABLES, delta=incremental)
        trainer.barrier()
        self._read_own_tables(folder, written)
        folder.add_rank_files(settings.rank, written)
        ranks = trainer.gather([totals.samples, totals.seconds, totals.loss])
        if first:
            size = self._publish(folder, ranks.tolist(), steps, parameters, scores)
            note = ""
            if incremental and self._chain[-1]:
                self._incremental_bytes = size
                note = f" (changes since {self._chain[-1].folder})"
            else:
                self.full_bytes = size
            self.log.line(f"saved {folder.final} in {time.monotonic() - began:.2f} s{note}")
        self.full_bytes = int(trainer.gather([self.full_bytes])[0, 0])  # trainer 0's; all wait for it here
        if settings.incremental_checkpoints:
            self._chain.append(checkpoints.chain_link(folder.final) if first else None)
        if first:
            self._prune(folder, scores)

    def _publish(
        self,
        folder: CheckpointFolder,
        ranks: list[list[float]],
        steps: int,
        parameters: Values,
        scores: metrics.Scores,
    ) -> int:
        """Complete the checkpoint on trainer 0. Return the size of its files in bytes.

        `ranks` has [samples, seconds, sum of the loss] of each rank in the unfinished pass.
        """
        settings, trainer = self.settings, self.trainer
        written = folder.collect_rank_files(settings.program_file, settings.trainers)
        chain = [link for link in self._chain if link]
        passes = [[at, value if np.isfinite(value) else None] for at, value in scores]
        contents = CheckpointContents(
            version=checkpoints.INCREMENTAL_VERSION if chain else checkpoints.VERSION,
            position=folder.at,
            attempt=settings.attempt,
            output_id=checkpoints.read_output_id(settings.layout.output) or "",
            seed=self.seed,
            batches=steps,
            mode=settings.mode,
            servers=len(trainer.servers),
            shards=trainer.shards,
            ranks=ranks,
            dense=table_files.digest(parameters),
            tables={table.name: self._describe(table) for table in trainer.network.tables},
            scores=CheckpointScores(settings.keep_best, passes) if settings.keep_best else None,
            chain=chain,
            files=written.files,
            rows=written.rows,
        )
        return folder.publish(contents)

    def _describe(self, table: EmbeddingTable) -> CheckpointTable:
        rule = self.trainer.rules[table.name].kind
        return CheckpointTable(self.trainer.table_folder(table.name), table.width, rule)

    def _prune(self, folder: CheckpointFolder, scores: metrics.Scores) -> None:
        keep = self.settings.keep_checkpoints
        try:
            best = [Position(passes) for passes in metrics.rank_passes(self.settings.keep_best, scores)[:1]]
            for name in checkpoints.prune_checkpoints(folder.output, folder.attempt, keep, best):
                self.log.line(f"removed {name}: training.keepCheckpoints is {keep}")
        except Exception as error:  # the new checkpoint is complete, and the next save prunes again
            self.log.line(f"cannot remove an older checkpoint, the next save tries again: {error}")

    def _read_own_tables(self, folder: CheckpointFolder, written: RankFiles) -> None:
        """Read back the table files that this rank's servers wrote, and record them in `written`."""
        tables = {self.trainer.table_folder(table.name): table for table in self.trainer.network.tables}
        try:
            for name in [*tables, self.trainer.table_folder("")]:
                table = tables.get(name)
                samples, ids = self._read_table(folder.folder, name, table, written)
                if table:
                    written.files.update(
                        folder.write_file(
                            f"ids/{name}-{self.settings.rank}.npy", partial(np.save, arr=np.sort(ids))
                        )
                    )
                    if rows := self._compare_rows(table.name, samples):
                        written.rows[table.name] = rows
        except DivergedError:
            raise
        except DataError as error:
            folder.require_space(sum(path.stat().st_size for path in files.folder_files(folder.folder)))
            raise StorageFailedError(
                f"the checkpoint of {folder.at} is incomplete: {error}. This attempt fails, and the next one "
                "resumes from the checkpoint before it. Fix: if this repeats, look for errors of `save` in this "
                f"rank's server log: python -m launcher logs --role pserver --rank {self.settings.rank}"
            ) from error

    def _read_table(
        self, checkpoint: Path, folder: str, table: EmbeddingTable | None, written: RankFiles
    ) -> tuple[dict[int, NDArray[np.float32]], NDArray[np.uint64]]:
        """Read the files of one table back, and add them to `written`; return some rows by id, and all ids.

        `folder` is the table's folder name, and `table` is None for the dense parameters.
        """
        place, own = checkpoint / TABLES / folder, self.trainer.own_servers
        paths = table_files.files_of_servers(place, own)
        shards, servers = self.trainer.shards, len(self.trainer.servers)
        expected = len(own)
        if table:
            expected = sum(len(table_files.shards_of_server(shards, servers, server)) for server in own)
        if len(paths) != expected:
            raise DataError(
                f"the save left {len(paths)} files of pservers {own[0]} to {own[-1]} in {place} instead of {expected}"
            )
        width, rule = (table.width, self.trainer.rules[table.name].kind) if table else (0, "adam")
        samples: dict[int, NDArray[np.float32]] = {}
        ids = []
        for path in paths:
            found = files.retry_storage(path, partial(table_files.read_table_file, path, width, rule))
            written.files[path.relative_to(checkpoint).as_posix()] = CheckpointFile(found.size, found.sha256)
            samples |= found.samples
            ids.append(found.ids)
        return samples, np.concatenate(ids)

    def _compare_rows(self, table: str, samples: dict[int, NDArray[np.float32]]) -> CheckpointRows | None:
        """Compare some rows of new table files with the same rows in the servers. Raise if they differ.

        Returns:
            The servers' present values of these rows and of some rows that earlier checkpoints of the chain saved,
            to be compared after a restore; None when there are no rows.
        """
        chain_ids = self._chain_ids.setdefault(table, [])
        ids = np.array(list(dict.fromkeys([*samples, *chain_ids])), np.uint64).view(np.int64)
        if not len(ids):
            return None
        given = self.trainer.rows(table, ids)
        if not np.isfinite(given).all():
            raise DivergedError(f"table {table} has NaN or infinite rows. Fix: lower the learning rate.")
        if samples and table_files.values_differ(np.stack(list(samples.values())), given[: len(samples)]):
            raise DataError(
                f"the files that the pservers just saved of table {table} have other values than the pservers"
            )
        if self.settings.incremental_checkpoints:
            # Each checkpoint of a chain adds an equal share of CHAIN_SAMPLES.
            most = max(1, CHAIN_SAMPLES // self.settings.incremental_checkpoints)
            chain_ids += list(samples)[:: -(-len(samples) // most) or 1]
        return CheckpointRows(ids.tolist(), given.tolist())
