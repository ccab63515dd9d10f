"""What `data.source` may name, checked before anything is made, and opened as a row of parts."""

from __future__ import annotations

import posixpath
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from launcher.data.archive import Part, is_zip, tar_parts, whole, zip_parts
from launcher.data.progress import Progress
from launcher.data.stream import BLOCK, FileStream, Peeked, Readable, ResumingStream
from launcher.data.web import Web, bare
from launcher.errors import DataError, SettingsError, setting
from launcher.files import storage
from launcher.retry import Retry
from launcher.settings import DataSettings

SCHEMES = ("https", "http", "file", "s3")
SUFFIXES = (".txt", ".csv", ".tsv", ".gz")
"""Names of text, among others below a prefix or folder."""


@dataclass(frozen=True)
class Tools:
    """What a source is opened with."""

    settings: DataSettings
    tmp: Path
    """A folder for an archive that cannot be read in one go."""
    progress: Progress
    retry: Retry
    reserve: Callable[[Path, int, str], None]
    """Raises `StorageError` when so many bytes are not free."""


class Source(Protocol):
    """A source: its parts are read in order, each to its end, before `hexdigest` is asked."""

    def parts(self) -> Iterator[Part]: ...

    def hexdigest(self) -> str: ...

    def close(self) -> None: ...


class Stream(Readable, Protocol):
    """A readable that hashes what passes."""

    total: int | None

    def hexdigest(self) -> str: ...

    def close(self) -> None: ...


def shown(source: str) -> str:
    """The source as messages and the manifest name it: without a web address's password or query."""
    return bare(source) if source.startswith(("https://", "http://")) else source


def check(settings: DataSettings) -> None:
    """Raises `SettingsError`, one line for each fault, for what the single settings' checks cannot see."""
    faults = _faults(settings, "data.source")
    if settings.test_source:
        test = replace(settings, source=settings.test_source, member="", tables=(), sha256="")
        faults += [fault for fault in _faults(test, "data.testSource") if fault not in faults]
    if faults:
        raise SettingsError("\n".join(faults))


def _faults(s: DataSettings, name: str) -> list[str]:
    """`name`: the value that names the source."""
    faults: list[str] = []

    def fault(key: str, value: object, limit: str, reason: str, mend: str) -> None:
        faults.append(setting(key, value, limit, reason, mend))

    url = urllib.parse.urlsplit(s.source)
    if url.scheme not in SCHEMES:
        fault(
            name,
            shown(s.source),
            "https://…, http://…, file://NAME or s3://BUCKET/PREFIX",
            "nothing else can be read",
            "Put the file into sources/ on the shared storage and name it file://NAME",
        )
    elif url.scheme == "http" and not s.sha256:
        fault(
            "data.sha256" if name == "data.source" else name,
            s.sha256 if name == "data.source" else s.source,
            "given for an http:// source" if name == "data.source" else "https://, s3:// or file://",
            "on the way anybody could change the data",
            "Set data.sha256 (sha256sum FILE), or use https",
        )
    elif url.scheme == "file" and not _plain(s.source.removeprefix("file://")):
        fault(
            name,
            shown(s.source),
            "file://NAME with a path below sources/, not absolute and without '..'",
            "it names a file of the shared storage, never of a pod's disk",
            "Put the file into sources/",
        )
    elif url.scheme != "file" and not url.hostname:
        fault(
            name,
            shown(s.source),
            "an address with a host or bucket",
            "there is nowhere to go",
            "Name it in full",
        )
    elif url.scheme == "s3" and s.member and (not url.path.strip("/") or s.source.endswith("/")):
        fault(
            name,
            s.source,
            "s3://BUCKET/KEY of one archive, since data.member is set",
            "a member lies in exactly one object, and this names a folder",
            "Name the archive itself, or leave data.member empty to read all text below the prefix",
        )
    for key, path in [("data.member", s.member)] * bool(s.member) + [("data.tables", t) for t in s.tables]:
        if not _plain(path):
            fault(
                key,
                path,
                "a path inside the archive, not absolute and without '..'",
                "it must not lead out of it",
                "Name it as `unzip -l` or `tar -t` does",
            )
    bases = [posixpath.basename(t) for t in s.tables]
    if s.tables and not s.member:
        fault(
            "data.tables",
            list(s.tables),
            "empty without data.member",
            "tables are further members of an archive",
            "Set data.member too",
        )
    if len(set(bases)) < len(bases) or s.member in s.tables:
        fault(
            "data.tables",
            list(s.tables),
            "of different file names, and without data.member",
            "they are all copied to one folder, tables/",
            "Leave the repeated one out",
        )
    if s.format == "lines" and s.columns:
        fault(
            "data.columns",
            list(s.columns),
            "empty with data.format: lines",
            "lines are passed on as they are",
            "Set data.format to csv",
        )
    if s.format == "csv" and not s.header and any(isinstance(c, str) for c in s.columns):
        fault(
            "data.columns",
            list(s.columns),
            "indexes from 0 when data.header is false",
            "there are no names",
            "Give indexes",
        )
    return faults


