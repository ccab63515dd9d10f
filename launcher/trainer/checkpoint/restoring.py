"""Restore a checkpoint into the servers. All trainers call the methods of `CheckpointRestorer` together.

Paddle only logs a load that fails, and continues with the values it has. So the files' sha256 are verified
before a load; after the load, rows of every table and the dense parameters are compared with those that the
servers answered when the checkpoint was saved.

An incremental checkpoint is restored by loading the full checkpoint of its chain first, then the incremental
ones in saving order.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from launcher.errors import CheckpointError, SettingsError
from launcher.io import checkpoints, files
from launcher.paths import OutputPaths, Position
from launcher.schema import CheckpointContents
from launcher.trainer.checkpoint import initial_model, table_files
from launcher.trainer.checkpoint.initial_model import InitialModel
from launcher.trainer.checkpoint.table_files import PARAMETERS, TABLES
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.pserver_client import PserverClient
from launcher.trainer.training_log import PassTotals, TrainerLog

LOAD_TRIES = 2  # a checkpoint is rejected forever only when the servers fail twice to load it


@dataclass
class RestoredState:
    """Holds what training resumes with in addition to the parameters, such as the scores so far.

    The defaults are the values of a new run.
    """

    totals: PassTotals = field(default_factory=PassTotals)
    """This rank's sums of the unfinished pass."""
    scores: list[tuple[int, float]] = field(default_factory=list)
    """(finished passes, score) by training.keepBest of the run's passes so far."""
    full_bytes: int = 0
    """Size of the newest full checkpoint."""


