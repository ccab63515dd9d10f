"""Save and restore checkpoints of a running job. All trainers call the methods of `Checkpoints` together.

What the parameter servers add to the folder that launcher/io/checkpoints.py describes:

tables/<id>/part-…       each server's files of each table, with the optimizer's state. In an incremental
                         checkpoint: only the rows that changed since the checkpoint before
ids/<id>-<rank>.npy      the ids that a rank's servers hold of a table; the exported model is made of them
params.npz               dense parameters
path.txt, <config>.py    where the checkpoint was saved, and the program's file

After the servers wrote their files, each trainer reads back the files of its own servers, in parallel, and
compares some rows of each file with what the servers answer. Paddle only logs a load that fails, and continues with
the values it has. So the files' sha256 are verified before a load; after the load, rows of every table and the dense
parameters are compared with the values that the servers answered when the checkpoint was saved.

With training.incrementalCheckpoints, checkpoints inside a pass hold only the rows that changed since the
checkpoint before, and refer to the chain of checkpoints that they continue: a full one and the incremental
ones after it, which a restore loads in this order. The first checkpoint of an attempt is always full, because after a
load the servers count all rows as changed.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launcher import metrics
from launcher.errors import CheckpointError, DataError, DivergedError, SettingsError, StorageFailedError
from launcher.io import checkpoints, files
from launcher.io.checkpoints import CheckpointFolder, chain_folders
from launcher.paths import OutputPaths, Position
from launcher.schema import (
    ChainLink,
    CheckpointContents,
    CheckpointFile,
    CheckpointRows,
    CheckpointScores,
    CheckpointTable,
    RankFiles,
)
from launcher.trainer import initial_model, paddle_internals, server_tables
from launcher.trainer.fleet_trainer import FleetTrainer
from launcher.trainer.initial_model import InitialModel
from launcher.trainer.server_tables import PARAMETERS, TABLES, EmbeddingTable
from launcher.trainer.training_log import PassTotals, TrainerLog

CHAIN_SAMPLES = 600
"""Rows per table and rank, saved by earlier checkpoints of the chain, that an incremental checkpoint compares."""
LOAD_TRIES = 2  # a checkpoint is rejected forever only when the servers fail twice to load it


@dataclass
class RestoredState:
    """Holds what training resumes with in addition to the parameters. The defaults are the values of a new run."""

    totals: PassTotals = field(default_factory=PassTotals)
    """This rank's sums of the unfinished pass."""
    scores: list[tuple[int, float]] = field(default_factory=list)
    """(finished passes, score) by training.keepBest of the run's passes so far."""


