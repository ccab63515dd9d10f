"""Rows that were parsed once: fixed records on the pod's own disk, mapped while training.

<work dir>/records/<train|test>/
├── 00000.rec, 00001.rec, …    at most FILE_ROWS rows each, one record a row, every input's values in a row
└── index.json                 written last: whose rows these are, and each file's rows, bytes and CRC32

What iterating takes is decided by WINDOW_FILES and the size of a batch, not by the number of rows.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher import files
from launcher.errors import UnfitError
from launcher.worker.samples import Arrays, split

Bytes = NDArray[np.uint8]
"""Records as they lie in a file, shape [rows, bytes of a row]."""
VERSION = 1
INDEX = "index.json"
FILE_ROWS = 100_000
FILE_BYTES = 32 << 20
"""A file has fewer rows where they are wide: what parses it holds it in memory."""
WINDOW_FILES = 4
"""Files that are shuffled together: a file is a stretch of the source, and its rows may be alike."""


def rows_a_file(row: np.dtype[Any]) -> int:
    """How many rows of that size one file holds."""
    return max(1, min(FILE_ROWS, FILE_BYTES // max(1, row.itemsize)))


@dataclass(frozen=True)
class Part:
    """One file."""

    name: str
    rows: int
    bytes: int
    crc32: int


class Records:
    """The rows of one text file, parsed."""

    def __init__(self, folder: Path, row: np.dtype[Any], parts: tuple[Part, ...], skipped: int) -> None:
        self._folder, self._row, self._parts = folder, row, parts
        self.rows = sum(part.rows for part in parts)
        """Without those that the program skipped."""
        self.skipped = skipped
        """Rows that the program chose not to use."""
        self._checked: set[str] = set()

    @classmethod
    def open(cls, folder: Path, row: np.dtype[Any], key: str) -> Records | None:
        """The records in `folder`, if they were made of what `key` stands for and all files are there."""
        try:
            index = files.read_json(folder / INDEX)
        except files.UnreadableError:
            return None
        if index is None or index.get("version") != VERSION or index.get("key") != key:
            return None
        parts = tuple(Part(**part) for part in index["files"])
        with files.storage(folder):
            for part in parts:
                path = folder / part.name
                if not path.is_file() or path.stat().st_size != part.bytes:
                    return None
        return cls(folder, row, parts, int(index["skipped"]))

    def batches(self, steps: int, seed: tuple[int, ...], done: int = 0) -> Iterator[Arrays]:
        """One pass in an order that only `seed` decides, as exactly `steps` batches but the first `done`.

        The files come in a shuffled order, and rows are shuffled within each WINDOW_FILES of them. Every row
        comes once, and batches differ by at most one row. All ranks take the same number of steps, because a
        synchronous step waits for all of them; a rank with fewer rows than steps uses rows again.
        A batch: input's name → array of its own, shape [batch, length or width]. Each is read while the one
        before it is at work: else 7 % of a single thread's time with a small network went into that.
        """
        ahead = ThreadPoolExecutor(1, "read-ahead")
        try:
            read = self._read(steps, seed, done)
            coming = ahead.submit(next, read, None)
            while (batch := coming.result()) is not None:
                coming = ahead.submit(next, read, None)
                yield batch
        finally:
            ahead.shutdown(wait=False, cancel_futures=True)

    def _read(self, steps: int, seed: tuple[int, ...], done: int) -> Iterator[Arrays]:
        even, more = divmod(max(self.rows, steps), steps)
        pieces = self._pieces(seed, done * even + min(done, more))
        for step in range(done, steps):
            missing = even + (step < more)
            held = []
            while missing:
                held.append(next(pieces).take(missing))
                missing -= len(held[-1])
            raw = held[0] if len(held) == 1 else np.concatenate(held)
            yield split(raw.view(self._row)[:, 0])

    def _pieces(self, seed: tuple[int, ...], start: int) -> Iterator[_Window]:
        """The window at work, again and again, then the next one; for ever. Begins behind `start` rows."""
        order = [self._parts[i] for i in np.random.default_rng(seed).permutation(len(self._parts))]
        windows = [order[first : first + WINDOW_FILES] for first in range(0, len(order), WINDOW_FILES)]
        start %= self.rows
        for number in itertools.cycle(range(len(windows))):
            parts = windows[number]
            rows = sum(part.rows for part in parts)
            if start >= rows:
                start -= rows
                continue
            shuffled = np.random.default_rng((*seed, number)).permutation(rows)[start:]
            start = 0
            window = _Window([self._map(part) for part in parts], shuffled)
            while not window.empty:
                yield window
            del window  # its files, before the next ones are mapped

    def blocks(self, rows: int, first: int = 0, last: int | None = None) -> Iterator[Arrays]:
        """Rows `first` to `last` in the order of the text, at most `rows` at once."""
        at = 0
        for part in self._parts:
            low, high = max(0, first - at), min(part.rows, (self.rows if last is None else last) - at)
            at += part.rows
            if low < high:
                mapped = self._map(part)
                for begin in range(low, high, rows):
                    yield split(mapped[begin : min(high, begin + rows)].view(self._row)[:, 0])

    def _map(self, part: Part) -> Bytes:
        """A file's rows, mapped. Its first use here reads it through; `UnfitError` when it is damaged."""
        path = self._folder / part.name
        with files.storage(path):
            mapped: Bytes = np.memmap(path, np.uint8, mode="r", shape=(part.rows, self._row.itemsize))
        if part.name not in self._checked:
            if zlib.crc32(mapped.data) != part.crc32:
                with contextlib.suppress(OSError):
                    (self._folder / INDEX).unlink()  # so that the next start makes them again
                raise UnfitError(
                    f"{path} does not read back as it was written: this pod's own disk is faulty. The "
                    "records are made again at the next start; another pod may do better on another node."
                )
            self._checked.add(part.name)
        return mapped


class _Window:
    """Some files' rows in one shuffled order."""

    def __init__(self, mapped: list[Bytes], order: NDArray[np.int64]) -> None:
        self._mapped, self._order = mapped, order
        self._ends = np.cumsum([len(rows) for rows in mapped])
        self._at = 0

    @property
    def empty(self) -> bool:
        return self._at >= len(self._order)

    def take(self, rows: int) -> Bytes:
        """The next rows, at most so many; within them they come by file and place, which is faster."""
        wanted = np.sort(self._order[self._at : self._at + rows])
        self._at += len(wanted)
        found = np.empty((len(wanted), self._mapped[0].shape[1]), np.uint8)
        low = 0
        for mapped, end in zip(self._mapped, self._ends, strict=True):
            high = int(np.searchsorted(wanted, end))
            if low < high:
                places = wanted[low:high] - (end - len(mapped))
                np.take(mapped, places, axis=0, out=found[low:high], mode="clip")  # "raise" would copy twice
            low = high
        return found
