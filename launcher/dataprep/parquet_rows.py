"""Read Parquet and Arrow files as sources of the data Job, and write and read their rows in shards.

This is for `data.format: parquet`. A shard's file is a series of Arrow streams, each with its schema, one record batch
and an end marker. So the parts of a shard are joined like text, by appending their bytes. Values keep the types that
they have in the source.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from launcher.dataprep.row_splitters import LineSplitter
from launcher.errors import DataError, SettingsError
from launcher.io import cgroup_memory
from launcher.io.files import storage_errors
from launcher.io.helper_protocol import main
from launcher.log import log

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as missing:
    raise SettingsError(
        f"data.format is parquet, but pyarrow cannot be loaded here ({missing}). Fix: pip install pyarrow, in an image "
        "of your own too"
    ) from missing

BATCH_ROWS = 1 << 16
BATCH_BYTES = 32 << 20
"""A row group is read in batches of at most BATCH_ROWS rows and about BATCH_BYTES bytes, so that few rows are in memory
at once."""
DICT_ROWS = 4096
"""Largest number of rows whose values are Python objects at the same time: Python objects need many times the memory of
a record batch."""
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


class ParquetReader:
    """Reads rows of Parquet and Arrow files, all with the same columns, as record batches."""

    def __init__(self, columns: Sequence[str | int]) -> None:
        """Prepare to read files.

        `columns` are the names or indexes (from 0) of the columns to read; empty means all columns.
        """
        self._columns = columns
        self.names: list[str] = []
        """Name and type of each column of the first file."""
        self._chosen: list[str] = []
        """Names of the chosen columns of the file that is being read."""

    def batches(
        self, path: Path, name: str, begin: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of those row groups of a file that start at the bytes `begin` to `end` (excluded).

        It is unknown where the record batches of an Arrow file start. So the range from byte 0 on yields all rows of an
        Arrow file, and other ranges yield none.

        Args:
            path: the file.
            name: name of the file in messages.
            begin: first byte of the range.
            end: the byte after the range; None: the end of the file.

        Raises:
            DataError: the file is damaged, is neither Parquet nor Arrow, or has other columns than the file before it;
                a chosen column is not in the file exactly once; or a row group needs more than half of the memory. The
                message has the file, and for an error in a row group the number of the row group, from 0.
            StorageError, StorageFailedError: the storage failed.
        """
        try:
            with storage_errors(path), path.open("rb") as file:
                yield from (self._checked(rows, name) for rows in self._rows(file, name, begin, end))
        except (
            pa.ArrowException,
            OSError,
            ValueError,
        ) as error:  # OSError: how Parquet reports damaged pages
            why = str(error).partition("\n")[0][:300]
            raise DataError(
                f"{name} is damaged, or has something that pyarrow cannot read ({why}). Fix: replace it by the "
                "complete file."
            ) from error

    def _rows(
        self, file: io.BufferedReader, name: str, begin: int, end: int | None
    ) -> Iterator[pa.RecordBatch]:
        head, self._chosen = file.peek(), []
        if head.startswith(_PARQUET):
            yield from self._row_groups(
                pq.ParquetFile(file, page_checksum_verification=True), name, begin, end
            )
        elif not head.startswith((_ARROW_FILE, _ARROW_STREAM)):
            raise DataError(
                f"{name} is neither a Parquet nor an Arrow file. Fix: set data.format to the format of the files, or "
                "move this one out of the folder."
            )
        elif begin == 0 and head.startswith(_ARROW_STREAM):
            yield from pa.ipc.open_stream(file)
        elif begin == 0:
            reader = pa.ipc.open_file(file)
            yield from map(reader.get_batch, range(reader.num_record_batches))

    def _row_groups(
        self, parquet: pq.ParquetFile, name: str, begin: int, end: int | None
    ) -> Iterator[pa.RecordBatch]:
        chosen = self._choose(parquet.schema_arrow.names, name)
        memory = cgroup_memory.usable_bytes()
        for number in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(number)
            first = group.column(0)
            start = min(filter(None, (first.dictionary_page_offset, first.data_page_offset)), default=0)
            if start < begin or (end is not None and start >= end):
                continue
            if group.total_byte_size > memory // 2:
                raise DataError(
                    f"{name}: row group {number} has {group.total_byte_size:,} bytes, more than half of this pod's "
                    "memory. Fix: increase data.resources.limits.memory, or write the file with smaller row groups."
                )
            each = max(1, group.total_byte_size // max(1, group.num_rows))
            size = max(1, min(BATCH_ROWS, BATCH_BYTES // each))
            try:
                yield from parquet.iter_batches(size, row_groups=[number], columns=chosen, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise pa.ArrowInvalid(f"in row group {number}: {error}") from error

    def _checked(self, rows: pa.RecordBatch, name: str) -> pa.RecordBatch:
        """Return the chosen columns of `rows`, without dictionaries and views.

        Raise `DataError` if names or types differ from those of the first file.
        """
        names = self._chosen or self._choose(rows.schema.names, name)
        arrays = [one.cast(_plain_type(one.type)) for one in map(rows.column, names)]
        found = [f"{column} ({one.type})" for column, one in zip(names, arrays, strict=True)]
        if self.names and found != self.names:
            differ = [(a, b) for a, b in zip(found, self.names, strict=False) if a != b][:3]
            raise DataError(
                f"{name} has other columns than the file before it: {differ or (len(found), len(self.names))}. Fix: "
                "write all files with the same names and types, or list names in data.columns."
            )
        self.names = found
        rows.validate(full=True)  # this also checks that texts are UTF-8
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _choose(self, names: Sequence[str], name: str) -> list[str]:
        """Return the names of the chosen columns of a file with these `names`."""
        columns = self._columns or names
        known = [names[one] if isinstance(one, int) and one < len(names) else one for one in columns]
        if wrong := [one for one in known if known.count(one) + names.count(one) != 2]:
            raise DataError(
                f"{name} does not have the column {wrong[0]!r} exactly once; its columns are {', '.join(names[:50])}. "
                "Fix: list columns of the file in data.columns, each once, or rename columns of the file."
            )
        if not known:
            raise DataError(f"{name} has no columns. Fix: replace it by a file with rows.")
        self._chosen = [str(one) for one in known]
        return self._chosen


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the plain type to which a column of the type `kind` is converted.

    A dictionary becomes an array of its values, and a view becomes a usual array: pyarrow cannot choose rows of views,
    which polars writes. Other types stay the same.
    """
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_plain_type(kind.value_type)))
    return {"string_view": pa.string(), "binary_view": pa.binary()}.get(str(kind), kind)


def encode_rows(rows: pa.RecordBatch) -> bytes:
    """Return rows as the bytes of one Arrow stream, as shards have them; no bytes if there are no rows."""
    if not rows.num_rows:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def read_shard(path: Path, begin: int = 0, end: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the record batches whose Arrow streams start at the bytes `begin` to `end` (excluded) of a shard's file.

    `end` None means the end of the file.

    Raises:
        DataError: the file is damaged.
    """
    if not path.stat().st_size:
        return
    try:
        with pa.memory_map(str(path)) as file:
            last = file.size() if end is None else min(end, file.size())
            while (start := file.tell()) < last:
                if start >= begin:
                    yield from pa.ipc.open_stream(file)
                else:
                    for _ in pa.ipc.MessageReader.open_stream(file):
                        pass
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is damaged, or no shard of data.format parquet ({error}). Fix: start the run again with another "
            "runId, which makes its data again."
        ) from error


def estimate_rows(shard: Path) -> int:
    """Return an estimate of the number of rows of a shard's file, from the size of its first record batch."""
    with pa.memory_map(str(shard)) as file:
        first: int = sum(batch.num_rows for batch in pa.ipc.open_stream(file))
        return -(-int(file.size()) * max(1, first) // int(file.tell()))


def regroup(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in record batches of `rows` rows each; the last batch may have fewer."""
    waiting, count = list[pa.RecordBatch](), 0
    for batch in batches:
        left = batch
        while left.num_rows:
            waiting.append(left.slice(0, rows - count))
            count += waiting[-1].num_rows
            left = left.slice(waiting[-1].num_rows)
            if count == rows:
                yield pa.concat_batches(waiting)
                waiting, count = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def row_dicts(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield each row as {column: value}; a missing value is an empty text, as in csv."""
    for start in range(0, rows.num_rows, DICT_ROWS):
        columns = [_values(column) for column in rows.slice(start, DICT_ROWS).columns]
        yield from (
            dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True)
        )


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    # Python's times have microseconds. Without this, pyarrow rejects times with a fraction of a microsecond.
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
    elif pa.types.is_duration(kind) and kind.unit == "ns":
        column = column.cast(pa.duration("us"), safe=False)
    elif pa.types.is_time64(kind) and kind.unit == "ns":
        column = column.cast(pa.time64("us"), safe=False)
    return ["" if one is None else one for one in column.to_pylist()]


def _has_large_numbers(column: pa.Array) -> bool:
    least, most = pc.min_max(column).as_py().values()
    return least is not None and max(-least, most) > 2**53


def column_arrays(rows: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns by name: numbers and truth values as a numpy array [rows], other values as a list.

    A missing value is NaN in an array, and an empty text in a list.

    Raises:
        DataError: a column of integers has missing values, and numbers that are too large to be exact next to NaN.
    """
    found = {}
    for name, values in zip(rows.schema.names, rows.columns, strict=True):
        column = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            if column.null_count and pa.types.is_integer(column.type) and _has_large_numbers(column):
                raise DataError(
                    f"column {name} has missing values, and numbers beyond 2**53, which are not exact next to NaN. "
                    "Fix: write a number for missing values, or remove parse_columns() from the program"
                )
            found[name] = column.to_numpy(zero_copy_only=False)
        else:
            found[name] = _values(column)
    return found


def write_parquet(batches: Iterable[pa.RecordBatch], target: Path) -> int:
    """Write record batches to the Parquet file `target`; return the number of rows. Without batches, write no file."""
    writer, count = None, 0
    with storage_errors(target):
        for batch in batches:
            writer = writer or pq.ParquetWriter(target, batch.schema)
            writer.write_batch(batch)
            count += batch.num_rows
        if writer is not None:
            writer.close()
    return count


class ParquetSplitter(LineSplitter):
    """Splits record batches in the same way as `LineSplitter` splits lines: row n goes to the same shard as line n."""

    def rows(self, block: Any) -> pa.RecordBatch:
        """Return the rows of a block; here a block is a record batch, so this is the block itself."""
        return block

    def select(self, rows: Any, chosen: npt.NDArray[Any]) -> pa.RecordBatch:
        """Return the rows at the indexes `chosen`, an integer array."""
        return rows.take(pa.array(chosen.astype(np.int64)))

    def piece(self, rows: Any) -> bytes:
        """Return rows as the bytes that a shard has for them."""
        return encode_rows(rows)

    def read_back(self, path: Path) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file in batches. The file must consist of bytes that the method `piece` returned."""
        return read_shard(path)


def convert(request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the rows of staged shards to Parquet files, and remove the staged files; runs in a helper process.

    `request` is {path of a shard's file: path of the Parquet file}.
    """
    for shard, target in request.items():
        rows = write_parquet(read_shard(Path(shard)), Path(target))
        log.info("wrote %d rows to %s", rows, target)
        Path(shard).unlink()
    return {}


if __name__ == "__main__":
    main(convert)
