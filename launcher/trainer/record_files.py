"""Parse rows to records of a fixed size, write the records to files, and read them in shuffled batches.

<work dir>/records/<train|test>/
├── 00000-0.rec, 00001-0.rec, …    at most FILE_ROWS records each; a record has all inputs of one row
└── index.json                     a digest of the records' sources, and each file's rows and CRC32; written last

The files are memory-mapped. The memory that reading takes depends on WINDOW_FILES and on the batch size, but not on the
number of rows.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher import row_division
from launcher.dataprep.csv_records import RowPlaces, split_fields
from launcher.errors import DataError, UnfitError
from launcher.io import files
from launcher.program import Ids, Real
from launcher.row_division import Part
from launcher.serving.paddle_served import model as served_model
from launcher.serving.paddle_served.model import map_or_read
from launcher.trainer.program_loader import TrainingProgram, with_fix

Arrays = dict[str, NDArray[Any]]
"""The inputs of some rows: name of an input → array of shape [rows, length or width]."""
SHOWN_CHARACTERS = 120  # longest part of a row in a message
ROW_FIX = "correct the row, or parse()"


def record_dtype(inputs: Mapping[str, Ids | Real]) -> np.dtype[Any]:
    """Return the numpy type of a record, which has one field for each input.

    The field of an `Ids` is int64 [length], the field of a `Real` is float32 [width].
    """
    return np.dtype(
        [
            (name, "<i8", (kind.length,)) if isinstance(kind, Ids) else (name, "<f4", (kind.width,))
            for name, kind in inputs.items()
        ]
    )


def split_inputs(records: NDArray[Any]) -> Arrays:
    """Return one contiguous array for each input, with the values of all records.

    The values of two or more records are copied. The arrays of a single record may be views of `records`.
    """
    return {name: np.ascontiguousarray(records[name]) for name in records.dtype.names or ()}


def no_usable_rows(name: str, program: TrainingProgram, skipped: int) -> DataError:
    """Return the error for a file without usable rows. The file is empty (`skipped` is 0), or parse() skipped all rows.

    Args:
        name: name of the file.
        program: the training program.
        skipped: number of rows that parse() skipped.
    """
    if not skipped:
        return DataError(f"{name} has no rows. Fix: check the data.")
    return DataError(
        f"{name}: the program {program.path.name} cannot use any row of it, because parse() skipped all "
        f"{skipped} rows. Fix: check the data, or parse()."
    )


Row = str | Mapping[str, Any]
"""A row of the data: a line of text, or {column: value} for a row of a Parquet file."""


def choose_columns(
    given: Mapping[str, Any], program: TrainingProgram, places: RowPlaces
) -> Mapping[str, Any]:
    """Choose the program's columns from the columns of a file. Return {column of the program: its entry in `given`}.

    Columns are matched by name. If the file lacks a name, but has as many columns as the program, all columns are
    matched by position instead.

    Args:
        given: column of the file → a value or an array.
        program: the training program.
        places: the file, for messages.

    Raises:
        DataError: a name is missing, and the numbers of columns differ.
    """
    columns = program.columns
    try:
        return {column: given[column] for column in columns}
    except KeyError as error:
        if len(columns) != len(given):
            raise DataError(
                f"{places.name} has the {len(given)} columns {_shorten(', '.join(given), 500)}, but the program "
                f"{program.path.name} reads {len(columns)}: {_shorten(', '.join(columns), 500)}. Fix: name the file's "
                "columns in COLUMNS of the program, or choose as many with data.columns"
            ) from error
    return dict(zip(columns, given.values(), strict=True))


def read_row(line: Row, program: TrainingProgram, places: RowPlaces, number: int) -> Mapping[str, Any]:
    """Split a row into the program's columns. Return {column: text}, or {column: value} for a program with TYPED.

    Args:
        line: the row.
        program: the training program.
        places: the file, for messages.
        number: number of the row, from 1, for messages.

    Raises:
        DataError: the row does not have the program's columns, or its values cannot be converted to texts.
    """
    columns, typed = program.columns, getattr(program.module, "TYPED", False)
    if not isinstance(line, str):
        row = choose_columns(line, program, places)
        if typed:
            return row
        return {column: _as_text(value, column, places) for column, value in row.items()}
    if typed:
        raise DataError(
            f"{places.name} has texts, but parse() of {program.path.name} takes typed values (TYPED). Fix: set "
            "data.format to parquet, or remove TYPED and parse the texts"
        )
    try:
        parts = split_fields(line)
    except ValueError as error:
        raise DataError(
            f"{places.describe(number)}: {error}. The row: {_quote(line)}. Fix: if the source is csv, set "
            "data.format to csv (the data Job then escapes backslashes); else write each backslash twice"
        ) from error
    if len(parts) != len(columns):
        raise DataError(
            f"{places.describe(number)} has {len(parts)} columns, but the program {program.path.name} reads "
            f"{len(columns)}: {', '.join(columns)}. Fix: check data.format, data.delimiter and data.columns. "
            f"The row: {_quote(line)}"
        )
    return dict(zip(columns, parts, strict=True))


def _as_text(value: Any, column: str, places: RowPlaces) -> str:
    """Return the text that a csv file has for a value. `column` and `places` are for messages.

    Raises:
        DataError: the value is a list, a dict or bytes.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, list | dict | bytes):
        raise DataError(
            f"column {column} of {places.name} has {type(value).__name__} values, which are no text. Fix: write "
            "TYPED = True into the program: parse() then takes values with their types"
        )
    return str(value)


