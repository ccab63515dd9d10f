"""What parse() may give for an input, and what becomes of it: in training and when predicting alike.

Values of many rows are kept flat and become one array at the end: twice as fast as an array a row.
"""

from __future__ import annotations

from array import array
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ID_MAX = 2**64 - 1


class Column(Protocol):
    """One input's values, row by row."""

    def add(self, value: Any) -> None:
        """The next row's. Raises `ValueError`, `TypeError` that say why these values cannot be taken."""

    def fill(self, target: NDArray[Any]) -> int | None:
        """Writes all rows; returns the first one with a number that float32 does not hold."""


def column(kind: Any) -> Column:
    """An empty one for `Ids` or `Real`, of whichever `interface.py` the program was written with."""
    return _Ids(kind.length, kind.cut) if hasattr(kind, "length") else _Numbers(kind.width)


class _Ids:
    """The ids of many rows, of any 64 bits each; kept as the int64 of the same bits."""

    def __init__(self, length: int, cut: bool) -> None:
        self._length, self._cut = length, cut
        self._flat, self._counts = array("Q"), array("L")

    def add(self, value: Any) -> None:
        flat = self._flat
        before = len(flat)
        try:
            if isinstance(value, int):
                flat.append(value)
            else:
                flat.extend(value)
        except OverflowError:
            ids = [value] if isinstance(value, int) else value
            wrong = next(each for each in ids if not 0 <= each <= ID_MAX)
            raise ValueError(f"{wrong} is no id: ids are whole numbers from 0 to 2**64-1") from None
        count = len(flat) - before
        if count > self._length:
            if not self._cut:
                raise ValueError(
                    f"{count} ids, but Ids({self._length}) takes {self._length} a row. Ids({count}) would "
                    f"take them all; Ids({self._length}, cut=True) drops what is behind"
                )
            del flat[before + self._length :]
            count = self._length
        self._counts.append(count)

    def fill(self, target: NDArray[Any]) -> int | None:
        flat = np.frombuffer(self._flat, np.uint64).view(np.int64)
        counts = np.frombuffer(self._counts, np.dtype("L"))
        if len(flat) == target.size:
            target[:] = flat.reshape(target.shape)
        else:  # filled up with 0
            target[np.arange(self._length) < counts[:, None]] = flat
        return None


class _Numbers:
    """The numbers of many rows."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._flat = array("d")

    def add(self, value: Any) -> None:
        flat = self._flat
        before = len(flat)
        if isinstance(value, int | float):
            flat.append(value)
        else:
            flat.extend(value)
        if len(flat) - before != self._width:
            raise ValueError(f"{len(flat) - before} numbers where {self._width} belong")

    def fill(self, target: NDArray[Any]) -> int | None:
        with np.errstate(over="ignore"):
            target[:] = np.frombuffer(self._flat, np.float64).reshape(target.shape)
        bad = ~np.isfinite(target).all(axis=1)
        return int(bad.argmax()) if bad.any() else None
