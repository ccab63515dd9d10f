"""Choose the files of a source, and divide them into parts that pods read in parallel: files, or ranges of one.

The parts follow from the objects of the source and the number of shards, so that every pod plans the same.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.dataprep.archives import COMPRESSED, NAMES_SHOWN
from launcher.dataprep.byte_streams import BLOCK, Readable
from launcher.dataprep.progress_log import DataProgress
from launcher.errors import DataError
from launcher.io.retry import Retry
from launcher.log import log
from launcher.settings import DataSettings

PART_BYTES = 256 << 20
"""Bytes of a part: some seconds of work, which an evicted pod loses."""
SHARD_FILE_BYTES = 4 << 20
"""Smallest average size of a part's file for one shard: file systems limit the number of files, too."""


@dataclass(frozen=True)
class SourceObject:
    """Identifies one file or object of a source, and its content by `version`."""

    name: str
    size: int
    """Bytes."""
    version: str
    """Another value means other content: an ETag, or the time of the last change."""


@dataclass(frozen=True)
class ByteRange:
    """Refers to the lines of an object that start at the bytes `begin` (included) to `end` (excluded)."""

    object: SourceObject
    begin: int
    end: int

    @property
    def is_complete_object(self) -> bool:
        """Return whether the range is the complete object."""
        return (self.begin, self.end) == (0, self.object.size)

    def to_json(self) -> list[Any]:
        """Return the JSON value that plan.json has for this range."""
        return [self.object.name, self.object.size, self.object.version, self.begin, self.end]


@dataclass(frozen=True)
class PlannedPart:
    """Describes a part of the source, which one pod reads and splits; all parts together are the plan."""

    key: str
    """The part's number in five digits, or `test` for data.testSource."""
    ranges: tuple[ByteRange, ...]
    """What the part reads; empty when the source is one stream."""
    test_rows: int
    """At most so many lines of the part go to the test set."""

    @property
    def bytes(self) -> int:
        """Return the size of the part in bytes; 0 when it is unknown."""
        return sum(part.end - part.begin for part in self.ranges)

    def to_json(self) -> list[Any]:
        """Return the JSON value that plan.json has for this part."""
        return [self.key, self.test_rows, [part.to_json() for part in self.ranges]]


def plan_parts(objects: Sequence[SourceObject], part_bytes: int, divisible: bool) -> list[list[ByteRange]]:
    """Return parts of about `part_bytes` bytes, in the order of the objects; a smaller source is one part.

    If the source is `divisible`, an object may be divided between parts, except a compressed one.
    """
    parts: list[list[ByteRange]] = [[]]
    room = part_bytes
    for found in objects:
        begin = 0
        while begin < found.size:
            if room <= 0:
                parts.append([])
                room = part_bytes
            complete = not divisible or found.name.lower().endswith(COMPRESSED)
            end = found.size if complete else min(found.size, begin + room)
            parts[-1].append(ByteRange(found, begin, end))
            room -= end - begin
            begin = end
    return parts


def part_size(shards: int) -> int:
    """Return the size, in bytes, of each part of a source that is split into so many shards."""
    return max(PART_BYTES, SHARD_FILE_BYTES * shards)


def distribute(total: int, weights: Sequence[int]) -> list[int]:
    """Return `total` distributed by weight, with exactly this sum; evenly when every weight is 0."""
    weights = weights if any(weights) else [1] * len(weights)
    ends = [0, *itertools.accumulate(weights)]
    edges = [total * end // ends[-1] for end in ends]
    return [after - before for before, after in itertools.pairwise(edges)]


class RangeLines:
    """The lines of a byte range, read from a stream of the object.

    The stream begins one byte before the range, if there is such a byte: only after a newline does a line start
    at the first byte of the range.
    """

    def __init__(self, stream: Readable, begin: int, end: int, digest: hashlib._Hash) -> None:
        """Prepare to read the bytes from `begin` to `end`; `read` updates `digest` with the bytes that it returns."""
        self._stream, self._digest = stream, digest
        self._left = end - begin
        self._skip = begin > 0
        self._done = False
        if self._skip:
            self._left += 1

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes of the range's lines, at most `size` or a block; empty after the last."""
        while not self._done:
            data = self._stream.read(BLOCK if size < 0 else size)
            if not data:
                self._done = True
            data = self._own_lines(data)
            if data:
                self._digest.update(data)
                return data
        return b""

    def _own_lines(self, data: bytes) -> bytes:
        """Return those of the next bytes that belong to lines of the range."""
        left, self._left = self._left, self._left - len(data)
        start = 0
        if self._skip:
            newline = data.find(b"\n")
            if newline < 0:
                if self._left <= 0:
                    self._done = True  # one line that starts before the range and ends after it
                return b""
            self._skip = False
            start = newline + 1
            if start >= left:
                self._done = True
                return b""
        if self._left <= 0:
            newline = data.find(b"\n", max(start, left - 1))
            if newline >= 0:
                self._done = True
                return data[start : newline + 1]
        return data[start:]


_HIDDEN = re.compile(
    r"\.|_[^=]*$|~\$|#.*#$|(thumbs\.db|desktop\.ini|lost\+found)$|"
    r".*(~|\._copying_|\.(tmp|temp|swp|bak|part|partial|filepart|download|crdownload))$",
    re.IGNORECASE,
)
"""Names of files and folders that are never read (docs/how-to/own-data.md lists them).

Spark and Hadoop skip names that start with `.` or `_` (but not the folder `_day=1` of a partition) and copies in
progress; the others are temporary, backup and marker files of macOS, Windows, editors and programs that download.
"""
_NOT_TEXT = re.compile(
    r".*\.(parquet|orc|avro|arrow|feather|zip|whl|jar|tar|t[gbx]z2?|7z|rar|zst|lz4|lzma|z|png|jpe?g|gif|bmp|webp|pdf|"
    r"docx?|xlsx?|h5|hdf5|np[yz]|pkl|pickle|tfrecords?|sqlite3?|db|exe|so)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class SourceContext:
    """Holds the settings and helpers with which a source is opened."""

    settings: DataSettings
    tmp: Path
    """A folder for an archive that must be complete before it can be read."""
    progress: DataProgress
    retry: Retry
    key: str
    """The setting with the source, for messages: `data.source` or `data.testSource`."""


def is_hidden(path: str) -> bool:
    """Return whether a file below the source is never read, because of its name or that of a folder."""
    return any(map(_HIDDEN.match, path.split("/")))


def files_to_read(context: SourceContext, found: Mapping[str, SourceObject | None]) -> list[SourceObject]:
    """Return the files of a folder or prefix that are read: all that are neither hidden nor empty; log the others.

    `found` is all files by their path below the source; a hidden one may be None.

    Raises:
        DataError: one is not text, by its name; or none is left.
    """
    chosen = {
        path: one for path, one in found.items() if one is not None and one.size and not is_hidden(path)
    }
    source = f"{context.key} {context.settings.source}"
    for path in filter(_NOT_TEXT.fullmatch, chosen):
        raise DataError(
            f"{source}: {path} is no text file, as its name shows, and all files of a folder are read. Fix: convert it "
            "to text or csv (also compressed: .gz, .bz2, .xz), or move it out of this folder."
        )
    skipped = [path for path in found if path not in chosen]
    listed = ", ".join(skipped[:NAMES_SHOWN]) + ("" if len(skipped) <= NAMES_SHOWN else ", …")
    if not chosen:
        raise DataError(
            f"{source} has no file to read; it has {listed or 'nothing'}, and hidden, temporary and empty files are "
            f"not read. Fix: upload data to it, or correct {context.key}."
        )
    if skipped:
        text = "%s: %d files are read; %d hidden, temporary or empty ones are not: %s"
        log.info(text, source, len(chosen), len(skipped), listed)
    return list(chosen.values())
