"""Files that appear under their final name only when they are whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.errors import StorageError

BLOCK = 1 << 20  # bytes read at once: large enough for a network file system, small enough for 60 MB resident

_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextlib.contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turns what a full or foreign folder raises inside the block into a `StorageError` about `path`."""
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
                f"cannot write {where}: {error.strerror}. This process runs as {os.getuid()}:{os.getgid()}; "
                f"{_owner(path)}. Mend: on the storage, chown that folder to {os.getuid()}:{os.getgid()} "
                "(the chart's podSecurity.runAsUser and fsGroup), and see that it is not mounted read-only."
            ) from error
        if error.errno in (errno.EIO, errno.ESTALE):
            raise StorageError(
                f"the storage failed at {where}: {error.strerror}. See whether the volume is still mounted."
            ) from error
        raise


def free_bytes(path: Path) -> int:
    """Bytes that this user can still write where `path` is or will be; 0 when that cannot be told."""
    for folder in (path, *path.parents):
        try:
            stat = os.statvfs(folder)
        except OSError:
            continue
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


def temp_name(path: Path) -> Path:
    """A hidden name beside `path`, unlike any other writer's."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def write_whole(path: Path, content: bytes | str) -> None:
    """Writes `content` to `path` in one step for every reader: temp, fsync, rename, fsync of the folder.

    Raises `StorageError` when the volume is full or refuses.
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
            temp.replace(path)
            fsync_dir(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temp.unlink()
            raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """`write_whole` of indented JSON with a last newline."""
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None when the file is absent or holds no JSON object (never an error)."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def copy_file(source: Path, target: Path, check: Callable[[], None] | None = None) -> tuple[int, str]:
    """Copies the content of one file and returns (bytes, hex sha256) of what was copied.

    `check` is called once a block, so that a long copy can be ended by raising from it. The target is
    written in place: callers copy into folders that nobody reads yet.
    """
    digest = hashlib.sha256()
    total = 0
    with storage(target), source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while block := reader.read(BLOCK):
            if check is not None:
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


def copy_folder(source: Path, target: Path, check: Callable[[], None] | None = None) -> None:
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
            if target.is_symlink() or target.is_file():
                target.unlink()
            elif target.exists():
                shutil.rmtree(target)
            temp.rename(target)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise
