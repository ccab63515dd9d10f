"""Send files between the command line and a pod as a tar stream with checksums; both ends use this module.

An archive contains only regular files. Its last member is `SUMS`, a JSON object {name: sha256}. The receiver verifies
these checksums, so it always detects a truncated or corrupted stream. The receiver stops at the archive's end marker,
because the protocol of `kubectl exec` before version 5 cannot close stdin.

This module imports only the standard library, since it also runs in the image. Its memory use does not depend
on the size of the files.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, BinaryIO

from launcher.io.open_below import ReaderError, checked_name, refuse_links

SUMS = ".sha256.json"
"""Name of the last member of every archive. Its content is {name: sha256 in hex}."""

COPY_BYTES = 256 * 1024


class _Counted(io.RawIOBase):
    """A stream with the first `size` bytes of `source`, which calculates the sha256 of the bytes that were read."""

    def __init__(self, source: IO[bytes], size: int) -> None:
        self._source, self.left = source, size
        self.sha256 = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self.left if size < 0 else min(size, self.left)
        try:
            block = self._source.read(min(wanted, COPY_BYTES)) if wanted else b""
        except tarfile.TarError as error:
            raise ReaderError(f"the stream is incomplete or damaged ({error}). Fix: try again") from error
        self.left -= len(block)
        self.sha256.update(block)
        return block


def select(root: Path, patterns: Sequence[str], optional: bool = False) -> list[tuple[str, Path]]:
    """Return (name relative to `root`, path) of all regular files that match the patterns, sorted by name.

    Patterns are paths of files or folders, or globs, relative to `root`. Below a folder that matches, this function
    skips links, and also files and folders whose name starts with a dot (unfinished ones). A glob matches no path with
    such a name.

    Raises:
        ReaderError: a pattern is no path below `root`; a pattern matches a link, or a path through a link; or a pattern
            matches no file and `optional` is False.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        path = refuse_links(root, pattern)
        if set("*?[") & set(pattern):
            found_by = (one.relative_to(root).as_posix() for one in sorted(root.glob(pattern)))
            starts = [refuse_links(root, name) for name in found_by if "/." not in f"/{name}"]
        else:
            starts = [path] if os.path.lexists(path) else []
        matches = {file.relative_to(root).as_posix(): file for start in starts for file in _files(start)}
        if not matches and not optional:
            raise ReaderError(
                f"cannot copy {path}: there is no such file, or the folder has no file to copy (links and "
                "names with a leading dot are skipped). Nothing was sent. Fix: check the path, or try again once the "
                "run has written it"
            )
        found |= matches
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
    out: IO[bytes],
    entries: Iterable[tuple[str, Path]],
    skip_missing: bool = False,
    open_entry: Callable[[str, Path], BinaryIO] = lambda _, file: file.open("rb"),
) -> dict[str, str]:
    """Write a tar archive of files, and then their checksums, to a stream.

    If a file grows while it is sent, the archive has as many bytes of it as the file had when it was opened.

    Args:
        out: the stream.
        entries: (name in the archive, path of the file) of each file.
        skip_missing: whether to skip files that no longer exist.
        open_entry: opens a file; its arguments are an element of `entries`.

    Returns:
        name in the archive → sha256 (hex digits).

    Raises:
        FileNotFoundError: a file no longer exists, and `skip_missing` is False.
        ReaderError: a file became shorter while it was sent.
    """
    sums: dict[str, str] = {}
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, file in entries:
            try:
                source = open_entry(name, file)
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
                        raise ReaderError(
                            f"{file} became shorter while it was read. Fix: try again"
                        ) from error
                    raise
            archive.members.clear()  # type: ignore[attr-defined]  # or this list would grow
            sums[name] = counted.sha256.hexdigest()
        listing = json.dumps(sums).encode()
        info = tarfile.TarInfo(SUMS)
        info.size = len(listing)
        archive.addfile(info, io.BytesIO(listing))
    out.flush()
    return sums


def read_tar(source: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield (name, size in bytes, stream of the content) of each file in an archive made by `write_tar`.

    The checksums are verified after the last file. So callers save the files under temporary names, and rename them
    only after this iterator has ended without an error.

    Raises:
        ReaderError: the archive contains something other than regular files, or a name that leads out of its folder;
            it is incomplete; or a checksum differs.
    """
    sums: dict[str, str] = {}
    received: dict[str, str] | None = None
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for member in archive:
                if member.name == SUMS:
                    listing = archive.extractfile(member)
                    received = json.loads(listing.read()) if listing else None
                    continue
                name = checked_name(member.name)
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise ReaderError(
                        f"cannot copy '{name}': it is not a regular file. Fix: replace the link or device by a file"
                    )
                counted = _Counted(content, member.size)
                yield name, member.size, counted  # type: ignore[misc]  # RawIOBase is a readable IO[bytes]
                while counted.read(COPY_BYTES):
                    pass
                if counted.left:
                    raise ReaderError(f"the stream ended in the middle of {name}. Fix: try again")
                sums[name] = counted.sha256.hexdigest()
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        raise ReaderError(f"the stream is incomplete or damaged ({error}). Fix: try again") from error
    if not isinstance(received, dict):
        raise ReaderError(
            "the stream has no checksums at its end: it is incomplete or damaged. Fix: try again"
        )
    for name in sorted(received.keys() | sums.keys()):
        if received.get(name) != sums.get(name):
            raise ReaderError(f"{name} was corrupted on the way (its sha256 differs). Fix: try again")


def save_tar(source: IO[bytes], into: Path) -> dict[str, int]:
    """Read an archive made by `write_tar` from a stream, write its files below `into`, and sync them to disk.

    `into` is a temporary folder; the caller renames the files once this function returns.

    Returns:
        name in the archive → size in bytes.

    Raises:
        ReaderError: the archive is damaged or incomplete.
    """
    saved: dict[str, int] = {}
    for name, size, content in read_tar(source):
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            shutil.copyfileobj(content, out, COPY_BYTES)
        saved[name] = size
    # Sync many files at once: thousands of small files one after the other take minutes on network storage.
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(_sync, (into / name for name in saved)))
    return saved


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
