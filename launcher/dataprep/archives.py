"""Read members of zip and tar archives, and decompress single files."""

from __future__ import annotations

import bz2
import contextlib
import difflib
import errno
import io
import lzma
import posixpath
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from launcher.dataprep.byte_streams import BLOCK, buffered
from launcher.errors import DataError
from launcher.io.files import storage_errors

NAMES_SHOWN = 12  # number of existing names in the message about a missing name
_ZIP = b"PK\x03\x04"
_TAR_AT, _TAR = 257, b"ustar"
_INPUT = 128 << 10  # number of compressed bytes that are read at once
_FORMATS: dict[str, tuple[re.Pattern[bytes], Callable[[], Any]]] = {
    ".gz": (re.compile(rb"\x1f\x8b"), lambda: zlib.decompressobj(wbits=31)),
    ".bz2": (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.BZ2Decompressor),
    ".xz": (re.compile(rb"\xfd7zXZ\0"), lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)),
}
"""Suffix of a compressed file → (first bytes of the file, function that returns a new decompressor of one stream). A
compressed file may consist of several streams."""
COMPRESSED = tuple(_FORMATS)
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error, EOFError, OSError)
_DAMAGED_ZIP = (RuntimeError, ValueError, LookupError, ArithmeticError)
"""Further errors of zipfile: for an unknown compression, a missing password, or fields with impossible values."""


@dataclass(frozen=True)
class SourceFile:
    """Describes one file of a source: text that is split into shards, or a file of data.tables to copy."""

    name: str
    """Name of the file in messages."""
    stream: io.BufferedReader
    size: int | None
    """Size in bytes; None when it is unknown before the file was read."""
    table: str = ""
    """File name of the side table; empty for text."""


@contextlib.contextmanager
def _damage_errors(name: str) -> Iterator[None]:
    """Convert the errors with which Python's modules report a damaged archive to `DataError`.

    Other OSErrors are converted as `storage_errors` does.
    """
    try:
        yield
    except (*_DAMAGED, *_DAMAGED_ZIP) as error:
        # An OSError is no failure of the storage in two cases: bz2 reports invalid data by one without an errno, and
        # zipfile gets EINVAL if it seeks to an impossible position that it has read in the file.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            error.filename = error.filename or name
            with storage_errors(Path(name)):
                raise
        raise _damaged_error(name, error) from error


def _damaged_error(name: str, error: object) -> DataError:
    """Return the error for an archive that cannot be read to its end."""
    return DataError(
        f"{name} is damaged or incomplete, or encrypted ({error or type(error).__name__}). Fix: replace it by the "
        "complete file (a zip file: with the usual compression, without a password), and if data.sha256 is set, set "
        "it to the sha256 of that file."
    )


def decompress(
    file: io.BufferedReader, name: str, size: int | None, *, is_member: bool = False
) -> SourceFile:
    """Return a file that may be compressed (gzip, bzip2, xz) as a `SourceFile` with the decompressed text.

    Args:
        file: the stream of the file.
        name: its name in messages.
        size: its size in bytes; None if unknown.
        is_member: whether the file is a member of an archive. This changes only the fix in a message.

    Raises:
        DataError: the file is an archive; the file is compressed twice; the beginning of the compressed data is
            damaged; or the file is not compressed, although its name has the suffix of a compressed file.
    """
    text = _decompressed(file, name)
    _reject_archive(text, name, is_member)
    if text is file:
        if suffix := next(filter(name.lower().endswith, COMPRESSED), ""):
            raise DataError(
                f"{name} is no {suffix[1:]} file, although its name ends like one. Fix: replace it by the complete "
                "file, or rename it if it is text."
            )
        return SourceFile(name, file, size)
    if _format(text):
        raise DataError(f"{name} is compressed twice. Fix: decompress it once.")
    return SourceFile(name, text, None)


def _format(file: io.BufferedReader) -> str:
    """Return the suffix of the format in which a file is compressed; empty if it is not compressed."""
    return next((suffix for suffix, (head, _) in _FORMATS.items() if head.match(file.peek())), "")


def _decompressed(file: io.BufferedReader, name: str) -> io.BufferedReader:
    """Return the decompressed content of a file, or the file itself if it is not compressed."""
    suffix = _format(file)
    return buffered(_decompressed_blocks(file, name, suffix)) if suffix else file


