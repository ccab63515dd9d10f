"""What a training program is written with. See launcher/programs/README.md.

Nothing here loads Paddle: a program's columns and parser can be tried without it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

__all__ = ["Ids", "Job", "Real", "bucket", "choice", "real_number", "whole_number"]

T = TypeVar("T")


@dataclass(frozen=True)
class Ids:
    """An input of ids, 0 to 2**64-1: shape [batch, length], int64 of the same bits.

    Rows with fewer ids are filled up with 0; a row with more is an error, unless `cut`.
    """

    length: int
    cut: bool = False
    """Of a row with more ids, the first `length` count and the others are dropped."""


@dataclass(frozen=True)
class Real:
    """An input of real numbers, shape [batch, width], float32."""

    width: int = 1


@dataclass
class Job:
    """What the functions of a program are given."""

    options: Mapping[str, Any]
    """The program's OPTIONS, with what `training.extraArgs` set over them."""
    tables: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    """The side tables: name → file."""
    side: Any = None
    """What the program's own `prepare(job)` returned, the same on every rank."""
    embed: Callable[[Any, int, int, str, float], Any] | None = field(default=None, repr=False)

    def embedding(self, ids: Any, rows: int, width: int, name: str, spread: float = 0.01) -> Any:
        """Looks ids up in a table that lives on the parameter servers.

        `ids`: an `Ids` input, shape [batch, length]. Returns [batch, length, width]. Rows begin uniform
        within ±`spread`. All ids must be below `rows`.
        """
        if self.embed is None:
            raise RuntimeError("embedding() can only be called from network()")
        return self.embed(ids, rows, width, name, spread)


def bucket(text: str, buckets: int) -> int:
    """A number in 1..buckets-1 for a word, the same on every rank and run. 0 is left for filling up."""
    return zlib.crc32(text.encode()) % (buckets - 1) + 1


def whole_number(row: Mapping[str, str], column: str, low: int, high: int) -> int:
    """Reads a column as a whole number in low..high. Raises ValueError that names the column."""
    return int(_number(row, column, int, low, high))


def real_number(row: Mapping[str, str], column: str, low: float, high: float) -> float:
    """Reads a column as a number in low..high. Raises ValueError that names the column."""
    return float(_number(row, column, float, low, high))


def _number(row: Mapping[str, str], column: str, kind: type, low: float, high: float) -> float:
    try:
        value = kind(row[column])
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        words = "a whole number" if kind is int else "a number"
        raise ValueError(f"column {column} is {row[column]!r}, but must be {words} from {low} to {high}")
    return float(value) if kind is float else value


def choice(row: Mapping[str, str], column: str, values: Sequence[str] | Mapping[str, T]) -> str:
    """Reads a column that takes one of a few words. Raises ValueError that names the column."""
    value = row[column]
    if value not in values:
        raise ValueError(f"column {column} is {value!r}, but must be one of {', '.join(values)}")
    return value
