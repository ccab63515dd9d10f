"""Write a checkpoint's folder on the shared storage, verify its files, mark it as rejected, remove old ones.

A checkpoint is written under a temporary name, read back, renamed, and `done` is written last:

pass-<NNNNN>/ or pass-<NNNNN>-batch-<NNNNNNN>/
  tables/<id>/part-…       each server's files of each table, with the optimizer's state. In an incremental
                           checkpoint: only the rows that changed since the checkpoint before
  ids/<id>-<rank>.npy      the ids that a rank's servers hold of a table; the exported model is made of them
  params.npz               dense parameters
  path.txt, <config>.py    where the checkpoint was saved, and the program's file
  contents.json            position, seed, sums of the unfinished pass, size and sha256 of every file, rows for
                           the comparison after a restore, the checkpoints that an incremental one continues
  done                     the checkpoint is complete
  rejected.json            a restore found other values than were saved; the checkpoint is never used again
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from launcher import schema
from launcher.errors import CheckpointError, StorageFailedError
from launcher.io import disk_space, files
from launcher.io.checkpoint_checks import CONTENTS, finished_checkpoints
from launcher.paths import OutputPaths, Position
from launcher.schema import CheckpointContents, CheckpointFile, CheckpointRows, RankFiles
from launcher.trainer.checkpoint import contents_file

PARAMETERS = "params.npz"
TABLES = "tables"
MARGIN_BYTES = 1 << 20  # room for names, lists and logs in addition to the data
_UNFINISHED = re.compile(r"\..+\.attempt-(\d+)\.tmp")


class CheckpointFolder:
    """Writes the folder of one checkpoint, together with the other trainers.

    Trainer 0 calls `create`; all trainers write files and call `add_rank_files`; trainer 0 calls
    `collect_rank_files` and `publish`.
    """

    def __init__(self, output_dir: Path, at: Position, attempt: int) -> None:
        self.output = OutputPaths(output_dir)
        self.at = at
        self.attempt = attempt
        self.final = self.output.checkpoint(at)
        self.folder = self.output.unfinished(at, attempt)

    def create(self, least_bytes: int) -> None:
        """Create the temporary folder, and remove unfinished folders of earlier attempts.

        Args:
            least_bytes: estimated size of the checkpoint.

        Raises:
            StorageError: less than `least_bytes` are free.
        """
        with files.storage_errors(self.output.root):
            self.output.root.mkdir(parents=True, exist_ok=True)
            for path in list(self.output.root.iterdir()):
                unfinished = _UNFINISHED.fullmatch(path.name)
                if unfinished and int(unfinished[1]) < self.attempt:
                    shutil.rmtree(path)
            self.require_space(least_bytes)
            self.folder.mkdir()

    def require_space(self, least_bytes: int) -> None:
        """Raise `StorageError` unless the storage has `least_bytes` and a margin free."""
        what = f"the checkpoint of {self.at}"
        disk_space.require_space(self.final, least_bytes + MARGIN_BYTES, what, disk_space.RESTART_RUN)

    def write_arrays(self, name: str, values: Mapping[str, NDArray[Any]]) -> dict[str, CheckpointFile]:
        """Write named arrays to the .npz file `name`. Return {name: size and sha256}, for `add_rank_files`."""
        return self._write(name, lambda file: np.savez(file, **dict(values)))

    def write_ids(self, table_folder: str, rank: int, ids: NDArray[np.uint64]) -> dict[str, CheckpointFile]:
        """Write the ids that a rank's servers hold of a table, sorted. Return {file name: size and sha256}."""
        return self._write(f"ids/{table_folder}-{rank}.npy", lambda file: np.save(file, np.sort(ids)))

    def _write(self, name: str, write: Callable[[IO[bytes]], None]) -> dict[str, CheckpointFile]:
        """Let `write` write the file `name` of the folder, sync it to disk, and return {name: size and sha256}."""
        path = self.folder / name
        with files.storage_errors(path):
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())  # the file must be on disk before `done` is
            return {name: CheckpointFile(path.stat().st_size, files.sha256_file(path))}

    def add_rank_files(self, rank: int, written: RankFiles) -> None:
        """Write rank-<rank>.json: a rank's files, and rows to compare after a restore.

        Trainer 0 reads it in `collect_rank_files`.
        """
        files.write_json(self._rank_file(rank), schema.to_json(written))

    def _rank_file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def collect_rank_files(self, config: Path, ranks: int) -> RankFiles:
        """Return what all ranks recorded with `add_rank_files`; add the program's file and path.txt to the checkpoint.

        Raises:
            StorageFailedError: a rank's record is missing.
        """
        entries: dict[str, CheckpointFile] = {}
        rows: dict[str, CheckpointRows] = {}
        with files.storage_errors(self.folder):
            for rank in range(ranks):
                value = files.read_json(self._rank_file(rank))
                if value is None:
                    raise StorageFailedError(
                        f"the checkpoint of {self.at} is incomplete: {self._rank_file(rank)} is missing. "
                        "This attempt fails, and the next one resumes from the checkpoint before it. Fix: see the "
                        f"log of that rank: python -m launcher logs --rank {rank}"
                    )
                written = schema.from_json(RankFiles, value)
                entries |= written.files
                for table, found in written.rows.items():
                    into = rows.setdefault(table, CheckpointRows([], []))
                    into.ids.extend(found.ids)
                    into.values.extend(found.values)
                self._rank_file(rank).unlink()
            files.write_atomically(self.folder / config.name, config.read_bytes())
            files.write_atomically(self.folder / "path.txt", f"{self.final}\n")
            for name in (config.name, "path.txt"):
                entries[name] = CheckpointFile((self.folder / name).stat().st_size)
        return RankFiles(entries, rows)

    def publish(self, contents: CheckpointContents) -> None:
        """Write contents.json, give the folder its final name, and write `done`."""
        with files.storage_errors(self.folder):
            value = files.with_checksum(schema.to_json(contents))
            files.write_json(self.folder / CONTENTS, value)
            # What is there is rejected or unfinished: training would have resumed from a usable checkpoint.
            if self.final.is_dir() and not self.final.is_symlink():
                (self.final / "done").unlink(missing_ok=True)
            files.remove_path(self.final)
            self.folder.rename(self.final)
            files.fsync_dir(self.final.parent)
        files.write_atomically(self.final / "done", "")


