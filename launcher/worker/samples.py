"""From lines of text to arrays: every row is parsed once, before training begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from launcher.data import fields
from launcher.errors import DataError
from launcher.worker.interface import Ids, Real

if TYPE_CHECKING:
    from launcher.worker.program import Program

Arrays = dict[str, NDArray[Any]]
SHOWN = 120  # characters of a row in a message


@dataclass(frozen=True)
class Samples:
    """One file's rows: input's name → array of shape [rows, length or width]."""

    arrays: Arrays
    rows: int
    skipped: int
    """Rows that the program chose not to use."""

    def take(self, rows: NDArray[np.int64] | slice) -> Arrays:
        """These rows of every input."""
        return {name: array[rows] for name, array in self.arrays.items()}


def read(path: Path, program: Program, check: Callable[[], None] = lambda: None, name: str = "") -> Samples:
    """Parses a whole file. Raises `DataError` that names file (as `name`, if given), row and column.

    `check` is called now and then, so that progress can be shown while a long file is read.
    """
    try:
        with path.open("r", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return parse(file, name or str(path), program, check)
    except FileNotFoundError:
        raise DataError(
            f"there is no {path}: the data Job has not written it, or it was not staged"
        ) from None


def parse(
    lines: Iterator[str] | list[str], name: str, program: Program, check: Callable[[], None] = lambda: None
) -> Samples:
    """`read` of lines that are already there; `name` stands for the file in messages."""
    kept: dict[str, list[Any]] = {key: [] for key in program.inputs}
    skipped = number = 0
    for number, line in enumerate(lines, 1):
        if number % 4096 == 0:
            check()
        where = f"{name}, row {number}"
        row = _row(line, where, program)
        try:
            sample = program.module.parse(row, program.job)
        except ValueError as error:
            shown = line.rstrip("\n").encode(errors="replace").decode()[:SHOWN]
            raise DataError(f"{where}: {error}. The row: {shown!r}") from error
        except Exception as error:
            raise program.failed(f"parse() on {where}", error) from error
        if sample is None:
            skipped += 1
            continue
        for key, values in kept.items():
            try:
                values.append(_value(sample[key], program.inputs[key]))
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(
                    f"{where}: parse() of {program.path} gave {sample!r}: input {key}: {error}"
                ) from error
    rows = number - skipped
    if rows == 0:
        raise DataError(
            f"{name} has no row that the program {program.path.name} uses ({skipped} of {number} skipped)"
        )
    arrays = {key: _array(values, program.inputs[key]) for key, values in kept.items()}
    return Samples(arrays, rows, skipped)


def _row(line: str, where: str, program: Program) -> Mapping[str, str]:
    try:
        parts = fields(line)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
    if len(parts) != len(program.columns):
        raise DataError(
            f"{where} has {len(parts)} columns, but the program {program.path.name} reads "
            f"{len(program.columns)}: {', '.join(program.columns)}. See data.format, data.delimiter, "
            f"data.columns. The row: {line.rstrip()[:SHOWN].encode(errors='replace').decode()!r}"
        )
    return dict(zip(program.columns, parts, strict=True))


def _value(value: Any, kind: Ids | Real) -> Any:
    if isinstance(kind, Ids):
        ids = [value] if isinstance(value, int) else list(value)
        return ids[: kind.length]
    numbers = [value] if isinstance(value, int | float) else list(value)
    if len(numbers) != kind.width:
        raise ValueError(f"{len(numbers)} numbers where {kind.width} belong")
    return numbers


def _array(values: list[Any], kind: Ids | Real) -> NDArray[Any]:
    if isinstance(kind, Real):
        return np.asarray(values, np.float32).reshape(len(values), kind.width)
    array = np.zeros((len(values), kind.length), np.int64)
    for index, ids in enumerate(values):
        array[index, : len(ids)] = ids
    return array


def check_labels(samples: Samples, name: str, program: Program) -> None:
    """Lets the program's own `check_labels(labels)` judge all labels of a file. Raises `DataError`."""
    judge = getattr(program.module, "check_labels", None)
    if judge is None:
        return
    try:
        judge(samples.arrays[program.label])
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error


def batches(rows: int, steps: int, seed: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """The rows of one pass in a shuffled order that only `seed` decides, cut into exactly `steps` batches.

    Every row comes once, and the batches differ by at most one row. All ranks take the same number of steps,
    because a synchronous step waits for all of them; a rank with fewer rows than steps uses rows again.
    """
    order = np.random.default_rng(seed).permutation(rows).astype(np.int64)
    if rows < steps:
        order = np.resize(order, steps)
    return np.array_split(order, steps)
