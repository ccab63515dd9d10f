"""Classes and functions for users' training programs; launcher/programs/README.md shows how to write one.

`ScriptRun` is for scripts of runtimes collective and ps, and its callbacks are for scripts of runtime collective
(docs/how-to/own-script.md). Everything else is for programs of runtime fleet. This module does not import Paddle, so a
program's columns and its parse() can be tested without Paddle. Every exported model contains a copy of this module,
which must work without the launcher.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from launcher.script_callbacks import TrainerCallback as TrainerCallback  # noqa: PLC0414 - for type checkers
    from launcher.script_callbacks import hapi_callback as hapi_callback  # noqa: PLC0414
    from launcher.script_run import ScriptRun as ScriptRun  # noqa: PLC0414 - an export, for type checkers

__all__ = ["Ids", "Job", "Real", "bucket", "choice", "hash64", "real_number", "whole_number"]

T = TypeVar("T")


@dataclass(frozen=True)
class Ids:
    """An input of up to `length` ids for each row, such as the words of a text.

    parse() returns a whole number from 0 to 2**64-1, or a list of them. network() gets an int64 tensor of
    shape [batch, length] with the same 64 bits, so an id from 2**63 on is a negative number there. Rows with
    fewer ids are padded with 0.
    """

    length: int
    cut: bool = False
    """What to do with a row of more than `length` ids. True: use the first `length` ids. False: stop with an
    error that contains the row's number."""


@dataclass(frozen=True)
class Real:
    """An input of exactly `width` numbers for each row.

    parse() returns a number, or a list of `width` numbers. network() gets a float32 tensor of shape
    [batch, width].
    """

    width: int = 1


@dataclass
class Job:
    """The argument `job` that the launcher passes to a program's functions, such as network(job, …)."""

    options: Mapping[str, Any]
    """The program's OPTIONS, with the values that `training.args` sets."""
    tables: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    """Path of each side table (an additional file listed in `data.tables`), by its name."""
    side: Any = None
    """The value that the program's prepare(job) returned; None without prepare()."""
    embed: Callable[..., Any] | None = field(default=None, repr=False)
    """The function behind `embedding`; the launcher sets it only while it calls the program's network()."""

    def embedding(
        self,
        ids: Any,
        width: int,
        name: str,
        *,
        spread: float = 0.01,
        weights: Any = None,
        pool: Literal["sum", "mean"] | None = None,
        optimizer: Any = None,
        admit: int = 1,
        evict: int | None = None,
    ) -> Any:
        """Look up ids in a trained embedding table; only network() may call this.

        The table lives on the parameter servers. A row is added when its id is first trained on, so the table
        needs no size.

        Args:
            ids: int64 tensor of shape [batch, length], such as an `Ids` input. Every 64-bit number is an id,
                except 0, which is padding: its vector is always zeros. An id that was never trained on also
                gives zeros.
            width: numbers in each vector.
            name: the table's name. Two calls with the same name share one table, and must have the same other
                arguments (except `ids`, `weights` and `pool`).
            spread: new vectors are drawn uniformly from -spread to +spread.
            weights: float32 tensor of shape [batch, length], such as a `Real(length)` input; each vector is
                multiplied by its weight. With `pool="mean"` the mean is weighted.
            pool: combine the vectors of a row into their "sum" or "mean", without padding. None: keep all vectors.
            optimizer: optimizer of this table: paddle.optimizer.Adam, SGD or Adagrad. None: the one that
                the program's optimizer() returns.
            admit: an id gets its vector when it is trained on for the `admit`-th time; before that only the
                first number of its vector is trained.
            evict: delete an id that was not trained on for this many checkpoints in a row. None: keep all ids.

        Returns:
            float32 tensor of shape [batch, length, width]; with `pool` of shape [batch, width].

        Raises:
            ValueError: an argument is invalid. The launcher adds the program's file and line to the message.
            RuntimeError: this was called outside network().
        """
        if self.embed is None:
            raise RuntimeError("embedding() was called outside network(). Fix: call it in network() only")
        return self.embed(ids, width, name, spread, weights, pool, optimizer, admit, evict)


def hash64(text: str) -> int:
    """Return a hash of `text` as an id from 1 to 2**64-1, the same on every rank and in every run."""
    digest = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def bucket(text: str, buckets: int) -> int:
    """Return a hash of `text` as an id from 1 to buckets-1, the same on every rank and in every run.

    Different texts can get the same id. Use `bucket` instead of `hash64` to limit the rows of an embedding table.
    """
    return zlib.crc32(text.encode(errors="surrogateescape")) % (buckets - 1) + 1


def whole_number(row: Mapping[str, Any], column: str, low: int, high: int) -> int:
    """Convert a column's text or number in a row to a whole number from `low` to `high`, and return it.

    Args:
        row: the texts or values of a row, by column name.
        column: the column to convert.
        low: smallest valid number.
        high: largest valid number.

    Raises:
        ValueError: the value is not a whole number (for example 7.5), or is not from `low` to `high`. The message
            contains the column and the value.
    """
    return int(_number(row, column, int, low, high))


def real_number(row: Mapping[str, Any], column: str, low: float, high: float) -> float:
    """Convert a column's text or number in a row to a number from `low` to `high`, and return it.

    The arguments and the errors are the same as in `whole_number`.
    """
    return float(_number(row, column, float, low, high))


def _number(row: Mapping[str, Any], column: str, kind: type, low: float, high: float) -> float:
    try:
        value = kind(row[column])
    except (TypeError, ValueError, OverflowError):
        value = None
    is_cut = kind is int and not isinstance(row[column], str) and value != row[column]
    if value is None or is_cut or not low <= value <= high:
        words = "a whole number" if kind is int else "a number"
        raise ValueError(f"column {column} is {row[column]!r}, but must be {words} from {low} to {high}")
    return float(value) if kind is float else value


def choice(row: Mapping[str, str], column: str, values: Sequence[str] | Mapping[str, T]) -> str:
    """Return a column's text in a row, after checking that it is one of `values`.

    Args:
        row: the texts of a row, by column name.
        column: the column to check.
        values: the valid texts.

    Raises:
        ValueError: the text is not in `values`; the message contains the column and the text.
    """
    value = row[column]
    if value not in values:
        raise ValueError(f"column {column} is {value!r}, but must be one of {', '.join(values)}")
    return value


def __getattr__(name: str) -> Any:
    """Import `ScriptRun` and its callbacks when a script uses them, because programs of runtime fleet need neither."""
    if name == "ScriptRun":
        from launcher.script_run import ScriptRun

        return ScriptRun
    if name in ("TrainerCallback", "hapi_callback"):
        from launcher import script_callbacks

        return getattr(script_callbacks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