def prune_checkpoints(
    output: OutputPaths, attempt: int, keep: int, best: Collection[Position] = ()
) -> list[str]:
    """Remove old usable checkpoints of a run, and return their folder names; unusable ones stay.

    A checkpoint is usable if training can resume from it. Of these, the newest `keep` stay, those at the positions
    `best`, and those that a kept incremental checkpoint continues.
    """
    removed = []
    with files.storage_errors(output.root):
        chains = {
            at: chain for at in finished_checkpoints(output.root) if (chain := _chain(output, at)) is not None
        }
        intact = {at.folder for at in chains}
        usable = {at: chain for at, chain in chains.items() if intact.issuperset(m.name for m in chain)}
        kept = {*list(usable)[:keep], *(at for at in best if at in usable)}
        needed = {member.name for at in kept for member in usable[at]}
        # The newest first: an incremental checkpoint is removed before those that it continues.
        for at in [at for at in usable if at.folder not in needed]:
            doomed = output.unfinished(at, attempt)  # an interrupted removal must not leave a partial folder
            output.checkpoint(at).rename(doomed)
            shutil.rmtree(doomed)
            removed.append(at.folder)
    return removed


def _chain(output: OutputPaths, at: Position) -> list[Path] | None:
    """Return the folders to load for the checkpoint at `at`, the last is its own; None if it is unusable itself.

    The files of the checkpoints that it continues are not checked.
    """
    folder = output.checkpoint(at)
    try:
        contents = contents_file.read_checked_contents(folder)
    except CheckpointError:
        return None
    if contents_file.broken_chain_reason(folder, contents):
        return None
    return contents_file.chain_folders(folder, contents)


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file that `CheckpointFolder.write_arrays` wrote, by name."""
    with files.storage_errors(path), np.load(path) as found:
        return {name: found[name] for name in found.files}


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the hex sha256 of names, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name}{arrays[name].shape}".encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()
