"""From lines of text to records: one of a fixed size a row, all inputs of the program in it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from launcher.data import fields
from launcher.errors import DataError, SettingsError
from launcher.served import values
from launcher.worker.interface import Ids, Real

if TYPE_CHECKING:
    from launcher.worker.program import Program

Arrays = dict[str, NDArray[Any]]
Place = Callable[[int], str]
"""File and row, as messages name them, of a row from 1."""
SHOWN = 120  # characters of a row in a message


@dataclass(frozen=True)
class Samples:
    """Some rows in memory: input's name → array of shape [rows, length or width]."""

    arrays: Arrays
    rows: int
    skipped: int
    """Rows that the program chose not to use."""


def row_type(inputs: Mapping[str, Ids | Real]) -> np.dtype[Any]:
    """One row: int64 [length] of each `Ids`, float32 [width] of each `Real`, in the program's order."""
    return np.dtype(
        [
            (name, "<i8", (kind.length,)) if isinstance(kind, Ids) else (name, "<f4", (kind.width,))
            for name, kind in inputs.items()
        ]
    )


def split(records: NDArray[Any]) -> Arrays:
    """Records as one array an input, each a copy of its own."""
    return {name: np.ascontiguousarray(records[name]) for name in records.dtype.names or ()}


def parse(lines: Iterable[str], name: str, program: Program) -> Samples:
    """A few lines that are already there. `name` stands for the file in messages. Raises as `records`."""
    found, skipped = records(lines, name, program)
    if not len(found):
        raise no_rows(name, program, skipped)
    return Samples(split(found), len(found), skipped)


def read(path: Path, program: Program) -> Samples:
    """A whole file in memory: for a test set, not for what is trained on. Raises as `records`."""
    with path.open("r", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return parse(file, str(path), program)


def no_rows(name: str, program: Program, rows: int) -> DataError:
    """The error for a file of which nothing is left."""
    return DataError(
        f"{name} has no row that the program {program.path.name} uses ({rows} of {rows} skipped)"
    )


def records(
    lines: Iterable[str], name: str, program: Program, first: int = 1, place: Place | None = None
) -> tuple[NDArray[Any], int]:
    """The records (`row_type`) of the lines, and how many rows the program skipped.

    `first`: which row of the file the first line is. `place`: how messages name a row, if not by `name`.
    Raises `DataError` that names file, row and column for what cannot be parsed, and `SettingsError` for a
    fault of the program.
    """
    place = place or (lambda number: f"{name}, row {number}")
    module, job, columns = program.module, program.job, program.columns
    columns_of = {key: values.column(kind) for key, kind in program.inputs.items()}
    numbers = array("Q")  # of the rows that are used
    skipped = 0
    for number, line in enumerate(lines, first):
        try:
            parts = fields(line)
        except ValueError as error:
            raise DataError(f"{place(number)}: {error}") from error
        if len(parts) != len(columns):
            raise _columns_differ(line, len(parts), place(number), program)
        try:
            sample = module.parse(dict(zip(columns, parts, strict=True)), job)
        except ValueError as error:
            at = program.line_of(error)
            raise DataError(
                f"{place(number)}: {error}{at and f' ({at})'}. The row: {_shown(line)}"
            ) from error
        except Exception as error:
            failed = program.failed(f"parse() on {place(number)}", error)
            raise SettingsError(f"{failed}. The row: {_shown(line)}") from error
        if sample is None:
            skipped += 1
            continue
        key = ""
        try:
            for key, column in columns_of.items():
                column.add(sample[key])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            why = f"{key!r} is missing" if isinstance(error, KeyError) else error
            raise DataError(
                f"{place(number)}: parse() of {program.path} gave what input {key} cannot take: {why}. "
                f"The row: {_shown(line)}"
            ) from error
        numbers.append(number)
    found = np.zeros(len(numbers), row_type(program.inputs))
    for key, column in columns_of.items():
        bad = column.fill(found[key])
        if bad is not None:
            raise DataError(
                f"{place(numbers[bad])}: parse() of {program.path} gave {found[key][bad].tolist()} for "
                f"input {key}: not a number that float32 holds."
            )
    return found, skipped


def _shown(line: str) -> str:
    return repr(line.rstrip("\n")[:SHOWN].encode(errors="replace").decode())


def _columns_differ(line: str, count: int, where: str, program: Program) -> DataError:
    return DataError(
        f"{where} has {count} columns, but the program {program.path.name} reads {len(program.columns)}: "
        f"{', '.join(program.columns)}. See data.format, data.delimiter, data.columns. "
        f"The row: {_shown(line)}"
    )
