"""Decide which shard gets which line, and which lines the test set gets (held-out lines), by the seed alone.

The result is the same on every machine and for every block size. Both random choices (the shard of a
line, the held-out lines) use Philox4x64-10 with an explicit key and raw 64-bit outputs (`random_raw`), whose
stream numpy guarantees; numpy's distributions and shuffles may change between versions, so they are not used.
A golden test fixes the result.
"""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]
_MASK = (1 << 64) - 1
_ASSIGN, _HOLD_OUT = 0, 1  # second half of the key: two independent streams for each part


def _stream(seed: int, purpose: int, part: int) -> np.random.Philox:
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
    """Splits blocks of complete lines into one piece for each shard, and one of the held-out lines."""

    def __init__(self, seed: int, shards: int, test_fraction: float, part: int = 0) -> None:
        self._assigner = ShardAssigner(seed, shards, part)
        self._selector = HeldOutSelector(seed, test_fraction, part)
        self._shards = shards
        self.lines = [0] * shards
        """Lines that each shard has so far."""
        self.held = 0
        """Lines that are held out so far."""

    def split(self, block: bytes) -> tuple[list[bytes], bytes]:
        r"""Return one piece of `block` for each shard, and the held-out lines.

        `block` ends with a newline. A piece has its lines in the source's order and may be empty.
        """
        lines = block.split(b"\n")  # not splitlines: \r and others belong to the line
        lines.pop()
        test = self._selector.select(len(lines))
        owners = np.full(len(lines), self._shards, dtype=np.uint16)
        train = np.flatnonzero(~test)
        owners[train] = self._assigner.owners(len(train))
        *pieces, held = self._group(lines, owners)
        self.held += len(lines) - len(train)
        return pieces, held

    def assign(self, lines: list[bytes]) -> list[bytes]:
        """Assign held-out lines that the test set does not need to the shards; return one piece for each shard."""
        *pieces, _ = self._group(lines, self._assigner.owners(len(lines)))
        return pieces

    def _group(self, lines: list[bytes], owners: npt.NDArray[np.uint16]) -> list[bytes]:
        """Return one piece for each shard, then the held-out lines; add to `self.lines` of each shard.

        `owners` has the shard of each line; for a held-out line the number of shards.
        """
        order = np.argsort(owners, kind="stable").tolist()
        sorted_lines = itemgetter(*order)(lines) if len(order) > 1 else tuple(lines)
        pieces, first = [], 0
        for owner, count in enumerate(np.bincount(owners, minlength=self._shards + 1).tolist()):
            own = sorted_lines[first : first + count]
            first += count
            if owner < self._shards:
                self.lines[owner] += count
            pieces.append(b"\n".join(own) + b"\n" if count else b"")
        return pieces
