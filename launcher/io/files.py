"""Atomic writes, reads with retries, checksums, copies and free space of the shared storage and the pod's disk.

The errno of a failed file operation decides what happens to the run. A read returns "absent" (None or an empty
list) only after ENOENT or ENOTDIR, so a failing storage is never mistaken for an empty one:

    ENOENT, ENOTDIR                              the file is absent
    ENOSPC, EDQUOT, EACCES, EPERM, EROFS         StorageError (exit code 75): final, the user must act
    EIO, ESTALE, ETIMEDOUT, ENOTCONN, EREMOTEIO  StorageFailedError (exit code 71): perhaps temporary. Work in
                                                 `retry_storage`, such as the reads of this module, is repeated for
                                                 20 s. Then Kubernetes starts another pod
    EISDIR, ELOOP                                StorageError (75): a folder or a link has the file's name
    any other                                    the OSError itself: a bug of the launcher

These reads have an argument `sleep`, a function that waits for the given number of seconds before a retry; it may
raise to stop the retries. Writes and copies have an argument `check`, a function that may raise to stop the work.
Writes call `check` right before they replace the file, because this process may have lost the right to write. Copies
and sha256 call `check` for every block of 1 MiB.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from launcher import schema
from launcher.errors import DataError, StorageError, StorageFailedError
from launcher.io.retry import backoff_seconds
from launcher.log import log

T = TypeVar("T")

CHECKSUM = "checksum"
"""The key under which `with_checksum` adds a sha256 to a JSON object."""
BLOCK = 1 << 20
"""Bytes per read or write of a copy. Smaller blocks are slow on a network file system; larger ones need more memory."""
RETRY_WAITS = tuple(backoff_seconds(failures, 0.25, 6.0) for failures in range(1, 8))
"""Seconds between the attempts of `retry_storage`: 20 s in total, because an NFS server needs so long to fail over."""
NOT_FOUND = (FileNotFoundError, NotADirectoryError)
_FREE_SHARED = "delete earlier runs with `python -m launcher clean`, or enlarge that volume; then "
RESTART_RUN = f"{_FREE_SHARED}start the run again."
RESTART_DATA_JOB = f"{_FREE_SHARED}start the run again with another runId."
ENLARGE_WORK_VOLUME = "increase the size of the pods' work volume (an emptyDir), or use more trainers."
MAKE_ROOM = "delete earlier runs (in runs/) or enlarge the volume, then start the run again"

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISPLACED = {errno.EISDIR, errno.ELOOP}
_TEMPORARY = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO}


class UnreadableError(DataError):
    """A file exists and can be read, but its content is not the expected JSON object."""


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert an OSError of the `with` block to an error whose message has the cause and the fix.

    The block must contain only file operations: the timeout of a socket would be reported as a failing volume. `path`
    is the file or folder that the block uses, for the message.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or path
        if error.errno in _FULL:
            raise StorageError(
                f"no space left while writing {where} ({free_bytes(path):,} bytes free). Fix: {MAKE_ROOM}."
            ) from error
        if error.errno in _DENIED:
            raise StorageError(
                f"cannot read or write {where}: {error.strerror}. This process runs as "
                f"{os.getuid()}:{os.getgid()}; {_describe_owner(path)}. Fix: on the storage, chown that folder "
                f"to {os.getuid()}:{os.getgid()} (the chart's podSecurityContext.runAsUser and fsGroup), and "
                "check that the volume is not mounted read-only."
            ) from error
        if error.errno in _MISPLACED:
            raise StorageError(
                f"cannot read or write {where}: {error.strerror}, but it must be a file. Fix: remove or rename it."
            ) from error
        if error.errno in _TEMPORARY:
            raise StorageFailedError(
                f"the storage failed at {where}: {error.strerror}. Fix: check that the volume is still mounted "
                "and that its server responds."
            ) from error
        raise


def retry_storage(path: Path, work: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """Call `work` and return its result; while the storage fails temporarily, call it again for up to 20 s.

    `work` must be idempotent. `path` is the file or folder that `work` uses, for messages. If `work` raises
    FileNotFoundError or NotADirectoryError, this function raises the same error, which means that a file is absent.
    """
    for wait in RETRY_WAITS:
        try:
            with storage_errors(path):
                return work()
        except StorageFailedError as error:
            log.warning("%s Retrying in %g s", error, wait)
        sleep(wait)
    with storage_errors(path):
        return work()


def read_bytes(path: Path, sleep: Callable[[float], None] = time.sleep) -> bytes | None:
    """Return the content of a small file, or None if it is absent."""
    with contextlib.suppress(*NOT_FOUND):
        return retry_storage(path, path.read_bytes, sleep)
    return None


def read_json(
    path: Path, sleep: Callable[[float], None] = time.sleep, shape: Any = dict[str, Any]
) -> dict[str, Any] | None:
    """Return the JSON object in the file `path` without its checksum, or None if the file is absent.

    Raises:
        UnreadableError: the content is not a JSON object of this `shape`, or does not match its checksum.
    """
    content = read_bytes(path, sleep)
    return None if content is None else parse_json_object(path, content, shape)


def parse_json_object(name: object, content: bytes, shape: Any = dict[str, Any]) -> dict[str, Any]:
    """Parse and verify `content`, the bytes of a JSON file; return the object without its checksum.

    `name` is the name of the file, for messages.

    Raises:
        UnreadableError: `content` is not a JSON object, does not match its checksum, or has another type than `shape`
            (`schema.mismatch`).
    """
    try:
        value = json.loads(
            content, parse_constant=_reject_constant, parse_float=_parse_float, parse_int=_parse_int
        )
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{name} exists ({len(content)} bytes), but is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise UnreadableError(f"{name} exists, but contains no JSON object: {content[:60]!r}.")
    expected = value.pop(CHECKSUM, None)
    if expected is not None and with_checksum(value)[CHECKSUM] != expected:
        raise UnreadableError(f"{name} is damaged: its {CHECKSUM} does not match its other fields.")
    if why := schema.mismatch(value, shape):
        raise UnreadableError(f"{name} is damaged: {why}.")
    return value


def _reject_constant(name: str) -> None:
    """Raise ValueError for NaN and Infinity in JSON, which the launcher never writes."""
    raise ValueError(f"JSON has no number {name}")


def _parse_float(text: str) -> float:
    """Return a number of JSON; raise ValueError if it is too large for a float, like 1e400."""
    if math.isinf(number := float(text)):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _parse_int(text: str) -> int:
    """Return an integer of JSON; raise ValueError if it is too large for a float.

    Code that uses the value may convert any number to a float.
    """
    _parse_float(text)
    return int(text)


def with_checksum(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return `value` with the sha256 of its content under the key CHECKSUM, which `parse_json_object` verifies."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return {**value, CHECKSUM: hashlib.sha256(canonical.encode()).hexdigest()}


def list_names(folder: Path, sleep: Callable[[float], None] = time.sleep) -> list[str]:
    """Return the sorted names of the files and folders in `folder`; an empty list if `folder` is absent."""
    with contextlib.suppress(*NOT_FOUND):
        return retry_storage(folder, lambda: sorted(path.name for path in folder.iterdir()), sleep)
    return []


def free_bytes(path: Path) -> int:
    """Return how many bytes this user can still write to the volume of `path`. `path` itself need not exist."""
    for folder in (path, *path.parents):
        with contextlib.suppress(*NOT_FOUND), storage_errors(folder):
            stat = os.statvfs(folder)
            return stat.f_bavail * stat.f_frsize
    return 0


def require_space(folder: Path, needed: int, what: str, fix: str = RESTART_DATA_JOB) -> None:
    """Raise `StorageError` when the volume of `folder`, which need not exist yet, has fewer than `needed` bytes free.

    `what` (the data to be written) and `fix` (what the user can do) are for the message.
    """
    free = free_bytes(folder)
    if free < needed:
        raise StorageError(
            f"no space left for {what}: {needed:,} bytes are needed, but {free:,} are free in {folder}. Fix: "
            f"{fix}"
        )


def _describe_owner(path: Path) -> str:
    for folder in (path, *path.parents):
        try:
            stat = folder.stat()
        except OSError:
            continue
        return f"{folder} belongs to {stat.st_uid}:{stat.st_gid} with mode {stat.st_mode & 0o7777:04o}"
    return f"no folder on the path to {path} is accessible"


def fsync_dir(folder: Path) -> None:
    """Sync the folder to disk, so that a power loss does not undo the creation or removal of files in it.

    On a file system that cannot sync folders, this does nothing.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def fsync_tree(folder: Path) -> None:
    """Sync `folder` and everything in it to disk; to be called before a rename or a marker declares it complete."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        elif path.is_dir():  # not a link without a target
            fsync_dir(path)
    fsync_dir(folder)


def temporary_path(path: Path) -> Path:
    """Return a random hidden path next to `path`, for a file that is renamed to `path` once complete."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def write_atomically(path: Path, content: bytes | str, check: Callable[[], None] = lambda: None) -> None:
    """Replace the file `path` so that readers see either the old content or the new one, also after a power loss."""
    data = content.encode() if isinstance(content, str) else content
    temp = temporary_path(path)
    with storage_errors(path):
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
    """Replace the content of the file `path` by `value` as indented JSON, with `write_atomically`."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # A file name that is not valid UTF-8 has characters that only JSON's escapes (\udce9) can write.
    write_atomically(path, text.encode(errors="backslashreplace"), check)


def _blocks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb", buffering=0) as file:
            while block := file.read(BLOCK):
                yield block
    except OSError as error:
        error.filename = error.filename or path  # a failed read does not say which file it was
        raise


def sha256_file(path: Path, check: Callable[[], None] = lambda: None) -> str:
    """Return the sha256 of a file's content as hex digits.

    `check` is called before each block of the file is hashed; it may raise to stop the work.

    Raises:
        OSError: the file cannot be read. The error is not converted to a `StorageError`, because the command line
            calls this function for files on the user's machine too.
    """
    digest = hashlib.sha256()
    for block in _blocks(path):
        check()
        digest.update(block)
    return digest.hexdigest()


def copy_file(
    source: Path, target: Path, check: Callable[[], None] = lambda: None, offset: int = 0
) -> tuple[int, str]:
    """Copy a file; return (number of bytes of `source`, sha256 of the content that was read, as hex digits).

    `target` is not replaced atomically: callers copy into folders that nothing reads yet. The first `offset` bytes of
    `target` are kept, and the complete `source` is written after them. `check` is called before each block is written;
    it may raise to stop the copy.

    Raises:
        StorageError, StorageFailedError: a file cannot be read or written, except that FileNotFoundError and
            NotADirectoryError stay as they are.
    """
    digest = hashlib.sha256()
    total = 0
    with storage_errors(target), target.open("r+b" if offset else "wb", buffering=0) as writer:
        writer.seek(offset)
        writer.truncate()
        for block in _blocks(source):
            check()
            digest.update(block)
            view = memoryview(block)
            while view:
                view = view[writer.write(view) :]
            total += len(block)
    return total, digest.hexdigest()


def folder_files(folder: Path) -> list[Path]:
    """Return the paths of all files below `folder`, sorted; files in __pycache__ are skipped.

    Regular files and links to regular files are returned. Links to folders are not followed.
    """
    found = [
        path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.relative_to(folder).parts
    ]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def sum_line(name: str, sha256: str) -> bytes:
    """Return the bytes that a file with this name and sha256 adds to the digest of its folder (`combine_sums`)."""
    return os.fsencode(name) + f"\0{sha256}\n".encode()  # a name need not be valid UTF-8


def combine_sums(sums: Mapping[str, str]) -> str:
    """Return one sha256 (hex digits) of several files from `sums`, which maps their names to their sha256.

    The order of the names matters.
    """
    return hashlib.sha256(b"".join(sum_line(*each) for each in sums.items())).hexdigest()


def folder_sha256(folder: Path) -> str:
    """Return one sha256 (hex digits) for the names and contents of all files of a folder except __pycache__."""
    return combine_sums(
        {path.relative_to(folder).as_posix(): sha256_file(path) for path in folder_files(folder)}
    )


def remove_path(path: Path) -> None:
    """Remove a folder with its content, a file, or a link but not its target; do nothing if `path` is absent."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def copy_folder(source: Path, target: Path, check: Callable[[], None] = lambda: None) -> None:
    """Replace the folder `target` by a copy of the folder `source`, without __pycache__."""
    temp = temporary_path(target)
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temp.mkdir()
        try:
            for path in folder_files(source):
                copy = temp / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy_file(path, copy, check)
            remove_path(target)
            temp.rename(target)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise
