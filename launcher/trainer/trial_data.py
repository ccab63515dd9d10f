"""Read the rows of a file and write them as records, for `launcher try` and the checks of `launcher run`.

The rows are the same as those that the data Job would read from this file.
"""

from __future__ import annotations

import io
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from launcher.dataprep import archives, text_lines
from launcher.dataprep.csv_records import RowPlaces
from launcher.dataprep.sources import is_hidden
from launcher.errors import DataError
from launcher.io import files
from launcher.program import Ids
from launcher.trainer import record_files
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.record_files import RecordFile, Records, Row
from launcher.trainer.training_log import ReportTimer

Report = Callable[[str], None]
CHECKED_ROWS = 1000
"""Number of rows at the beginning of a file that `try` and `run` check before they train or send anything."""


@dataclass(frozen=True)
class RowFormat:
    """Describes the format of a file of rows. Each field is the chart's value with the same name below `data`."""

    format: str = "lines"
    """lines, csv or parquet."""
    delimiter: str = ","
    header: bool = True
    columns: tuple[str | int, ...] = ()
    quoting: str = "minimal"
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Archive:
    """Says which files of an archive to read. `member` and `tables` are the values data.member and data.tables."""

    member: str
    tables: Sequence[str]
    into: Path
    """Folder to which the side tables are copied."""


def read_rows(
    file: Path,
    form: RowFormat,
    found: RowPlaces | None = None,
    limit: int | None = None,
    report: Report | None = None,
    *,
    archive: Archive | None = None,
) -> Iterator[Row]:
    """Yield the rows of a file as the data Job would write them to shards. The file may be compressed.

    A row of a Parquet file is {column: value}. A row of any other file is a line of text.

    Args:
        file: path of the file.
        form: the format of the rows.
        found: gets the file's name, and for csv the number of rows and the line at which each row starts. The caller
            needs these for messages. It gets nothing for a Parquet file. None if the caller does not need them.
        limit: yield at most this number of rows; None for all rows.
        report: called now and then with a text about the progress; None for no reports. It is not called for a Parquet
            file.
        archive: if the file is an archive, the member with the rows, and the side tables to copy.

    Raises:
        DataError: the file is missing, damaged, or not in this format.
    """
    places = found or RowPlaces(str(file))
    if form.format == "parquet":
        from launcher.dataprep.parquet_rows import row_dicts

        yield from itertools.islice(
            itertools.chain.from_iterable(map(row_dicts, read_batches(file, form))), limit
        )
        return
    try:
        with file.open("rb") as raw:
            size, began, pace = max(1, file.stat().st_size), time.monotonic(), ReportTimer()
            for part in _parts(raw, file, places.name, archive):
                if part.table and archive:
                    with (archive.into / part.table).open("wb") as copy:
                        shutil.copyfileobj(cast("IO[bytes]", part.stream), copy)
                    continue
                places.name = part.name
                rows = _rows(part.stream, part.name, form, places)
                for count, row in enumerate(itertools.islice(rows, limit), 1):
                    yield row
                    if report is not None and pace.due():
                        share = max(raw.tell() / size, count / limit if limit else 0.0)
                        rate = count / max(time.monotonic() - began, 1e-9)
                        report(f"{file.name}: {count:,} rows parsed, {share:.0%}, {rate:,.0f} rows/s")
                if not (archive and archive.tables):
                    return
    except FileNotFoundError:
        raise DataError(f"there is no file {file}. Fix: correct --data or --test") from None


def read_batches(file: Path, form: RowFormat) -> Iterator[Any]:
    """Yield the record batches of a Parquet or Arrow file, or of the files of a folder that the data Job would read.

    Raises:
        DataError: the file is missing, damaged, or neither Parquet nor Arrow.
    """
    from launcher.dataprep.parquet_rows import ParquetReader

    reader = ParquetReader(form.columns)
    found = [file]
    if file.is_dir():  # read the same files of a folder as the data Job
        names = {path.relative_to(file).as_posix(): path for path in files.folder_files(file)}
        found = [path for name, path in names.items() if not is_hidden(name, form.format)]
    for path in found:
        if not path.is_file():
            raise DataError(f"there is no file {path}. Fix: correct --data or --test")
        yield from reader.batches(path, str(path))


def split_parquet(
    file: Path, form: RowFormat, held_out: float, limit: int | None, targets: Sequence[Path]
) -> tuple[int, int]:
    """Split the rows of a Parquet file at random into two new files: one for training, one for the test.

    Args:
        file: the Parquet file, or a folder of Parquet files.
        form: the columns and the format of the rows.
        held_out: the share of the rows for the test, from 0 to 1.
        limit: the number of rows to copy from the beginning; None: all rows.
        targets: paths of the two new files, first the file for training.

    Returns:
        The numbers of rows in these two files.
    """
    from launcher.dataprep.parquet_rows import write_parquet

    def chosen(test: bool) -> Iterator[Any]:
        random, left = np.random.default_rng(1), limit
        for batch in read_batches(file, form):
            rows = batch if left is None else batch.slice(0, left)
            left = None if left is None else left - rows.num_rows
            yield rows.filter((random.random(rows.num_rows) < held_out) == test)

    return write_parquet(chosen(False), targets[0]), write_parquet(chosen(True), targets[1])


def check_parse_columns(program: TrainingProgram, file: Path, form: RowFormat) -> None:
    """Check that the program's parse_columns() returns the same as its parse() for the first CHECKED_ROWS rows.

    Numbers of a `Real` may differ by rounding. This function does nothing if the file is not a Parquet file, or if the
    program has no parse_columns().

    Raises:
        DataError: the two functions return different values, or skip different rows. Or a row is invalid.
    """
    if form.format != "parquet" or not hasattr(program.module, "parse_columns"):
        return
    from launcher.dataprep.parquet_rows import column_arrays, regroup, row_dicts

    fix = "Fix: correct one of them; training uses parse_columns(), and the served model parse()"
    places = RowPlaces(str(file))
    for rows in itertools.islice(regroup(read_batches(file, form), CHECKED_ROWS), 1):
        found, _ = record_files.parse_records(row_dicts(rows), program, places)
        given, _ = record_files.parse_columns(column_arrays(rows), rows.num_rows, program, places)
        if len(given) != len(found):
            raise DataError(
                f"parse_columns() of {program.path} returned {len(given)} of the first {rows.num_rows} rows of {file}, "
                f"but parse() returned {len(found)}. {fix}"
            )
        for name, kind in program.inputs.items():
            same = (np.equal if isinstance(kind, Ids) else np.isclose)(given[name], found[name]).all(axis=1)
            if not same.all():
                at = same.argmin()
                raise DataError(
                    f"parse_columns() of {program.path} returned {given[name][at].tolist()} for input {name} of usable "
                    f"row {at + 1}, but parse() returned {found[name][at].tolist()}. {fix}"
                )


def _parts(
    raw: io.BufferedReader, file: Path, name: str, archive: Archive | None
) -> Iterator[archives.SourceFile]:
    if archive is None or not archive.member:
        yield archives.decompress(raw, name, None)
    elif archives.is_zip(raw):
        yield from archives.zip_files(file, name, archive.member, archive.tables)
    else:
        yield from archives.tar_files(raw, name, archive.member, archive.tables)


def _rows(stream: io.BufferedReader, name: str, form: RowFormat, found: RowPlaces) -> Iterator[str]:
    blocks = text_lines.line_blocks(stream, name, form.encoding, crlf=form.format == "csv")
    reader = text_lines.CsvReader(form.delimiter, form.header, form.columns, form.quoting)
    if form.format == "csv":
        blocks = reader.line_blocks(blocks, found)
    try:
        for block in blocks:
            yield from block.decode("utf-8", "surrogateescape").split("\n")[:-1]
    finally:  # also if the caller reads only the first rows
        text_lines.warn_of_quotes(reader.spanning, reader.first_spanning)


def write_records(
    program: TrainingProgram,
    file: Path,
    form: RowFormat,
    folder: Path,
    held_out: float,
    *,
    limit: int | None = None,
    report: Report | None = None,
) -> dict[str, Records]:
    """Parse a file, and write its rows to record files in `<folder>/train` and `<folder>/test`.

    Args:
        program: the training program.
        file: path of the file.
        form: the format of the rows.
        folder: folder of the records.
        held_out: the share of randomly chosen rows that are written to `test`, from 0 to 1.
        limit: read at most this number of rows; None for all rows.
        report: called now and then with a text about the progress; None for no reports.

    Returns:
        The records by the names `train` and `test`; without `test` if `held_out` is 0, without `train` if it is 1.

    Raises:
        DataError: a row is invalid (the message has row and column), or there are too few rows.
    """
    names = [name for name, share in (("train", 1 - held_out), ("test", held_out)) if share]
    written: dict[str, list[RecordFile]] = {name: [] for name in names}
    random = np.random.default_rng(program.seed)
    places = RowPlaces(str(file))
    rows = read_rows(file, form, places, limit, report)
    usable = skipped = 0
    for found, left_out in record_files.parse_chunks(rows, program, places):
        usable, skipped = usable + len(found), skipped + left_out
        is_test = random.random(len(found)) < held_out
        for name, parts in written.items():
            chosen = found[is_test if name == "test" else ~is_test]
            if len(chosen):
                parts.append(record_files.write_record_file(folder / name, f"{len(parts):05d}", chosen))
    if usable and (empty := [name for name, parts in written.items() if not parts]):
        raise DataError(
            f"{file}: its {usable} usable rows are too few: none became part of the {empty[0]} set, with the "
            f"share {held_out:g} of test rows. Fix: use more rows, or give the test rows with --test"
        )
    return {
        name: record_files.finish_records(program, folder / name, parts, str(file), skipped)
        for name, parts in written.items()
    }


def first_usable_row(program: TrainingProgram, file: Path, form: RowFormat) -> dict[str, Any]:
    """Return the first row in `file` that the program's parse() does not skip: {column: text or value}.

    Raises:
        DataError: a row is invalid, or parse() skips all rows.
    """
    number = 0
    for number, line in enumerate(read_rows(file, form), 1):
        if len(record_files.parse_records([line], program, RowPlaces(str(file)), number)[0]):
            return dict(record_files.read_row(line, program, RowPlaces(str(file)), number))
    raise record_files.no_usable_rows(str(file), program, number)
