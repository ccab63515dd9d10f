"""Save and restore checkpoints of a running job. All trainers call the methods of `Checkpoints` together.

What the parameter servers add to the folder that launcher/io/checkpoints.py describes:

tables/<id>/shard-<n>.rows   the rows of one shard of an embedding table, with the optimizer's state (row_files.py)
tables/<id>/part-<n>.npz     each server's part of the dense parameters, with the optimizer's state
params.npz                   dense parameters
path.txt, <config>.py        where the checkpoint was saved, and the program's file

The training waits only until every server has a copy of its memory (server_commands.py). Then it goes on, while a
thread of each trainer waits for the files of its own servers, and trainer 0 publishes the checkpoint when all are
complete. Before the training goes on, some rows of each file are compared with what the servers answer.

The sha256 of the files is verified before a load, or of rows while the servers read them. Then rows of every table and
the dense parameters are compared with the values that the servers answered when the checkpoint was saved.

If a server cannot save in binary (server_memory.py), and in checkpoints of earlier launchers, Paddle saves and loads
the tables as text. Checkpoints of version 5 have only the dense parameters as text.

tables/<id>/part-<n>-<shard>   each server's files of an embedding table
tables/<id>/part-<n>.gz        each server's part of the dense parameters
ids/<id>-<rank>.npy            the ids that a rank's servers hold of a table

Each trainer reads back the text of its own servers. Paddle only logs a load that fails, and continues with the values
it has. So the sha256 of text is verified before a load, and a load whose values differ is repeated.
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launcher import metrics
from launcher.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    GangError,
    SettingsError,
    StorageFailedError,
)
from launcher.io import checkpoints, files
from launcher.io.checkpoints import CheckpointFolder
from launcher.io.rank_exchange import RankExchange
from launcher.paths import OutputPaths, Position
from launcher.row_division import Division
from launcher.schema import (
    CheckpointContents,
    CheckpointRows,
    CheckpointScores,
    CheckpointTable,
    RankFiles,
)
from launcher.trainer import initial_model, paddle_internals, row_files, server_tables
from launcher.trainer.fleet_trainer import TEXT_TABLES, FleetTrainer
from launcher.trainer.initial_model import InitialModel
from launcher.trainer.server_commands import Snapshot
from launcher.trainer.server_tables import PARAMETERS, TABLES, RowShape, TableRows
from launcher.trainer.training_log import PassTotals, TrainerLog

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
        self.network, self.shapes = trainer.network, trainer.graph.shapes
        self.first = trainer.settings.rank == 0
        self.output = OutputPaths(trainer.settings.layout.output)
        self.expected_bytes = 0
        """Size of the newest checkpoint, or an estimate while it is written; the same on every rank."""
        self._exchange = RankExchange(
            self.settings.rank,
            self.settings.trainers,
            f"{self.settings.hosts[0]}:{self.settings.peer_port}{self.settings.store}_saved/",
            self.settings.work_dir,
        )
        self._publisher = ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[Position, Future[int]] | None = None
        """The position of the checkpoint that is being written, and its size once it is published."""

    def save(self, at: Position, totals: PassTotals, division: Division, scores: metrics.Scores) -> None:
        """Start to save a checkpoint of the servers' values at the position `at`; return when training may continue.

        All trainers call this together, after `FleetTrainer.settle`, and before it `published(wait=True)`. Each trainer
        compares rows that its own servers save with what the servers answer. Then a thread waits for their files.
        Trainer 0 publishes the checkpoint when the files of all trainers are complete, and removes checkpoints that
        training.keepCheckpoints does not keep; if that fails, it is only logged.

        Args:
            at: position of the training; the checkpoint's folder has its name.
            totals: this rank's totals of the unfinished pass; all 0 at the end of a pass.
            division: the division of the pass's rows among the trainers.
            scores: (finished passes, score by training.keepBest) of the run's passes so far.

        Raises:
            DivergedError: a parameter or a row of a table is NaN or infinite.
            StorageError, StorageFailedError: the checkpoint could not be written or read back.
        """
        trainers, settings, began = self.trainer.trainers, self.settings, time.monotonic()
        folder = CheckpointFolder(self.output.root, at, settings.attempt)
        written = RankFiles({}, {})
        parameters = self.trainer.parameters()
        if not all(np.isfinite(values).all() for values in parameters.values()):
            raise DivergedError(f"a parameter is NaN or infinite at {at}. Fix: lower the learning rate.")
        if self.first:
            folder.create(self.expected_bytes or sum(values.nbytes for values in parameters.values()))
            written.files.update(
                checkpoints.write_file(folder.folder, PARAMETERS, lambda file: np.savez(file, **parameters))
            )
        trainers.barrier()
        snapshots = self._save_tables(folder.folder / TABLES)
        self._read_own_tables(folder, written, snapshots)
        gathered = trainers.gather(
            [totals.samples, totals.seconds, totals.loss, sum(each.size for each in snapshots)]
        )
        self.expected_bytes = int(gathered[:, 3].sum()) or self.expected_bytes
        passes = [[done, value if np.isfinite(value) else None] for done, value in scores]
        contents = CheckpointContents(
            version=checkpoints.VERSION if snapshots else checkpoints.TEXT_VERSION,
            position=at,
            attempt=settings.attempt,
            output_id=checkpoints.read_output_id(self.output.root) or "" if self.first else "",
            seed=self.seed,
            batches=division.trained_before + division.steps,
            history=division.history(at.batches - division.trained_before) if at.batches else [],
            shard_rows=list(division.rows) if at.batches else [],
            mode=settings.mode,
            servers=len(self.trainer.layout.addresses),
            shards=self.trainer.layout.shards,
            ranks=gathered[:, :3].tolist(),
            dense=server_tables.digest(parameters),
            tables={
                name: CheckpointTable(self.trainer.servers.table_folder(name), shape.width, shape.rule)
                for name, shape in self.shapes.items()
            },
            scores=CheckpointScores(settings.keep_best, passes) if settings.keep_best else None,
            files={},
            rows={},
        )
        waited = f"training waited {time.monotonic() - began:.2f} s"
        if reason := next((each.paused for each in snapshots if each.paused), ""):
            waited += f" for the files: {reason}"
        job = partial(self._publish, folder, contents, written, began=began, waited=waited)
        self._pending = at, self._publisher.submit(job)

    def published(self, *, wait: bool = False) -> Position | None:
        """Return the position of the checkpoint that was published since the last call; None if there is none.

        With `wait`, first wait until the checkpoint that is being written is published.

        Raises:
            StorageError, StorageFailedError, GangError: the checkpoint could not be written.
        """
        if self._pending is None or not (wait or self._pending[1].done()):
            return None
        (at, size), self._pending = self._pending, None
        self.expected_bytes = size.result()
        return at

    def _publish(
        self,
        folder: CheckpointFolder,
        contents: CheckpointContents,
        written: RankFiles,
        *,
        began: float,
        waited: str,
    ) -> int:
        """Wait for the files of this rank's servers; on trainer 0 for all ranks, and publish the checkpoint.

        Return the size of the checkpoint, on every rank after it was published. `began` is the monotonic time at which
        the save began; `waited` says how long the training waited, for the log.
        """
        own = self.trainer.own_servers
        for found in own.receive() if own else ():
            written.files.update(found)
        folder.add_rank_files(self.settings.rank, written)
        what, size = f"the checkpoint of {folder.at}", 0
        self._exchange.exchange(None, what)
        if self.first:
            every = folder.collect_rank_files(self.settings.program_file, self.settings.world)
            size = folder.publish(replace(contents, files=every.files, rows=every.rows))
            self.log.line(f"saved {folder.final} in {time.monotonic() - began:.2f} s; {waited}")
            self._prune(checkpoints.scores_by(contents, self.settings.keep_best))
        return int(self._exchange.exchange(size, what)[0])

    def _save_tables(self, folder: Path) -> list[Snapshot]:
        """Let every server write its part of all tables to files below `folder`.

        Before they write, the servers delete rows that were not trained on during the last `evict` checkpoints (an
        argument of `Job.embedding`).

        Returns:
            The snapshots (binary copies of the tables) that this pod's servers are still writing. The list is empty if
            the servers save as text; then they have finished.
        """
        servers, own = self.trainer.servers, self.trainer.own_servers
        evicting = [table.name for table in self.network.tables if table.evict is not None]
        if self.first:
            for name in evicting:
                servers.shrink(name)
            if own is None:
                servers.save(folder, paddle_internals.COUNTING if evicting else paddle_internals.WHOLE)
        self.trainer.trainers.barrier()
        return own.save(folder, [servers.number(name) for name in evicting]) if own else []

    def _prune(self, scores: metrics.Scores) -> None:
        keep, attempt = self.settings.keep_checkpoints, self.settings.attempt
        try:
            best = [Position(passes) for passes in metrics.rank_passes(self.settings.keep_best, scores)[:1]]
            for name in checkpoints.prune_checkpoints(self.output, attempt, keep, best):
                self.log.line(f"removed {name}: training.keepCheckpoints is {keep}")
        except Exception as error:  # the new checkpoint is complete, and the next save prunes again
            self.log.line(f"cannot remove an older checkpoint, the next save tries again: {error}")

    def _read_own_tables(
        self, folder: CheckpointFolder, written: RankFiles, snapshots: list[Snapshot]
    ) -> None:
        """Compare some rows of each table that this rank's servers save with what the servers answer.

        Without `snapshots`, these are rows of the servers' text, which is read back. Then also write the ids of each
        table. Add the files and the compared rows to `written`.

        Raises:
            DivergedError: a compared row is NaN or infinite.
            StorageError: the volume is full, so the files are incomplete.
            StorageFailedError: files are missing, damaged, or differ from the servers.
        """
        rank, servers = self.settings.rank, self.trainer.servers
        try:
            if not snapshots:
                self._read_table(folder.folder, servers.table_folder(""), None, written)
            for table, shape in self.shapes.items():
                if snapshots:
                    samples = [each.samples[servers.number(table)] for each in snapshots]
                    ids, vectors = TableRows.concatenate(samples, shape.width)
                else:
                    name = servers.table_folder(table)
                    (ids, vectors), every = self._read_table(folder.folder, name, shape, written)
                    save_ids = partial(np.save, arr=np.sort(every))
                    written.files.update(
                        checkpoints.write_file(folder.folder, f"ids/{name}-{rank}.npy", save_ids)
                    )
                if len(ids):
                    written.rows[table] = self._compare_rows(table, ids.view(np.int64), vectors)
        except DivergedError:
            raise
        except DataError as error:
            folder.require_space(sum(path.stat().st_size for path in files.folder_files(folder.folder)))
            raise StorageFailedError(
                f"the checkpoint of {folder.at} is incomplete: {error}. This attempt fails, and the next one "
                "resumes from the checkpoint before it. Fix: if this repeats, look for errors of `save` in this "
                f"rank's server log: python -m launcher logs --role pserver --rank {self.settings.world[rank]}"
            ) from error

    def _read_table(
        self, checkpoint: Path, folder: str, shape: RowShape | None, written: RankFiles
    ) -> tuple[TableRows, NDArray[np.uint64]]:
        """Read the text of one table back, and add its files to `written`; return some rows, and all ids.

        `folder` is the table's folder name, and `shape` is None for the dense parameters.
        """
        place, layout = checkpoint / TABLES / folder, self.trainer.layout
        paths = server_tables.files_of_servers(place, layout.own)
        expected = len(layout.own_shards() if shape else layout.own)
        if len(paths) != expected:
            raise DataError(
                f"the save left {len(paths)} files of pservers {layout.own[0]} to {layout.own[-1]} in {place} instead "
                f"of {expected}"
            )
        samples, ids = [], []
        for path in paths:
            read = partial(server_tables.read_table_file, path, shape)
            written.files[path.relative_to(checkpoint).as_posix()], rows, own = files.retry_storage(
                path, read
            )
            samples.append(rows)
            ids.append(own)
        return TableRows.concatenate(samples, shape.width if shape else 0), np.concatenate(ids)

    def _compare_rows(self, table: str, ids: NDArray[np.int64], saved: NDArray[np.float32]) -> CheckpointRows:
        """Compare some saved rows with the same rows in the servers, and return the servers' values.

        Raises:
            DivergedError: one of the servers' rows is NaN or infinite.
            DataError: the files have other values than the servers.
        """
        given = self.trainer.servers.rows(table, ids)
        if not np.isfinite(given).all():
            raise DivergedError(f"table {table} has NaN or infinite rows. Fix: lower the learning rate.")
        if server_tables.values_differ(saved, given):
            raise DataError(
                f"the files that the pservers save of table {table} have other values than the pservers"
            )
        return CheckpointRows(ids.tolist(), given.tolist())

    def size(self, at: Position) -> int:
        """Return the total bytes of a checkpoint's files, of all ranks."""
        return checkpoints.total_bytes(self._open(at)[1])

    def _open(self, at: Position) -> tuple[Path, CheckpointContents]:
        """Return the folder and the contents.json of the checkpoint at position `at`.

        Raises:
            CheckpointError: contents.json is unusable.
            SettingsError: the checkpoint has text, and this is an arm64 node.
        """
        folder = self.output.checkpoint(at)
        try:
            contents = checkpoints.read_contents(folder)
        except CheckpointError as error:
            raise CheckpointError(
                f"training cannot resume from {folder}: {error}. The next attempt resumes from the checkpoint before "
                "it. Fix: if this repeats, look for I/O errors of the shared storage's server."
            ) from error
        if contents.version != checkpoints.VERSION:
            paddle_internals.require_text_tables(f"{folder.name} has dense parameters as text")
        return folder, contents

    def prepare(self) -> InitialModel | None:
        """Verify the checkpoint to resume from; in a new run read the initial model and set the dense parameters.

        Call this before the trainers' rendezvous. Each rank verifies the sha256 of its share of the table files.

        Returns:
            The model of training.initModelPath; None if training resumes, or if training.initModelPath is not set.

        Raises:
            SettingsError: the program's tables differ from the tables of the checkpoint or of the initial model, or
                training.initModelPath has no model.
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
            CheckpointError: contents.json of the checkpoint is damaged.
            StorageFailedError: the servers' values differ from the checkpoint after LOAD_TRIES loads; it was rejected.
            GangError: the servers' or this trainer's values differ from the initial model.
        """
        if self.trainer.own_servers is None:
            self.log.line(f"{TEXT_TABLES}. The reason: python -m launcher logs --role pserver")
        at = self.settings.resume
        if at is None:
            if initial is not None:
                initial_model.load(self.trainer, initial, self.log)
            return RestoredState()
        folder, contents = self._open(at)
        self._load_servers(folder, contents)
        self.trainer.trainers.barrier()
        self.log.line(f"resumed from {folder.name}; the servers' values are verified")
        self.expected_bytes = checkpoints.total_bytes(contents)
        scores = checkpoints.scores_by(contents, self.settings.keep_best)
        ranks = contents.ranks[
            self.settings.rank :: self.settings.trainers
        ]  # with more trainers there may be none
        return RestoredState(PassTotals(*(sum(values) for values in zip(*ranks, strict=True))), scores)

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
        """Verify the sha256 of this rank's share of the text and the dense parameters, and on rank 0 of params.npz.

        The servers verify binary files of rows while they load them.

        Raises:
            StorageFailedError: a file changed since the save, or is missing; the checkpoint was rejected.
        """
        # Each rank verifies a share, whichever servers will load it.
        tables = sorted(name for name in contents.files if server_tables.server_of(name) is not None)
        names = tables[self.settings.rank :: self.settings.trainers]
        names += [PARAMETERS] if self.first else []
        if reason := checkpoints.check_files(folder, names, contents.files):
            raise checkpoints.reject(folder, reason, self.settings.attempt)

    def _table_mismatch(self, contents: CheckpointContents) -> str | None:
        """Return how the program's tables differ from the tables in the checkpoint; None if they are the same."""
        saved, present = contents.tables, self.shapes
        if list(saved) != list(present):
            return f"it has the tables {', '.join(saved)}, but the program has {', '.join(present)}"
        for name, (was, now) in {name: (saved[name], present[name]) for name in present}.items():
            for key, old, new in (("width", was.width, now.width), ("optimizer", was.rule, now.rule)):
                if old != new:
                    return f"its table {name} has the {key} {old}, but the program's has {new}"
        return None

    def _load_servers(self, folder: Path, contents: CheckpointContents) -> None:
        if untrained := self.network.untrained:
            values = server_tables.load_arrays(folder / PARAMETERS)
            self.trainer.set_parameters({name: values[name] for name in untrained})
        if contents.version != checkpoints.TEXT_VERSION:
            self._load_binary(folder, contents)
            self.trainer.trainers.barrier()
        if self.first:
            self._load_and_compare(folder, contents)
        self.trainer.trainers.barrier()
        self.trainer.servers.pull_dense()

    def _load_binary(self, folder: Path, contents: CheckpointContents) -> None:
        """Let this pod's servers load their rows and dense parameters from binary files.

        Raises:
            GangError: a server of the job cannot do that.
            StorageFailedError: a file is damaged; the checkpoint was rejected.
        """
        own, server_of_shard = self.trainer.own_servers, self.trainer.layout.own_shards()
        if own is None:
            raise GangError(
                f"{folder.name} has tables in binary, but not all pservers of this attempt can load them: their log "
                f"says `{TEXT_TABLES}`, and why. Fix: use nodes of the kind on which the checkpoint was saved"
            )
        entries: dict[int, list[tuple[int, Path, str | None]]] = {}
        for table, about in contents.tables.items():
            number = self.trainer.servers.number(table)
            place = f"{TABLES}/{about.folder}/"
            for shard, server in server_of_shard.items():
                name = place + row_files.file_name(shard)
                if name not in contents.files:
                    raise checkpoints.reject(folder, f"{name} is not listed", self.settings.attempt)
                entry = number, folder / name, contents.files[name].sha256
                entries.setdefault(server, []).append(entry)
        try:
            own.load(entries)
            if contents.version == checkpoints.VERSION:
                dense = folder / TABLES / self.trainer.servers.table_folder("")
                own.load_dense(dense, contents.servers, len(self.trainer.layout.addresses))
        except DataError as error:
            raise checkpoints.reject(folder, str(error), self.settings.attempt) from error

    def _load_and_compare(self, folder: Path, contents: CheckpointContents) -> None:
        """Let the servers load the tables' text, pull the dense parameters, and compare all with the checkpoint.

        Only trainer 0 calls this. If text was loaded and values differ, load again, at most LOAD_TRIES times in all.

        Raises:
            StorageFailedError: the values differ after every load; the checkpoint was rejected.
        """
        tries = 1 if contents.version == checkpoints.VERSION else LOAD_TRIES
        for number in range(1, tries + 1):
            for table in self.network.tables if contents.version == checkpoints.TEXT_VERSION else ():
                self.trainer.servers.load(table.name, folder / TABLES)
            if contents.version != checkpoints.VERSION:
                self._load_dense(folder, contents.servers)
            self.trainer.servers.pull_dense()
            reason = self._dense_mismatch(folder, contents) or self._rows_mismatch(contents)
            if reason is None:
                return
            self.log.line(f"load {number} of at most {tries} of {folder.name} failed: {reason}")
        raise checkpoints.reject(folder, reason or "", self.settings.attempt)

    def _load_dense(self, folder: Path, saved_by: int) -> None:
        """Load the text of a checkpoint's dense parameters, which `saved_by` servers wrote."""
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
