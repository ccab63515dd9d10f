"""Turn the values that parse() returns for each input into arrays, in training and in prediction.

The values of many rows are kept flat and become one array at the end, which is twice as fast as an array per
row.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

ID_MAX = 2**64 - 1


class IdColumn:
    """Collects the ids of many rows; an id from 0 to 2**64-1 becomes the int64 with the same bits."""

    def __init__(self, length: int, cut: bool) -> None:
        self._length, self._cut = length, cut
        self._flat, self._counts = array("Q"), array("L")

    def add(self, value: Any) -> None:
        """Add the next row's id or ids. Raise `ValueError` or `TypeError` if they are invalid."""
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
            raise ValueError(
                f"{wrong} is not an id: ids are whole numbers from 0 to 2**64-1. Fix: return hash64(text) of "
                "launcher.program, or another number in this range"
            ) from None
        count = len(flat) - before
        if count > self._length:
            if not self._cut:
                raise ValueError(
                    f"{count} ids, but Ids({self._length}) takes at most {self._length} per row. Fix: use "
                    f"Ids({count}) for all of them, or Ids({self._length}, cut=True) for the first ones"
                )
            del flat[before + self._length :]
            count = self._length
        self._counts.append(count)

    def fill(self, target: NDArray[Any]) -> int | None:
        """Write all rows to `target`, of shape [rows, length]. Return None, as `add` has rejected invalid ids."""
        flat = np.frombuffer(self._flat, np.uint64).view(np.int64)
        counts = np.frombuffer(self._counts, np.dtype("L"))
        if len(flat) == target.size:
            target[:] = flat.reshape(target.shape)
        else:  # pad with 0
            target[np.arange(self._length) < counts[:, None]] = flat
        return None


class NumberColumn:
    """Collects the numbers of many rows, which become float32."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._flat = array("d")

    def add(self, value: Any) -> None:
        """Add the next row's number or numbers. Raise `ValueError` or `TypeError` if they are invalid."""
        flat = self._flat
        before = len(flat)
        if isinstance(value, int | float):
            flat.append(value)
        else:
            flat.extend(value)
        if len(flat) - before != self._width:
            count = len(flat) - before
            raise ValueError(
                f"{count} numbers, but Real({self._width}) takes {self._width} per row. Fix: return {self._width}, "
                f"or use Real({count})"
            )

    def fill(self, target: NDArray[Any]) -> int | None:
        """Write all rows to `target`, of shape [rows, width].

        Returns:
            The index (from 0) of the first row with a number that is not finite in float32; None without one.
        """
        with np.errstate(over="ignore"):
            target[:] = np.frombuffer(self._flat, np.float64).reshape(target.shape)
        bad = ~np.isfinite(target).all(axis=1)
        return int(bad.argmax()) if bad.any() else None


def new_column(kind: Any) -> IdColumn | NumberColumn:
    """Return an empty column for an `Ids` or a `Real`, of any version of the program's interface."""
    return IdColumn(kind.length, kind.cut) if hasattr(kind, "length") else NumberColumn(kind.width)
