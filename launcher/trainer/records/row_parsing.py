"""Parse lines of text with the program's parse() into records of a fixed size: one record per row."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher.dataprep.csv_records import RowPlaces, split_fields
from launcher.errors import DataError
from launcher.program import Ids, Real
from launcher.serving.paddle_served import input_arrays
from launcher.trainer.program_loader import TrainingProgram, with_fix

Arrays = dict[str, NDArray[Any]]
"""Some rows: input's name → array of shape [rows, length or width]."""
SHOWN_CHARACTERS = 120  # of a row in a message
ROW_FIX = "correct the row, or parse()"


def record_dtype(inputs: Mapping[str, Ids | Real]) -> np.dtype[Any]:
    """Return the type of one record: int64 [length] per `Ids`, float32 [width] per `Real`, in order."""
    return np.dtype(
        [
            (name, "<i8", (kind.length,)) if isinstance(kind, Ids) else (name, "<f4", (kind.width,))
            for name, kind in inputs.items()
        ]
    )


def split_inputs(records: NDArray[Any]) -> Arrays:
    """Return one contiguous array per input, copied from the records."""
    return {name: np.ascontiguousarray(records[name]) for name in records.dtype.names or ()}


def no_usable_rows(name: str, program: TrainingProgram, skipped: int) -> DataError:
    """Return the error for a file of which the program uses no row."""
    if not skipped:
        return DataError(f"{name} has no rows. Fix: check the data.")
    return DataError(
        f"{name}: the program {program.path.name} uses no row of it (parse() skipped {skipped} of {skipped} "
        "rows). Fix: check the data, or parse()."
    )


def parse_records(
    lines: Iterable[str], program: TrainingProgram, places: RowPlaces, first: int = 1
) -> tuple[NDArray[Any], int]:
    """Parse lines to records; `first` is the row number of the first line, from 1, in the file of `places`.

    Returns:
        The records, shape [rows] of `record_dtype`, and the number of rows that the program skipped.

    Raises:
        DataError: a row cannot be parsed; the message has file, row and column.
    """
    module, job, columns = program.module, program.job, program.columns
    inputs = {key: input_arrays.new_column(kind) for key, kind in program.inputs.items()}
    numbers, texts = array("Q"), []  # row number and beginning of the text of each record
    skipped = 0
    for number, line in enumerate(lines, first):
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
        try:
            sample = module.parse(dict(zip(columns, parts, strict=True)), job)
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
        texts.append(line[:SHOWN_CHARACTERS])
    found = np.zeros(len(numbers), record_dtype(program.inputs))
    for key, column in inputs.items():
        bad = column.fill(found[key])
        if bad is not None:
            raise DataError(
                f"{places.describe(numbers[bad])}: parse() of {program.path} returned {found[key][bad].tolist()} for "
                f"input {key}: it is NaN, infinite, or too large for float32. The row: {_quote(texts[bad])}. "
                f"Fix: {ROW_FIX}."
            )
    return found, skipped


def _quote(line: str) -> str:
    return repr(line.rstrip("\n")[:SHOWN_CHARACTERS].encode(errors="replace").decode())
