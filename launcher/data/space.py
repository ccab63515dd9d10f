"""Room on the shared storage, looked at before it is used."""

from __future__ import annotations

from pathlib import Path

from launcher.errors import StorageError
from launcher.files import free_bytes


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raises `StorageError` when fewer than `needed` bytes are free where `folder` is."""
    free = free_bytes(folder)
    if free < needed:
        raise StorageError(
            f"{folder} has {free / 1e6:,.1f} MB free, but {what} needs {needed / 1e6:,.1f} MB. Make room "
            "on that volume (earlier runs are in runs/), or make it larger, then start the Job again."
        )
