"""The tar protocol of the command line's copies, for both of their ends.

An archive ends with the member `SUMS`, a JSON object {name: sha256}. The receiver compares it with what
arrived, so that a stream that was cut or garbled is never taken for whole. Only regular files travel, and the
archive's own end mark ends it, because the exec protocol before version 5 cannot close stdin.

Standard library only: this runs in the image too. Memory does not grow with what is copied.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

SUMS = ".sha256.json"
"""Last member of every archive: {name: sha256 in hex}."""

COPY_BYTES = 256 * 1024


class ReaderError(Exception):
    """A sentence for the person who asked; nothing was changed under a final name."""


def checked_name(name: str) -> PurePosixPath:
    """The relative path `name`, or ReaderError when it leaves the folder that it is relative to."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise ReaderError(f"'{name}' is no path below the shared folder: '..' and absolute paths are refused")
    return path


class _Counted(io.RawIOBase):
    """Hands on at most `size` bytes of `source` and keeps their sha256."""

    def __init__(self, source: IO[bytes], size: int) -> None:
        self._source = source
        self._left = size
        self._sum = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        try:
            block = self._source.read(min(wanted, COPY_BYTES)) if wanted else b""
        except tarfile.TarError as error:
            raise ReaderError(f"the stream ended early or is damaged ({error})") from error
        self._left -= len(block)
        self._sum.update(block)
        return block

    @property
    def left(self) -> int:
        return self._left

    def sha256(self) -> str:
        return self._sum.hexdigest()


def select(root: Path, patterns: Sequence[str], optional: bool = False) -> list[tuple[str, Path]]:
    """(name below `root`, file) of every regular file that `patterns` (paths, folders, globs) name, sorted.

    Names that begin with a dot and links are left out: they are unfinished files, or lead elsewhere.
    Raises ReaderError when a pattern names nothing and `optional` is false.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        relative = checked_name(pattern)
        if set("*?[") & set(pattern):
            found_by = sorted(root.glob(str(relative)))
            starts = [one for one in found_by if "/." not in f"/{one.relative_to(root).as_posix()}"]
        else:
            starts = [root / relative] if os.path.lexists(root / relative) else []
        before = len(found)
        for start in starts:
            for file in _files(start):
                found[file.relative_to(root).as_posix()] = file
        if len(found) == before and not optional:
            raise ReaderError(f"{root / relative} is not there")
    return sorted(found.items())


def _files(start: Path) -> Iterator[Path]:
    mode = start.lstat().st_mode
    if stat.S_ISREG(mode):
        yield start
    elif stat.S_ISDIR(mode):
        for entry in sorted(start.iterdir()):
            if not entry.name.startswith("."):
                yield from _files(entry)


def write_tar(
    out: IO[bytes], entries: Iterable[tuple[str, Path]], skip_missing: bool = False
) -> dict[str, str]:
    """Stream `entries` and their sums to `out`; memory does not grow with their size. Returns {name: sha256}.

    A file that grows meanwhile is sent as long as it was when opened; one that shrinks is a ReaderError.
    """
    sums: dict[str, str] = {}
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, file in entries:
            try:
                source = file.open("rb")
            except FileNotFoundError:
                if skip_missing:
                    continue
                raise
            with source:
                info = tarfile.TarInfo(name)
                status = os.fstat(source.fileno())
                info.size, info.mtime = status.st_size, int(status.st_mtime)
                counted = _Counted(source, info.size)
                try:
                    archive.addfile(info, counted)
                except OSError as error:
                    if counted.left and not isinstance(error, BrokenPipeError):
                        raise ReaderError(f"{file} became shorter while it was read; try again") from error
                    raise
            archive.members.clear()  # type: ignore[attr-defined]  # it would only grow
            sums[name] = counted.sha256()
        listing = json.dumps(sums).encode()
        info = tarfile.TarInfo(SUMS)
        info.size = len(listing)
        archive.addfile(info, io.BytesIO(listing))
    out.flush()
    return sums


def read_tar(source: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """(name, bytes, content) of each file of an archive of `write_tar`.

    Raises ReaderError for anything but regular files below the folder, for a stream that ends early, and
    at its end when a sum differs: nothing may get its final name before this iterator is exhausted.
    """
    sums: dict[str, str] = {}
    told: dict[str, str] | None = None
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for member in archive:
                if member.name == SUMS:
                    listing = archive.extractfile(member)
                    told = json.loads(listing.read()) if listing else None
                    continue
                name = str(checked_name(member.name))
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise ReaderError(f"'{name}' is no regular file; links and devices are not copied")
                counted = _Counted(content, member.size)
                yield name, member.size, counted  # type: ignore[misc]  # RawIOBase is a readable IO[bytes]
                while counted.read(COPY_BYTES):
                    pass
                if counted.left:
                    raise ReaderError(f"the stream ended in the middle of {name}")
                sums[name] = counted.sha256()
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ReaderError(f"the stream ended early or is damaged ({error})") from error
    if told is None:
        raise ReaderError("the stream ended before its checksums: not everything arrived")
    for name in sorted(told.keys() | sums.keys()):
        if told.get(name) != sums.get(name):
            raise ReaderError(f"{name} arrived with another sha256 than it was sent with")


def save_tar(source: IO[bytes], into: Path) -> dict[str, int]:
    """Write an archive's files below the (temporary) folder `into`, synced. Returns {name: bytes}."""
    saved: dict[str, int] = {}
    for name, size, content in read_tar(source):
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            shutil.copyfileobj(content, out, COPY_BYTES)
            out.flush()
            os.fsync(out.fileno())
        saved[name] = size
    return saved
