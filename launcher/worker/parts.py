"""The files in which Paddle's servers keep tables: tables/<id>/part-<server>-<shard>.gz, one row a line.

A sparse table has SHARD_FILES files a server; the row with key k is in shard k modulo the number of shards.
A line: `key slot unseen delta show click w[0] g g2 b1 b2 w[1:] g… g2… b1 b2`, where g, g2, b1 and b2 are the
state of Adam (moments, and powers of the betas). A row that was pushed only once may end behind the first b2.
Six digits, so what a server reads back differs from what it had by at most 5e-6 of each value.
The dense table has one file a server, part-<server>.gz, which may be empty.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher import files
from launcher.errors import DataError

SHARD_FILES = 4  # files a table and server at each save; Paddle's default of 1000 takes 5 s
TOLERANCE = 1e-5  # of a value: twice the error of six digits
FRESH = "0 0 0.9 0.999"  # the state of an Adam that has not stepped yet
WEIGHT, REST = 6, 11  # where w[0] and w[1:] begin in a line
_PART = re.compile(r"part-(\d+)(?:-(\d+))?(?:\.gz)?")


@dataclass(frozen=True)
class Part:
    """One file, as its own server's trainer read it back."""

    size: int
    sha256: str
    rows: dict[int, NDArray[np.float32]]
    """Its first and last row and one between, by key."""


def server(name: str) -> int | None:
    """The server that wrote this file of a save; None when it is no part of a table."""
    match = _PART.fullmatch(name.rpartition("/")[2])
    return int(match[1]) if match else None


def of_servers(folder: Path, servers: range) -> list[Path]:
    """The parts in `folder` that these servers wrote, by name."""
    return [folder / name for name in files.names(folder) if server(name) in servers]


def read_back(path: Path, width: int) -> Part:
    """Reads a whole file, to its checksum; `width` is 0 for the dense table. Raises `DataError`."""
    with path.open("rb") as file:
        os.fsync(file.fileno())  # the server only closed it
    lines = [line for block in _blocks(path) for line in {block[0], block[-1]}]
    wanted = {0, len(lines) // 2, len(lines) - 1} if width and lines else set()
    rows = dict(row(lines[n], width) for n in wanted)
    return Part(path.stat().st_size, files.sha256_file(path), rows)


def _blocks(path: Path) -> Iterator[list[bytes]]:
    """The whole lines of each block of a file."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            while lines := file.readlines(files.BLOCK):
                yield lines
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path.name} is torn: {error}") from error


def row(line: bytes, width: int) -> tuple[int, NDArray[np.float32]]:
    """Key and values of a line. What a row lacks reads as 0, as it does when the servers are asked."""
    fields = line.split()
    values = np.zeros(width, np.float32)
    try:
        found = [fields[WEIGHT], *fields[REST : REST + width - 1]]
        values[: len(found)] = np.array(found, np.float32)
        return int(fields[0]), values
    except (IndexError, ValueError) as error:
        raise DataError(f"a line of a table is no row of {width} values: {line[:80]!r}") from error


def read_table(folder: Path, rows: int, width: int) -> NDArray[np.float32]:
    """A whole table from its parts, shape [rows, width]; rows that were never touched are 0."""
    table = np.zeros((rows, width), np.float32)
    for name in files.names(folder):
        for lines in _blocks(folder / name):
            for line in lines:
                key, values = row(line, width)
                if key >= rows:
                    raise DataError(f"{folder / name} has the id {key}, but the table has {rows} rows")
                table[key] = values
    return table


def write_table(folder: Path, table: NDArray[np.float32], servers: int) -> None:
    """Writes the parts that `servers` servers load. Rows of 0 are left out: the servers make them anew."""
    folder.mkdir(parents=True)
    shards = SHARD_FILES * servers
    trained = np.flatnonzero(table.any(axis=1))
    for shard in range(shards):
        path = folder / f"part-{shard // SHARD_FILES:03d}-{shard:05d}.gz"
        with gzip.open(path, "wt", compresslevel=1, encoding="ascii") as file:
            for key in trained[trained % shards == shard]:
                values = [f"{value:.9g}" for value in table[key]]  # nine digits are a float32 exactly
                zeros = ["0 0"] * (len(values) - 1)
                line = [str(key), "0 0 0 0 0", values[0], FRESH, *values[1:], *zeros, "0.9 0.999"]
                file.write(" ".join(line) + "\n")


def differ(given: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Whether values are others than expected, beyond the digits that the servers write."""
    return given.shape != expected.shape or not np.allclose(given, expected, rtol=TOLERANCE, atol=1e-12)
