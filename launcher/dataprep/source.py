"""Open sources that are one stream: a web address, or an archive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.dataprep.archives import NAMES_SHOWN, SourceFile, decompress, is_zip, tar_files, zip_files
from launcher.dataprep.byte_streams import BLOCK, FileStream, Readable, ResumingStream, buffered
from launcher.dataprep.https_source import HttpsOpener, without_credentials
from launcher.dataprep.s3_source import S3Source
from launcher.dataprep.source_context import SourceContext
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
            names = sorted(p.name for p in sources.iterdir())[:NAMES_SHOWN]
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
        if is_zip(stream):
            path = self._path or self._copy_to_disk(stream)
            self._drain()
            yield from zip_files(path, self._name, settings.member, settings.tables)
            return
        yield from tar_files(stream, self._name, settings.member, settings.tables)
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