class CheckpointRestorer:
    """Loads checkpoints into the servers. Each trainer has one, and all trainers call it together."""

    def __init__(self, settings: ProcessSettings, trainer: PserverClient, log: TrainerLog) -> None:
        self.settings, self.trainer, self.log = settings, trainer, log
        self.first = settings.rank == 0

    def size(self, at: Position) -> int:
        """Return the total bytes of a checkpoint's files, of all ranks, including the checkpoints it continues."""
        return sum(
            checkpoints.total_bytes(checkpoints.read_contents(member))
            for member in checkpoints.chain_folders(*self._open(at))
        )

    def _open(self, at: Position) -> tuple[Path, CheckpointContents]:
        """Return a checkpoint's folder and its contents.json. Raise `CheckpointError` if that is damaged."""
        folder = OutputPaths(self.settings.layout.output).checkpoint(at)
        try:
            return folder, checkpoints.read_contents(folder)
        except CheckpointError as error:
            raise CheckpointError(
                f"training cannot resume from {folder}: {error}. The next attempt resumes from the checkpoint before "
                "it. Fix: if this repeats, look for I/O errors of the shared storage's server."
            ) from error

    def prepare(self) -> InitialModel | None:
        """Verify the checkpoint to resume from, before the trainers' rendezvous; or read the initial model.

        Returns:
            The model of training.initModelPath, in a new run that has one.

        Raises:
            SettingsError: the program's tables are not those of the checkpoint.
            StorageFailedError: the checkpoint is damaged, and was rejected.
        """
        at = self.settings.resume
        if at is None:
            return initial_model.prepare(self.trainer)
        folder, contents = self._open(at)
        if reason := self._table_mismatch(contents):
            raise SettingsError(
                f"training cannot resume from {folder.name}: {reason}. Fix: restore the earlier program and "
                "training.extraArgs, or start from scratch: set startFromScratch to any new text."
            )
        self._verify_files(folder, contents)
        return None

    def load(self, initial: InitialModel | None) -> RestoredState:
        """Load the checkpoint to resume from, or else the initial model, into the servers.

        Call this after the trainers' rendezvous.

        Args:
            initial: the return value of `prepare` of this class; None if there is no initial model.

        Raises:
            StorageFailedError: the servers did not load what was saved; the checkpoint was rejected.
        """
        at = self.settings.resume
        if at is None:
            if initial is not None:
                initial_model.load(self.trainer, initial, self.log)
            return RestoredState()
        folder, contents = self._open(at)
        self._load_servers(folder, contents)
        self.trainer.barrier()
        self.log.line(f"resumed from {folder.name}; the servers' values are verified")
        return RestoredState(
            PassTotals(*contents.ranks[self.settings.rank]),
            checkpoints.scores_by(contents, self.settings.keep_best),
            checkpoints.total_bytes(
                checkpoints.read_contents(checkpoints.chain_folders(folder, contents)[0])
            ),
        )

    def restore(self, at: Position) -> None:
        """Load an earlier checkpoint of this run into the running servers for the export.

        Rows that the servers have and the checkpoint does not have stay in the servers. The exported model
        has only the checkpoint's ids.
        """
        folder, contents = self._open(at)
        self._verify_files(folder, contents)
        self.trainer.barrier()
        self._load_servers(folder, contents)
        best = f", the best by {self.settings.keep_best}" if self.settings.keep_best else ""
        self.log.line(f"restored {folder.name}{best}, to export the model from it")

    def _verify_files(self, folder: Path, contents: CheckpointContents) -> None:
        """Reject the checkpoint and raise if a file changed since the save; each rank checks a part of the files."""
        for member in checkpoints.chain_folders(folder, contents):
            listed = checkpoints.read_contents(member)
            # Each rank verifies a share, whichever servers will load it.
            tables = sorted(name for name in listed.files if name.startswith(f"{TABLES}/"))
            names = tables[self.settings.rank :: self.settings.trainers]
            names += [PARAMETERS] if self.first else []
            if reason := checkpoints.check_files(member, names, listed.files):
                raise checkpoints.reject(member, reason, self.settings.attempt)

    def _table_mismatch(self, contents: CheckpointContents) -> str | None:
        """Return how the program's tables differ from those of the checkpoint, or None."""
        saved, present = contents.tables, {table.name: table for table in self.trainer.network.tables}
        if list(saved) != list(present):
            return f"it has the tables {', '.join(saved)}, but the program has {', '.join(present)}"
        for name, table in present.items():
            was = {"width": saved[name].width, "optimizer": saved[name].rule}
            now = {"width": table.width, "optimizer": self.trainer.rules[name].kind}
            for key, value in now.items():
                if was[key] != value:
                    return f"its table {name} has the {key} {was[key]}, but the program's has {value}"
        return None

    def _load_servers(self, folder: Path, contents: CheckpointContents) -> None:
        if untrained := self.trainer.network.untrained:
            values = table_files.load_arrays(folder / PARAMETERS)
            self.trainer.set_parameters({name: values[name] for name in untrained})
        if self.first:
            self._load_and_compare(folder, contents)
        self.trainer.barrier()
        self.trainer.pull_dense()

    def _load_and_compare(self, folder: Path, contents: CheckpointContents) -> None:
        """Load all tables from trainer 0; reject the checkpoint and raise when the servers' values differ."""
        for number in range(1, LOAD_TRIES + 1):
            for member in checkpoints.chain_folders(folder, contents):
                for table in self.trainer.network.tables:
                    self.trainer.load_table(table.name, member / TABLES)
            self._load_dense(folder, contents.servers)
            self.trainer.pull_dense()
            reason = self._dense_mismatch(folder, contents) or self._rows_mismatch(contents)
            if reason is None:
                return
            self.log.line(f"load {number} of at most {LOAD_TRIES} of {folder.name} failed: {reason}")
        raise checkpoints.reject(folder, reason or "", self.settings.attempt)

    def _load_dense(self, folder: Path, saved_by: int) -> None:
        """Load the dense parameters of a checkpoint, whose files `saved_by` servers wrote."""
        trainer, servers = self.trainer, len(self.trainer.servers)
        if saved_by == servers:
            trainer.load_table("", folder / TABLES)
            return
        temp = self.settings.layout.output / f".dense.attempt-{self.settings.attempt}.tmp"
        with files.storage_errors(temp):
            shutil.rmtree(temp, ignore_errors=True)
            name = trainer.table_folder("")
            table_files.redistribute_dense(folder / TABLES / name, temp / name, trainer.rule, servers)
            trainer.load_table("", temp)
            shutil.rmtree(temp)

    def _dense_mismatch(self, folder: Path, contents: CheckpointContents) -> str | None:
        """Return how the servers' dense parameters differ from the checkpoint's, or None."""
        given = self.trainer.parameters()
        found = table_files.load_arrays(folder / PARAMETERS)
        saved = {name: found[name] for name in given if name in found}
        if table_files.digest(saved) != contents.dense:
            return f"{PARAMETERS} does not hold the parameters that the servers had at the save"
        wrong = [name for name, values in given.items() if table_files.values_differ(values, saved[name])]
        if not wrong:
            return None
        return f"after the load the servers' values of {', '.join(wrong)} differ from {PARAMETERS}"

    def _rows_mismatch(self, contents: CheckpointContents) -> str | None:
        """Return how the servers' rows differ from those that they had at the save, or None."""
        for name, saved in contents.rows.items():
            given = self.trainer.rows(name, np.array(saved.ids, np.int64))
            expected = np.array(saved.values, np.float32)
            wrong = [n for n in range(len(given)) if table_files.values_differ(given[n], expected[n])]
            if wrong:
                ids = ", ".join(str(saved.ids[n] % 2**64) for n in wrong[:5])
                return (
                    f"after the load {len(wrong)} of {len(given)} compared rows of table {name} have other "
                    f"values, for example those of the ids {ids}"
                )
        return None
