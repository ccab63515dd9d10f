"""The tables of Paddle's servers: their optimizers, their shards, and the files in which servers save them.

The optimizers are these rules of Paddle's servers:

- adam: SparseAdamSGDRule, which is Paddle's Adam operator with a step count for each row, except that epsilon is not
  multiplied by sqrt(1 - beta2^steps).
- sgd: SparseNaiveSGDRule, w -= rate x gradient.
- adagrad: StdAdaGradSGDRule, for each element w -= rate x g / sqrt(initial + G), then G += g². So a gradient
  changes G from the next step on. g is the mean over the id's occurrences in one push.

The files are tables/<table id>/part-<server>-<shard>.

Sparse tables (embeddings) have one file per shard. The row with id k is in shard k modulo the number of
shards, which is constant for a whole run. Each server loads a contiguous range of shards, so another number of
servers can load what one number saved, if each of them gets at least one shard. A line is one row:

    id slot unseen_days delta_score show click w[0] state w[1:] state

The optimizer's state of n values is `g… g2… b1 b2` for Adam (n first moments, n second moments, the powers of
both betas), `G…` for AdaGrad (n sums of squares), and nothing for SGD. A row without a vector ends after the
state of w[0]. Values have six significant digits, so a value that is read back differs from the server's by
at most 5e-6 of it.

The dense table (all other parameters) has one file per server, part-<server>.gz, which may have no lines. A
line is one number: `w state`, where Adam's state is `g g2`. If a server holds a single
number, its line also has the values that Paddle keeps once per server: Adam's betas and the learning rate.

All files are compressed with gzip.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.errors import DataError
from launcher.io import files

DEFAULT_SHARDS = 60
"""Shards of a table. 60 is divisible by 2, 3, 4, 5, 6, 10, 12, 15, 20 and 30 servers. Measured: 60 shards cost
nothing compared to 4; 240 doubled the CPU of two servers; Paddle's default of 1000 takes 5 s per save."""
TOLERANCE = 1e-5
"""Largest accepted relative difference of a value: twice the error of six significant digits."""
PARAMETERS, TABLES = "params.npz", "tables"
"""Names of the file with the dense parameters, and of the folder with the tables' folders, in a checkpoint."""
FIRST_WEIGHT = 6  # column of w[0] in a line
CHUNK_ROWS = 1 << 16
_NAME = re.compile(r"part-(\d+)(?:-(\d+))?(?:\.gz)?")


@dataclass(frozen=True)
class OptimizerRule:
    """Holds the kind of an optimizer (adam, sgd or adagrad) and its numbers, such as the learning rate."""

    kind: str
    """adam, sgd or adagrad."""
    rate: float
    beta1: float = 0.0
    beta2: float = 0.0
    epsilon: float = 0.0
    initial: float = 0.0
    """Initial value of adagrad's accumulators."""

    def fresh(self, width: int) -> list[str]:
        """Return the optimizer state of `width` values before their first step, as the texts in a table's file."""
        if self.kind != "adam":
            return ["0"] * state_size(self.kind, width)
        return [*["0"] * (2 * width), f"{self.beta1:.9g}", f"{self.beta2:.9g}"]


def state_size(kind: str, width: int) -> int:
    """Return how many numbers of optimizer state follow the `width` values of a saved embedding row."""
    return {"adam": 2 * width + 2, "sgd": 0, "adagrad": width}[kind]


@dataclass(frozen=True)
class EmbeddingTable:
    """Describes one float32 embedding table by the arguments of the program's call of `Job.embedding`."""

    name: str
    width: int
    spread: float
    rule: OptimizerRule | None
    """The table's own optimizer; None: the one that the program's optimizer() returns."""
    admit: int
    evict: int | None


class TableRows(NamedTuple):
    """Holds some rows of an embedding table: ids and their vectors."""

    ids: NDArray[np.uint64]
    """Shape [rows]. Never contains 0, which is padding. Ascending when the object holds a complete table."""
    vectors: NDArray[np.float32]
    """Shape [rows, width]."""

    @classmethod
    def concatenate(cls, chunks: Iterable[TableRows], width: int) -> TableRows:
        """Return the rows of all chunks, sorted by id."""
        nothing = cls(np.zeros(0, np.uint64), np.zeros((0, width), np.float32))
        ids, vectors = map(np.concatenate, zip(nothing, *chunks, strict=True))
        order = np.argsort(ids)
        return cls(ids[order], vectors[order])

    def chunks(self) -> Iterator[TableRows]:
        """Yield the same rows, at most CHUNK_ROWS at a time."""
        for first in range(0, len(self.ids), CHUNK_ROWS):
            yield TableRows(self.ids[first : first + CHUNK_ROWS], self.vectors[first : first + CHUNK_ROWS])


