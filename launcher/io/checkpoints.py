"""Write, verify, choose and remove checkpoints of the parameter servers and of users' scripts.

A checkpoint is written under a temporary name, synced to disk, and renamed once it is complete:

pass-<NNNNN>/ or pass-<NNNNN>-batch-<NNNNNNN>/
  …                        a script's own files, or those that launcher/trainer/server_checkpoints.py describes
  contents.json            the checkpoint's position, the size of every file, the sha256 of every file except path.txt
                           and the program's file, and a checksum of this JSON object; `CheckpointContents` describes
                           what the trainer adds
  done                     written last, before the folder gets this name: the checkpoint is complete
  rejected.json            a restore found damaged files, or other values than were saved; the checkpoint is never
                           used again

The functions at the end of this file are about the exported model, and choose the checkpoint from which it is exported.
A pod's launcher imports this module, so this module imports only the standard library.
"""

from __future__ import annotations

import functools
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from launcher import metrics, schema
from launcher.errors import CheckpointError, DataError, LauncherError, StorageFailedError
from launcher.io import files, run_record
from launcher.io.rank_exchange import RankExchange
from launcher.log import log
from launcher.paths import OutputPaths, Position, is_safe_name, position
from launcher.schema import (
    CheckpointContents,
    CheckpointFile,
    CheckpointRows,
    RankFiles,
    SavedCheckpoint,
    ScriptCheckpoint,
)

CONTENTS = "contents.json"
DONE = "done"
REJECTED = "rejected.json"
VERSION = 7
"""Version of contents.json. The launcher cannot read earlier versions, whose tables were text or had numbers as
names."""
SCRIPT_VERSION = 1
"""Version of contents.json of a script's checkpoint, which has the key `script` instead of `version`."""
TOTALS = 3
"""How many numbers contents.json has for each rank, under the key `ranks`."""
MAX_SHARDS = 100_000
"""Largest number of shards in contents.json. No training needs more, and Paddle reserves memory for each shard."""
MARGIN_BYTES = 1 << 20  # room for names, lists and logs in addition to the data
_UNFINISHED = re.compile(r"\..+\.(?:attempt-(\d+)|script)\.tmp")
"""Names of temporary folders. Earlier launchers wrote the folders of scripts' checkpoints without the attempt."""


