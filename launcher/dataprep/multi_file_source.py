"""Read sources of many objects, each from any byte, so that several pods can share them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from launcher.dataprep.archives import COMPRESSED, SourceFile, decompress, reject_compressed
from launcher.dataprep.byte_streams import BLOCK, FileStream, buffered
from launcher.dataprep.s3_source import S3Source
from launcher.dataprep.source import check_below_sources, find_stored_source, source_errors
from launcher.dataprep.source_context import SourceContext, files_to_read, is_hidden
from launcher.dataprep.source_parts import ByteRange, RangeLines, SourceObject
from launcher.errors import DataError


def _walk(root: Path) -> Iterator[Path]:
    """Yield all files below `root`, and hidden folders and links to folders. Raise OSError if one is unreadable."""

    def fail(error: OSError) -> NoReturn:  # Path.rglob leaves out a folder that this pod's user cannot read
        raise error

    for folder, folders, names in os.walk(root, onerror=fail):
        closed = [name for name in folders if is_hidden(name) or Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in (*names, *closed))
        folders[:] = set(folders).difference(closed)


class LocalFolderSource:
    """Reads a file of the shared storage, or all text files below a folder in the order of their paths."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._root = find_stored_source(context)
        self._base = self._root if self._root.is_dir() else self._root.parent

    def objects(self) -> list[SourceObject]:
        """Return the files of the source that are read. Raises `DataError` when there is none, or one is unreadable."""
        context, root = self._context, self._root
        with source_errors(context, root):
            if not root.is_dir():
                chosen = [self._checked(root)]
            else:
                paths = {path.relative_to(root).as_posix(): path for path in sorted(_walk(root))}
                chosen = files_to_read(
                    context, {name: None if is_hidden(name) else self._checked(paths[name]) for name in paths}
                )
            for found in chosen:
                (self._base / found.name).open("rb").close()
        return chosen

    def _checked(self, path: Path) -> SourceObject:
        check_below_sources(self._context, path)
        if not path.is_file():
            raise DataError(
                f"{self._context.key} {self._context.settings.source}: {path} is no file, but for example a link to "
                "a folder or to nothing. Fix: replace it by the file, or move it out of this folder."
            )
        return self._object(path)

    def _object(self, path: Path) -> SourceObject:
        stat = path.stat()
        return SourceObject(path.relative_to(self._base).as_posix(), stat.st_size, str(stat.st_mtime_ns))

    def open(self, found: SourceObject, begin: int, digest: hashlib._Hash) -> FileStream:
        """Open the file at the byte `begin`; all bytes read are added to `digest`."""
        self.check_unchanged(found)
        return FileStream(self._base / found.name, self._context.progress, digest, begin)

    def check_unchanged(self, found: SourceObject) -> None:
        """Raise `DataError` when size or time of change differ from those of the listing."""
        try:
            same = self._object(self._base / found.name) == found
        except FileNotFoundError:
            same = False
        if not same:
            raise DataError(
                f"{self.display_name(found)} changed while it was read. Fix: wait until nothing writes to "
                "it, then start the run again with another runId."
            )

    def display_name(self, found: SourceObject) -> str:
        """Return the file as a file:// address."""
        source = self._context.settings.source
        return f"{source.rstrip('/')}/{found.name}" if self._base == self._root else source

    def close(self) -> None:
        """Do nothing: each stream is closed by its reader."""


MultiFileSource = LocalFolderSource | S3Source
"""Lists and opens the objects of a source, each of which can be read from any byte."""


def open_multi_file_source(context: SourceContext) -> MultiFileSource | None:
    """Return a source of several objects (a prefix in S3, or a folder); None if the source is a single file.

    Raises:
        DataError: the source does not exist.
    """
    settings = context.settings
    if settings.member or not settings.source.startswith(("s3://", "file://")):
        return None
    return S3Source(context) if settings.source.startswith("s3://") else LocalFolderSource(context)


class PartSource:
    """Reads one part of a source of several objects: byte ranges of them.

    Its sha256 covers, in order, the stored bytes of complete objects and the lines of divided ones.
    """

    def __init__(self, source: MultiFileSource, ranges: Sequence[ByteRange]) -> None:
        self._source, self._ranges = source, ranges
        self._sha256 = hashlib.sha256()

    def files(self) -> Iterator[SourceFile]:
        """Yield the text of each byte range that belongs to this part of the source."""
        source = self._source
        plain = sum(
            one.end - one.begin for one in self._ranges if not one.object.name.lower().endswith(COMPRESSED)
        )
        for one in self._ranges:
            found, name = one.object, source.display_name(one.object)
            # The byte before a range is read, but does not belong to the part's sha256.
            stream_digest = self._sha256 if one.is_complete_object else hashlib.sha256()
            stream = source.open(found, max(0, one.begin - 1), stream_digest)
            try:
                if one.is_complete_object:
                    text = decompress(stream, name, None)
                else:
                    lines = buffered(RangeLines(stream, one.begin, one.end, self._sha256))
                    if one.begin:
                        name += f" from byte {one.begin:,} on"
                    else:
                        reject_compressed(lines, name)
                    text = SourceFile(name, lines, None)
                yield SourceFile(text.name, text.stream, plain or None)
                plain = 0  # the free space for all ranges was checked with the first one
                while one.is_complete_object and stream.read(BLOCK):
                    pass
            finally:
                stream.close()
            source.check_unchanged(found)

    def hexdigest(self) -> str:
        """Return the sha256 of the part's bytes."""
        return self._sha256.hexdigest()

    def close(self) -> None:
        """Do nothing: the caller that opened the source closes it."""
