"""List and read the objects of a source, and divide a source into parts, which pods of the data Job read in parallel.

A source is a folder or file of the shared storage, a prefix or archive in S3, or a web address. Its class lists the
objects of the source, and opens an object at any byte. The parts follow from the objects and the number of shards, so
every pod divides the source into the same parts. An archive or a web address is one object, which a single pod reads.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import hashlib
import http.client
import io
import itertools
import os
import posixpath
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn

from launcher.dataprep import archives
from launcher.dataprep.archives import COMPRESSED, NAMES_SHOWN, SourceFile, decompress
from launcher.dataprep.byte_streams import (
    BLOCK,
    OpenObject,
    Prefetch,
    RemoteBody,
    ResumingStream,
    buffered,
    file_blocks,
)
from launcher.dataprep.progress_log import DataProgress
from launcher.errors import DataError
from launcher.io import s3
from launcher.io.files import require_space, storage_errors
from launcher.io.retry import Retry, TransientError
from launcher.log import log
from launcher.settings import DataSettings

PART_BYTES = 256 << 20
"""Smallest target size of a part in bytes. A part takes some seconds, and an evicted pod loses at most this work."""
SHARD_FILE_BYTES = 4 << 20
"""Smallest average size in bytes of the file that a part writes for one shard. With more shards the parts are larger,
because file systems also limit the number of files."""


TIMEOUT_SECONDS = 30.0  # timeout of a web server that sends no byte
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (\d{1,18})-\d*/(\d{1,18}|\*)")
_FIXES = {
    "NoSuchBucket": "Fix: correct the bucket in {key}.",
    "NoSuchKey": "The object was removed while the source was read. Fix: start the run again with another runId.",
    "PreconditionFailed": "The object was replaced while the source was read. Fix: start the run again with "
    "another runId.",
}
_AHEAD = 8  # blocks of an object in S3 that a thread reads in advance
_ROLE = "Fix: allow the pod's role s3:ListBucket on the bucket and s3:GetObject below the prefix."


_HIDDEN = re.compile(
    r"\.|_[^=]*$|~\$|#.*#$|(thumbs\.db|desktop\.ini|lost\+found)$|"
    r".*(~|\._copying_|\.(tmp|temp|swp|bak|part|partial|filepart|download|crdownload))$",
    re.IGNORECASE,
)
"""Names of files and folders that are never read (docs/how-to/own-data.md lists them).

Spark and Hadoop skip names that start with `.` or `_` (but not the folder `_day=1` of a partition) and copies in
progress. The other names are those of temporary files, backups and marker files of macOS, Windows, editors and programs
that download files.
"""
_NO_DATA_FILE = re.compile(r"\.|(__macosx|__pycache__|thumbs\.db|desktop\.ini|lost\+found)$", re.IGNORECASE)
"""Names that are never read with data.format files. With this format a file's name may begin with `_`."""
_NOT_TEXT = re.compile(
    r".*\.(parquet|orc|avro|arrow|feather|zip|whl|jar|tar|t[gbx]z2?|7z|rar|zst|lz4|lzma|z|png|jpe?g|gif|bmp|webp|pdf|"
    r"docx?|xlsx?|h5|hdf5|np[yz]|pkl|pickle|tfrecords?|sqlite3?|db|exe|so)",
    re.IGNORECASE,
)


def display_name(source: str) -> str:
    """Return the address `source` for messages and the manifest; a web address without password and query."""
    return without_credentials(source) if source.startswith(("https://", "http://")) else source


def source_name(settings: DataSettings) -> str:
    """Return the name of the source for messages, digests and the manifest.

    This is the `display_name` of data.source, or for data.sourceSecret the name of the Secret that has the address.
    """
    secret = settings.source_secret
    return f"the address in Secret {secret}" if secret else display_name(settings.source)