def parse_records(
    lines: Iterable[Row], program: TrainingProgram, places: RowPlaces, first: int = 1
) -> tuple[NDArray[Any], int]:
    """Parse rows to records with the program's parse().

    Args:
        lines: the rows.
        program: the training program.
        places: the file, for messages.
        first: number of the first row in this file, from 1.

    Returns:
        The records, an array [rows] of the type `record_dtype`, and the number of rows that the program skipped.

    Raises:
        DataError: a row cannot be parsed, or parse() returned an invalid value; the message has file, row and column.
        SettingsError: parse() failed with another error than ValueError.
    """
    module, job = program.module, program.job
    inputs = {key: served_model.new_column(kind) for key, kind in program.inputs.items()}
    numbers, texts = array("Q"), []  # the number of each record's row, the beginning of its text
    skipped = 0
    for number, line in enumerate(lines, first):
        row = read_row(line, program, places, number)
        try:
            sample = module.parse(row, job)
        except ValueError as error:
            at = program.line_of(error)
            text = f"{places.describe(number)}: {error}{at and f' ({at})'}. The row: {_quote(line)}"
            raise DataError(with_fix(text, ROW_FIX)) from error
        except Exception as error:
            where = f"parse() on {places.describe(number)}"
            raise program.failed(where, error, f". The row: {_quote(line)}") from error
        if sample is None:
            skipped += 1
            continue
        key = ""
        try:
            for key, column in inputs.items():
                column.add(sample[key])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            why = f"{key!r} is missing" if isinstance(error, KeyError) else error
            text = f"parse() of {program.path} returned an invalid value for input {key}: {why}"
            text = f"{places.describe(number)}: {text}. The row: {_quote(line)}"
            raise DataError(with_fix(text, ROW_FIX)) from error
        numbers.append(number)
        # The values of a typed row are not kept for messages: they would need much memory.
        texts.append(line[: SHOWN_CHARACTERS + 1] if isinstance(line, str) else "")
    found = np.zeros(len(numbers), record_dtype(program.inputs))
    for key, column in inputs.items():
        bad = column.fill(found[key])
        if bad is not None:
            shown = f" The row: {_quote(texts[bad])}." if texts[bad] else ""
            raise DataError(
                f"{places.describe(numbers[bad])}: parse() of {program.path} returned {found[key][bad].tolist()} for "
                f"input {key}: it is NaN, infinite, or too large for float32.{shown} Fix: {ROW_FIX}."
            )
    return found, skipped


def parse_columns(
    columns: Mapping[str, Any], rows: int, program: TrainingProgram, places: RowPlaces, first: int = 1
) -> tuple[NDArray[Any], int]:
    """Convert rows to records with the program's parse_columns(), which may skip rows.

    Returns and raises the same as `parse_records`, but a message has the range of these rows instead of one row.

    Args:
        columns: column of the file → the values of all rows.
        rows: number of rows.
        program: the training program.
        places: the file, for messages.
        first: number of the first row in this file, from 1.
    """
    where, fix = (
        f"rows {first} to {first + rows - 1} of {places.name}",
        "correct the rows, or parse_columns()",
    )
    columns = choose_columns(columns, program, places)
    with program.calling(f"parse_columns() on {where}"):
        try:
            given = program.module.parse_columns(columns, program.job)
        except ValueError as error:
            at = program.line_of(error)
            text = f"{where}: parse_columns() of {program.path}: {error}{at and f' ({at})'}"
            raise DataError(with_fix(text, fix)) from error
        counts = {name: len(given[name]) for name in program.inputs}
    count = counts[program.label]
    found = np.zeros(count, record_dtype(program.inputs))
    for name, kind in program.inputs.items():
        values, why = given[name], ""
        if counts[name] != count or count > rows:
            why = f"{counts[name]} values for {rows} rows, of which the label has {count}"
        elif isinstance(values, np.ndarray) and values.dtype.kind in "iufb" and values.ndim in (1, 2):
            why = _fill_array(found[name], values.reshape(count, -1), kind)
        else:
            column = served_model.new_column(kind)
            try:
                for value in values:
                    column.add(value)
                bad = column.fill(found[name])
                why = "" if bad is None else f"{found[name][bad].tolist()}, which is not finite in float32"
            except (TypeError, ValueError, OverflowError) as error:
                why = str(error)
        if why:
            text = f"{where}: parse_columns() of {program.path} returned an invalid value for input {name}: {why}"
            raise DataError(with_fix(text, fix))
    return found, rows - count


