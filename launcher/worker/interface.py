"""What a training program is written with. See launcher/programs/README.md.

Nothing here loads Paddle: a program's columns and parser can be tried without it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

__all__ = ["Ids", "Job", "Real", "bucket", "choice", "hash64", "real_number", "whole_number"]

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
    embed: Callable[..., Any] | None = field(default=None, repr=False)

    def embedding(
        self,
        ids: Any,
        width: int,
        name: str,
        *,
        rows: int | None = None,
        spread: float = 0.01,
        weights: Any = None,
        pool: Literal["sum", "mean"] | None = None,
        optimizer: Any = None,
        admit: int = 1,
        evict: int | None = None,
    ) -> Any:
        """Looks ids up in a table that lives on the parameter servers, and grows with the ids that come.

        `ids`: int64, shape [batch, length], such as an `Ids` input. Any 64-bit id; 0 is padding, whose vector
        is zeros for ever. Ids that are unknown when testing or predicting read as zeros. The same `name` in
        two calls is one table for both; it must then be told in the same way.
        Returns float32 [batch, length, width], or [batch, width] with `pool`: the sum of a row's vectors, or
        their mean, padding left out.
        `rows`: only geo and one process need it, whose tables are plain arrays: all ids are below it there.
        `spread`: a vector begins uniform within ±`spread`, once its id has been trained on.
        `weights`: float32 [batch, length], such as a `Real(length)` input: each vector times its weight; the
        mean is then the weighted one.
        `optimizer`: this table's own: paddle.optimizer.Adam, SGD or Adagrad; else that of optimizer(job).
        `admit`: a vector begins with its id's `admit`-th appearance; before, only its first number learns.
        `evict`: an id that did not come between so many saves is forgotten.
        Raises `ValueError` for what cannot be (the program's name and line are added).
        """
        if self.embed is None:
            raise RuntimeError("embedding() can only be called from network()")
        return self.embed(ids, width, name, rows, spread, weights, pool, optimizer, admit, evict)


def hash64(text: str) -> int:
    """A number in 1..2**64-1 for a text, the same on every rank and run: an id for `Job.embedding`."""
    digest = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


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