@dataclass(frozen=True, slots=True)
class SourceObject:
    """Identifies one file or object of a source, in the version that was listed."""

    name: str
    size: int | None
    """Size in bytes; None when it is unknown."""
    version: str
    """An ETag or the time of the last change, which changes with the content; empty when it is unknown."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of an object: all lines that start at the bytes `begin` (included) to `end` (excluded).

    Of a Parquet file, these are all row groups that start at these bytes.
    """

    object: SourceObject
    begin: int
    end: int

    @property
    def is_complete_object(self) -> bool:
        """Return whether the range is the complete object."""
        return (self.begin, self.end) == (0, self.object.size or 0)


@dataclass(frozen=True)
class PlannedPart:
    """Describes a part of the source, which one pod reads and splits."""

    key: str
    """The part's number in five digits, or `test` for data.testSource."""
    source: Source
    ranges: tuple[ByteRange, ...]
    """The ranges that the part consists of; at least one."""
    test_rows: int
    """Largest number of lines of this part that go to the test set."""

    @property
    def number(self) -> int | None:
        """Return the part's number; None for data.testSource."""
        return None if self.key == "test" else int(self.key)

    @property
    def bytes(self) -> int:
        """Return the size of the part in bytes; 0 when it is unknown."""
        return sum(part.end - part.begin for part in self.ranges)


def plan_parts(
    objects: Sequence[SourceObject], part_bytes: int, *, divisible: bool = False, cost: int = 0
) -> list[list[ByteRange]]:
    """Divide the objects of a source into parts of about `part_bytes` bytes, in the order of the objects.

    Args:
        objects: the objects of the source.
        part_bytes: target size of a part. A smaller source becomes a single part.
        divisible: whether an object that is not compressed may be divided between parts.
        cost: number of bytes that are added to the size of each range.
    """
    parts: list[list[ByteRange]] = [[]]
    room = part_bytes
    for found in objects:
        end, size = 0, found.size or 0
        complete = not divisible or found.name.lower().endswith(COMPRESSED)
        while True:  # an empty object becomes a range, too
            if room <= 0:
                parts.append([])
                room = part_bytes
            begin, end = end, size if complete else min(size, end + room)
            parts[-1].append(ByteRange(found, begin, end))
            room -= end - begin + cost
            if end == size:
                break
    return parts


def complete_objects(objects: Sequence[SourceObject]) -> list[ByteRange]:
    """Return one range for each object, which covers the complete object."""
    return [ByteRange(found, 0, found.size or 0) for found in objects]


def part_size(shards: int) -> int:
    """Return the target size in bytes of the parts of a source that is split into `shards` shards."""
    return max(PART_BYTES, SHARD_FILE_BYTES * shards)


