"""Atomic writes of files and folders, file locks between processes, and the free-space check."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from local import console
from local.external_commands import LocalError


def write_file_atomically(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    """Write `text` to a temporary file with the permissions `mode`, fsync the file and rename it to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text.encode() if isinstance(text, str) else text)
            stream.flush()
            os.fsync(descriptor)
            os.fchmod(descriptor, mode)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def create_folder_atomically(final: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `final`, and rename it to `final` if the block succeeds.

    If another process has created `final` in the meantime, the temporary folder is deleted. Both folders have the same
    content, because the names of such folders contain a digest of what they are made from.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}."))
    draft.chmod(0o755)
    try:
        yield draft
        if not final.exists():
            draft.rename(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def hold_file_lock(path: Path, what: str, seconds: float = 3600) -> Iterator[None]:
    """Hold an exclusive lock on the file `path` during the block.

    The kernel releases the lock when the process exits, even if the process is killed. The file contains the process id
    of the lock holder. `what` says in messages what the lock protects.

    Raises:
        LocalError: Another process still holds the lock after `seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as stream:
        deadline = time.monotonic() + seconds
        reported = False
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                stream.seek(0)
                holder = stream.read().strip() or "unknown"
                if time.monotonic() > deadline:
                    raise LocalError(
                        f"{what} is still locked by process {holder} after {seconds:.0f} s ({path}). "
                        "Fix: wait until that process has finished, or stop it, and try again."
                    ) from None
                if not reported:
                    console.info(f"waiting for {what}: process {holder} holds the lock {path}")
                    reported = True
                time.sleep(0.2)
        stream.seek(0)
        stream.truncate()
        stream.write(str(os.getpid()))
        stream.flush()
        yield


def require_free_space(folder: Path, gigabytes: float, what: str) -> None:
    """Raise LocalError if the file system of `folder` has less than `gigabytes` GB free. The folder need not exist.

    `what` says what needs the space, such as "The demo"; the message begins with it.
    """
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free / 1e9
    if free < gigabytes:
        raise LocalError(
            f"{what} needs {gigabytes:.1f} GB in {folder}, but its disk has {free:.1f} GB free. Nothing was "
            "started. Fix: free some space, or put tools and images on another disk with "
            "PADDLE_TRAINING_CACHE=FOLDER"
        )
