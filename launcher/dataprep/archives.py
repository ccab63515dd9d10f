"""Read members of zip and tar archives, and decompress single files."""

from __future__ import annotations

import bz2
import difflib
import gzip
import io
import lzma
import posixpath
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from launcher.dataprep.byte_streams import BLOCK, Readable, buffered
from launcher.errors import DataError

NAMES_SHOWN = 12  # existing names in the message about a missing one
_ZIP = b"PK\x03\x04"
_TAR_AT, _TAR = 257, b"ustar"
_DECOMPRESSORS: dict[bytes, Callable[[IO[bytes]], Readable]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)


@dataclass(frozen=True)
class SourceFile:
    """Describes one file of a source: text that is split into shards, or a file of data.tables to copy."""

    name: str
    """The file in messages."""
    stream: Readable
    size: int | None
    """Bytes, when they are known before reading."""
    table: str = ""
    """File name of the side table; empty for text."""
    object: str = ""
    """The object's name, when `name` describes a byte range of it."""


class ArchiveStream:
    """Reads a stream from an archive; errors that a damaged archive causes become a `DataError`."""

    def __init__(self, stream: Readable, name: str) -> None:
        self._stream, self._name = stream, name

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes. Raises `DataError` when the archive is damaged."""
        try:
            return self._stream.read(size)
        except _DAMAGED as error:
            raise _damaged_error(self._name, error) from error
        except OSError as error:
            if error.errno is None:  # bz2 and gzip report other formats by an OSError without a number
                raise _damaged_error(self._name, error) from error
            raise


def _damaged_error(name: str, error: BaseException) -> DataError:
    """Return the error for an archive that cannot be read to its end."""
    return DataError(
        f"{name} is damaged or incomplete, or encrypted ({error or type(error).__name__}). Fix: replace it by the "
        "complete file, and if data.sha256 is set, set it to the sha256 of that file."
    )


def decompress(stream: Readable, name: str, size: int | None) -> SourceFile:
    """Return a file that may be compressed (gzip, bzip2, xz) as a `SourceFile` with the decompressed text.

    Raises:
        DataError: the file is an archive, and data.member is not set.
    """
    file = buffered(stream)
    _reject_archive(file, name)
    head = file.peek()
    for magic, decompressor in _DECOMPRESSORS.items():
        if head.startswith(magic):
            text = buffered(ArchiveStream(decompressor(file), name))
            _reject_archive(text, name)
            return SourceFile(name, text, None)
    return SourceFile(name, file, size)


def reject_compressed(file: io.BufferedReader, name: str) -> None:
    """Raise `DataError` if the text is an archive, or compressed although its name has no suffix for that."""
    _reject_archive(file, name)
    if file.peek().startswith(tuple(_DECOMPRESSORS)):
        raise DataError(
            f"{name} is compressed, but its name does not end with .gz, .bz2 or .xz. Fix: rename the file; it is "
            "then read as one piece."
        )


def _reject_archive(file: io.BufferedReader, name: str) -> None:
    head = file.peek()
    if head.startswith(_ZIP) or head.startswith(_TAR, _TAR_AT):
        raise DataError(
            f"{name} is {'a zip file' if head.startswith(_ZIP) else 'a tar file'}, but data.member is empty. "
            "Fix: set data.member to the path of the text inside the archive."
        )


def is_zip(file: io.BufferedReader) -> bool:
    """Return whether the file is a zip file, such as a Python wheel. Does not change the position, which must be 0."""
    return file.peek().startswith(_ZIP)


def zip_files(path: Path, name: str, member: str, tables: Sequence[str]) -> Iterator[SourceFile]:
    """Yield the text `member`, then the side tables, of the zip file at `path`.

    Raises `DataError` if the zip file is damaged or lacks one of them.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            for wanted in (member, *tables):
                if wanted not in names:
                    raise _missing_member_error(name, wanted, names)
            for wanted in (member, *tables):
                with archive.open(wanted) as file:
                    size = archive.getinfo(wanted).file_size
                    yield _member(name, wanted, file, size, is_table=wanted != member)
    except (*_DAMAGED, NotImplementedError, RuntimeError) as error:  # unknown compression; a password
        raise _damaged_error(name, error) from error


def tar_files(stream: IO[bytes], name: str, member: str, tables: Sequence[str]) -> Iterator[SourceFile]:
    """Yield the text and the side tables (data.tables) of a tar archive in its order.

    Raises `DataError` if the archive is damaged or lacks one of them.
    """
    missing = {member, *tables}
    names: list[str] = []
    try:
        with tarfile.open(fileobj=stream, mode="r|*", bufsize=BLOCK) as archive:
            for info in archive:
                path = posixpath.normpath(info.name)
                if len(names) < 10_000 and info.isfile():
                    names.append(path)
                if path not in missing:
                    continue
                file = archive.extractfile(info) if info.isfile() else None
                if file is None:
                    raise DataError(
                        f"{name}!{path} is not a regular file. Fix: set data.member to the path of the file itself."
                    )
                missing.discard(path)
                yield _member(name, path, file, info.size, is_table=path != member)
    except _DAMAGED as error:
        raise _damaged_error(name, error) from error
    for wanted in sorted(missing):
        raise _missing_member_error(name, wanted, names)


def _member(archive: str, path: str, file: Readable, size: int, *, is_table: bool) -> SourceFile:
    name = f"{archive}!{path}"
    return SourceFile(name, ArchiveStream(file, name), size, posixpath.basename(path) if is_table else "")


def _missing_member_error(name: str, wanted: str, names: Sequence[str]) -> DataError:
    """Return the error for a member that the archive does not have; it lists the most similar names."""
    by_base = [n for n in names if posixpath.basename(n) == posixpath.basename(wanted)]
    near = [*by_base, *difflib.get_close_matches(wanted, names, NAMES_SHOWN, 0.5), *names]
    shown = list(dict.fromkeys(near))[:NAMES_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return DataError(
        f"{name} has no member {wanted!r}; it has {', '.join(map(repr, shown)) or 'no files'}{more}. Fix: set "
        "data.member (or data.tables) to one of them."
    )
