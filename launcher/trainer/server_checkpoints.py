"""Save and restore checkpoints of a running job. All trainers call the methods of `Checkpoints` together.

launcher/io/checkpoints.py describes the folder of a checkpoint. With parameter servers it also has these files:

tables/<table>/shard-<n>.rows   the rows of one shard of an embedding table, with the optimizer's state (row_files.py)
dense/part-<n>.npz              each server's part of the dense parameters, with the optimizer's state
params.npz                      dense parameters by name
path.txt, <config>.py           where the checkpoint was saved, and the program's file

During a save, the training waits until every server has a copy of its memory (server_commands.py), and until some rows
of each file have been compared with the values that the servers send. Then the training continues. Meanwhile a thread
of each trainer waits for the files of this trainer's own servers. When the files of all trainers are complete, trainer
0 publishes the checkpoint: it gives the checkpoint's folder its final name.

The trainers verify the sha256 of the files with dense parameters before a load. The servers verify the sha256 of the
files with rows while they read them. After the load, trainer 0 compares some rows of every table and all dense
parameters in the servers with the values that the servers had when the checkpoint was saved.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from launcher import metrics
from launcher.errors import (
    DataError,
    DivergedError,
    SettingsError,
    StorageFailedError,
)
from launcher.io import checkpoints
from launcher.io.checkpoints import CheckpointFolder
from launcher.io.rank_exchange import RankExchange
from launcher.paths import OutputPaths, Position
from launcher.row_division import Division
from launcher.schema import (
    CheckpointContents,
    CheckpointRows,
    CheckpointScores,
    RankFiles,
)
from launcher.trainer import initial_model, server_tables
from launcher.trainer.fleet_trainer import FleetTrainer
from launcher.trainer.initial_model import InitialModel
from launcher.trainer.server_commands import Snapshot
from launcher.trainer.server_tables import PARAMETERS, TableRows
from launcher.trainer.training_log import PassTotals, TrainerLog


class Checkpoints:
    """Saves and restores checkpoints. Each trainer has one such object, and all trainers call its methods together."""

    def __init__(self, trainer: FleetTrainer, log: TrainerLog) -> None:
        self.settings, self.trainer, self.log = trainer.settings, trainer, log
        self.network, self.shapes = trainer.network, trainer.network.shapes
        self.first = trainer.settings.rank == 0
        self.output = OutputPaths(trainer.settings.layout.output)
        self.expected_bytes = 0
        """Size of the newest checkpoint in bytes; an estimate if this checkpoint is still being written; 0 before the
        first checkpoint. The number is the same on every rank."""
        self._exchange = RankExchange(
            self.settings.rank,
            self.settings.trainers,
            f"{self.settings.store_address}_saved/",
            self.settings.work_dir,
        )
        self._publisher = ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[Position, Future[int]] | None = None
        """The position of the checkpoint that is being written, and the future that gets its size when it is published.
        None if no checkpoint is being written."""

    def save(self, at: Position, totals: PassTotals, division: Division, scores: metrics.Scores) -> None:
        """Start to save a checkpoint of the servers' current values. Return when the training may continue.

        All trainers call this together. Before, they must call `FleetTrainer.settle`, and `published(wait=True)` for
        the previous checkpoint. Each trainer compares some of the rows that its own servers save with the values that
        the servers send. Then a thread of each trainer waits for the files of these servers.

        When the files of all trainers are complete, trainer 0 publishes the checkpoint. It also removes the checkpoints
        that training.keepCheckpoints does not keep. If it cannot remove them, it only logs the error.

        Args:
            at: position of the training, which determines the name of the checkpoint's folder.
            totals: this rank's totals of the unfinished pass; all 0 at the end of a pass.
            division: the division of the pass's rows among the trainers.
            scores: list of (number of finished passes, value of the metric training.keepBest after them), for the run
                so far.

        Raises:
            DivergedError: a dense parameter or a compared row is NaN or infinite.
            StorageError, StorageFailedError: the checkpoint could not be written, or has wrong values.
            GangError: a pserver has exited, or failed in another way.
        """
        trainer, trainers, settings = self.trainer, self.trainer.trainers, self.settings
        began = time.monotonic()
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
        evicting = [table.name for table in self.network.tables if table.evict is not None]
        snapshots = trainer.own_servers.save(folder.folder, evicting)
        self._compare_samples(folder, written, snapshots)
        gathered = trainers.gather(
            [totals.samples, totals.seconds, totals.loss, sum(each.size for each in snapshots)]
        )
        self.expected_bytes = int(gathered[:, 3].sum())
        passes = [[done, value if np.isfinite(value) else None] for done, value in scores]
        contents = CheckpointContents(
            version=checkpoints.VERSION,
            position=at,
            attempt=settings.attempt,
            output_id=checkpoints.read_output_id(self.output.root) or "" if self.first else "",
            history=division.history(at.batches - division.trained_before) if at.batches else [],
            shard_rows=list(division.rows) if at.batches else [],
            servers=len(self.trainer.layout.addresses),
            shards=self.trainer.layout.shards,
            ranks=gathered[:, :3].tolist(),
            tables={**self.shapes},
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
        """Return the position of the checkpoint that was published since the last call; None if none was published.

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
        """Wait for the files of this rank's servers, and until the checkpoint is published.

        Trainer 0 waits for the files of all ranks, publishes the checkpoint, and removes older ones.

        Args:
            folder: the folder of the checkpoint.
            contents: contents.json of the checkpoint, still without files and rows.
            written: the files that this trainer has written, and its compared rows. The servers' files are added.
            began: the monotonic time at which the save began.
            waited: a text for the log that says how long the training waited.

        Returns:
            The size of the checkpoint in bytes, on every rank.
        """
        for found in self.trainer.own_servers.receive():
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

    def _prune(self, scores: metrics.Scores) -> None:
        keep, attempt = self.settings.keep_checkpoints, self.settings.attempt
        try:
            best = [Position(passes) for passes in metrics.rank_passes(self.settings.keep_best, scores)[:1]]
            for name in checkpoints.prune_checkpoints(self.output, attempt, keep, best):
                self.log.line(f"removed {name}: training.keepCheckpoints is {keep}")
        except Exception as error:  # the new checkpoint is complete, and the next save prunes again
            self.log.line(f"cannot remove an older checkpoint, the next save tries again: {error}")

    def _compare_samples(
        self, folder: CheckpointFolder, written: RankFiles, snapshots: list[Snapshot]
    ) -> None:
        """Compare some of the rows that this rank's servers save with the rows that the servers send.

        Args:
            folder: the folder of the checkpoint, for messages.
            written: gets the compared rows.
            snapshots: the answers of this rank's servers to the command to save; they contain the rows to compare.

        Raises:
            DivergedError: a compared row is NaN or infinite.
            StorageFailedError: the files have other values than the servers.
        """
        rank, servers = self.settings.rank, self.trainer.servers
        for table, shape in self.shapes.items():
            samples = [each.samples[table] for each in snapshots]
            ids, saved = TableRows.concatenate(samples, shape.width)
            if not len(ids):
                continue
            given = servers.rows(table, ids.view(np.int64))
            if not np.isfinite(given).all():
                raise DivergedError(f"table {table} has NaN or infinite rows. Fix: lower the learning rate.")
            if not np.array_equal(saved, given):
                raise StorageFailedError(
                    f"the checkpoint of {folder.at} is incomplete: the files that the pservers save of table {table} "
                    "have other values than the pservers. This attempt fails, and the next one resumes from the "
                    "checkpoint before it. Fix: if this repeats, look for errors of `save` in this rank's server log: "
                    f"python -m launcher logs --role pserver --rank {self.settings.world[rank]}"
                )
            written.rows[table] = CheckpointRows(ids.view(np.int64).tolist(), given.tolist())

    def prepare(self) -> InitialModel | None:
        """Verify the checkpoint to resume from. In a new run, read the initial model and set the dense parameters.

        Call this before the trainers' rendezvous. Each rank verifies the sha256 of its share of the files with dense
        parameters.

        Returns:
            The model of training.initModelPath; None if training resumes, or if training.initModelPath is not set.

        Raises:
            SettingsError: the program's tables differ from the tables of the checkpoint, the program's tables or dense
                parameters differ from the initial model, or training.initModelPath has no model.
            CheckpointError: contents.json of the checkpoint is missing or damaged.
            StorageFailedError: a file with dense parameters is damaged or missing. The checkpoint was marked as
                rejected.
            DataError, GangError, UnfitError, StorageError: the initial model is damaged or cannot be read; see
                `InitialModel.find`.
        """
        contents = self.settings.resumed
        if contents is None:
            return initial_model.prepare(self.trainer)
        if reason := self._table_mismatch(contents):
            raise SettingsError(
                f"training cannot resume from {contents.position.folder}: {reason}. Fix: restore the earlier program "
                "and training.args, or start from scratch: set startFromScratch to any new text."
            )
        self._verify_files(contents)
        return None

    def load(self, initial: InitialModel | None) -> tuple[PassTotals, list[tuple[int, float]]]:
        """Load the checkpoint to resume from into the servers. In a new run, load the initial model if there is one.

        All trainers call this together, after their rendezvous. After the load of a checkpoint, trainer 0 compares the
        servers' values with the saved values. At the end every trainer has the servers' dense parameters.

        Args:
            initial: the return value of `prepare`; None if there is no initial model.

        Returns:
            This rank's totals of the unfinished pass, and a list of (number of finished passes, value of the metric
            training.keepBest after them) for the run so far. In a new run the totals are 0 and the list is empty. If
            the checkpoint was saved with another number of trainers, a rank gets the sum of the totals of one or more
            saved ranks, or totals of 0.

        Raises:
            StorageFailedError: a file is damaged, or the servers' values differ from the files. The checkpoint was
                marked as rejected.
            SettingsError: the checkpoint has other dense parameters than the program, or another optimizer.
            GangError: the servers' or this trainer's values differ from the initial model, or a pserver failed.
            DataError: a file of the initial model has changed since it was saved.
        """
        contents = self.settings.resumed
        if contents is None:
            if initial is not None:
                initial_model.load(self.trainer, initial, self.log)
            return PassTotals(), []
        self._load_servers(contents)
        self.log.line(f"resumed from {contents.position.folder}; the servers' values are verified")
        self.expected_bytes = checkpoints.total_bytes(contents)
        scores = checkpoints.scores_by(contents, self.settings.keep_best)
        # If this attempt has more trainers than the attempt that saved, the last ranks get no totals.
        ranks = contents.ranks[self.settings.rank :: self.settings.trainers]
        return PassTotals(*(sum(values) for values in zip(*ranks, strict=True))), scores

    def restore(self, contents: CheckpointContents) -> None:
        """Load an earlier checkpoint of this run into the running servers, to export the model from it.

        All trainers call this together. Rows whose ids the checkpoint does not have stay in the servers, but the
        exported model gets only the checkpoint's ids.

        Raises:
            StorageFailedError: a file is damaged, or the servers' values differ from the files. The checkpoint was
                marked as rejected.
        """
        self._verify_files(contents)
        self.trainer.trainers.barrier()
        self._load_servers(contents)
        best = f", the best by {self.settings.keep_best}" if self.settings.keep_best else ""
        self.log.line(f"restored {contents.position.folder}{best}, to export the model from it")

    def _verify_files(self, contents: CheckpointContents) -> None:
        """Verify the sha256 of this rank's share of the files with dense parameters.

        The servers verify files of rows while they load them.

        Raises:
            StorageFailedError: a file changed since the save, or is missing. The checkpoint was marked as rejected.
        """
        folder = self.output.checkpoint(contents.position)
        # This rank's servers may load other files than the ones that this rank verifies.
        names = sorted({PARAMETERS, *(name for name in contents.files if name.endswith(".npz"))})
        own = names[self.settings.rank :: self.settings.trainers]
        if reason := checkpoints.check_files(folder, own, contents.files):
            raise checkpoints.reject(folder, reason, self.settings.attempt)

    def _table_mismatch(self, contents: CheckpointContents) -> str | None:
        """Return a text that says how the program's tables differ from the checkpoint's; None if they are the same."""
        saved, present = contents.tables, self.shapes
        if list(saved) != list(present):
            return f"it has the tables {', '.join(saved)}, but the program has {', '.join(present)}"
        for name, now in present.items():
            was = saved[name]
            for key, old, new in (("width", was.width, now.width), ("optimizer", was.rule, now.rule)):
                if old != new:
                    return f"its table {name} has the {key} {old}, but the program's has {new}"
        return None

    def _load_servers(self, contents: CheckpointContents) -> None:
        """Let all servers load the checkpoint. Then pull the dense parameters into this trainer.

        The servers do not have the parameters that are never trained, so each trainer reads these from the checkpoint.
        All trainers call this together. At the end trainer 0 compares the servers' values with the checkpoint.

        Raises:
            StorageFailedError: a file is damaged, or the servers' values differ from the files. The checkpoint was
                marked as rejected.
            SettingsError: the checkpoint has other dense parameters than the program, or another optimizer.
            GangError: a pserver has exited, or failed in another way.
        """
        folder = self.output.checkpoint(contents.position)
        saved = server_tables.load_arrays(folder / PARAMETERS)
        self.trainer.set_parameters({name: saved[name] for name in self.network.untrained})
        try:
            self.trainer.own_servers.load(folder, contents)
        except DataError as error:
            raise checkpoints.reject(folder, str(error), self.settings.attempt) from error
        self.trainer.trainers.barrier()
        self.trainer.servers.pull_dense()
        if self.first and (reason := self._dense_mismatch(saved) or self._rows_mismatch(contents)):
            raise checkpoints.reject(folder, reason, self.settings.attempt)
        self.trainer.trainers.barrier()

    def _dense_mismatch(self, saved: dict[str, NDArray[np.float32]]) -> str | None:
        """Return a text that says which dense parameters in the servers differ from `saved`; None if all are equal."""
        given = self.trainer.parameters()
        wrong = [n for n, values in given.items() if n not in saved or not np.array_equal(values, saved[n])]
        if not wrong:
            return None
        return f"after the load the servers' values of {', '.join(wrong)} differ from {PARAMETERS}"

    def _rows_mismatch(self, contents: CheckpointContents) -> str | None:
        """Compare the servers' rows with the rows that contents.json has.

        Return a text that says which rows differ; None if all are equal.
        """
        for name, saved in contents.rows.items():
            given = self.trainer.servers.rows(name, np.array(saved.ids, np.int64))
            expected = np.array(saved.values, np.float32)
            wrong = [n for n in range(len(given)) if not np.array_equal(given[n], expected[n])]
            if wrong:
                ids = ", ".join(str(saved.ids[n] % 2**64) for n in wrong[:5])
                return (
                    f"after the load {len(wrong)} of {len(given)} compared rows of table {name} have other "
                    f"values, for example the rows with the ids {ids}"
                )
        return None