def _plain(path: str) -> bool:
    return bool(path) and not path.startswith("/") and "\0" not in path and ".." not in path.split("/")


def open_stream(tools: Tools) -> Source:
    """A source that is one stream: an archive, or a web address. Raises `DataError` when it is not there."""
    source = tools.settings.source
    scheme = urllib.parse.urlsplit(source).scheme
    if scheme == "s3":
        from launcher.data.s3 import S3Archive

        return S3Archive(tools)
    if scheme == "file":
        path = readable(tools.settings)
        if path.is_dir():
            raise DataError(f"{source} is a folder: data.member is a path in one archive, so name that.")
        stream: Stream = FileStream(path, tools.progress)
        return OneFile(tools, source, stream, path)
    web = ResumingStream(shown(source), Web(source), tools.retry, tools.progress)
    web.start()
    return OneFile(tools, shown(source), web, None)


def readable(settings: DataSettings) -> Path:
    """The file or folder that a file:// source names. Raises `DataError` when it is not there."""
    sources = settings.layout.sources
    path = sources / settings.source.removeprefix("file://")
    check_inside(settings, path)
    if not path.exists():
        try:
            there = sorted(p.name for p in sources.iterdir())[:12]
        except OSError:
            there = []
        raise DataError(
            f"{settings.source}: there is no file {path}; {sources} has {', '.join(there) or 'nothing'}. "
            "Put it there (python -m launcher push), or mend data.source."
        )
    return path


def check_inside(settings: DataSettings, path: Path) -> None:
    """Raises `DataError` for a link that leads out of sources/."""
    sources = settings.layout.sources
    if not path.resolve().is_relative_to(sources.resolve()):
        raise DataError(
            f"{settings.source}: {path} is a link that leads out of {sources}. Copy the file there."
        )


class OneFile:
    """A source that is one file: text as it is, compressed, or in an archive."""

    def __init__(self, tools: Tools, name: str, stream: Stream, path: Path | None) -> None:
        self._tools, self._name, self._stream, self._path = tools, name, stream, path
        tools.progress.total = stream.total

    def parts(self) -> Iterator[Part]:
        """The text (and tables); the source is read to its end, so that its sha256 is of all of it."""
        settings = self._tools.settings
        if not settings.member:
            yield whole(self._stream, self._name, self._stream.total)
            self._drain()
            return
        peeked = Peeked(self._stream)
        if is_zip(peeked):
            path = self._path or self._spool(peeked)
            self._drain()
            yield from zip_parts(path, self._name, settings.member, settings.tables)
            return
        yield from tar_parts(peeked, self._name, settings.member, settings.tables)
        self._drain()

    def _spool(self, stream: Readable) -> Path:
        """A zip's table of contents is at its end: it must be whole before it can be read."""
        path = self._tools.tmp / "source.zip"
        self._tools.reserve(path, self._stream.total or 0, "the archive itself")
        with storage(path), path.open("wb") as file:
            while data := stream.read(BLOCK):
                file.write(data)
                self._tools.progress.tick()
        return path

    def _drain(self) -> None:
        while self._stream.read(BLOCK):
            self._tools.progress.tick()

    def hexdigest(self) -> str:
        """The sha256 of the file, of the archive if it is one."""
        return self._stream.hexdigest()

    def close(self) -> None:
        """Closes the file or connection."""
        self._stream.close()
