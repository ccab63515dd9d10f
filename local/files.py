"""Whole files or none, and the locks that keep two runs of `local` apart."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from local.errors import LocalError


def write_whole(path: Path, text: str | bytes, mode: int = 0o644) -> bool:
    """Write `path` by a temporary name, fsync and rename; True when the content changed.

    An unchanged file is left alone, so that callers can restart a daemon only when its settings differ.
    """
    data = text.encode() if isinstance(text, str) else text
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == data:
            path.chmod(mode)
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return True


@contextlib.contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `final` that takes its name when the block ends well.

    If another run got there first its folder stays and ours is dropped: folders are keyed by content.
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
def locked(path: Path, what: str, seconds: float = 3600) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the kernel releases it when the process ends, however it ends.

    Raises:
        LocalError: another run held it for longer than `seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as stream:
        deadline = time.monotonic() + seconds
        told = False
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                stream.seek(0)
                holder = stream.read().strip() or "unknown"
                if time.monotonic() > deadline:
                    raise LocalError(
                        f"{what} is still locked by process {holder} after {seconds:.0f} s ({path}); "
                        "wait for that run or end it, then try again."
                    ) from None
                if not told:
                    from local import say  # noqa: PLC0415 - say imports rich, which bootstrap does not have

                    say.note(f"waiting for {what}: process {holder} is at work on it")
                    told = True
                time.sleep(0.2)
        stream.seek(0)
        stream.truncate()
        stream.write(str(os.getpid()))
        stream.flush()
        yield


def need_space(folder: Path, gigabytes: float, what: str) -> None:
    """Refuse to begin when the disk below `folder` has too little room.

    Raises:
        LocalError: with the free and the needed amount, and how to mend it.
    """
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free / 1e9
    if free < gigabytes:
        raise LocalError(
            f"{what} needs {gigabytes:.1f} GB below {folder}, but its disk has {free:.1f} GB free. Nothing "
            "was "
            "begun. Make room, or name another disk with PADDLE_TRAINING_CACHE=FOLDER (tools and images)."
        )