def _fill_array(target: NDArray[Any], values: NDArray[Any], kind: Ids | Real) -> str:
    """Copy an input's numbers to its field of the records. Return why the numbers are invalid, or an empty text.

    Args:
        target: the field of the records, shape [rows, length or width of the input].
        values: the numbers, shape [rows, any width].
        kind: the input.
    """
    width = values.shape[1]
    if isinstance(kind, Real):
        with np.errstate(over="ignore"):
            target[:] = values if width == kind.width else np.nan
        if width != kind.width:
            return f"{width} numbers in each row, not {kind.width}"
        return "" if np.isfinite(target).all() else "a number that is NaN, infinite, or too large for float32"
    if values.dtype.kind == "f" or (values.dtype.kind == "i" and values.size and values.min() < 0):
        return "ids that are no whole numbers from 0 to 2**64-1"
    if width > kind.length and not kind.cut:
        return f"{width} ids in each row, more than {kind.length}"
    target[:, : min(width, kind.length)] = values[:, : kind.length].astype(np.uint64).view(np.int64)
    return ""


def parse_chunks(
    lines: Iterator[Row], program: TrainingProgram, places: RowPlaces
) -> Iterator[tuple[NDArray[Any], int]]:
    """Parse rows in chunks. For each chunk, yield its records and the number of rows that the program skipped.

    A chunk has as many rows as a record file can have.
    """
    rows, read = rows_per_file(record_dtype(program.inputs)), 0
    while True:
        found, skipped = parse_records(itertools.islice(lines, rows), program, places, read + 1)
        if not len(found) + skipped:
            return
        read += len(found) + skipped
        yield found, skipped