def distribute(total: int, weights: Sequence[int]) -> list[int]:
    """Divide the number `total` in proportion to `weights`; return one integer for each weight.

    The sum of the integers is exactly `total`. If all weights are 0, the division is even.
    """
    weights = weights if any(weights) else [1] * len(weights)
    ends = [0, *itertools.accumulate(weights)]
    edges = [total * end // ends[-1] for end in ends]
    return [after - before for before, after in itertools.pairwise(edges)]


def range_lines(blocks: Iterator[bytes], begin: int, end: int, digest: hashlib._Hash) -> Iterator[bytes]:
    """Yield the lines that start in a byte range of an object, and update `digest` with their bytes.

    The lines are yielded as blocks of bytes, which may begin and end inside a line.

    Args:
        blocks: the content of the object from the byte before the range on, or from byte 0 on if the range begins
            there. The byte before the range is needed because a line starts at the first byte of the range only if the
            byte before it is a newline.
        begin: the first byte of the range.
        end: the byte after the range. The last line may end later.
        digest: the sha256 of the part.
    """
    is_inside_line, left = begin > 0, end - max(0, begin - 1)
    for data in blocks:
        before, left = left, left - len(data)
        start, stop = 0, len(data)
        if is_inside_line:
            start = data.find(b"\n") + 1
            if (start or stop) >= before:
                return  # this line starts before the range and ends after it
            if not start:
                continue
            is_inside_line = False
        is_last = left <= 0 and (newline := data.find(b"\n", max(start, before - 1))) >= 0
        lines = data[start : newline + 1] if is_last else data[start:]
        digest.update(lines)
        yield lines
        if is_last:
            return


def is_hidden(path: str, data_format: str) -> bool:
    """Return whether the file at `path` below the source is never read, because it or its folder has a hidden name."""
    pattern = _NO_DATA_FILE if data_format == "files" else _HIDDEN
    return any(map(pattern.match, path.split("/")))


def _walk(root: Path, data_format: str) -> Iterator[Path]:
    """Yield the path of each file below `root`, at any depth.

    This function also yields the paths of hidden folders and of links to folders, but not what is in them.

    Raises:
        OSError: a folder cannot be read.
    """

    def fail(error: OSError) -> NoReturn:  # Path.rglob leaves out a folder that this pod's user cannot read
        raise error

    for folder, folders, names in os.walk(root, onerror=fail):
        closed = [name for name in folders if is_hidden(name, data_format) or Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in (*names, *closed))
        folders[:] = set(folders).difference(closed)


@dataclass(eq=False)
class Source(abc.ABC):
    """Lists the objects of a source, and opens an object at any byte."""

    settings: DataSettings
    progress: DataProgress
    retry: Retry
    key: str
    """The setting with the source, for messages: `data.source`, `data.sourceSecret` or `data.testSource`."""

    @abc.abstractmethod
    def __post_init__(self) -> None:
        """Prepare to list and open objects. Raise `DataError` if the source is known not to exist."""

    @property
    def name(self) -> str:
        """Return the setting and its value, for messages."""
        return f"{self.key} {self.settings.source}"

    @property
    def is_single(self) -> bool:
        """Return whether the source is a single object: a web address, or with data.member set an archive.

        A single pod reads such a source.
        """
        return bool(self.settings.member) or not self.settings.source.startswith(("s3://", "file://"))

    @property
    def keeps_files(self) -> bool:
        """Return whether the data consists of the files of the source (data.format files), and not of their rows."""
        return self.settings.format == "files"

    def _files_to_read(self, found: Mapping[str, SourceObject | None]) -> list[SourceObject]:
        """Return the files of a folder or prefix that are read, and log the names of the others.

        Hidden and empty files are not read. With data.format files, empty files are read, too, except the empty objects
        of a bucket whose key ends with a slash: such an object stands for a folder.

        Args:
            found: path below the source → file. The value for a hidden file may be None.

        Raises:
            DataError: there is no file to read, or the name of a file shows that the file is not text.
        """
        keeps, data_format = self.keeps_files, self.settings.format
        usable = {
            path: one for path, one in found.items() if one is not None and not is_hidden(path, data_format)
        }
        chosen = {path: one for path, one in usable.items() if one.size or (keeps and one.name[-1] != "/")}
        for path in filter(_NOT_TEXT.fullmatch, () if keeps or data_format == "parquet" else chosen):
            raise DataError(
                f"{self.name}: {path} is no text file, as its name shows, and all files of a folder are read. Fix: "
                "convert it to text or csv (also compressed: .gz, .bz2, .xz), or move it out of this folder."
            )
        skipped = [path for path in found if path not in chosen]
        listed = ", ".join(skipped[:NAMES_SHOWN]) + ("" if len(skipped) <= NAMES_SHOWN else ", …")
        if not chosen:
            raise DataError(
                f"{self.name} has no file to read; it has {listed or 'nothing'}, and hidden, temporary and empty files "
                f"are not read. Fix: upload data to it, or correct {self.key}."
            )
        if skipped:
            text = "%s: %d files are read; %d hidden, temporary or empty ones are not: %s"
            log.info(text, self.name, len(chosen), len(skipped), listed)
        return list(chosen.values())

    @abc.abstractmethod
    def objects(self) -> list[SourceObject]:
        """Return the objects to read, in the order in which they are read. Raise `DataError` when there is none."""

    @abc.abstractmethod
    def open(self, found: SourceObject, begin: int, digest: hashlib._Hash) -> OpenObject:
        """Open an object at the byte `begin`; the returned stream updates `digest` with all bytes that are read."""

    @abc.abstractmethod
    def display_name(self, found: SourceObject) -> str:
        """Return the object's address for messages."""

    def below(self, found: SourceObject) -> str:  # noqa: ARG002 - for subclasses
        """Return the path of an object below the source; an empty text if the object is the source itself."""
        return ""

    def file_on_disk(
        self,
        found: SourceObject,  # noqa: ARG002 - for subclasses
        stream: io.BufferedReader,
        size: int | None,
        folder: Path,
    ) -> Path:
        """Copy an object to a file in `folder`, and return the path of the file.

        Zip and Parquet files have their index at the end, so their readers need a file instead of a stream.

        Args:
            found: the object.
            stream: the content of the object.
            size: the size of the object in bytes; None if unknown.
            folder: the folder for the file.
        """
        path = folder / "source.tmp"
        require_space(path, size or 0, "the file itself")
        with storage_errors(path), path.open("wb") as file:
            while data := stream.read(BLOCK):
                file.write(data)
                self.progress.report()
        return path

    def check_unchanged(self, found: SourceObject) -> None:  # noqa: B027 - most streams check it themselves
        """Raise `DataError` if the object has changed since it was listed.

        This method does nothing in the base class, because most streams notice a change while they read.
        """

    def close(self) -> None:  # noqa: B027 - most sources have nothing to close
        """Close connections that all objects share; the reader of an object must close the object itself."""


class StorageSource(Source):
    """Reads a file of the shared storage, or all files below a folder, in the order of their paths."""

    def __post_init__(self) -> None:
        """Find the file or folder. Raise `DataError` if it does not exist, is outside of sources/ or is unreadable."""
        sources = self.settings.layout.sources
        path = sources / self.settings.source.removeprefix("file://")
        self._check_below_sources(path)
        with self._errors(path):
            exists = path.exists()
        if not exists:
            try:
                names = sorted(p.name for p in sources.iterdir())[: archives.NAMES_SHOWN]
            except OSError:
                names = []
            raise DataError(
                f"{self.name}: {path} does not exist; {sources} contains "
                f"{', '.join(names) or 'nothing'}. Fix: upload the file (python -m launcher push FILE --source), or "
                f"correct {self.key}."
            )
        self._root, self._base = path, path if path.is_dir() else path.parent

    def objects(self) -> list[SourceObject]:
        """Return the files of the source that are read. Open each of them, to find unreadable files early.

        Raises:
            DataError: there is no file to read; a file is unreadable, is no regular file or is outside of sources/; the
                name of a file shows that the file is not text; or the source is a folder, but data.member is set.
        """
        root, data_format = self._root, self.settings.format
        if self.is_single and root.is_dir():
            raise DataError(
                f"{self.name} is a folder, but data.member is set. Fix: set {self.key} to one archive."
            )
        with self._errors(root):
            if not root.is_dir():
                chosen = [self._checked(root)]
            else:
                names = (path.relative_to(root).as_posix() for path in _walk(root, data_format))
                found = {
                    name: None if is_hidden(name, data_format) else self._checked(root / name)
                    for name in sorted(names, key=lambda name: name.split("/"))
                }
                chosen = self._files_to_read(found)
            for one in chosen:
                (self._base / one.name).open("rb").close()
        return chosen

    @contextlib.contextmanager
    def _errors(self, path: Path) -> Iterator[None]:
        """Raise `DataError` if this pod's user may not read `path`; convert other errors as `storage_errors` does."""
        with storage_errors(path):
            try:
                yield
            except PermissionError as error:
                where = error.filename or path
                raise DataError(
                    f"{self.name}: this pod's user cannot read {where} ({error.strerror}). "
                    f"Fix: chmod -R a+rX {where}"
                ) from error

    def _check_below_sources(self, path: Path) -> None:
        """Raise `DataError` when `path`, after following all links, is outside of the folder sources/."""
        sources = self.settings.layout.sources
        if not path.resolve().is_relative_to(sources.resolve()):
            raise DataError(
                f"{self.name}: {path} is outside of {sources}, or a link that leads out of it. "
                "Fix: copy the file into that folder."
            )

    def _checked(self, path: Path) -> SourceObject:
        self._check_below_sources(path)
        if not path.is_file():
            raise DataError(
                f"{self.name}: {path} is no file, but for example a link to "
                "a folder or to nothing. Fix: replace it by the file, or move it out of this folder."
            )
        return self._object(path)

    def _object(self, path: Path) -> SourceObject:
        stat = path.stat()
        return SourceObject(path.relative_to(self._base).as_posix(), stat.st_size, str(stat.st_mtime_ns))

    def open(self, found: SourceObject, begin: int, digest: hashlib._Hash) -> OpenObject:
        """Open the file at the byte `begin`; the returned stream updates `digest` with all bytes that are read.

        Raise `DataError` if the file has changed since it was listed.
        """
        self.check_unchanged(found)
        blocks = file_blocks(self._base / found.name, self.progress, digest, begin)
        return OpenObject(blocks, found.size, blocks.close)

    def below(self, found: SourceObject) -> str:
        """Return the path of a file below the folder; an empty text if the source is this file."""
        return found.name if self._base == self._root else ""

    def file_on_disk(self, found: SourceObject, *_: object) -> Path:
        """Return the path of the file itself: a file of the shared storage is not copied."""
        return self._base / found.name

    def check_unchanged(self, found: SourceObject) -> None:
        """Raise `DataError` if the file is missing, or its size or time of change differs from the listing."""
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
        """Return the file's file:// address."""
        source = self.settings.source
        return f"{source.rstrip('/')}/{found.name}" if self._base == self._root else source


class S3Source(Source):
    """Lists and opens objects of a bucket. A request that S3 rejects raises `DataError` with a fix."""

    def __post_init__(self) -> None:
        self._source = self.settings.source
        name, self._key = s3.split_url(self._source)
        self._folder = self._key.rstrip("/") + "/" if self._key else ""
        try:
            self._bucket = s3.Bucket(name)
        except s3.S3RejectedError as error:
            raise DataError(f"{self.name}: {error}") from error

    def objects(self) -> list[SourceObject]:
        """Return the objects to read, sorted by key.

        These are the object whose key is data.source, and all objects below data.source as a folder. If data.member is
        set, or if data.format is files and the first object exists, only the first object is read.

        Raises:
            DataError: there is no object to read; the name of an object shows that the object is not text; or S3
                rejects the request or does not answer.
            UnfitError: this pod has no credentials.
            DeadlineError: the deadline of the data Job has passed.
        """
        if self.is_single:
            return [self._find_archive()]
        found = sorted(self._list(self._key), key=lambda one: one.name)
        below = [one for one in found if one.name == self._key or one.name.startswith(self._folder)]
        if self.keeps_files and below and below[0].name == self._key and self._key[-1] != "/":
            below = below[:1]
        # Only the path below the source may be hidden: the user has written the names in data.source on purpose.
        return self._files_to_read({self.below(one): one for one in below})

    def below(self, found: SourceObject) -> str:
        """Return the part of the object's key after the prefix; an empty text if data.source is this object."""
        return found.name[len(self._folder) :]

    def _find_archive(self) -> SourceObject:
        """Return the one object with exactly the key of data.source.

        Raises:
            DataError: there is no such object; the message lists objects next to it.
        """
        first = next(self._list(self._key), None)  # the key itself precedes longer keys
        if first is not None and first.name == self._key:
            return first
        if below := list(islice(self._list(self._key + "/"), NAMES_SHOWN)):
            raise DataError(
                f"data.source {self._source} is a prefix, not an object; below it are {_names(below)}. With "
                "data.member set, data.source must be the key of one archive. Fix: set that key, or leave data.member "
                "empty to read all text below the prefix."
            )
        parent = posixpath.dirname(self._key)
        raise DataError(
            f"data.source {self._source}: the object does not exist; the same prefix has "
            f"{_names(self._list(parent + '/' if parent else ''))}. Fix: correct bucket and key in data.source, or "
            "upload the archive."
        )

    def _list(self, prefix: str) -> Iterator[SourceObject]:
        """Yield all objects whose key starts with `prefix`, in the order of their keys, page by page."""
        token = ""
        while True:
            self.progress.report("listing the objects")
            page = functools.partial(self._bucket.list_page, prefix, s3.PAGE, token)
            try:
                found, token = self.retry.call(self._source, page)
            except s3.S3RejectedError as error:
                raise _rejected(self._bucket.url(prefix), error, self.key) from error
            yield from (SourceObject(one.key, one.size, one.etag) for one in found)
            if not token:
                return

    def open(self, found: SourceObject, begin: int, digest: hashlib._Hash) -> OpenObject:
        """Open an object at the byte `begin`, in the version that was listed.

        The returned stream updates `digest` with all bytes that are read.
        """
        from botocore.exceptions import HTTPClientError, IncompleteReadError
        from urllib3.exceptions import HTTPError

        name = self.display_name(found)
        broken = (HTTPClientError, IncompleteReadError, HTTPError, OSError)

        def open_at(offset: int, _version: str, /) -> RemoteBody:
            part = {"Range": f"bytes={offset}-"} if offset else {}
            try:
                answer = self._bucket.call("get_object", Key=found.name, IfMatch=found.version, **part)
            except s3.S3RejectedError as error:
                raise _rejected(name, error, self.key) from error
            body, total = answer["Body"], offset + answer["ContentLength"]
            return RemoteBody(body.read, broken, offset, total, found.version, body.close)

        retry = replace(self.retry, failures=0)  # a copy: several threads read at the same time
        stream = ResumingStream(name, open_at, retry, self.progress, digest, begin)
        ahead = Prefetch(stream.blocks(), _AHEAD)

        def close() -> None:
            ahead.close()
            stream.close()

        return OpenObject(ahead, stream.total, close)

    def display_name(self, found: SourceObject) -> str:
        """Return the object's s3:// address."""
        return self._bucket.url(found.name)

    def close(self) -> None:
        """Close the client's connections."""
        self._bucket.close()


def _rejected(where: str, error: s3.S3RejectedError, key: str) -> DataError:
    if not error.code:
        return DataError(f"{where}: {error}")
    return DataError(f"{where}: {error}. {_FIXES.get(error.code, _ROLE).format(key=key)}")


def _names(found: Iterable[SourceObject]) -> str:
    return ", ".join(one.name for one in islice(found, NAMES_SHOWN)) or "nothing"


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but rejects a redirect from https to http, and from any scheme to one other than these two."""

    def __init__(self, key: str, name: str) -> None:
        self._key, self._name = key, name

    def redirect_request(  # noqa: PLR0917 - the signature is urllib's
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        target = urllib.parse.urlsplit(newurl).scheme
        if target not in ("http", "https") or (req.type == "https" and target != "https"):
            fp.close()
            # A source in a Secret has a name without an address, and the new address may contain the same secret.
            shown = without_credentials(newurl) if "://" in self._name else f"an address with {target}://"
            raise DataError(
                f"{self._name} redirects to {shown}: redirects from https are followed to https only, since the data "
                "could be changed on the way. Fix: set "
                f"{self._key} to the final address, with https."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any
    ) -> Any:
        """Follow a redirect. If the new address is malformed, close the connection, because urllib leaves it open."""
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def without_credentials(url: str) -> str:
    """Return the address without user, password, query and fragment, which may be secret."""
    return re.sub(r"//[^/]*@", "//", re.split(r"[?#]", url)[0], count=1)


class WebSource(Source):
    """Reads a web address: https://, or http:// if data.sha256 is set."""

    def __post_init__(self) -> None:
        """Prepare to read the address. Raise `DataError` if the address is malformed or contains a password."""
        url, key, name = self.settings.source, self.key, source_name(self.settings)
        self._url, self._name = url, name
        self._opener = urllib.request.build_opener(_SafeRedirects(key, name))
        self._malformed = DataError(
            f"{name}: the address in {key} is malformed, or the server answered with a malformed redirect or header. "
            f"Fix: set {key} to the address after all redirects; curl -sIL ADDRESS shows redirects and headers."
        )
        try:
            host = urllib.parse.urlsplit(url).netloc
        except ValueError as error:
            raise self._malformed from error
        if "@" in host:
            raise DataError(
                f"{name}: {key} has a user name or password, which is not supported. Fix: use an "
                "address that is readable without a password, or a file:// or s3:// source."
            )
        if not url.isascii() or not url.isprintable() or " " in url:
            raise DataError(
                f"{name}: {key} has characters that a web address cannot contain. Fix: replace "
                "them by their percent-encoded form, such as %C3%A9 for é."
            )

    def objects(self) -> list[SourceObject]:
        """Return a single object for the address. The size and the version of this object are unknown."""
        return [SourceObject(self._name, None, "")]

    def open(self, found: SourceObject, begin: int, digest: hashlib._Hash) -> OpenObject:
        """Connect, and return the content from the byte `begin` on.

        The returned stream updates `digest` with all bytes that are read.
        """
        web = ResumingStream(found.name, self._request, self.retry, self.progress, digest, begin)
        self.progress.total = web.total
        return OpenObject(web.blocks(), web.total, web.close)

    def display_name(self, found: SourceObject) -> str:
        """Return the address for messages."""
        return found.name

    def _request(self, offset: int, version: str, /) -> RemoteBody:
        """Request the content from the byte `offset` on.

        If the content no longer has the version `version`, the server sends the new content from byte 0 on. An empty
        `version` is not compared.
        """
        headers = {"User-Agent": "paddle-training-launcher", "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
            if version:
                headers["If-Range"] = version
        request = urllib.request.Request(self._url, headers=headers)  # noqa: S310 - the scheme is checked
        try:
            response = self._opener.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            with error:
                # This happens if the connection broke at the end of a source whose size the server did not send.
                if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{offset}":
                    return RemoteBody(lambda _: b"", (), offset, offset, version, lambda: None)
                raise self._status_error(error) from error
        except (ValueError, http.client.InvalidURL) as error:
            raise self._malformed from error
        except (OSError, http.client.HTTPException) as error:
            raise TransientError(
                f"no connection ({getattr(error, 'reason', '') or str(error) or type(error).__name__})"
            ) from error
        return self._body(response, offset)

    def _status_error(self, error: urllib.error.HTTPError) -> Exception:
        if error.code in RETRIED_STATUS:
            wait = error.headers.get("Retry-After", "")
            return TransientError(
                f"the server answered {error.code}", float(wait) if wait.isdecimal() else 0.0
            )
        return DataError(
            f"{self._name}: the server answered {error.code} {error.reason}. Fix: check the "
            f"address in {self.key}; it must be readable without a password."
        )

    def _body(self, response: http.client.HTTPResponse, offset: int) -> RemoteBody:
        headers = response.headers
        tag = headers.get("ETag", "")
        version = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")
        length = headers.get("Content-Length", "")
        total = int(length) if re.fullmatch(r"\d{1,18}", length) else None
        begin = 0
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            match = _RANGE.fullmatch(headers.get("Content-Range", ""))
            if match is None or int(match[1]) != offset:
                response.close()
                raise TransientError(
                    f"the server answered a request from byte {offset} on with Content-Range: "
                    f"{headers.get('Content-Range')!r}"
                )
            begin = offset
            total = None if match[2] == "*" else int(match[2])
        return RemoteBody(
            response.read, (OSError, http.client.HTTPException), begin, total, version, response.close
        )


def open_source(settings: DataSettings, progress: DataProgress, retry: Retry, key: str) -> Source:
    """Return the `Source` for the address in `settings.source`; `key` is the setting that has this address.

    Of the sources, only a file or folder of the shared storage is looked up here.

    Raises:
        DataError: the file or folder does not exist or cannot be read; the address is malformed; the client of S3
            cannot be created; or the address in data.sourceSecret does not begin with https://.
        UnfitError: this pod cannot get its credentials for S3.
    """
    scheme = settings.source.partition("://")[0]
    if settings.source_secret and scheme != "https":
        raise DataError(
            f"data.sourceSecret: {source_name(settings)} does not begin with https://. Fix: write a signed https "
            "address to this key; other addresses are no secret and belong in data.source."
        )
    kinds: dict[str, type[Source]] = {"s3": S3Source, "file": StorageSource}
    return kinds.get(scheme, WebSource)(settings, progress, retry, key)


class PartReader:
    """Reads the text and side tables of one part of a source, and calculates the sha256 of the part.

    The sha256 covers the part's ranges in their order: all stored bytes of a range that is a complete object, and the
    lines of a range that is a piece of a text. For a piece of a Parquet file the sha256 covers the bytes of the range.
    """

    def __init__(self, part: PlannedPart, folder: Path) -> None:
        """Prepare to read `part`; zip and Parquet files that must be copied are copied to `folder`."""
        self._source, self._ranges, self._folder = part.source, part.ranges, folder
        self._sha256 = hashlib.sha256()

    def files(self) -> Iterator[SourceFile]:
        """Yield the text of each byte range of this part, and the side tables (data.tables) of an archive."""
        source = self._source
        for one in self._ranges:
            # The byte before a range is read, but the part's sha256 does not include it.
            digest = self._sha256 if one.is_complete_object else hashlib.sha256()
            with contextlib.closing(source.open(one.object, max(0, one.begin - 1), digest)) as opened:
                if source.settings.member:
                    yield from self._read_archive(one.object, opened)
                else:
                    yield self._read_text(one, opened)
                if one.is_complete_object:
                    for _ in opened.blocks:
                        source.progress.report()
            source.check_unchanged(one.object)

    def seekable_files(self) -> Iterator[tuple[Path, str, int, int]]:
        """Yield (path of the file, name for messages, first byte, end byte (excluded)) of each range of this part.

        This is for Parquet and Arrow files, which are not read from start to end. A file of the shared storage is used
        where it is. An object of another source is first copied to a temporary file, and the path is this copy.
        """
        source = self._source
        for one in self._ranges:
            left = one.end - one.begin
            digest = self._sha256 if one.is_complete_object else hashlib.sha256()
            with contextlib.closing(source.open(one.object, one.begin, digest)) as opened:
                stream = buffered(opened.blocks)
                path = source.file_on_disk(one.object, stream, opened.total, self._folder)
                for data in opened.blocks:
                    if digest is not self._sha256:
                        self._sha256.update(data[:left])
                    left -= len(data)
                    source.progress.report()
                    if left <= 0 and not one.is_complete_object:
                        break
            yield path, source.display_name(one.object), one.begin, one.end or path.stat().st_size
            source.check_unchanged(one.object)

    def _read_text(self, one: ByteRange, opened: OpenObject) -> SourceFile:
        name = self._source.display_name(one.object)
        if one.is_complete_object:
            return decompress(buffered(opened.blocks), name, opened.total)
        lines = buffered(range_lines(opened.blocks, one.begin, one.end, self._sha256))
        if one.begin:
            name += f" from byte {one.begin:,} on"
        else:
            archives.reject_compressed(lines, name)
        return SourceFile(name, lines, one.end - one.begin)

    def _read_archive(self, found: SourceObject, opened: OpenObject) -> Iterator[SourceFile]:
        settings, name = self._source.settings, self._source.display_name(found)
        head = buffered(opened.blocks)
        if not archives.is_zip(head):
            yield from archives.tar_files(head, name, settings.member, settings.tables)
            return
        path = self._source.file_on_disk(found, head, opened.total, self._folder)
        yield from archives.zip_files(path, name, settings.member, settings.tables)

    def hexdigest(self) -> str:
        """Return the sha256 of the part's bytes."""
        return self._sha256.hexdigest()