class CheckpointFolder:
    """Writes the folder of one checkpoint. Callers call `create`, write the files, and call `publish`.

    With parameter servers, all trainers write one folder together. Trainer 0 calls `create`, all trainers write files
    and call `add_rank_files`, then trainer 0 calls `collect_rank_files` and `publish`.
    """

    def __init__(self, output_dir: Path, at: Position, attempt: int) -> None:
        self.output = OutputPaths(output_dir)
        self.at = at
        self.attempt = attempt
        self.final = self.output.checkpoint(at)
        self.folder = self.output.unfinished(at, attempt)

    def create(self, least_bytes: int = 0) -> None:
        """Create the temporary folder of this checkpoint, after removing temporary folders of other checkpoints.

        Those are the folders that this attempt and earlier attempts have left.

        Args:
            least_bytes: estimated size of the checkpoint in bytes.

        Raises:
            StorageError: fewer bytes are free than `least_bytes` and MARGIN_BYTES together.
        """
        with files.storage_errors(self.output.root):
            self.output.root.mkdir(parents=True, exist_ok=True)
            for path in list(self.output.root.iterdir()):
                unfinished = _UNFINISHED.fullmatch(path.name)
                if unfinished and int(unfinished[1] or 0) <= self.attempt:
                    files.remove_path(path)
            what = f"the checkpoint of {self.at}"
            files.require_space(self.final, least_bytes + MARGIN_BYTES, what, files.RESTART_RUN)
            self.folder.mkdir()

    def add_rank_files(self, rank: int, written: RankFiles) -> None:
        """Write rank-<rank>.json with the rank's files, and with sample rows to compare after a restore.

        Trainer 0 reads this file in `collect_rank_files`.
        """
        files.write_json(self._rank_file(rank), schema.to_json(written))

    def _rank_file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def collect_rank_files(self, config: Path, pods: Iterable[int]) -> RankFiles:
        """Collect what all ranks recorded with `add_rank_files`, add two files, and return all files and sample rows.

        The two files are a copy of the program's file and path.txt, which has the final path of the checkpoint. This
        method removes the records of the ranks, rank-<rank>.json.

        Args:
            config: the program's file.
            pods: the number of each rank's pod, in the order of the ranks. The command `logs --rank` takes this number.

        Raises:
            StorageFailedError: a rank's record is missing, or the storage failed.
            DataError, ValueError: a rank's record is damaged.
        """
        entries: dict[str, CheckpointFile] = {}
        rows: dict[str, CheckpointRows] = {}
        with files.storage_errors(self.folder):
            for rank, pod in enumerate(pods):
                value = files.read_json(self._rank_file(rank))
                if value is None:
                    raise StorageFailedError(
                        f"the checkpoint of {self.at} is incomplete: {self._rank_file(rank)} is missing. "
                        "This attempt fails, and the next one resumes from the checkpoint before it. Fix: see the "
                        f"log of that rank: python -m launcher logs --rank {pod}"
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

    def list_files(self, exchange: RankExchange | None = None) -> dict[str, CheckpointFile]:
        """Sync all files of the folder to disk, read them, and return their sizes and sha256 by name.

        With `exchange`, all processes of a script call this, because they wrote the files together. Each process syncs
        and lists the files that it sees, at least those that it wrote itself. Then each process reads a share of all
        listed files.

        Raises:
            ValueError: there is no file; a restore would reject the name of a file; or the list of the files is too
                large for `exchange`.
            DeadlineError: not all processes have written their files in time.
            StorageError, StorageFailedError: the storage failed.
        """

        def collect(value: Any) -> list[Any]:
            return exchange.exchange(value, f"the checkpoint of {self.at}") if exchange else [value]

        collect(None)  # wait until all processes have written their files
        with files.storage_errors(self.folder):
            files.fsync_tree(self.folder)
            seen = [path.relative_to(self.folder).as_posix() for path in files.folder_files(self.folder)]
        names = sorted({name for found in collect(seen) for name in found})
        if not names:
            raise ValueError(f"no file was saved in {self.folder}")
        if wrong := [name for name in names if not is_safe_name(name)]:
            raise ValueError(f"the file {wrong[0]!r} cannot be in a checkpoint. Fix: use another file name")
        share = names[exchange.rank :: exchange.ranks] if exchange else names
        described = {name: _describe_file(self.folder / name) for name in share}
        shares = collect(schema.to_json(described))
        return {
            name: schema.from_json(CheckpointFile, entry) for found in shares for name, entry in found.items()
        }

    def publish(self, contents: SavedCheckpoint) -> int:
        """Write contents.json and `done`, and give the folder its final name. Return the size of the files in bytes."""
        with files.storage_errors(self.folder):
            files.write_json(self.folder / CONTENTS, files.with_checksum(schema.to_json(contents)))
            files.write_atomically(self.folder / DONE, "")
            # A folder with this name is rejected or unfinished: training would have resumed from a usable checkpoint.
            if self.final.is_dir() and not self.final.is_symlink():
                (self.final / DONE).unlink(missing_ok=True)
            files.remove_path(self.final)
            self.folder.rename(self.final)
            files.fsync_dir(self.final.parent)
        return total_bytes(contents)


def prune_checkpoints(
    output: OutputPaths, attempt: int, keep: int, best: Collection[Position] = ()
) -> list[str]:
    """Remove old usable checkpoints of a run, and return their folder names; unusable ones stay.

    A checkpoint is usable if training can resume from it. The newest `keep` usable checkpoints stay, and so do the
    usable checkpoints at the positions `best`.
    """
    removed = []
    with files.storage_errors(output.root):
        usable = [
            at for at in finished_checkpoints(output.root) if unusable_reason(output.checkpoint(at)) is None
        ]
        for at in [at for at in usable[keep:] if at not in best]:
            doomed = output.unfinished(at, attempt)  # an interrupted removal must not leave a partial folder
            output.checkpoint(at).rename(doomed)
            shutil.rmtree(doomed)
            removed.append(at.folder)
    return removed


def finished_checkpoints(output_dir: Path) -> list[Position]:
    """Return the positions of all checkpoints that have the file `done`, the newest first."""
    found = {at for name in files.list_names(output_dir) if (at := position(name))}
    markers = {at: OutputPaths(output_dir).checkpoint(at) / DONE for at in sorted(found, reverse=True)}
    return [at for at, done in markers.items() if files.retry_storage(done, done.is_file)]


def newest_checkpoint(output_dir: Path) -> Position | None:
    """Return the newest checkpoint that training can resume from; None when none was ever finished.

    Raises:
        DataError: there are finished checkpoints, but training can resume from none of them.
    """
    reasons: list[str] = []
    for at in finished_checkpoints(output_dir):
        folder = OutputPaths(output_dir).checkpoint(at)
        reason = unusable_reason(folder)
        if reason is None:
            for skipped in reasons:
                log.warning("skipped checkpoint %s", skipped)
            return at
        reasons.append(f"{folder.name}: {reason}")
    if reasons:
        raise DataError(
            f"no usable checkpoint in {output_dir}; refusing to start from scratch.\n  "
            + "\n  ".join(reasons)
            + "\nFix: restore one of these folders from a copy; or start from scratch, with "
            "any new text in startFromScratch."
        )
    return None


def unusable_reason(folder: Path) -> str | None:
    """Return why training cannot resume from a finished checkpoint; None when training can.

    A usable checkpoint has an intact contents.json, all listed files with their listed sizes, and no `rejected.json` of
    an earlier load. If contents.json and run.json both have an `outputId`, it must be the same. This function does not
    read the listed files.

    Raises:
        StorageError, StorageFailedError: the folder cannot be read.
    """
    try:
        _read_checked(folder)
    except CheckpointError as error:
        return str(error)
    return None


def find_damage(folder: Path, rank: int = 0, ranks: int = 1) -> str | None:
    """Read all files of a script's checkpoint. Return what is wrong with them; None if each has its recorded sha256.

    If all processes of a script wrote the checkpoint together, each process calls this function and reads only a share
    of the files. `rank` is the number of this process, and `ranks` the number of processes.
    """
    if (reason := unusable_reason(folder)) is not None:
        return reason
    contents = read_any_contents(folder)
    names = sorted(contents.files)
    if isinstance(contents, ScriptCheckpoint) and contents.processes > 1:
        names = names[rank::ranks]
    return check_files(folder, names, contents.files)


def _read_checked(folder: Path) -> SavedCheckpoint:
    """Return the content of a checkpoint's contents.json after checking that the checkpoint can be used.

    Raises:
        CheckpointError: the folder is a symbolic link; an earlier load rejected the checkpoint; contents.json is
            missing, damaged, or of another version, position or `outputId`; or a listed file is missing or has another
            size.
        StorageError, StorageFailedError: the folder cannot be read.
    """
    try:
        if files.retry_storage(folder, folder.is_symlink):
            raise CheckpointError("it is a symbolic link")
        rejection = files.read_json(folder / REJECTED)
    except files.UnreadableError as error:
        raise CheckpointError(f"rejected by an earlier load, and {error}") from error
    if rejection is not None:
        raise CheckpointError(f"rejected by an earlier load: {rejection.get('reason')}")
    contents = read_any_contents(folder)
    recorded, present = contents.output_id, read_output_id(folder.parent)
    if recorded and present and recorded != present:
        raise CheckpointError(
            f"{CONTENTS} has outputId {recorded}, but run.json next to the folder has {present}: the checkpoint "
            "was copied from another run, whose parameters may differ"
        )
    for name, entry in contents.files.items():
        try:
            size = files.retry_storage(folder / name, (folder / name).stat).st_size
        except files.NOT_FOUND:
            raise CheckpointError(f"{name} is missing") from None
        if size != entry.bytes:
            raise CheckpointError(f"{name} has {size} bytes, but was saved with {entry.bytes}")
    return contents


def read_any_contents(folder: Path) -> SavedCheckpoint:
    """Return a checkpoint's `contents.json`: a `CheckpointContents`, or a `ScriptCheckpoint` if a script saved it.

    Raises:
        CheckpointError: the file is missing, damaged, of another version, or of another checkpoint. The message
            is only this reason; callers add the folder and a fix.
        StorageError, StorageFailedError: the file cannot be read.
    """
    content = files.read_bytes(folder / CONTENTS)
    if content is None:
        raise CheckpointError(f"{CONTENTS} is missing")
    try:
        value = files.parse_json_object(CONTENTS, content)
        shape: type[SavedCheckpoint] = CheckpointContents
        version, supported = value.get("version"), VERSION
        if "script" in value:
            shape, version, supported = ScriptCheckpoint, value["script"], SCRIPT_VERSION
        if version != supported:
            raise CheckpointError(
                f"{CONTENTS} was written by another version of the launcher: its format is {version}, "
                f"and this launcher reads {supported}. Only the image with that launcher can resume from it"
            )
        contents = schema.from_json(shape, value)
    except files.UnreadableError as error:
        raise CheckpointError(str(error)) from error
    except ValueError as error:
        raise CheckpointError(f"{CONTENTS} is damaged: {error}") from error
    if any(len(entry) != 3 or not entry[0] for entry in contents.history):
        raise CheckpointError(f"{CONTENTS} is damaged: the value of 'history' is impossible")
    at = contents.position
    if at != position(folder.name):
        raise CheckpointError(
            f"{CONTENTS} describes {at}, not {position(folder.name)}: the folder was copied or renamed"
        )
    if isinstance(contents, CheckpointContents):
        scores = contents.scores.passes if contents.scores else []
        plausible = {
            "rows": all(_fits_tables(contents, name, rows) for name, rows in contents.rows.items()),
            "ranks": all(len(totals) == TOTALS for totals in contents.ranks),
            "shards": 0 < contents.shards <= MAX_SHARDS,
            "scores": all(len(score) == 2 and score[0] is not None for score in scores),
        }
        if wrong := [key for key, fits in plausible.items() if not fits]:
            raise CheckpointError(f"{CONTENTS} is damaged: the value of {wrong[0]!r} is impossible")
    return contents


def read_contents(folder: Path) -> CheckpointContents:
    """Return `contents.json` of a checkpoint of the parameter servers.

    Raises:
        CheckpointError: a script saved the checkpoint, or `read_any_contents` raises this error.
    """
    contents = read_any_contents(folder)
    if not isinstance(contents, CheckpointContents):
        raise CheckpointError(f"{CONTENTS} belongs to a checkpoint of a script")
    return contents


def _fits_tables(contents: CheckpointContents, name: str, rows: CheckpointRows) -> bool:
    """Return whether the sample `rows` of the table `name` are possible.

    They are possible if the checkpoint has this table, each id fits into int64, and each id has one vector, as wide as
    the table.
    """
    widths = {len(values) for values in rows.values}
    is_int64 = all(-(2**63) <= number < 2**63 for number in rows.ids)
    known = name in contents.tables and widths <= {contents.tables[name].width}
    return is_int64 and known and len(rows.ids) == len(rows.values)


def write_file(folder: Path, name: str, write: Callable[[IO[bytes]], None]) -> dict[str, CheckpointFile]:
    """Create the file `name` of a checkpoint in `folder`, sync it to disk, and return {name: size and sha256}.

    This function opens the file, and calls `write` with it to write the content.
    """
    path = folder / name
    with files.storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # the file must be on disk before `done` is
    return {name: _describe_file(path)}


def _describe_file(path: Path) -> CheckpointFile:
    """Read a file, and return its size and sha256."""
    with files.storage_errors(path):
        # First the sha256, because it opens the file: then an NFS client updates the size that it has cached.
        sha256 = files.sha256_file(path)
        return CheckpointFile(path.stat().st_size, sha256)


def check_files(folder: Path, names: Iterable[str], listed: Mapping[str, CheckpointFile]) -> str | None:
    """Return what is wrong with the files `names` of a checkpoint; None if all have the sha256 in `listed`.

    `listed` has the entry of each file in contents.json.
    """
    for name in names:
        entry = listed.get(name)
        if entry is None:
            return f"{name} is not listed in {CONTENTS}"
        try:
            found = files.retry_storage(folder / name, functools.partial(files.sha256_file, folder / name))
        except FileNotFoundError:
            return f"{name} is missing"
        if found != entry.sha256:
            return f"the content of {name} has changed since it was saved (its sha256 differs)"
    return None


def reject(folder: Path, reason: str, attempt: int) -> LauncherError:
    """Mark a checkpoint as unusable forever by a file `rejected.json`; return the error, which the caller must raise.

    The error ends this attempt; the next attempt resumes from the checkpoint before this one.
    """
    about = {"reason": reason, "attempt": attempt, "time": time.time()}
    files.write_json(folder / REJECTED, about)
    return StorageFailedError(
        f"training cannot resume from {folder.name}: {reason}. The launcher recorded this in "
        f"{folder.name}/{REJECTED}; the next attempt resumes from the checkpoint before it. Fix: if "
        "this repeats, look for I/O errors of the shared storage's server."
    )


def read_output_id(output_dir: Path) -> str | None:
    """Return `outputId` of the run record; None when the record is missing or damaged (rank 0 repairs the record)."""
    return (run_record.read(OutputPaths(output_dir))[0] or {}).get("outputId")


def total_bytes(contents: SavedCheckpoint) -> int:
    """Return the total size in bytes of a checkpoint's files."""
    return sum(entry.bytes for entry in contents.files.values())


# The exported model, and the checkpoint from which it is exported.

MODEL_FILES = ("network.pdmodel", "network.pdiparams", "interface.py", "model.json", "score.json")


def is_model_complete(folder: Path) -> bool:
    """Return whether `folder` has all MODEL_FILES. An export gives a folder this name once all files are in it."""
    with files.storage_errors(folder):
        return all((folder / name).is_file() for name in MODEL_FILES)


def model_checkpoint(folder: Path) -> str:
    """Return the folder name of the checkpoint that a model was made from; "" when there is no complete model."""
    try:
        about = files.read_json(folder / "model.json") if is_model_complete(folder) else None
    except files.UnreadableError:  # the model is exported again
        about = None
    return str((about or {}).get("checkpoint") or "")


def scores_by(contents: CheckpointContents, metric: str) -> list[tuple[int, float]]:
    """Return the scores of `metric` that a checkpoint recorded, each as (number of finished passes, value).

    The value is NaN for a pass without a value. The list is empty when the checkpoint was saved with another
    `training.keepBest`.
    """
    if not metric or contents.scores is None or contents.scores.metric != metric:
        return []
    passes = [(at, value) for at, value in contents.scores.passes if at is not None]
    return [(int(at), math.nan if value is None else float(value)) for at, value in passes]


def choose_model_checkpoint(
    output_dir: Path, metric: str, scored: metrics.Scores, passes: int, made: str
) -> Position | None:
    """Return the position of the checkpoint from which the model must be exported; None if there is none.

    The candidates are the checkpoints after the passes with a score of `metric`, the best score first, and then the
    checkpoint after the last pass. This function returns the first usable candidate. A candidate is usable if training
    can resume from it. The checkpoint from which the model in model/ was exported is usable, too, even if it was
    removed since then: that model needs no new export.

    Args:
        output_dir: the output folder with the checkpoints.
        metric: name of the metric that decides; empty if `training.keepBest` is not set.
        scored: scores of `metric` by number of finished passes (`scores_by`).
        passes: number of finished passes.
        made: name of the checkpoint folder from which the current model was exported; empty if there is no model.
    """
    finished = finished_checkpoints(output_dir)
    for at in map(Position, [*metrics.rank_passes(metric, scored), passes]):
        usable = at in finished and unusable_reason(OutputPaths(output_dir).checkpoint(at)) is None
        if made == at.folder or usable:
            return at
    return None
