"""Read and write the binary file of one shard of an embedding table: `tables/<table>/shard-<number>.rows`.

A checkpoint has one such file for each shard of each table. All numbers in it are little-endian. The file has these
parts, one directly after the other; `rows` and `columns` are fields of the header:

    64 bytes                      the header, `HEADER`
    rows[0] x uint64              the ids of the rows with a vector, ascending
    rows[1] x uint64              the ids of the rows without a vector (not admitted yet), ascending
    rows[0] x columns[0] float32  the values of the rows with a vector, in the order of their ids
    rows[1] x columns[1] float32  the values of the rows without a vector, in the order of their ids

The values of a row are all numbers that the server has for this row; `RowShape` (server_tables.py) describes them. The
row with id k is in the shard with the number k modulo the number of shards.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from launcher.errors import DataError
from launcher.io import checkpoints
from launcher.schema import CheckpointContents, CheckpointFile
from launcher.serving.paddle_served.model import map_or_read
from launcher.trainer.server_tables import CHUNK_ROWS, Ids, RowShape, TableRows, Values

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("width", "<u4"),
        ("rule", "S8"),
        ("shard", "<u4"),
        ("shards", "<u4"),
        ("rows", "<u8", 2),
        ("columns", "<u4", 2),
        ("ids_crc32", "<u8"),
    ]
)
MAGIC, VERSION = b"PT-ROWS", 1


def file_name(table: str, shard: int) -> str:
    """Return the path, inside a checkpoint, of the file of a table's shard. The table's name is percent-encoded."""
    return f"tables/{quote(table, safe='')}/shard-{shard:05d}.rows"


def list_files(
    folder: Path, contents: CheckpointContents, table: str, shards: Iterable[int]
) -> list[tuple[Path, str | None]]:
    """Return the path and the sha256 of the file of each of these shards.

    Args:
        folder: the folder of the checkpoint.
        contents: the checkpoint's contents.json.
        table: name of the table.
        shards: numbers of the shards.

    Raises:
        DataError: contents.json does not list one of the files.
    """
    found = []
    for shard in shards:
        name = file_name(table, shard)
        if name not in contents.files:
            raise DataError(f"{name} is not listed in {checkpoints.CONTENTS}")
        found.append((folder / name, contents.files[name].sha256))
    return found


def write_shard(
    path: Path, shape: RowShape, shard: int, shards: int, groups: Sequence[tuple[Ids, Iterable[Values]]]
) -> CheckpointFile:
    """Write the file of a shard, and sync it to disk. Return the size and the sha256 of the file.

    Args:
        path: path of the file.
        shape: shape of the table's rows.
        shard: number of the shard.
        shards: number of all shards of the table.
        groups: first the rows with a vector, then the rows without a vector. Each group is a pair: the ids, ascending,
            and chunks of the values in the same order.

    Raises:
        DataError: the number of written values differs from the number of ids.
    """
    rows = [len(ids) for ids, _ in groups]
    crc32 = _crc32(ids for ids, _ in groups)
    about = (MAGIC, VERSION, shape.width, shape.rule.encode(), shard, shards, rows, shape.columns, crc32)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in (
            np.array(about, HEADER),
            *(ids for ids, _ in groups),
            *(c for _, each in groups for c in each),
        ):
            data = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
            digest.update(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    if size != _size(rows, shape):
        raise DataError(f"{path} has {size} bytes instead of {_size(rows, shape)}: rows were lost")
    return CheckpointFile(size, digest.hexdigest())


def _crc32(arrays: Iterable[Ids]) -> int:
    return reduce(lambda crc32, ids: zlib.crc32(ids.data, crc32), arrays, 0)


def _size(rows: Sequence[int], shape: RowShape) -> int:
    return HEADER.itemsize + sum(
        n * (8 + 4 * columns) for n, columns in zip(rows, shape.columns, strict=True)
    )


def _read_header(file: IO[bytes], path: Path, shape: RowShape) -> tuple[Any, list[int]]:
    """Read the header, and check that it fits `shape` and the size of the file.

    Return the header, and two numbers: of rows with a vector, and of rows without a vector.
    """
    content = file.read(HEADER.itemsize)
    if len(content) < HEADER.itemsize:
        raise DataError(f"{path} is truncated: it has {len(content)} bytes")
    about = np.frombuffer(content, HEADER)[0]
    if about["magic"] != MAGIC or about["version"] != VERSION:
        raise DataError(
            f"{path} is not a file of rows of version {VERSION}: it begins with {about['magic']!r}, version "
            f"{about['version']}"
        )
    saved = about["width"], about["rule"], tuple(about["columns"])
    if saved != (shape.width, shape.rule.encode(), shape.columns):
        raise DataError(
            f"{path} has rows of width {about['width']} of {about['rule']!r} with {about['columns'].tolist()} columns, "
            f"but must have those of {shape}"
        )
    rows = about["rows"].tolist()
    expected, size = _size(rows, shape), os.fstat(file.fileno()).st_size
    if size != expected:
        raise DataError(f"{path} has {size} bytes, but its header describes {rows} rows: {expected} bytes")
    return about, rows


def read_shard(
    path: Path, shape: RowShape, shards: int, sha256: str | None = None
) -> Iterator[tuple[Ids, Values]]:
    """Yield the ids and the values of at most CHUNK_ROWS rows at a time: first the rows with a vector, then the others.

    Args:
        path: path of the file.
        shape: shape of the table's rows.
        shards: number of all shards of the table.
        sha256: the sha256 that the file must have; None to skip this check. It is compared only after the last rows
            were yielded.

    Raises:
        DataError: the header does not fit `shape`, `shards`, or the name or the size of the file. Or ids are not
            ascending or belong to another shard. Or the sha256 differs.
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        about, rows = _read_header(file, path, shape)
        digest.update(about.tobytes())
        if about["shards"] != shards or file_name("", about["shard"]).rpartition("/")[2] != path.name:
            raise DataError(
                f"{path} has shard {about['shard']} of {about['shards']}, but must have one of {shards}"
            )

        def read(count: int, kind: str) -> NDArray[Any]:
            found = np.fromfile(file, kind, count)
            if len(found) < count:
                raise DataError(f"{path} became shorter while it was read")
            digest.update(found.data)
            return found

        groups = [read(n, "<u8") for n in rows]
        for ids in groups:
            if (ids % np.uint64(shards) != about["shard"]).any() or (ids[1:] <= ids[:-1]).any():
                raise DataError(f"{path} is damaged: its ids are not ascending, or belong to another shard")
        for ids, columns in zip(groups, shape.columns, strict=True):
            for first in range(0, len(ids), CHUNK_ROWS):
                chunk = ids[first : first + CHUNK_ROWS]
                yield chunk, read(len(chunk) * columns, "<f4").reshape(-1, columns)
    if sha256 not in (None, digest.hexdigest()):
        raise DataError(f"the content of {path.name} has changed since it was saved (its sha256 differs)")


