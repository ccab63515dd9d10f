"""Members of zip and tar files, and files that are compressed as a whole."""

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
from typing import IO, cast

from launcher.data.stream import BLOCK, Peeked, Readable
from launcher.errors import DataError

NAMES_SHOWN = 12
_ZIP = b"PK\x03\x04"
_TAR_AT, _TAR = 257, b"ustar"
_COMPRESSED: dict[bytes, Callable[[IO[bytes]], Readable]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)


@dataclass(frozen=True)
class Part:
    """One object of a source: text to be dealt, or a side table."""

    name: str
    """As messages name it."""
    stream: Readable
    size: int | None
    """Bytes, when known beforehand."""
    table: str = ""
    """Name of the side table; empty for text."""
    object: str = ""
    """The object's name where `name` is that of a stretch of it."""


class Guarded:
    """A stream out of an archive: what a damaged one raises becomes a `DataError`."""

    def __init__(self, stream: Readable, name: str) -> None:
        self._stream, self._name = stream, name

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes."""
        try:
            return self._stream.read(size)
        except _BROKEN as error:
            raise broken(self._name, error) from error
        except OSError as error:
            if error.errno is None:  # bz2 and gzip say so that the data is no such file
                raise broken(self._name, error) from error
            raise


def broken(name: str, error: BaseException) -> DataError:
    """The error for an archive that cannot be read to its end."""
    return DataError(
        f"{name} is damaged or cut short ({error or type(error).__name__}). Bring it again, and set "
        "data.sha256 to that of the whole file."
    )


def whole(stream: Readable, name: str, size: int | None) -> Part:
    """The source itself, unpacked when it is compressed. Raises `DataError` when it is an archive."""
    peeked = Peeked(stream)
    head = peeked.peek(8)
    _refuse_archive(peeked, name)
    for magic, reader in _COMPRESSED.items():
        if head.startswith(magic):
            unpacked = Peeked(Guarded(reader(cast("IO[bytes]", _Buffered(peeked))), name))
            _refuse_archive(unpacked, name)
            return Part(name, unpacked, None)
    return Part(name, peeked, size)


def refuse_compressed(peeked: Peeked, name: str) -> None:
    """Raises `DataError` for what only looks like plain text by its name: it cannot be read in stretches."""
    _refuse_archive(peeked, name)
    if peeked.peek(8).startswith(tuple(_COMPRESSED)):
        raise DataError(
            f"{name} is compressed, though its name does not say so. Name it .gz, .bz2 or .xz: it is then "
            "read whole."
        )


def _refuse_archive(peeked: Peeked, name: str) -> None:
    head = peeked.peek(_TAR_AT + len(_TAR))
    if head.startswith(_ZIP) or head[_TAR_AT:] == _TAR:
        raise DataError(
            f"{name} is {'a zip file' if head.startswith(_ZIP) else 'a tar file'}: set data.member to the "
            "path of the text inside it."
        )


class _Buffered(io.RawIOBase):
    """What Python's decompressors take as a file."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """`size` bytes, fewer only at the end: tarfile tells the compression from what one call gives."""
        found = [b""]
        while size and (data := self._stream.read(BLOCK if size < 0 else size)):
            found.append(data)
            size -= len(data) if size > 0 else 0
        return b"".join(found)

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(cast("bytearray", buffer)).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def is_zip(stream: Peeked) -> bool:
    """Whether the next bytes begin a zip file (a wheel is one)."""
    return stream.peek(len(_ZIP)) == _ZIP


def zip_parts(path: Path, name: str, member: str, tables: Sequence[str]) -> Iterator[Part]:
    """The text, then the tables."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            for wanted in (member, *tables):
                if wanted not in names:
                    raise absent(name, wanted, names)
            for wanted in (member, *tables):
                with archive.open(wanted) as file:
                    part = f"{name}!{wanted}"
                    size = archive.getinfo(wanted).file_size
                    yield Part(
                        part,
                        Guarded(file, part),
                        size,
                        posixpath.basename(wanted) if wanted != member else "",
                    )
    except (*_BROKEN, NotImplementedError, RuntimeError) as error:  # an unknown compression; a password
        raise broken(name, error) from error


def tar_parts(stream: Peeked, name: str, member: str, tables: Sequence[str]) -> Iterator[Part]:
    """The text and the tables in the order of the archive, which is read once."""
    missing = {member, *tables}
    names: list[str] = []
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", _Buffered(stream)), mode="r|*", bufsize=BLOCK) as archive:
            for info in archive:
                path = posixpath.normpath(info.name)
                if len(names) < 10_000 and info.isfile():
                    names.append(path)
                if path not in missing:
                    continue
                file = archive.extractfile(info) if info.isfile() else None
                if file is None:
                    raise DataError(f"{name}!{path} is no plain file: name the file itself in data.member.")
                missing.discard(path)
                part = f"{name}!{path}"
                yield Part(
                    part, Guarded(file, part), info.size, posixpath.basename(path) if path != member else ""
                )
    except _BROKEN as error:
        raise broken(name, error) from error
    for wanted in sorted(missing):
        raise absent(name, wanted, names)


def absent(name: str, wanted: str, names: Sequence[str]) -> DataError:
    """The error for a member that is not there; names the nearest ones."""
    by_base = [n for n in names if posixpath.basename(n) == posixpath.basename(wanted)]
    near = [*by_base, *difflib.get_close_matches(wanted, names, NAMES_SHOWN, 0.5), *names]
    shown = list(dict.fromkeys(near))[:NAMES_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return DataError(
        f"{name} has no member {wanted!r}; it has {', '.join(map(repr, shown)) or 'no files'}{more}. Set "
        "data.member (or data.tables) to one of them."
    )
