"""Check that a volume has enough free space before a large file is written to it."""

from __future__ import annotations

from pathlib import Path

from launcher.errors import StorageError
from launcher.io import files

_FREE_SHARED = "delete earlier runs with `python -m launcher clean`, or enlarge that volume; then "
RESTART_RUN = f"{_FREE_SHARED}start the run again."
RESTART_DATA_JOB = f"{_FREE_SHARED}start the run again with another runId."
ENLARGE_WORK_VOLUME = "increase the size of the pods' work volume (an emptyDir), or use more trainers."


def require_space(folder: Path, needed: int, what: str, fix: str = RESTART_DATA_JOB) -> None:
    """Raise `StorageError` when the volume of `folder`, which need not exist yet, has fewer than `needed` bytes free.

    `what` (the data to be written) and `fix` (what the user can do) are for the message.
    """
    free = files.free_bytes(folder)
    if free < needed:
        raise StorageError(
            f"no space left for {what}: {needed:,} bytes are needed, but {free:,} are free in {folder}. Fix: "
            f"{fix}"
        )