def read_rows(
    entries: Iterable[tuple[Path, str | None]], shape: RowShape, shards: int
) -> Iterator[TableRows]:
    """Yield the ids and the vectors of all rows in some files of a table, in chunks.

    This raises the same errors as `read_shard`.

    Args:
        entries: the path of each file, and the sha256 that the file must have (None to skip this check).
        shape: shape of the table's rows.
        shards: number of all shards of the table.
    """
    for path, sha256 in entries:
        for ids, values in read_shard(path, shape, shards, sha256):
            yield TableRows(ids, shape.vectors(values))


def map_ids(path: Path, shape: RowShape, *, verify: bool) -> list[Ids]:
    """Return the ids in a file as at most two ascending arrays, memory-mapped if possible.

    Raises:
        DataError: the header is damaged; or, with `verify`, the ids do not have the checksum that the header contains.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        about, rows = _read_header(file, path, shape)
    found, offset = [], HEADER.itemsize
    for count in filter(None, rows):
        place = {"dtype": "<u8", "offset": offset}
        found.append(
            map_or_read(
                partial(np.memmap, path, mode="r", shape=count, **place),
                partial(np.fromfile, path, count=count, **place),
            )
        )
        offset += 8 * count
    if verify and _crc32(found) != about["ids_crc32"]:
        raise DataError(f"the ids in {path.name} have changed since they were saved (their checksum differs)")
    return found
