"""A table's ids and vectors as two files that all ranks write side by side, each its own stretch of rows.

The ids come from a save (`ids/<table>-<rank>.npy`, those of each rank's servers): what was trained on in
earlier runs is in the tables too, so the shards of this run's data would not do.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher import files
from launcher.errors import DataError
from launcher.served.table import IDS, VECTORS

Keys = NDArray[np.uint64]
PAGE = 4096
"""Bytes of a file's head. No two ranks write to one page: a network file system may write it whole."""
ALIGNED = 1024  # rows: whole pages of ids, and of vectors of any width
BLOCK = 1 << 18  # ids that are looked up and written at once


def create(folder: Path, rows: int, width: int) -> None:
    """The two files in their whole size, for the ranks to fill."""
    folder.mkdir(parents=True)
    for name, shape, kind in (
        (IDS, (rows,), np.dtype(np.uint64)),
        (VECTORS, (rows, width), np.dtype(np.float32)),
    ):
        with (folder / name).open("wb") as file:
            file.write(_head(shape, kind))
            file.truncate(PAGE + int(np.prod(shape)) * kind.itemsize)


def _head(shape: tuple[int, ...], kind: np.dtype[Any]) -> bytes:
    """numpy's own head of a file, filled up to a page."""
    magic = b"\x93NUMPY\x01\x00"
    about = {"descr": kind.str, "fortran_order": False, "shape": shape}
    length = PAGE - len(magic) - 2
    return magic + struct.pack("<H", length) + repr(about).ljust(length - 1).encode() + b"\n"


def share(found: Sequence[Keys], rank: int, ranks: int) -> tuple[int, Keys]:
    """The row that this rank's stretch begins at, and its ids, ascending. `found`: each ascending.

    Raises `DataError` when an id is there twice.
    """
    total = sum(map(len, found))
    first, last = _begin(total, rank, ranks), _begin(total, rank + 1, ranks)
    low, high = (_places(found, at, total) for at in (first, last))
    own = [keys[a:b] for keys, a, b in zip(found, low, high, strict=True)]
    ids = np.sort(np.concatenate([*own, np.zeros(0, np.uint64)]), kind="stable")  # merges sorted stretches
    if len(ids) != last - first or (ids[1:] == ids[:-1]).any():
        raise DataError("an id is twice in the newest save: two servers have written the same row")
    return first, ids


def _begin(total: int, rank: int, ranks: int) -> int:
    return total if rank == ranks else total * rank // ranks // ALIGNED * ALIGNED


def _places(found: Sequence[Keys], rows: int, total: int) -> list[int]:
    """How many of each are among the `rows` smallest of all."""
    if rows == total:
        return [len(keys) for keys in found]
    low, high = 0, (1 << 64) - 1
    while low < high:  # the smallest key with so many below it
        middle = (low + high) // 2
        if sum(int(np.searchsorted(keys, np.uint64(middle))) for keys in found) < rows:
            low = middle + 1
        else:
            high = middle
    return [int(np.searchsorted(keys, np.uint64(low))) for keys in found]


def look_up(
    folder: Path, first: int, ids: Keys, width: int, rows: Callable[[NDArray[np.int64]], NDArray[np.float32]]
) -> float:
    """Writes the rows from `first` on. `rows`: int64 of the same bits → vectors, shape [ids, width].

    Returns the CPU seconds of this process that `rows` took.
    """
    spent = 0.0

    def blocks() -> Iterator[NDArray[np.float32]]:
        nonlocal spent
        for begin in range(0, len(ids), BLOCK):
            started = time.process_time()
            found = rows(ids[begin : begin + BLOCK].view(np.int64))
            spent += time.process_time() - started
            yield found

    _fill(folder, first, width, ids, blocks())
    return spent


def fill(folder: Path, first: int, ids: Keys, vectors: NDArray[np.float32]) -> None:
    """Writes these rows from `first` on."""
    _fill(folder, first, vectors.shape[1], ids, [vectors])


def _fill(folder: Path, first: int, width: int, ids: Keys, vectors: Iterable[NDArray[np.float32]]) -> None:
    with files.storage(folder), (folder / IDS).open("r+b") as left, (folder / VECTORS).open("r+b") as right:
        left.seek(PAGE + first * ids.itemsize)
        left.write(np.ascontiguousarray(ids).data)
        right.seek(PAGE + first * width * 4)
        for found in vectors:
            right.write(np.ascontiguousarray(found, np.float32).data)
        for file in (left, right):
            file.flush()
            os.fsync(file.fileno())
