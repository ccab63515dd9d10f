"""Write a table's ids and vectors to two files, which all ranks fill at the same time.

The ids come from a checkpoint (`ids/<table>-<rank>.npy`, those of each rank's servers) and not from the shards
of this run's data, because the tables also have ids of earlier runs. The ids of all ranks are sorted together;
each rank writes a contiguous range of rows.
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

from launcher.errors import DataError
from launcher.io import files
from launcher.serving.paddle_served.mapped_table import IDS, VECTORS

Ids = NDArray[np.uint64]
HEADER_BYTES = 4096
"""A whole page, so that no two ranks write to one page: a network file system may write pages as a whole."""
ALIGNED_ROWS = 1024  # these many rows fill whole pages of ids, and of vectors of any width
LOOKUP_ROWS = 1 << 18  # rows that are looked up and written at once


def create_table(folder: Path, rows: int, width: int) -> None:
    """Create `ids.npy` and `vectors.npy` in their final size, for all ranks to fill with `look_up_rows`."""
    folder.mkdir(parents=True)
    for name, shape, dtype in (
        (IDS, (rows,), np.dtype(np.uint64)),
        (VECTORS, (rows, width), np.dtype(np.float32)),
    ):
        with (folder / name).open("wb") as file:
            file.write(_npy_header(shape, dtype))
            file.truncate(HEADER_BYTES + int(np.prod(shape)) * dtype.itemsize)


def _npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the header of a .npy file, padded to HEADER_BYTES."""
    magic = b"\x93NUMPY\x01\x00"
    about = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    length = HEADER_BYTES - len(magic) - 2
    return magic + struct.pack("<H", length) + repr(about).ljust(length - 1).encode() + b"\n"


def select_range(ids_by_rank: Sequence[Ids], rank: int, ranks: int, checkpoint: str) -> tuple[int, Ids]:
    """Return the range of the sorted table that a rank writes: the first row, and the ids, ascending.

    The ids of each rank's servers, `ids_by_rank`, are ascending too.

    Raises:
        DataError: two ranks have the same id.
    """
    total = sum(map(len, ids_by_rank))
    first, last = _first_row(total, rank, ranks), _first_row(total, rank + 1, ranks)
    low, high = (_split_points(ids_by_rank, row, total) for row in (first, last))
    own = [ids[a:b] for ids, a, b in zip(ids_by_rank, low, high, strict=True)]
    merged = np.sort(np.concatenate([*own, np.zeros(0, np.uint64)]), kind="stable")  # merges sorted arrays
    if len(merged) != last - first or (merged[1:] == merged[:-1]).any():
        raise DataError(
            f"cannot export the model: the checkpoint {checkpoint} has an id twice, since two servers saved the same "
            f"row. Fix: remove the folder output/{checkpoint}, then start the run again; it uses an earlier checkpoint"
        )
    return first, merged


def _first_row(total: int, rank: int, ranks: int) -> int:
    return total if rank == ranks else total * rank // ranks // ALIGNED_ROWS * ALIGNED_ROWS


def _split_points(ids_by_rank: Sequence[Ids], rows: int, total: int) -> list[int]:
    """Return, for each rank, how many of its ids are among the `rows` smallest of all `total` ids."""
    if rows == total:
        return [len(ids) for ids in ids_by_rank]
    low, high = 0, (1 << 64) - 1
    while low < high:  # binary search for the smallest id that has `rows` ids below it
        middle = (low + high) // 2
        if sum(int(np.searchsorted(ids, np.uint64(middle))) for ids in ids_by_rank) < rows:
            low = middle + 1
        else:
            high = middle
    return [int(np.searchsorted(ids, np.uint64(low))) for ids in ids_by_rank]


def look_up_rows(
    folder: Path,
    first: int,
    ids: Ids,
    width: int,
    look_up: Callable[[NDArray[np.int64]], NDArray[np.float32]],
) -> float:
    """Look up the vectors of these ids, and write both from row `first` on; return the CPU seconds of `look_up`.

    `look_up` returns the vectors [ids, width] of some ids, given as int64 of the same bits.
    """
    spent = 0.0

    def vectors() -> Iterator[NDArray[np.float32]]:
        nonlocal spent
        for start in range(0, len(ids), LOOKUP_ROWS):
            began = time.process_time()
            found = look_up(ids[start : start + LOOKUP_ROWS].view(np.int64))
            spent += time.process_time() - began
            yield found

    write_rows(folder, first, width, ids, vectors())
    return spent


def write_rows(
    folder: Path, first: int, width: int, ids: Ids, vectors: Iterable[NDArray[np.float32]]
) -> None:
    """Write ids, and their vectors as arrays [n, width] in order, to the files in `folder` from row `first` on."""
    with (
        files.storage_errors(folder),
        (folder / IDS).open("r+b") as ids_file,
        (folder / VECTORS).open("r+b") as vectors_file,
    ):
        ids_file.seek(HEADER_BYTES + first * ids.itemsize)
        ids_file.write(np.ascontiguousarray(ids).data)
        vectors_file.seek(HEADER_BYTES + first * width * 4)
        for found in vectors:
            vectors_file.write(np.ascontiguousarray(found, np.float32).data)
        for file in (ids_file, vectors_file):
            file.flush()
            os.fsync(file.fileno())
