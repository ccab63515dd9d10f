"""Files that appear under their final name only when whole, and reads that take no failure for absence.

What the operating system says decides what becomes of the run:

    ENOENT, ENOTDIR                              nothing is there: the only meaning of "absent"
    ENOSPC, EDQUOT, EACCES, EPERM, EROFS         StorageError (75): final, a person must act
    EIO, ESTALE, ETIMEDOUT, ENOTCONN, EREMOTEIO  StorageFailedError (71): it may pass. Reads are tried
                                                 again for 20 s, then another pod may do better
    EISDIR, ELOOP                                StorageError (75): a folder or link in a file's place
    anything else                                the OSError as it is: a fault of the launcher
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from launcher import schema
from launcher.errors import DataError, StorageError, StorageFailedError
from launcher.reporting.log import log

T = TypeVar("T")

CHECKSUM = "checksum"  # the key of a sealed file
BLOCK = 1 << 20  # bytes read at once: large enough for a network file system, small enough for 60 MB resident
WAITS = (
    0.25,
    0.5,
    1.0,
    2.0,
    4.0,
    6.0,
    6.0,
)  # seconds between tries: an NFS server that fails over is back in 20 s

ABSENT = (FileNotFoundError, NotADirectoryError)
_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISPLACED = {errno.EISDIR, errno.ELOOP}
_FLAKY = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO}


class UnreadableError(DataError):
    """A file is there and can be read, but what is in it is no JSON object, or not as it was written."""


@contextlib.contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turns what storage raises inside the block into a `StorageError` or `StorageFailedError` about `path`.

    For file operations only: a socket's ETIMEDOUT inside it would be told as a fault of the volume.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or path
        if error.errno in _FULL:
            raise StorageError(
                f"no space left while writing {where} ({free_bytes(path)} bytes free). "
                "Make room on that volume (earlier runs are in runs/), then start the run again."
            ) from error
        if error.errno in _REFUSED:
            raise StorageError(
                f"cannot read or write {where}: {error.strerror}. This process runs as "
                f"{os.getuid()}:{os.getgid()}; {_owner(path)}. Mend: on the storage, chown that folder to "
                f"{os.getuid()}:{os.getgid()} (the chart's podSecurity.runAsUser and fsGroup), and see "
                "that it is not mounted read-only."
            ) from error
        if error.errno in _MISPLACED:
            raise StorageError(
                f"cannot read or write {where}: {error.strerror}, but it must be a file. Fix: move it away."
            ) from error
        if error.errno in _FLAKY:
            raise StorageFailedError(
                f"the storage failed at {where}: {error.strerror}. See whether the volume is still mounted "
                "and its server answers."
            ) from error
        raise


def patient(path: Path, work: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """What `work` gives inside `storage(path)`, tried again for 20 s after each `StorageFailedError`.

    `work` must come to the same when it is done twice. `sleep` gets seconds, and may raise to end it.
    """
    for wait in WAITS:
        try:
            with storage(path):
                return work()
        except StorageFailedError as error:
            log.warning("%s Trying again in %g s", error, wait)
        sleep(wait)
    with storage(path):
        return work()


def read_bytes(path: Path, sleep: Callable[[float], None] = time.sleep) -> bytes | None:
    """The content of a small file; None when it is absent, and only then. Raises as `patient` does."""
    with contextlib.suppress(*ABSENT):
        return patient(path, path.read_bytes, sleep)
    return None


def read_json(path: Path, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any] | None:
    """The object in `path`; None when the file is absent, and only then. Raises as the two functions here."""
    content = read_bytes(path, sleep)
    return None if content is None else parse_object(path, content)


def parse_object(name: object, content: bytes, shape: Any = dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object in a file's content, without its checksum.

    Args:
        name: the file, for messages.
        content: its bytes.
        shape: the type that the object must have (`schema.mismatch`).

    Raises:
        UnreadableError: it is no JSON object, not what its checksum was made of, or of another shape.
    """
    try:
        value = json.loads(content, parse_constant=_no_number)
    except ValueError as error:
        raise UnreadableError(f"{name} is there ({len(content)} bytes), but is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise UnreadableError(f"{name} is there, but holds no JSON object: {content[:60]!r}.")
    written = value.pop(CHECKSUM, None)
    if written is not None and sealed(value)[CHECKSUM] != written:
        raise UnreadableError(f"{name} is damaged: its {CHECKSUM} is not that of its other fields.")
    if why := schema.mismatch(value, shape):
        raise UnreadableError(f"{name} is damaged: {why}.")
    return value


def _no_number(name: str) -> None:
    raise ValueError(
        f"{name} is no number of JSON"
    )  # nothing here writes it, and it could not be written again


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return `value` with a checksum, which every read verifies: the sha256 of its canonical JSON."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return {**value, CHECKSUM: hashlib.sha256(canonical.encode()).hexdigest()}


def names(folder: Path, sleep: Callable[[float], None] = time.sleep) -> list[str]:
    """The names in `folder`, sorted; none when it is absent, and only then. Raises as `patient` does."""
    with contextlib.suppress(*ABSENT):
        return patient(folder, lambda: sorted(path.name for path in folder.iterdir()), sleep)
    return []


def free_bytes(path: Path) -> int:
    """Bytes that this user can still write where `path` is or will be. Raises as `storage` does."""
    for folder in (path, *path.parents):
        with contextlib.suppress(*ABSENT), storage(folder):
            stat = os.statvfs(folder)
            return stat.f_bavail * stat.f_frsize
    return 0


def _owner(path: Path) -> str:
    for folder in (path, *path.parents):
        try:
            stat = folder.stat()
        except OSError:
            continue
        return f"{folder} belongs to {stat.st_uid}:{stat.st_gid} with mode {stat.st_mode & 0o7777:04o}"
    return f"nothing on the way to {path} can be seen"


def fsync_dir(folder: Path) -> None:
    """Makes names made or removed in `folder` durable, where the file system knows how to."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def fsync_tree(folder: Path) -> None:
    """Makes `folder` durable with all that is in it: before a name, or a marker, says that it is whole."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            fsync_dir(path)
    fsync_dir(folder)


def temp_name(path: Path) -> Path:
    """A hidden name beside `path`, unlike any other writer's."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def write_whole(path: Path, content: bytes | str, check: Callable[[], None] = lambda: None) -> None:
    """Writes `content` to `path` in one step for every reader: temp, fsync, rename, fsync of the folder.

    `check` may raise right before the rename, if the right to write was lost while the storage took its time.
    Raises as `storage` does.
    """
    data = content.encode() if isinstance(content, str) else content
    temp = temp_name(path)
    with storage(path):
        try:
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)
            check()
            temp.replace(path)
            fsync_dir(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temp.unlink()
            raise


def write_json(path: Path, value: Mapping[str, Any], check: Callable[[], None] = lambda: None) -> None:
    """`write_whole` of indented JSON with a last newline."""
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", check)


def _blocks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb", buffering=0) as file:
            while block := file.read(BLOCK):
                yield block
    except OSError as error:
        error.filename = error.filename or path  # a read that fails does not say of which file
        raise


def sha256_file(path: Path, check: Callable[[], None] = lambda: None) -> str:
    """Hex sha256 of a file, read in blocks. `check` is called once a block, and may raise to end it.

    Raises `OSError` as it is: also a person's own machine uses this.
    """
    digest = hashlib.sha256()
    for block in _blocks(path):
        check()
        digest.update(block)
    return digest.hexdigest()


def copy_file(source: Path, target: Path, check: Callable[[], None] = lambda: None) -> tuple[int, str]:
    """Copies the content of one file and returns (bytes, hex sha256) of what was read.

    `check` is called once a block, so that a long copy can be ended by raising from it. The target is
    written in place: callers copy into folders that nobody reads yet.
    """
    digest = hashlib.sha256()
    total = 0
    with storage(target), target.open("wb", buffering=0) as writer:
        for block in _blocks(source):
            check()
            digest.update(block)
            view = memoryview(block)
            while view:
                view = view[writer.write(view) :]
            total += len(block)
    return total, digest.hexdigest()


def folder_files(folder: Path) -> list[Path]:
    """All regular files below `folder`, sorted by relative path, without Python's caches."""
    found = [
        path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.relative_to(folder).parts
    ]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def folder_sha256(folder: Path) -> str:
    """Hex sha256 over the relative paths and contents of `folder_files`."""
    digest = hashlib.sha256()
    for path in folder_files(folder):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def remove(path: Path) -> None:
    """Remove a folder with all that is in it, a file, or a link but not what it points to; or nothing."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def copy_folder(source: Path, target: Path, check: Callable[[], None] = lambda: None) -> None:
    """Replaces `target` by a copy of `source` (contents only, Python's caches left out)."""
    temp = temp_name(target)
    with storage(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temp.mkdir()
        try:
            for path in folder_files(source):
                copy = temp / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy_file(path, copy, check)
            remove(target)
            temp.rename(target)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise
