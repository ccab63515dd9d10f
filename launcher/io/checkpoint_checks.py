"""Find the folders of checkpoints, compare their files with the recorded ones, and mark damaged checkpoints.

The parameter server's checkpoints (launcher/trainer/checkpoint) and those of users' scripts (script_checkpoints.py)
have this in common: `done` is written last, contents.json lists the files, rejected.json rejects the checkpoint.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from launcher.errors import CheckpointError, DataError, LauncherError, StorageFailedError
from launcher.io import files
from launcher.log import log
from launcher.paths import OutputPaths, Position, position
from launcher.schema import CheckpointFile

CONTENTS = "contents.json"
DONE = "done"
REJECTED = "rejected.json"


def finished_checkpoints(output_dir: Path) -> list[Position]:
    """Return the positions of all checkpoints that have the file `done`, the newest first."""
    found = {at for name in files.list_names(output_dir) if (at := position(name))}
    output = OutputPaths(output_dir)
    return [at for at in sorted(found, reverse=True) if _is_done(output.checkpoint(at))]


def _is_done(folder: Path) -> bool:
    return files.retry_storage(folder, (folder / DONE).is_file)


def find_newest_usable(output_dir: Path, unusable_reason: Callable[[Path], str | None]) -> Position | None:
    """Return the newest checkpoint that training can resume from; None when none was ever finished.

    `unusable_reason` returns why training cannot resume from a checkpoint's folder; None if it can.

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


def rejection_reason(folder: Path) -> str | None:
    """Return why no file of a checkpoint may be used (a symbolic link, or rejected earlier), or None."""
    try:
        if files.retry_storage(folder, folder.is_symlink):
            return "it is a symbolic link"
        rejection = files.read_json(folder / REJECTED)
    except files.UnreadableError as error:
        return f"rejected by an earlier load, and {error}"
    return None if rejection is None else f"rejected by an earlier load: {rejection.get('reason')}"


def check_sizes(folder: Path, listed: Mapping[str, CheckpointFile]) -> None:
    """Raise `CheckpointError` if a listed file is missing or has another size; the content is not read."""
    for name, entry in listed.items():
        try:
            size = files.retry_storage(folder / name, (folder / name).stat).st_size
        except files.NOT_FOUND:
            raise CheckpointError(f"{name} is missing") from None
        if size != entry.bytes:
            raise CheckpointError(f"{name} has {size} bytes, but was saved with {entry.bytes}")


def check_files(folder: Path, names: Iterable[str], listed: Mapping[str, CheckpointFile]) -> str | None:
    """Return what is wrong with the files `names` of a checkpoint; None if all have their recorded sha256."""
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