class Checkpoints:
    """Saves and restores checkpoints. Each trainer has one object, and all trainers call it together."""

    def __init__(self, trainer: FleetTrainer, log: TrainerLog, seed: int) -> None:
        self.settings, self.trainer, self.log, self.seed = trainer.settings, trainer, log, seed
        self.network, self.rules = trainer.network, trainer.graph.rules
        self.first = trainer.settings.rank == 0
        self.output = OutputPaths(trainer.settings.layout.output)
        self.full_bytes = 0
        """Size of the newest full checkpoint; the same on every rank after a save."""
        self._incremental_bytes = 0
        """Size of the newest incremental checkpoint on trainer 0; 0 before the first one."""
        self._chain: list[ChainLink | None] = []
        """What the next incremental checkpoint continues. Only trainer 0 knows the links."""
        self._chain_ids: dict[str, list[int]] = {}
        """Table name → ids of rows that earlier checkpoints of this chain compared with the servers."""

    def save(self, at: Position, totals: PassTotals, steps: int, scores: metrics.Scores) -> None:
        """Save a checkpoint of the servers' values at the position `at`, and remove older checkpoints.

        All trainers call this together, after `FleetTrainer.settle`. Each trainer reads the files of its own servers
        back and compares them with the servers. Trainer 0 publishes the checkpoint when all trainers have done so, and
        removes checkpoints that training.keepCheckpoints does not keep; if that fails, it is only logged.

        Args:
            at: position of the training; the checkpoint's folder has its name.
            totals: this rank's totals of the unfinished pass; all 0 at the end of a pass.
            steps: number of batches per pass.
            scores: (finished passes, score by training.keepBest) of the run's passes so far.

        Raises:
            DivergedError: a parameter or a row of a table is NaN or infinite.
            StorageError, StorageFailedError: the checkpoint could not be written or read back.
        """
        trainers, settings, began = self.trainer.trainers, self.settings, time.monotonic()
        incremental = bool(at.batches) and 0 < len(self._chain) <= settings.incremental_checkpoints
        if not incremental:
            self._chain, self._chain_ids = [], {}
        folder = CheckpointFolder(self.output.root, at, settings.attempt)
        written = RankFiles({}, {})
        parameters = self.trainer.parameters()
        if not all(np.isfinite(values).all() for values in parameters.values()):
            raise DivergedError(f"a parameter is NaN or infinite at {at}. Fix: lower the learning rate.")
        if self.first:
            newest = (self._incremental_bytes if incremental else 0) or self.full_bytes
            folder.create(newest or sum(values.nbytes for values in parameters.values()))
            written.files.update(folder.write_file(PARAMETERS, lambda file: np.savez(file, **parameters)))
        trainers.barrier()
        if self.first:
            self._save_tables(folder.folder / TABLES, incremental)
        trainers.barrier()
        self._read_own_tables(folder, written)
        folder.add_rank_files(settings.rank, written)
        ranks = trainers.gather([totals.samples, totals.seconds, totals.loss]).tolist()
        if self.first:
            written = folder.collect_rank_files(settings.program_file, settings.trainers)
            chain = [link for link in self._chain if link]
            passes = [[done, value if np.isfinite(value) else None] for done, value in scores]
            size = folder.publish(
                CheckpointContents(
                    version=checkpoints.INCREMENTAL_VERSION if chain else checkpoints.VERSION,
                    position=at,
                    attempt=settings.attempt,
                    output_id=checkpoints.read_output_id(self.output.root) or "",
                    seed=self.seed,
                    batches=steps,
                    mode=settings.mode,
                    servers=len(self.trainer.layout.addresses),
                    shards=self.trainer.layout.shards,
                    ranks=ranks,
                    dense=server_tables.digest(parameters),
                    tables={
                        table.name: CheckpointTable(
                            self.trainer.servers.table_folder(table.name),
                            table.width,
                            self.rules[table.name].kind,
                        )
                        for table in self.network.tables
                    },
                    scores=CheckpointScores(settings.keep_best, passes) if settings.keep_best else None,
                    chain=chain,
                    files=written.files,
                    rows=written.rows,
                )
            )
            note = ""
            if chain:
                self._incremental_bytes = size
                note = f" (changes since {chain[-1].folder})"
            else:
                self.full_bytes = size
            self.log.line(f"saved {folder.final} in {time.monotonic() - began:.2f} s{note}")
        self.full_bytes = int(trainers.gather([self.full_bytes])[0, 0])  # trainer 0's; all wait for it here
        if settings.incremental_checkpoints:
            self._chain.append(checkpoints.chain_link(folder.final) if self.first else None)
        if self.first:
            self._prune(scores)

    def _save_tables(self, folder: Path, incremental: bool) -> None:
        """Let every server write its part of all tables to files below `folder`.

        Before they write, the servers delete rows that were not trained on during the last `evict`
        checkpoints (an argument of `Job.embedding`). An incremental checkpoint has only those rows of embedding tables
        that were trained on since the checkpoint before.
        """
        servers = self.trainer.servers
        if self.settings.incremental_checkpoints:  # no table evicts then
            servers.save(folder, paddle_internals.DELTA if incremental else paddle_internals.BASE)
            return
        evicting = [table.name for table in self.network.tables if table.evict is not None]
        for name in evicting:
            servers.shrink(name)
        servers.save(folder, paddle_internals.COUNTING if evicting else paddle_internals.WHOLE)

    def _prune(self, scores: metrics.Scores) -> None:
        keep, attempt = self.settings.keep_checkpoints, self.settings.attempt
        try:
            best = [Position(passes) for passes in metrics.rank_passes(self.settings.keep_best, scores)[:1]]
            for name in checkpoints.prune_checkpoints(self.output, attempt, keep, best):
                self.log.line(f"removed {name}: training.keepCheckpoints is {keep}")
        except Exception as error:  # the new checkpoint is complete, and the next save prunes again
            self.log.line(f"cannot remove an older checkpoint, the next save tries again: {error}")

    def _read_own_tables(self, folder: CheckpointFolder, written: RankFiles) -> None:
        """Read back the files that this rank's servers wrote, and compare some rows of each table with the servers.

        The files have the tables and the dense parameters. Also write the ids of each table to the checkpoint. Add all
        files and the compared rows to `written`.

        Raises:
            DivergedError: a compared row is NaN or infinite.
            StorageError: the volume is full, so the files are incomplete.
            StorageFailedError: files are missing, damaged, or differ from the servers.
        """
        rank = self.settings.rank
        try:
            for table in [*self.network.tables, None]:  # None: the dense parameters
                name = self.trainer.servers.table_folder(table.name if table else "")
                samples, ids = self._read_table(folder.folder, name, table, written)
                if table:
                    save_ids = partial(np.save, arr=np.sort(ids))
                    written.files.update(folder.write_file(f"ids/{name}-{rank}.npy", save_ids))
                    if rows := self._compare_rows(table.name, samples):
                        written.rows[table.name] = rows
        except DivergedError:
            raise
        except DataError as error:
            folder.require_space(sum(path.stat().st_size for path in files.folder_files(folder.folder)))
            raise StorageFailedError(
                f"the checkpoint of {folder.at} is incomplete: {error}. This attempt fails, and the next one "
                "resumes from the checkpoint before it. Fix: if this repeats, look for errors of `save` in this "
                f"rank's server log: python -m launcher logs --role pserver --rank {rank}"
            ) from error

    def _read_table(
        self, checkpoint: Path, folder: str, table: EmbeddingTable | None, written: RankFiles
    ) -> tuple[dict[int, NDArray[np.float32]], NDArray[np.uint64]]:
        """Read the files of one table back, and add them to `written`; return some rows by id, and all ids.

        `folder` is the table's folder name, and `table` is None for the dense parameters.
        """
        place, layout = checkpoint / TABLES / folder, self.trainer.layout
        paths = server_tables.files_of_servers(place, layout.own)
        expected = len(layout.own_shards() if table else layout.own)
        if len(paths) != expected:
            raise DataError(
                f"the save left {len(paths)} files of pservers {layout.own[0]} to {layout.own[-1]} in {place} instead "
                f"of {expected}"
            )
        width, rule = (table.width, self.rules[table.name].kind) if table else (0, "adam")
        samples: dict[int, NDArray[np.float32]] = {}
        ids = []
        for path in paths:
            found = files.retry_storage(path, partial(server_tables.read_table_file, path, width, rule))
            written.files[path.relative_to(checkpoint).as_posix()] = CheckpointFile(found.size, found.sha256)
            samples |= found.samples
            ids.append(found.ids)
        return samples, np.concatenate(ids)

    def _compare_rows(self, table: str, samples: dict[int, NDArray[np.float32]]) -> CheckpointRows | None:
        """Compare some rows of new table files with the same rows in the servers.

        Returns:
            The servers' current values of these rows and of some rows that earlier checkpoints of the chain saved,
            to be compared after a restore; None when there are no rows.

        Raises:
            DivergedError: one of the servers' rows is NaN or infinite.
            DataError: the files have other values than the servers.
        """
        chain_ids = self._chain_ids.setdefault(table, [])
        ids = np.array(list(dict.fromkeys([*samples, *chain_ids])), np.uint64).view(np.int64)
        if not len(ids):
            return None
        given = self.trainer.servers.rows(table, ids)
        if not np.isfinite(given).all():
            raise DivergedError(f"table {table} has NaN or infinite rows. Fix: lower the learning rate.")
        if samples and server_tables.values_differ(np.stack(list(samples.values())), given[: len(samples)]):
            raise DataError(
                f"the files that the pservers just saved of table {table} have other values than the pservers"
            )
        if self.settings.incremental_checkpoints:
            # Each checkpoint of a chain adds an equal share of CHAIN_SAMPLES.
            most = max(1, CHAIN_SAMPLES // self.settings.incremental_checkpoints)
            chain_ids += list(samples)[:: -(-len(samples) // most) or 1]
        return CheckpointRows(ids.tolist(), given.tolist())

    def size(self, at: Position) -> int:
        """Return the total bytes of a checkpoint's files, of all ranks, including the checkpoints it continues."""
        members = chain_folders(*self._open(at))
        return sum(checkpoints.total_bytes(checkpoints.read_contents(member)) for member in members)

    def _open(self, at: Position) -> tuple[Path, CheckpointContents]:
        """Return the folder and the contents.json of the checkpoint at position `at`.

        Raises:
            CheckpointError: contents.json is unusable.
        """
        folder = self.output.checkpoint(at)
        try:
            return folder, checkpoints.read_contents(folder)
        except CheckpointError as error:
            raise CheckpointError(
                f"training cannot resume from {folder}: {error}. The next attempt resumes from the checkpoint before "
                "it. Fix: if this repeats, look for I/O errors of the shared storage's server."
            ) from error

    def prepare(self) -> InitialModel | None:
        """Verify the checkpoint to resume from; in a new run read the initial model and set the dense parameters.

        Call this before the trainers' rendezvous. Each rank verifies the sha256 of its share of the table files.

        Returns:
            The model of training.initModelPath; None if training resumes, or the setting is empty.

        Raises:
            SettingsError: the program's tables differ from the tables of the checkpoint or of the initial model, or
                there is no initial model.
            CheckpointError: contents.json of the checkpoint is damaged.
            StorageFailedError: a file of the checkpoint is damaged or missing; the checkpoint was rejected.
            DataError: the initial model is damaged.
        """
        at = self.settings.resume
        if at is None:
            return initial_model.prepare(self.trainer)
        folder, contents = self._open(at)
        if reason := self._table_mismatch(contents):
            raise SettingsError(
                f"training cannot resume from {folder.name}: {reason}. Fix: restore the earlier program and "
                "training.args, or start from scratch: set startFromScratch to any new text."
            )
        self._verify_files(folder, contents)
        return None

    def load(self, initial: InitialModel | None) -> RestoredState:
        """Load the checkpoint to resume from, or else the initial model, into the servers.

        All trainers call this together, after their rendezvous. Trainer 0 then compares the servers' values with the
        saved values, and loads once more if they differ. At the end every trainer has the servers' dense parameters.

        Args:
            initial: the return value of `prepare`; None if there is no initial model.

        Returns:
            The totals and scores with which training resumes; the defaults in a new run.

        Raises:
            CheckpointError: contents.json of the checkpoint, or of one that it continues, is damaged.
            StorageFailedError: the servers' values differ from the checkpoint after LOAD_TRIES loads; it was rejected.
            GangError: the servers' or this trainer's values differ from the initial model.
        """
        at = self.settings.resume
        if at is None:
            if initial is not None:
                initial_model.load(self.trainer, initial, self.log)
            return RestoredState()
        folder, contents = self._open(at)
        self._load_servers(folder, contents)
        self.trainer.trainers.barrier()
        self.log.line(f"resumed from {folder.name}; the servers' values are verified")
        full = checkpoints.read_contents(chain_folders(folder, contents)[0])
        self.full_bytes = checkpoints.total_bytes(full)
        scores = checkpoints.scores_by(contents, self.settings.keep_best)
        return RestoredState(PassTotals(*contents.ranks[self.settings.rank]), scores)

    def restore(self, at: Position) -> None:
        """Load an earlier checkpoint of this run into the running servers for the export.

        All trainers call this together. Rows that the servers have and the checkpoint does not have stay in the
        servers. The exported model has only the checkpoint's ids.

        Raises:
            CheckpointError: contents.json is damaged.
            StorageFailedError: a file is damaged, or the servers' values differ from it; the checkpoint was rejected.
        """
        folder, contents = self._open(at)
        self._verify_files(folder, contents)
        self.trainer.trainers.barrier()
        self._load_servers(folder, contents)
        best = f", the best by {self.settings.keep_best}" if self.settings.keep_best else ""
        self.log.line(f"restored {folder.name}{best}, to export the model from it")

    def _verify_files(self, folder: Path, contents: CheckpointContents) -> None:
        """Verify the sha256 of this rank's share of the table files, and on rank 0 of params.npz.

        Raises:
            CheckpointError: contents.json of a checkpoint that this one continues is damaged.
            StorageFailedError: a file changed since the save, or is missing; the checkpoint was rejected.
        """
        for member in chain_folders(folder, contents):
            listed = checkpoints.read_contents(member)
            # Each rank verifies a share, whichever servers will load it.
            tables = sorted(name for name in listed.files if name.startswith(f"{TABLES}/"))
            names = tables[self.settings.rank :: self.settings.trainers]
            names += [PARAMETERS] if self.first else []
            if reason := checkpoints.check_files(member, names, listed.files):
                raise checkpoints.reject(member, reason, self.settings.attempt)

    def _table_mismatch(self, contents: CheckpointContents) -> str | None:
        """Return how the program's tables differ from the tables in the checkpoint; None if they are the same."""
        saved, present = contents.tables, {table.name: table for table in self.network.tables}
        if list(saved) != list(present):
            return f"it has the tables {', '.join(saved)}, but the program has {', '.join(present)}"
        for name, table in present.items():
            was = {"width": saved[name].width, "optimizer": saved[name].rule}
            now = {"width": table.width, "optimizer": self.rules[name].kind}
            for key, value in now.items():
                if was[key] != value:
                    return f"its table {name} has the {key} {was[key]}, but the program's has {value}"
        return None

    def _load_servers(self, folder: Path, contents: CheckpointContents) -> None:
        if untrained := self.network.untrained:
            values = server_tables.load_arrays(folder / PARAMETERS)
            self.trainer.set_parameters({name: values[name] for name in untrained})
        if self.first:
            self._load_and_compare(folder, contents)
        self.trainer.trainers.barrier()
        self.trainer.servers.pull_dense()

    def _load_and_compare(self, folder: Path, contents: CheckpointContents) -> None:
        """Let the servers load all tables, pull the dense parameters, and compare both with the checkpoint.

        Only trainer 0 calls this. If the values differ, load again, at most LOAD_TRIES times in all.

        Raises:
            StorageFailedError: the values differ after every load; the checkpoint was rejected.
        """
        for number in range(1, LOAD_TRIES + 1):
            for member in chain_folders(folder, contents):
                for table in self.network.tables:
                    self.trainer.servers.load(table.name, member / TABLES)
            self._load_dense(folder, contents.servers)
            self.trainer.servers.pull_dense()
            reason = self._dense_mismatch(folder, contents) or self._rows_mismatch(contents)
            if reason is None:
                return
            self.log.line(f"load {number} of at most {LOAD_TRIES} of {folder.name} failed: {reason}")
        raise checkpoints.reject(folder, reason or "", self.settings.attempt)

    def _load_dense(self, folder: Path, saved_by: int) -> None:
        """Load the dense parameters of a checkpoint, whose files `saved_by` servers wrote."""
        servers, count = self.trainer.servers, len(self.trainer.layout.addresses)
        if saved_by == count:
            servers.load("", folder / TABLES)
            return
        temp = self.output.root / f".dense.attempt-{self.settings.attempt}.tmp"
        with files.storage_errors(temp):
            shutil.rmtree(temp, ignore_errors=True)
            name = servers.table_folder("")
            source = folder / TABLES / name
            server_tables.redistribute_dense(source, temp / name, self.trainer.graph.rule, count)
            servers.load("", temp)
            shutil.rmtree(temp)

    def _dense_mismatch(self, folder: Path, contents: CheckpointContents) -> str | None:
        """Return how the servers' dense parameters differ from the checkpoint's, or None."""
        given = self.trainer.parameters()
        found = server_tables.load_arrays(folder / PARAMETERS)
        saved = {name: found[name] for name in given if name in found}
        if server_tables.digest(saved) != contents.dense:
            return f"{PARAMETERS} does not hold the parameters that the servers had at the save"
        wrong = [name for name, values in given.items() if server_tables.values_differ(values, saved[name])]
        if not wrong:
            return None
        return f"after the load the servers' values of {', '.join(wrong)} differ from {PARAMETERS}"

    def _rows_mismatch(self, contents: CheckpointContents) -> str | None:
        """Return how the servers' rows differ from the saved values in contents.json; None if they do not."""
        for name, saved in contents.rows.items():
            given = self.trainer.servers.rows(name, np.array(saved.ids, np.int64))
            expected = np.array(saved.values, np.float32)
            wrong = [n for n in range(len(given)) if server_tables.values_differ(given[n], expected[n])]
            if wrong:
                ids = ", ".join(str(saved.ids[n] % 2**64) for n in wrong[:5])
                return (
                    f"after the load {len(wrong)} of {len(given)} compared rows of table {name} have other "
                    f"values, for example the rows with the ids {ids}"
                )
        return None