def _decompressed_blocks(file: io.BufferedReader, name: str, suffix: str) -> Iterator[bytes]:
    """Yield the decompressed content of all streams of a file, in blocks that may be empty.

    `suffix` is a key of `_FORMATS`. Python's `BZ2File` and `LZMAFile` end silently before a damaged stream, so this
    function uses decompressors instead. Zero bytes may follow the last stream. In an xz file, a multiple of four zero
    bytes may follow each stream.

    Raises:
        DataError: a stream is damaged, or a stream is followed by bytes that are no stream and no such zeros.
    """
    data = file.read(_INPUT)
    while data:
        decoder = _FORMATS[suffix][1]()
        while not decoder.eof:
            # A decompressor may need no input, because its last output was limited to a block.
            if not data and getattr(decoder, "needs_input", True) and not (data := file.read(_INPUT)):
                raise _damaged_error(name, "the compressed data ends too early")
            with _damage_errors(name):
                block = decoder.decompress(data, BLOCK)
            data = getattr(decoder, "unconsumed_tail", b"")
            yield block
        data = decoder.unused_data or file.read(_INPUT)
        zeros = 0
        while data.startswith(b"\0"):
            rest = data.lstrip(b"\0")
            zeros += len(data) - len(rest)
            data = rest or file.read(_INPUT)
        if zeros and (zeros % 4 if suffix == ".xz" else data):
            raise _damaged_error(name, f"{zeros} zero bytes follow a stream")


def reject_compressed(file: io.BufferedReader, name: str) -> None:
    """Raise `DataError` if the file is an archive, or is compressed.

    Callers call this for a file whose name does not end with .gz, .bz2 or .xz.
    """
    _reject_archive(file, name)
    if _format(file):
        raise DataError(
            f"{name} is compressed, but its name does not end with .gz, .bz2 or .xz. Fix: rename the file; it is "
            "then read as one piece."
        )


def _reject_archive(file: io.BufferedReader, name: str, is_member: bool = False) -> None:
    head = file.peek()
    kind = "a zip file" if head.startswith(_ZIP) else "a tar file" if head.startswith(_TAR, _TAR_AT) else ""
    if kind:
        where = " inside an archive" if is_member else ", but data.member is empty"
        raise DataError(
            f"{name} is {kind}{where}. Fix: unpack {'the outer one' if is_member else 'it'}; or, if data.source is "
            "this file, set data.member to the path of the text in it."
        )


def is_zip(file: io.BufferedReader) -> bool:
    """Return whether the file is a zip file, such as a Python wheel.

    The position in `file` must be 0, and stays 0.
    """
    return file.peek().startswith(_ZIP)


Member = tuple[str, int, Iterator[bytes] | None]
"""(name, size in bytes, content) of a member of an archive that is no folder. The content must be read before the next
member is requested; it is None for a link or a device."""
_READ_AS_IT_IS = (".npz", ".pt", ".pth", ".ckpt", ".whl", ".jar", ".docx", ".xlsx")


def archive_kind(file: io.BufferedReader, name: str) -> str:
    """Return `zip` or `tar` if the file `name` is an archive to unpack, and an empty text if it is not.

    A tar archive may be compressed. The content of the file decides, except for zip files that are data and not meant
    to be unpacked, such as .npz files. The position in `file` must be 0, and stays 0.

    Raises:
        DataError: the name ends like the name of an archive, but the content is no archive that can be read; or the
            beginning of the compressed data is damaged.
    """
    head, suffix, lower = file.peek(), _format(file), name.lower()
    if suffix:
        with _damage_errors(name):
            head = _FORMATS[suffix][1]().decompress(head, BLOCK)
    if head.startswith(_TAR, _TAR_AT):
        return "tar"
    if head.startswith(_ZIP) and not suffix and not lower.endswith(_READ_AS_IT_IS):
        return "zip"
    if re.search(r"\.(zip|tar|tar\.\w+|t[gbx]z2?|tzst|7z|rar)$", lower):
        raise DataError(
            f"{name} is an archive by its name, but no zip file, tar file, or tar file compressed with gzip, bzip2 or "
            "xz. Fix: replace it by the complete file, or pack its files again as .zip, .tar or .tar.gz."
        )
    return ""


def zip_members(path: Path, name: str) -> Iterator[Member]:
    """Yield the members of the zip file at `path`. Raise `DataError` if the zip file is damaged."""
    with _damage_errors(name), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            is_file = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)  # 0: packed on Windows
            if not info.is_dir():
                with archive.open(info) as file:
                    blocks = _member_blocks(file, f"{name}!{info.filename}", info.file_size)
                    yield info.filename, info.file_size, blocks if is_file else None


