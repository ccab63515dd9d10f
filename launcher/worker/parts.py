"""The files in which Paddle's servers keep tables: tables/<id>/part-<server>-<shard>, one row a line.

A sparse table has one file a shard; the row with key k is in shard k modulo their number, which stays for a
whole run: any number of servers can load what others saved, each a stretch of the shards.
A line: `key slot unseen delta show click w[0] state w[1:] state`. Adam's state is `g… g2… b1 b2` (its moments
and powers of the betas), AdaGrad's `G…`; SGD has none. A row without a vector ends behind the first state.
Six digits, so what a server reads back differs from what it had by at most 5e-6 of each value.
The dense table has one file a server, part-<server>.gz, which may be empty: a line a number, `w state`, where
Adam's state is `g g2`. Behind it are the numbers that a server has once, on one that holds a single number.
All are compressed by gzip.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher import files
from launcher.errors import DataError
from launcher.worker.rules import Rule, state

SHARDS = 60
"""Of a table: it divides by 2, 3, 4, 5, 6, 10, 12, 15, 20 and 30 servers. Measured: 60 cost nothing beside 4,
240 on two servers doubled their CPU, and Paddle's default of 1000 takes 5 s a save."""
TOLERANCE = 1e-5  # of a value: twice the error of six digits
WEIGHT = 6  # where w[0] is in a line
STRETCH = 1 << 16  # rows
_PART = re.compile(r"part-(\d+)(?:-(\d+))?(?:\.gz)?")


class Rows(NamedTuple):
    """Rows of a table."""

    ids: NDArray[np.uint64]
    """Without 0; ascending in a whole table."""
    vectors: NDArray[np.float32]
    """Shape [ids, width]."""

    @classmethod
    def held(cls, table: NDArray[np.float32]) -> Rows:
        """Those of a plain array [rows, width], without rows of zeros: never trained, or padding."""
        ids = np.flatnonzero(table.any(axis=1))
        ids = ids[ids > 0]
        return cls(ids.astype(np.uint64), table[ids])

    @classmethod
    def whole(cls, stretches: Iterable[Rows], width: int) -> Rows:
        """All of them in one, ascending."""
        nothing = cls(np.zeros(0, np.uint64), np.zeros((0, width), np.float32))
        ids, vectors = map(np.concatenate, zip(nothing, *stretches, strict=True))
        order = np.argsort(ids)
        return cls(ids[order], vectors[order])

    def stretches(self) -> Iterator[Rows]:
        """The same rows, some at a time."""
        for at in range(0, len(self.ids), STRETCH):
            yield Rows(self.ids[at : at + STRETCH], self.vectors[at : at + STRETCH])


@dataclass(frozen=True)
class Part:
    """One file, as its own server's trainer read it back."""

    size: int
    sha256: str
    rows: dict[int, NDArray[np.float32]]
    """Its first and last row and one between, by key."""
    keys: NDArray[np.uint64]
    """Of all its rows."""


def server(name: str) -> int | None:
    """The server that wrote this file of a save; None when it is no part of a table."""
    match = _PART.fullmatch(name.rpartition("/")[2])
    return int(match[1]) if match else None


def shard(name: str) -> int | None:
    """The shard of a sparse table that this file of a save has."""
    match = _PART.fullmatch(name.rpartition("/")[2])
    return int(match[2]) if match and match[2] else None


def of_servers(folder: Path, servers: range) -> list[Path]:
    """The parts in `folder` that these servers wrote, by name."""
    return [folder / name for name in files.names(folder) if server(name) in servers]