def _shorten(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def _quote(line: Row) -> str:
    if not isinstance(line, str):
        return _shorten(repr(line))
    return repr(_shorten(line.rstrip("\n")).encode(errors="replace").decode())


Bytes = NDArray[np.uint8]
"""The bytes of some records as a file has them, shape [rows, bytes of a record]."""
VERSION = 3
INDEX = "index.json"
FILE_ROWS = 100_000
FILE_BYTES = 32 << 20
"""Limit of a file's size in bytes. It matters for wide records, because the process that parses the rows of a file has
all of them in memory."""
WINDOW_FILES = 4
"""Number of files whose rows are shuffled together. More than one, because a file has consecutive rows of the source,
which may be similar."""


def rows_per_file(record: np.dtype[Any]) -> int:
    """Return the largest number of records of the type `record` in a file."""
    return max(1, min(FILE_ROWS, FILE_BYTES // max(1, record.itemsize)))


@dataclass(frozen=True)
class RecordFile:
    """Describes one record file, as index.json lists it."""

    name: str
    rows: int
    crc32: int


class Records:
    """Reads the parsed rows of one text file from their record files, which are memory-mapped."""

    def __init__(
        self, folder: Path, dtype: np.dtype[Any], record_files: tuple[RecordFile, ...], skipped: int
    ) -> None:
        self._folder, self.dtype, self._files = folder, dtype, record_files
        self.rows = sum(file.rows for file in record_files)
        """Number of records. The rows that the program skipped have no record."""
        self.skipped = skipped
        """Number of rows of the text that the program skipped."""
        self._checked: set[str] = set()

    @classmethod
    def open(cls, folder: Path, dtype: np.dtype[Any], key: str) -> Records | None:
        """Open the records in `folder` for reading. Return None if the rows must be parsed again.

        This is the case if a record file is missing or has another size; if index.json is missing, damaged or of
        another version; or if `write_index` was called with another `key`. The checksums of the record files are
        verified later, when they are read.

        Args:
            folder: the folder of the record files.
            dtype: the type of the records, see `record_dtype`.
            key: digest of everything that the records depend on, see `write_index`.
        """
        try:
            index = files.read_json(folder / INDEX)
        except files.UnreadableError:
            return None
        if index is None or index.get("version") != VERSION or index.get("key") != key:
            return None
        found = tuple(RecordFile(**file) for file in index["files"])
        with files.storage_errors(folder):
            for file in found:
                path = folder / file.name
                if not path.is_file() or path.stat().st_size != file.rows * dtype.itemsize:
                    return None
        return cls(folder, dtype, found, int(index["skipped"]))

    def write_index(self, key: str) -> None:
        """Write index.json, so that a later start of the process can open the records.

        `key` is a digest of everything that the records depend on: text, program, options and side tables.
        """
        entries = [asdict(file) for file in self._files]
        index = {"version": VERSION, "key": key, "skipped": self.skipped, "files": entries}
        files.write_json(self._folder / INDEX, files.with_checksum(index))

    def batches(self, steps: int, seed: tuple[int, ...], done: int = 0) -> Iterator[Arrays]:
        """Yield the rows of one pass in a shuffled order, as `steps` batches; the first `done` batches are skipped.

        The files are shuffled, and then the rows within each group of WINDOW_FILES files. A pass has every row once,
        and the sizes of batches differ by at most one row. All ranks take the same number of steps, because a
        synchronous step waits for all ranks. A rank with fewer rows than steps repeats rows.

        A thread reads the next batch while the caller uses the current batch. With a small network, reading took 7 % of
        a single thread's time.

        Args:
            steps: number of batches of the pass.
            seed: seed of the order.
            done: number of batches at the beginning that are skipped, because they are trained already.

        Yields:
            A batch: name of an input → array [rows, length or width], a copy.

        Raises:
            UnfitError: a file is damaged. In this case index.json was removed, so that the next start parses the rows
                again.
        """
        return read_batches({0: self}, [(0, 0, self.rows)], steps, {0: seed}, done)

    def windows(self, seed: tuple[int, ...], first: int, end: int) -> Iterator[_Window]:
        """Yield windows from which the caller takes rows with `_Window.take`.

        A window has the rows of WINDOW_FILES files, shuffled together. This method yields the same window again and
        again until the caller has taken all its rows. Then it yields the next window.

        `seed` determines the order of all rows. The windows only have the rows from number `first` to number `end`
        (exclusive) in this order.
        """
        order = [self._files[i] for i in np.random.default_rng(seed).permutation(len(self._files))]
        windows = [order[at : at + WINDOW_FILES] for at in range(0, len(order), WINDOW_FILES)]
        start = 0
        for number, found in enumerate(windows):
            rows = sum(file.rows for file in found)
            low, high = max(0, first - start), min(rows, end - start)
            start += rows
            if low >= high:
                continue
            shuffled = np.random.default_rng((*seed, number)).permutation(rows)[low:high]
            window = _Window([self._map(file) for file in found], shuffled)
            while not window.empty:
                yield window
            del window  # unmaps its files before the next ones are mapped

    def blocks(self, rows: int, first: int = 0, last: int | None = None) -> Iterator[Arrays]:
        """Yield the rows from number `first` to number `last` in the order of the text, at most `rows` rows at a time.

        Row `last` itself is not included. If `last` is None, yield all rows up to the end.
        """
        at = 0
        for file in self._files:
            low, high = max(0, first - at), min(file.rows, (self.rows if last is None else last) - at)
            at += file.rows
            if low < high:
                mapped = self._map(file)
                for start in range(low, high, rows):
                    yield split_inputs(mapped[start : min(high, start + rows)].view(self.dtype)[:, 0])

    def read_input(self, name: str) -> NDArray[Any]:
        """Return the values of one input for all rows in the order of the text, shape [rows, length or width]."""
        return np.concatenate([self._map(file).view(self.dtype)[:, 0][name] for file in self._files])

    def _map(self, file: RecordFile) -> Bytes:
        """Return the records of a file, memory-mapped. The first call of this object for a file verifies its checksum.

        Raises:
            UnfitError: the checksum is wrong. In this case index.json was removed, so that the next start parses the
                rows again.
        """
        path = self._folder / file.name
        with files.storage_errors(path):
            shape = (file.rows, self.dtype.itemsize)
            mapped: Bytes = map_or_read(
                lambda: np.memmap(path, np.uint8, mode="r", shape=shape),
                lambda: np.fromfile(path, np.uint8, file.rows * shape[1]).reshape(shape),
            )
        if file.name not in self._checked:
            if zlib.crc32(mapped.data) != file.crc32:
                with contextlib.suppress(OSError):
                    (self._folder / INDEX).unlink()  # the next start parses the rows again
                raise UnfitError(
                    f"{path} does not read back as it was written: this pod's own disk is faulty. The trainer "
                    "parses the rows again when it restarts. Fix: if this repeats, delete the pod; its replacement may "
                    "run on another node."
                )
            self._checked.add(file.name)
        return mapped


class _Window:
    """Holds the rows of some record files in one shuffled order, from which the caller takes some rows at a time.

    Args:
        mapped: the rows of each file.
        order: numbers of the rows to take, in shuffled order; they count through all files.
    """

    def __init__(self, mapped: list[Bytes], order: NDArray[np.int64]) -> None:
        self._mapped, self._order = mapped, order
        self._ends = np.cumsum([len(rows) for rows in mapped])
        self._at = 0

    @property
    def empty(self) -> bool:
        """Return whether the caller has taken all rows."""
        return self._at >= len(self._order)

    def take(self, rows: int) -> Bytes:
        """Return the next `rows` rows of the shuffled order; fewer at the end.

        The returned rows are sorted by file and position, because reading them in this order is faster.
        """
        wanted = np.sort(self._order[self._at : self._at + rows])
        self._at += len(wanted)
        found = np.empty((len(wanted), self._mapped[0].shape[1]), np.uint8)
        low = 0
        for mapped, end in zip(self._mapped, self._ends, strict=True):
            high = int(np.searchsorted(wanted, end))
            if low < high:
                places = wanted[low:high] - (end - len(mapped))
                np.take(mapped, places, axis=0, out=found[low:high], mode="clip")  # mode "raise" copies twice
            low = high
        return found


def read_batches(
    shards: Mapping[int, Records], part: Part, steps: int, seeds: Mapping[int, tuple[int, ...]], done: int
) -> Iterator[Arrays]:
    """Yield the batches of a part in a shuffled order, as `Records.batches` describes.

    Args:
        shards: number of a shard → its records, for all shards of the part.
        part: the rows of one trainer, at least one row (launcher/row_division.py).
        steps: number of batches of the part.
        seeds: number of a shard → the seed that determines the order of its rows.
        done: number of batches at the beginning that are skipped, because they are trained already.
    """
    ahead = ThreadPoolExecutor(1, "read-ahead")
    try:
        read = _read_batches(shards, part, steps, seeds, done)
        coming = ahead.submit(next, read, None)
        while (batch := coming.result()) is not None:
            coming = ahead.submit(next, read, None)
            yield batch
    finally:
        ahead.shutdown(wait=False, cancel_futures=True)


def _read_batches(
    shards: Mapping[int, Records], part: Part, steps: int, seeds: Mapping[int, tuple[int, ...]], done: int
) -> Iterator[Arrays]:
    windows = (
        window
        for shard, first, end in row_division.remaining(part, steps, done)
        for window in shards[shard].windows(seeds[shard], first, end)
    )
    for size in row_division.batch_sizes(part, steps, done):
        taken: list[Bytes] = []
        while (more := size - sum(map(len, taken))) > 0:
            taken.append(next(windows).take(more))
        raw = taken[0] if len(taken) == 1 else np.concatenate(taken)
        yield split_inputs(raw.view(shards[part[0][0]].dtype)[:, 0])


def write_record_file(folder: Path, name: str, records: NDArray[Any]) -> RecordFile:
    """Write records, an array [rows] of the type `record_dtype`, to the file `<folder>/<name>.rec`.

    Return a description of this file.
    """
    path = folder / f"{name}.rec"
    raw = records.view(np.uint8).data
    with files.storage_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    return RecordFile(path.name, len(records), zlib.crc32(raw))


def finish_records(
    program: TrainingProgram, folder: Path, written: list[RecordFile], name: str, skipped: int
) -> Records:
    """Return the written records. If the program has check_labels(), it checks the labels of all records before.

    Args:
        program: the training program.
        folder: the folder of the record files.
        written: the record files, in the order of the text.
        name: name of the text file, for messages.
        skipped: number of rows that the program skipped.

    Raises:
        DataError: there are no records, or check_labels() rejected the labels with a ValueError.
        SettingsError: check_labels() failed with another error.
    """
    if not written:
        raise no_usable_rows(name, program, skipped)
    records = Records(folder, record_dtype(program.inputs), tuple(written), skipped)
    check_labels = getattr(program.module, "check_labels", None)
    if check_labels is not None:
        labels = records.read_input(program.label)
        with program.calling("check_labels()"):
            try:
                check_labels(labels)
            except ValueError as error:
                fix = "correct the labels in the data, or check_labels() of the program"
                raise DataError(with_fix(f"{name}: {error}", fix)) from error
    return records