def zip_files(path: Path, name: str, member: str, tables: Sequence[str]) -> Iterator[SourceFile]:
    """Yield the text `member` of the zip file at `path`, then the side tables (data.tables) in it.

    `member` and `tables` are paths in the zip file; `name` is the zip file's name for messages.

    Raises:
        DataError: the zip file is damaged; it does not have the text and each side table exactly once; one of these
            files is empty; or `decompress` rejects the text.
    """
    with _damage_errors(name), zipfile.ZipFile(path) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        for wanted in (member, *tables):
            if names.count(wanted) != 1:
                raise _member_error(name, wanted, names)
        for wanted in (member, *tables):
            size = archive.getinfo(wanted).file_size
            if not size:  # zipfile cannot verify an empty file, because its checksum is 0, too
                raise _damaged_error(f"{name}!{wanted}", "it is empty")
            with archive.open(wanted) as file:
                blocks = _member_blocks(file, f"{name}!{wanted}", size)
                yield _member(name, wanted, blocks, size, is_table=wanted != member)


class _StrictTarInfo(tarfile.TarInfo):
    """Raises an error for a damaged header of a member.

    `tarfile` by itself does so only for the first header; another damaged header counts as the end of the archive.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ in ("EmptyHeaderError", "EOFHeaderError"):  # the end
                raise
            raise tarfile.ReadError(f"in a header: {error}") from error


def tar_members(file: io.BufferedReader, name: str) -> Iterator[Member]:
    """Yield the members of a tar archive, which may be compressed. Raise `DataError` if the archive is damaged."""
    text = _decompressed(file, name)
    with (
        _damage_errors(name),
        tarfile.open(fileobj=text, mode="r|", bufsize=BLOCK, tarinfo=_StrictTarInfo) as archive,
    ):
        for info in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # or this list would grow
            if not info.isdir():
                content = archive.extractfile(info) if info.isfile() else None
                blocks = _member_blocks(content, f"{name}!{info.name}", info.size) if content else None
                yield info.name, info.size, blocks
    while text.read(BLOCK):  # read to the end of a compressed archive, where its checksum is
        pass


def tar_files(file: io.BufferedReader, name: str, member: str, tables: Sequence[str]) -> Iterator[SourceFile]:
    """Yield the text `member` and the side tables (data.tables) of a tar archive, in the order of the archive.

    `member` and `tables` are paths in the archive; `name` is the archive's name for messages.

    Raises:
        DataError: the archive is damaged; it does not have the text and each side table exactly once as a file; or
            `decompress` rejects the text.
    """
    wanted = {member, *tables}
    missing = set(wanted)
    names: list[str] = []
    for found, size, blocks in tar_members(file, name):
        path = posixpath.normpath(found)
        if len(names) < 10_000 and blocks:
            names.append(path)
        if path not in wanted:
            continue
        if path not in missing:
            raise _member_error(name, path, [path])
        if not blocks:
            raise DataError(
                f"{name}!{path} is not a regular file. Fix: set data.member to the path of the file itself."
            )
        missing.discard(path)
        yield _member(name, path, blocks, size, is_table=path != member)
    for path in sorted(missing):
        raise _member_error(name, path, names)


def _member(archive: str, path: str, blocks: Iterator[bytes], size: int, *, is_table: bool) -> SourceFile:
    name, file = f"{archive}!{path}", buffered(blocks)
    if is_table:
        return SourceFile(name, file, size, posixpath.basename(path))
    return decompress(file, name, size, is_member=True)


def _member_blocks(content: IO[bytes], name: str, size: int) -> Iterator[bytes]:
    with _damage_errors(name):
        while data := content.read(BLOCK):
            size -= len(data)
            yield data
        if size:
            raise EOFError(f"its size is wrong by {size} bytes")


def _member_error(name: str, wanted: str, names: Sequence[str]) -> DataError:
    """Return the error for the member `wanted` that is twice in an archive, or is missing.

    `names` are the archive's members. The message about a missing member lists the most similar names.
    """
    if wanted in names:
        return DataError(
            f"{name} has {wanted!r} more than once, and programs differ in which one counts. Fix: pack the archive "
            "again with one of them."
        )
    by_base = [n for n in names if posixpath.basename(n) == posixpath.basename(wanted)]
    near = [*by_base, *difflib.get_close_matches(wanted, names, NAMES_SHOWN, 0.5), *names]
    shown = list(dict.fromkeys(near))[:NAMES_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return DataError(
        f"{name} has no member {wanted!r}; it has {', '.join(map(repr, shown)) or 'no files'}{more}. Fix: set "
        "data.member (or data.tables) to one of them."
    )