def shards(servers: int) -> int:
    """The shards of a run that begins with so many servers: two or more each, so that it may grow."""
    if 2 * servers <= SHARDS and suits(SHARDS, servers):
        return SHARDS
    return servers * max(2, -(-SHARDS // servers))


def suits(shards: int, servers: int) -> bool:
    """Whether each of so many servers has a shard: one without reads beyond its list of files at a load."""
    return bool(held(shards, servers, servers - 1))


def held(shards: int, servers: int, server: int) -> range:
    """The shards of one of so many servers, as Paddle deals them out: the last one may have fewer."""
    each = -(-shards // servers)
    return range(min(shards, each * server), min(shards, each * (server + 1)))


def read_back(path: Path, width: int, rule: str = "adam") -> Part:
    """Reads a whole file, to its checksum; `width` is 0 for the dense table. Raises `DataError`."""
    with path.open("rb") as file:
        os.fsync(file.fileno())  # the server only closed it
    lines: list[bytes] = []
    keys = [np.zeros(0, np.uint64)]
    for block in _blocks(path):
        lines += {block[0], block[-1]}
        if width:
            keys.append(_keys(block))
    wanted = {0, len(lines) // 2, len(lines) - 1} if width and lines else set()
    rows = dict(row(lines[n], width, rule) for n in wanted)
    return Part(path.stat().st_size, files.sha256_file(path), rows, np.concatenate(keys))


def _keys(lines: list[bytes]) -> NDArray[np.uint64]:
    try:
        return np.array([int(line[: line.index(b" ")]) for line in lines], np.uint64)
    except (ValueError, OverflowError) as error:
        raise DataError(f"a line of a table begins with no key: {error}") from error


def _blocks(path: Path) -> Iterator[list[bytes]]:
    """The whole lines of each block of a file."""
    if not path.stat().st_size:  # of no rows gzip makes a header; this is what a full volume leaves
        raise DataError(f"{path.name} is torn: it has no byte")
    try:
        with gzip.open(path, "rb") as file:
            while lines := file.readlines(files.BLOCK):
                yield lines
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path.name} is torn: {error}") from error


def row(line: bytes, width: int, rule: str = "adam") -> tuple[int, NDArray[np.float32]]:
    """Key and values of a line. What a row lacks reads as 0, as it does when the servers are asked."""
    rest = WEIGHT + 1 + state(rule, 1)
    fields = line.split()
    values = np.zeros(width, np.float32)
    try:
        found = [fields[WEIGHT], *fields[rest : rest + width - 1]]
        values[: len(found)] = np.array(found, np.float32)
        return int(fields[0]), values
    except (IndexError, ValueError) as error:
        raise DataError(f"a line of a table is no row of {width} values: {line[:80]!r}") from error


def read_rows(paths: Iterable[Path], width: int, rule: str = "adam") -> Iterator[Rows]:
    """The rows of these files, a stretch at a time, as they stand there: in no order."""
    for path in paths:
        for lines in _blocks(path):
            keys, values = zip(*(row(line, width, rule) for line in lines), strict=True)
            yield Rows(np.array(keys, np.uint64), np.stack(values))


def write_table(
    folder: Path, table: Iterable[Rows], rule: Rule, own: Mapping[int, int], *, width: int, shards: int
) -> Rows:
    """Writes parts as servers load them, with optimizers that have not stepped yet. Returns some of the rows.

    `own`: the shards to write, and the server of each; rows of others are passed over.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first, rest = rule.fresh(1), rule.fresh(width - 1)
    # Nine digits are a float32 exactly.
    line = " ".join(["%d 0 0 0 0 0 %.9g", *first, *["%.9g"] * (width - 1), *rest]) + "\n"
    some: list[Rows] = []
    with contextlib.ExitStack() as stack:
        opened = {}
        for shard, server in own.items():
            path = folder / f"part-{server:03d}-{shard:05d}"
            opened[shard] = stack.enter_context(gzip.open(path, "wt", compresslevel=1, encoding="ascii"))
        for stretch in table:
            place = stretch.ids % np.uint64(shards)
            for shard, file in opened.items():
                at = np.flatnonzero(place == shard)
                ids, vectors = stretch.ids[at], stretch.vectors[at]
                some.append(Rows(ids[:1], vectors[:1]))
                pairs = zip(ids.tolist(), vectors.tolist(), strict=True)
                file.writelines(line % (key, *values) for key, values in pairs)
    return Rows.whole(some, width)


def deal_dense(source: Path, folder: Path, rule: Rule, servers: int) -> None:
    """Writes the dense table's parts in `source` as so many servers load them.

    Paddle 2.6.2 reads the files of other servers by itself, but ends at the form that a single number has.
    """
    folder.mkdir(parents=True)
    columns = {"adam": 3, "sgd": 1}[rule.kind]
    once = {"adam": [rule.beta1, rule.beta2, rule.rate], "sgd": [rule.rate]}[rule.kind]
    paths = [source / name for name in files.names(source)]
    lines = [line.split()[:columns] for path in paths for block in _blocks(path) for line in block]
    each = len(lines) // servers + 1
    for server in range(servers):
        own = lines[server * each : (server + 1) * each]
        if len(own) == 1:
            own = [[*own[0], *(f"{value:.9g}".encode() for value in once)]]
        with gzip.open(folder / f"part-{server:03d}.gz", "wb", compresslevel=1) as file:
            file.writelines(b" ".join(line) + b"\n" for line in own)


def differ(given: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Whether values are others than expected, beyond the digits that the servers write."""
    return given.shape != expected.shape or not np.allclose(given, expected, rtol=TOLERANCE, atol=1e-12)
