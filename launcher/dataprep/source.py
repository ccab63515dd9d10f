"""Open sources: one stream (a web address or an archive), or objects of which several pods read any byte."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from launcher.dataprep import archives, source_parts
from launcher.dataprep.archives import SourceFile, decompress
from launcher.dataprep.byte_streams import BLOCK, FileStream, Readable, ResumingStream, buffered
from launcher.dataprep.https_source import HttpsOpener, without_credentials
from launcher.dataprep.s3_source import S3Source
from launcher.dataprep.source_parts import SourceContext, SourceObject
from launcher.errors import DataError
from launcher.io.disk_space import require_space
from launcher.io.files import storage_errors
from launcher.settings import DataSettings


def display_name(source: str) -> str:
    """Return the source for messages and the manifest: a web address without password and query."""
    return without_credentials(source) if source.startswith(("https://", "http://")) else source


def source_name(settings: DataSettings) -> str:
    """Return the source for messages, digests and the manifest: its `display_name`, or the Secret with its address."""
    secret = settings.source_secret
    return f"the address in Secret {secret}" if secret else display_name(settings.source)


def check_secret_address(settings: DataSettings) -> None:
    """Raise `DataError` if the address in the Secret is no web address."""
    if settings.source_secret and not settings.source.startswith("https://"):
        raise DataError(
            f"data.sourceSecret: {source_name(settings)} does not begin with https://. Fix: write a signed https "
            "address to this key; other addresses are no secret and belong in data.source."
        )


def open_single_file(context: SourceContext) -> SingleFileSource:
    """Open a source that is one stream: an archive, or a web address.

    Raises:
        DataError: the source does not exist, or must not be read.
    """
    source = context.settings.source
    scheme = source.partition("://")[0]
    if scheme == "s3":
        bucket = S3Source(context)
        with contextlib.ExitStack() as undo:
            undo.callback(bucket.close)
            stream = bucket.stream(bucket.archive())
            undo.pop_all()
        return SingleFileSource(context, source, stream, close=bucket.close)
    if scheme == "file":
        path = find_stored_source(context)
        if path.is_dir():
            raise DataError(
                f"{context.key} {source} is a folder, but data.member is set. Fix: set {context.key} to one archive."
            )
        with source_errors(context, path):
            return SingleFileSource(context, source, FileStream(path, context.progress), path=path)
    name = source_name(context.settings)
    opener = HttpsOpener(source, context.key, name)
    web = ResumingStream(name, opener, context.retry, context.progress)
    web.start()
    return SingleFileSource(context, name, web)


def find_stored_source(context: SourceContext) -> Path:
    """Return the file or folder of a file:// source. Raises `DataError` when it does not exist."""
    source, sources = context.settings.source, context.settings.layout.sources
    path = sources / source.removeprefix("file://")
    check_below_sources(context, path)
    with source_errors(context, path):
        exists = path.exists()
    if not exists:
        try:
            names = sorted(p.name for p in sources.iterdir())[: archives.NAMES_SHOWN]
        except OSError:
            names = []
        raise DataError(
            f"{context.key} {source}: {path} does not exist; {sources} contains "
            f"{', '.join(names) or 'nothing'}. Fix: upload the file (python -m launcher push FILE --source), or "
            f"correct {context.key}."
        )
    return path


@contextlib.contextmanager
def source_errors(context: SourceContext, path: Path) -> Iterator[None]:
    """Raise `DataError` if this pod's user may not read `path`; convert other errors as `storage_errors` does."""
    with storage_errors(path):
        try:
            yield
        except PermissionError as error:
            where = error.filename or path
            raise DataError(
                f"{context.key} {context.settings.source}: this pod's user cannot read {where} ({error.strerror}). "
                f"Fix: chmod -R a+rX {where}"
            ) from error


def check_below_sources(context: SourceContext, path: Path) -> None:
    """Raise `DataError` when `path` is a link to something outside of sources/."""
    sources = context.settings.layout.sources
    if not path.resolve().is_relative_to(sources.resolve()):
        raise DataError(
            f"{context.key} {context.settings.source}: {path} is outside of {sources}, or a link that leads out of it. "
            "Fix: copy the file into that folder."
        )


class SingleFileSource:
    """Reads a source that is one file: text as it is, compressed text, or an archive."""

    def __init__(
        self,
        context: SourceContext,
        name: str,
        stream: FileStream | ResumingStream,
        *,
        path: Path | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the file from `stream`.

        `name` is the source in messages, `path` the file if it is on a disk of this pod. `close` is called at the end,
        after the stream is closed.
        """
        self._context, self._name, self._stream, self._path = context, name, stream, path
        self._close = close
        context.progress.total = stream.total

    def files(self) -> Iterator[SourceFile]:
        """Yield text and side tables (data.tables); read the source to its end for a complete sha256."""
        settings = self._context.settings
        if not settings.member:
            yield decompress(self._stream, self._name, self._stream.total)
            self._drain()
            return
        stream = buffered(self._stream)
        if archives.is_zip(stream):
            path = self._path or self._copy_to_disk(stream)
            self._drain()
            yield from archives.zip_files(path, self._name, settings.member, settings.tables)
            return
        yield from archives.tar_files(stream, self._name, settings.member, settings.tables)
        self._drain()

    def _copy_to_disk(self, stream: Readable) -> Path:
        """Copy a zip file to `tmp`; return its path. A zip cannot be read as a stream: its index is at its end."""
        path = self._context.tmp / "source.zip"
        require_space(path, self._stream.total or 0, "the archive itself")
        with storage_errors(path), path.open("wb") as file:
            while data := stream.read(BLOCK):
                file.write(data)
                self._context.progress.report()
        return path

    def _drain(self) -> None:
        while self._stream.read(BLOCK):
            self._context.progress.report()

    def hexdigest(self) -> str:
        """Return the sha256 of the file (of the archive, if it is one)."""
        return self._stream.hexdigest()

    def close(self) -> None:
        """Close the file or the connection."""
        self._stream.close()
        self._close()


def _walk(root: Path) -> Iterator[Path]:
    """Yield all files below `root`, and hidden folders and links to folders. Raise OSError if one is unreadable."""

    def fail(error: OSError) -> NoReturn:  # Path.rglob leaves out a folder that this pod's user cannot read
        raise error

    for folder, folders, names in os.walk(root, onerror=fail):
        closed = [name for name in folders if source_parts.is_hidden(name) or Path(folder, name).is_symlink()]
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
                hidden = source_parts.is_hidden
                chosen = source_parts.files_to_read(
                    context, {name: None if hidden(name) else self._checked(paths[name]) for name in paths}
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

    def __init__(self, source: MultiFileSource, ranges: Sequence[source_parts.ByteRange]) -> None:
        self._source, self._ranges = source, ranges
        self._sha256 = hashlib.sha256()

    def files(self) -> Iterator[SourceFile]:
        """Yield the text of each byte range that belongs to this part of the source."""
        source = self._source
        plain = sum(
            one.end - one.begin
            for one in self._ranges
            if not one.object.name.lower().endswith(archives.COMPRESSED)
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
                    lines = buffered(source_parts.RangeLines(stream, one.begin, one.end, self._sha256))
                    if one.begin:
                        name += f" from byte {one.begin:,} on"
                    else:
                        archives.reject_compressed(lines, name)
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
