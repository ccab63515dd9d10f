"""Assign rows to shards and to the test set, by random numbers that the seed determines.

The result depends only on the source's rows and the settings, and not on the machine or the size of blocks. A test
compares it with a stored result.
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
_ASSIGN, _HOLD_OUT = 0, 1  # the purpose in the key of a stream: each part has two independent streams


def _stream(seed: int, purpose: int, part: int) -> np.random.Philox:
    """Return the random generator of a part for a purpose, `_ASSIGN` or `_HOLD_OUT`.

    It is Philox4x64-10 with an explicit key. numpy guarantees that its raw 64-bit numbers stay the same in later
    versions. numpy's distributions and shuffles may change between versions, so they are not used.
    """
    return np.random.Philox(key=np.array([seed & _MASK, purpose + 2 * part], dtype=np.uint64))


class ShardAssigner:
    """Assigns train lines to shards: of `shards` consecutive lines, each shard gets one, in a new random order.

    So the numbers of lines of two shards differ by at most one. If the source is sorted, for example by label, the
    shards still get about the same number of lines with each label.
    """

    def __init__(self, seed: int, shards: int, part: int = 0) -> None:
        self._raw = _stream(seed, _ASSIGN, part)
        self._shards = shards
        self._left = np.empty(0, dtype=np.uint16)

    def owners(self, lines: int) -> npt.NDArray[np.uint16]:
        """Return the index of the shard for each of the next `lines` train lines: uint16 of shape (lines,)."""
        blocks = -(-max(0, lines - len(self._left)) // self._shards)
        if blocks:
            raw: UInt64s = self._raw.random_raw(blocks * self._shards).reshape(blocks, self._shards)
            permutations = np.argsort(raw, axis=1, kind="stable").astype(np.uint16).ravel()
            self._left = np.concatenate((self._left, permutations))
        owners, self._left = self._left[:lines], self._left[lines:]
        return owners


class HeldOutSelector:
    """Holds out lines for the test set: one random line of each interval of 1/`fraction` consecutive lines.

    So the number of held-out lines is exact to one line, and the test set has lines from all over the source, even if
    the source is sorted. With a `fraction` of 0 no line is held out.
    """

    def __init__(self, seed: int, fraction: float, part: int = 0) -> None:
        self._raw = _stream(seed, _HOLD_OUT, part)
        self._length = 1 / fraction if fraction > 0 else 0.0
        self._interval = 0  # the first interval whose line is not drawn yet
        self._line = 0  # number of the next line, counted over all objects of the part
        self._selected = np.empty(0, dtype=np.int64)

    def select(self, lines: int) -> npt.NDArray[np.bool_]:
        """Return whether each of the next `lines` lines is held out: bool of shape (lines,)."""
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
    """Return for each of `lines` consecutive held-out lines whether it is in the test set: bool of shape (lines,).

    The test set gets `wanted` of all `count` held-out lines, evenly spread. `first` is the number of the first of the
    `lines` lines among all held-out lines, from 0.
    """
    numbers = np.arange(first, first + lines)
    chosen: npt.NDArray[np.bool_] = (numbers + 1) * wanted // count > numbers * wanted // count
    return chosen


class LineSplitter:
    """Splits blocks of complete lines into one piece for each shard, and a piece with the held-out lines.

    A piece is the bytes that are appended to a file. Without shards (`shards` is 0), all lines are held out. A subclass
    for another kind of rows overrides `rows`, `select`, `piece` and `read_back`.
    """

    def __init__(self, seed: int, shards: int, test_fraction: float, part: int = 0) -> None:
        self._assigner = ShardAssigner(seed, shards, part)
        self._selector = HeldOutSelector(seed, test_fraction, part)
        self._shards = shards
        self.lines = [0] * shards
        """Number of lines of each shard so far."""
        self.held = 0
        """Number of held-out lines so far."""

    def rows(self, block: Any) -> Any:
        """Return the rows of a block that ends with a newline: a list of lines without their newlines."""
        lines = block.split(b"\n")  # not splitlines: \r and others belong to the line
        lines.pop()
        return lines

    def select(self, rows: Any, chosen: npt.NDArray[Any]) -> Any:
        """Return the rows at the indexes `chosen`, an integer array."""
        return itemgetter(*chosen.tolist())(rows) if len(chosen) > 1 else [rows[i] for i in chosen]

    def piece(self, rows: Any) -> bytes:
        """Return rows as the bytes that a shard has for them; no bytes if there are no rows."""
        return b"\n".join(rows) + b"\n" if rows else b""

    def read_back(self, path: Path) -> Iterator[Any]:
        """Yield the rows of a file that consists of results of `piece`, several rows at a time."""
        with path.open("rb") as file:
            while lines := file.readlines(text_lines.CHUNK):
                yield [line[:-1] for line in lines]

    def split(self, block: Any) -> tuple[list[bytes], bytes]:
        """Return (one piece of `block` for each shard, a piece with the held-out lines).

        The lines of a piece have the order of the source. A piece may be empty.
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
        """Distribute held-out rows that the test set does not need to the shards.

        Returns:
            One piece for each shard, which may be empty; without shards an empty list.
        """
        if not self._shards:
            return []
        *pieces, _ = self._group(rows, self._assigner.owners(len(rows)))
        return pieces

    def _group(self, rows: Any, owners: npt.NDArray[np.uint16]) -> list[bytes]:
        """Return one piece for each shard and last a piece with the held-out rows; update `self.lines`.

        `owners` has the index of the shard of each row. For a held-out row it has the number of shards.
        """
        sorted_rows = self.select(rows, np.argsort(owners, kind="stable"))
        pieces, first = [], 0
        for owner, count in enumerate(np.bincount(owners, minlength=self._shards + 1).tolist()):
            if owner < self._shards:
                self.lines[owner] += count
            pieces.append(self.piece(sorted_rows[first : first + count]))
            first += count
        return pieces
