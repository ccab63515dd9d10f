"""Assign rows to shards and to the test set, by numbers that the seed alone determines.

The result depends on the source's rows and the settings, not on the machine or the size of blocks. A golden test fixes
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from launcher.dataprep import text_lines

UInt64s = npt.NDArray[np.uint64]
_MASK = (1 << 64) - 1
_ASSIGN, _HOLD_OUT = 0, 1  # second half of the key: two independent streams for each part


def _stream(seed: int, purpose: int, part: int) -> np.random.Philox:
    """Return raw 64-bit numbers of Philox4x64-10 with an explicit key, whose stream numpy guarantees.

    numpy's distributions and shuffles may change between versions, so they are not used.
    """
    return np.random.Philox(key=np.array([seed & _MASK, purpose + 2 * part], dtype=np.uint64))


class ShardAssigner:
    """Assigns each block of `shards` consecutive train lines to the shards by a new permutation.

    Shards therefore differ by at most one line in number, and an order in the source (all lines of one label
    first) does not become a skew between shards.
    """

    def __init__(self, seed: int, shards: int, part: int = 0) -> None:
        self._raw = _stream(seed, _ASSIGN, part)
        self._shards = shards
        self._left = np.empty(0, dtype=np.uint16)

    def owners(self, lines: int) -> npt.NDArray[np.uint16]:
        """Return the shard of each of the next `lines` train lines, uint16 of shape (lines,)."""
        blocks = -(-max(0, lines - len(self._left)) // self._shards)
        if blocks:
            raw: UInt64s = self._raw.random_raw(blocks * self._shards).reshape(blocks, self._shards)
            permutations = np.argsort(raw, axis=1, kind="stable").astype(np.uint16).ravel()
            self._left = np.concatenate((self._left, permutations))
        owners, self._left = self._left[:lines], self._left[lines:]
        return owners


class HeldOutSelector:
    """Holds out one line of each interval of 1/fraction consecutive lines for the test set.

    One interval for each test line keeps their number exact to one line and spreads the test set over the
    complete source, also when the source is sorted.
    """

    def __init__(self, seed: int, fraction: float, part: int = 0) -> None:
        self._raw = _stream(seed, _HOLD_OUT, part)
        self._length = 1 / fraction if fraction > 0 else 0.0
        self._interval = 0  # the first interval whose line is not drawn yet
        self._line = 0  # of the source, over all objects
        self._selected = np.empty(0, dtype=np.int64)

    def select(self, lines: int) -> npt.NDArray[np.bool_]:
        """Return for each of the next `lines` lines whether it is held out, bool of shape (lines,)."""
        mask = np.zeros(lines, dtype=np.bool_)
        end = self._line + lines
        if self._length:
            count = int(end / self._length) + 1 - self._interval
            if count > 0:
                bounds = (
                    np.arange(self._interval, self._interval + count + 1, dtype=np.float64) * self._length
                )
                edges = np.ceil(bounds).astype(np.int64)
                draws = (self._raw.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
                picks = edges[:-1] + np.floor(draws * np.diff(edges)).astype(np.int64)
                self._selected = np.concatenate((self._selected, picks))
                self._interval += count
            here = np.searchsorted(self._selected, end)
            mask[self._selected[:here] - self._line] = True
            self._selected = self._selected[here:]
        self._line = end
        return mask


def is_in_test_set(first: int, lines: int, wanted: int, count: int) -> npt.NDArray[np.bool_]:
    """Return which of `lines` held-out lines, the first of which is number `first`, are in the test set.

    The test set takes `wanted` of all `count` held-out lines, evenly spread. Returns a bool array of shape (lines,).
    """
    numbers = np.arange(first, first + lines)
    chosen: npt.NDArray[np.bool_] = (numbers + 1) * wanted // count > numbers * wanted // count
    return chosen


class LineSplitter:
    """Splits blocks of complete lines into one piece for each shard, and a piece with the held-out lines.

    Without shards, all lines are held out. A subclass splits other rows: it replaces `rows`, `select`, `piece` and
    `read_back`.
    """

    def __init__(self, seed: int, shards: int, test_fraction: float, part: int = 0) -> None:
        self._assigner = ShardAssigner(seed, shards, part)
        self._selector = HeldOutSelector(seed, test_fraction, part)
        self._shards = shards
        self.lines = [0] * shards
        """Lines that each shard has so far."""
        self.held = 0
        """Lines that are held out so far."""

    def rows(self, block: Any) -> Any:
        """Return the rows of a block that ends with a newline: a list of lines without their newlines."""
        lines = block.split(b"\n")  # not splitlines: \r and others belong to the line
        lines.pop()
        return lines

    def select(self, rows: Any, chosen: npt.NDArray[Any]) -> Any:
        """Return the rows at the indexes `chosen`, int64 [rows]."""
        return itemgetter(*chosen.tolist())(rows) if len(chosen) > 1 else [rows[i] for i in chosen]

    def piece(self, rows: Any) -> bytes:
        """Return rows as bytes of a shard, empty without rows."""
        return b"\n".join(rows) + b"\n" if rows else b""

    def read_back(self, path: Path) -> Iterator[Any]:
        """Yield the rows of a file of pieces, in several parts."""
        with path.open("rb") as file:
            while lines := file.readlines(text_lines.CHUNK):
                yield [line[:-1] for line in lines]

    def split(self, block: Any) -> tuple[list[bytes], bytes]:
        """Return one piece of `block` for each shard, and the held-out lines.

        A piece has its lines in the source's order and may be empty.
        """
        rows = self.rows(block)
        if not self._shards:
            self.held += len(rows)
            return [], self.piece(rows)
        test = self._selector.select(len(rows))
        owners = np.full(len(rows), self._shards, dtype=np.uint16)
        train = np.flatnonzero(~test)
        owners[train] = self._assigner.owners(len(train))
        *pieces, held = self._group(rows, owners)
        self.held += len(rows) - len(train)
        return pieces, held

    def assign(self, rows: Any) -> list[bytes]:
        """Distribute surplus held-out rows, which the test set does not need, to the shards.

        Returns:
            The rows of each shard as bytes; they may be empty.
        """
        if not self._shards:
            return []
        *pieces, _ = self._group(rows, self._assigner.owners(len(rows)))
        return pieces

    def _group(self, rows: Any, owners: npt.NDArray[np.uint16]) -> list[bytes]:
        """Return one piece for each shard, then the held-out rows; add to `self.lines` of each shard.

        `owners` has the shard of each row; for a held-out row the number of shards.
        """
        sorted_rows = self.select(rows, np.argsort(owners, kind="stable"))
        pieces, first = [], 0
        for owner, count in enumerate(np.bincount(owners, minlength=self._shards + 1).tolist()):
            if owner < self._shards:
                self.lines[owner] += count
            pieces.append(self.piece(sorted_rows[first : first + count]))
            first += count
        return pieces
