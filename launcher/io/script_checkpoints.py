"""Save, verify and remove the checkpoints of users' scripts (runtime collective).

A script writes its files into a temporary folder next to the checkpoints. The folder then becomes

pass-<NNNNN>/ or pass-<NNNNN>-batch-<NNNNNNN>/
  …                the script's own files
  contents.json    position, size and sha256 of every file, and a checksum of itself
  done             written last, before the folder gets this name: the checkpoint is complete
  rejected.json    a restore found a damaged file; the checkpoint is never used again

"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from launcher import schema
from launcher.errors import CheckpointError
from launcher.io import files
from launcher.io.checkpoint_checks import (
    CONTENTS,
    DONE,
    check_files,
    check_sizes,
    finished_checkpoints,
    rejection_reason,
)
from launcher.paths import OutputPaths, Position, is_safe_name, position
from launcher.schema import CheckpointFile, CheckpointPosition, ScriptCheckpoint

VERSION = 1


def unusable_reason(folder: Path) -> str | None:
    """Return why a finished checkpoint cannot be used, without reading its files; None if it can."""
    try:
        if (reason := rejection_reason(folder)) is not None:
            return reason
        check_sizes(folder, read_contents(folder).files)
    except CheckpointError as error:
        return str(error)
    return None


def read_contents(folder: Path) -> ScriptCheckpoint:
    """Return a checkpoint's contents.json. Raise `CheckpointError` if it is missing, damaged or not the folder's."""
    content = files.read_bytes(folder / CONTENTS)
    if content is None:
        raise CheckpointError(f"{CONTENTS} is missing")
    try:
        contents = schema.from_json(ScriptCheckpoint, files.parse_json_object(CONTENTS, content))
    except (files.UnreadableError, ValueError) as error:
        raise CheckpointError(f"{CONTENTS} is not that of a script's checkpoint: {error}") from error
    if contents.script != VERSION:
        raise CheckpointError(
            f"{CONTENTS} has format {contents.script}, but this launcher reads format {VERSION}"
        )
    at = Position(contents.position.passes, contents.position.batch)
    if at != position(folder.name):
        raise CheckpointError(f"{CONTENTS} describes {at}: the folder was copied or renamed")
    return contents


def find_damage(folder: Path) -> str | None:
    """Read all files of a checkpoint. Return what is wrong with them; None if each has its recorded sha256."""
    if (reason := unusable_reason(folder)) is not None:
        return reason
    listed = read_contents(folder).files
    return check_files(folder, sorted(listed), listed)


def publish_checkpoint(folder: Path, output_dir: Path, at: Position, attempt: int) -> int:
    """Make the temporary folder `folder` the checkpoint at position `at`; return the size of its files in bytes.

    The files are synced to disk before the folder gets its final name, with `done` in it.

    Raises:
        StorageError, StorageFailedError: the storage cannot be written; the checkpoint is not complete.
        ValueError: the folder contains no file, or one with a name that a restore would reject.
    """
    final = OutputPaths(output_dir).checkpoint(at)
    with files.storage_errors(folder):
        listed = {
            path.relative_to(folder).as_posix(): CheckpointFile(path.stat().st_size, files.sha256_file(path))
            for path in files.folder_files(folder)
        }
        if not listed:
            raise ValueError(f"no file was saved in {folder}")
        if wrong := [name for name in listed if not is_safe_name(name)]:
            raise ValueError(f"the file {wrong[0]!r} cannot be in a checkpoint. Fix: use another file name")
        contents = ScriptCheckpoint(
            script=VERSION, position=CheckpointPosition(at.passes, at.batches), attempt=attempt, files=listed
        )
        files.write_json(folder / CONTENTS, files.with_checksum(schema.to_json(contents)))
        (folder / DONE).touch()
        files.fsync_tree(folder)
        # One that was rejected or unfinished, or from before a restart. `done` first: nothing may use the rest.
        if final.is_dir() and not final.is_symlink():
            (final / DONE).unlink(missing_ok=True)
        files.remove_path(final)
        folder.rename(final)
        files.fsync_dir(final.parent)
    return sum(entry.bytes for entry in listed.values())


def prune_checkpoints(output_dir: Path, keep: int) -> list[str]:
    """Remove all usable checkpoints but the newest `keep`; return the folder names of the removed ones.

    Temporary folders are removed too, so no checkpoint may be in preparation. What cannot be removed now is removed
    by a later call.
    """
    output = OutputPaths(output_dir)
    usable = [at for at in finished_checkpoints(output_dir) if unusable_reason(output.checkpoint(at)) is None]
    with contextlib.suppress(OSError):
        for at in usable[keep:]:  # an interrupted removal must not leave a partial checkpoint
            output.checkpoint(at).rename(temporary_folder(output_dir, at))
        for path in output_dir.glob(".*.script.tmp"):
            shutil.rmtree(path)
    return [at.folder for at in usable[keep:]]


def temporary_folder(output_dir: Path, at: Position) -> Path:
    """Return the hidden folder in which a checkpoint at `at` is written, and into which it is moved for its removal."""
    return output_dir / f".{at.folder}.script.tmp"