@dataclass(frozen=True)
class TableFile:
    """Size, sha256, ids and sample rows of a table's file, read back after a server wrote it."""

    size: int
    """Bytes of the compressed file."""
    sha256: str
    samples: dict[int, NDArray[np.float32]]
    """Three rows: the first, one near the middle, and the last. id → values of shape [width]. Empty for the dense table
    and for a table without rows."""
    ids: NDArray[np.uint64]
    """The ids of all rows, in the order of the file; empty for the dense table, whose lines have no ids."""


def server_of(name: str) -> int | None:
    """Return the number of the server that wrote a checkpoint's file; None when it is not a table's file."""
    match = _NAME.fullmatch(name.rpartition("/")[2])
    return int(match[1]) if match else None


def shard_of(name: str) -> int | None:
    """Return the shard of a sparse table that a checkpoint's file holds; None for all other files."""
    match = _NAME.fullmatch(name.rpartition("/")[2])
    return int(match[2]) if match and match[2] else None


def files_of_servers(folder: Path, servers: range) -> list[Path]:
    """Return the files in a table's folder that these servers wrote, sorted by name."""
    return [folder / name for name in files.list_names(folder) if server_of(name) in servers]


def choose_shard_count(servers: int) -> int:
    """Return the number of shards for a new run: at least two per server, so that servers can be added."""
    if 2 * servers <= DEFAULT_SHARDS and every_server_has_shards(DEFAULT_SHARDS, servers):
        return DEFAULT_SHARDS
    return servers * max(2, -(-DEFAULT_SHARDS // servers))


def every_server_has_shards(shards: int, servers: int) -> bool:
    """Return whether each server gets a shard. A server without one reads beyond its list of files."""
    return bool(shards_of_server(shards, servers, servers - 1))


def usable_ports_nums(shards: int, trainers: int) -> list[int]:
    """Return every portsNum with which all of the portsNum x trainers servers get a shard."""
    return [n for n in range(1, shards // trainers + 1) if every_server_has_shards(shards, n * trainers)]


def shards_of_server(shards: int, servers: int, server: int) -> range:
    """Return the shards that Paddle assigns to a server. The last server may get fewer than the others."""
    each = -(-shards // servers)
    return range(min(shards, each * server), min(shards, each * (server + 1)))


def read_table_file(path: Path, width: int, rule: str = "adam") -> TableFile:
    """Sync a saved table's file to disk, read it to its end, and return what it holds.

    Reading to the end verifies gzip's checksum.

    Args:
        width: length of the table's vectors; 0 for the dense table.
        rule: kind of the table's optimizer, which decides how many numbers of state a row has.

    Raises:
        DataError: the file is truncated or damaged, or a line does not begin with an id.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())  # the server closed the file, but did not sync it
    lines: list[bytes] = []
    ids = [np.zeros(0, np.uint64)]
    for block in _read_blocks(path):
        lines += [block[0], block[len(block) // 2], block[-1]]
        if width:
            ids.append(_parse_ids(path, block))
    sampled = (0, len(lines) // 2, len(lines) - 1) if width and lines else ()
    samples = dict(parse_row(path, lines[n], width, rule) for n in sampled)
    return TableFile(path.stat().st_size, files.sha256_file(path), samples, np.concatenate(ids))


def _parse_ids(path: Path, lines: list[bytes]) -> NDArray[np.uint64]:
    try:
        return np.array([int(line[: line.index(b" ")]) for line in lines], np.uint64)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path} has a line that does not begin with an id: {error}") from error


def _read_blocks(path: Path) -> Iterator[list[bytes]]:
    """Yield the lines of a file, about a MiB at a time."""
    if not path.stat().st_size:  # gzip writes a header even for no rows; a full volume leaves 0 bytes
        raise DataError(f"{path} is truncated: it has 0 bytes")
    try:
        with gzip.open(path, "rb") as file:
            while lines := file.readlines(files.BLOCK):
                yield lines
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is truncated or damaged: {error}") from error


def parse_row(path: Path, line: bytes, width: int, rule: str = "adam") -> tuple[int, NDArray[np.float32]]:
    """Return id and values [width] of a line of the file `path`. Values that a row lacks are 0, as in the servers.

    Raises:
        DataError: the line is not a row of a table.
    """
    rest = FIRST_WEIGHT + 1 + state_size(rule, 1)
    columns = line.split()
    values = np.zeros(width, np.float32)
    try:
        found = [columns[FIRST_WEIGHT], *columns[rest : rest + width - 1]]
        values[: len(found)] = np.array(found, np.float32)
        return int(columns[0]), values
    except (IndexError, ValueError) as error:
        raise DataError(
            f"{path} has a damaged line, which is not an id and the numbers of a row: {line[:80]!r}"
        ) from error


def read_rows(paths: Iterable[Path], width: int, rule: str = "adam") -> Iterator[TableRows]:
    """Yield the rows of these files, about a MiB of text at a time, in the order of the files.

    Raises:
        DataError: a file is truncated or damaged.
    """
    for path in paths:
        for lines in _read_blocks(path):
            ids, values = zip(*(parse_row(path, line, width, rule) for line in lines), strict=True)
            yield TableRows(np.array(ids, np.uint64), np.stack(values))


def write_table(
    folder: Path,
    table: Iterable[TableRows],
    rule: OptimizerRule,
    server_of_shard: Mapping[int, int],
    *,
    width: int,
    shards: int,
) -> TableRows:
    """Write a table's files as servers load them, with the optimizer's state before its first step.

    `server_of_shard` has the shards to write, and the server that loads each. Rows of other shards are skipped.

    Returns:
        The first row of each chunk and shard, for a later comparison with the servers' answers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first, rest = rule.fresh(1), rule.fresh(width - 1)
    # Nine digits represent a float32 exactly.
    line = " ".join(["%d 0 0 0 0 0 %.9g", *first, *["%.9g"] * (width - 1), *rest]) + "\n"
    samples: list[TableRows] = []
    with contextlib.ExitStack() as stack:
        opened = {}
        for shard, server in server_of_shard.items():
            path = folder / f"part-{server:03d}-{shard:05d}"
            opened[shard] = stack.enter_context(gzip.open(path, "wt", compresslevel=1, encoding="ascii"))
        for chunk in table:
            shard_of_row = chunk.ids % np.uint64(shards)
            for shard, file in opened.items():
                at = np.flatnonzero(shard_of_row == shard)
                ids, vectors = chunk.ids[at], chunk.vectors[at]
                samples.append(TableRows(ids[:1], vectors[:1]))
                pairs = zip(ids.tolist(), vectors.tolist(), strict=True)
                file.writelines(line % (id_, *values) for id_, values in pairs)
    return TableRows.concatenate(samples, width)


def redistribute_dense(source: Path, folder: Path, rule: OptimizerRule, servers: int) -> None:
    """Read the dense table's files in `source`, and write them to the new folder `folder`, one file for each server.

    `servers` is the number of servers that load them, which differs from the number of servers that saved them.

    Paddle 2.6.2 can read the files of another number of servers itself, but fails on the line format of a
    server that holds a single number.
    """
    folder.mkdir(parents=True)
    columns = {"adam": 3, "sgd": 1}[rule.kind]
    once = {"adam": [rule.beta1, rule.beta2, rule.rate], "sgd": [rule.rate]}[rule.kind]
    paths = [source / name for name in files.list_names(source)]
    lines = [line.split()[:columns] for path in paths for block in _read_blocks(path) for line in block]
    each = len(lines) // servers + 1
    for server in range(servers):
        own = lines[server * each : (server + 1) * each]
        if len(own) == 1:
            own = [[*own[0], *(f"{value:.9g}".encode() for value in once)]]
        with gzip.open(folder / f"part-{server:03d}.gz", "wb", compresslevel=1) as file:
            file.writelines(b" ".join(line) + b"\n" for line in own)


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a .npz file, by name."""
    with files.storage_errors(path), np.load(path) as found:
        return {name: found[name] for name in found.files}


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the hex sha256 of names, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name}{arrays[name].shape}".encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()


def values_differ(given: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Return whether two arrays differ in shape, or in a value by more than TOLERANCE (relative)."""
    return given.shape != expected.shape or not np.allclose(given, expected, rtol=TOLERANCE, atol=1e-12)
