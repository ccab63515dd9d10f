"""Who gets which line: drawn from the seed alone, the same on every machine and for every chunk size.

Both draws come from Philox4x64-10 with an explicit key and raw 64-bit outputs (`random_raw`), whose stream
numpy guarantees for good; none of numpy's distributions or shuffles is used, for those may change. A golden
test pins the result.
"""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]
_MASK = (1 << 64) - 1
STEP = 1 << 20
"""Lines per step when the split is recomputed to find one line."""
_DEAL, _HOLD_OUT = 0, 1  # second half of the key: the streams of one seed, two a part, never meet


def _stream(seed: int, purpose: int, part: int) -> np.random.Philox:
    return np.random.Philox(key=np.array([seed & _MASK, purpose + 2 * part], dtype=np.uint64))


class Dealer:
    """Deals each block of `shards` consecutive train lines to the shards by a fresh permutation.

    So shards differ by at most one line in number, and an order in the source (all of one label first)
    does not become a skew between shards.
    """

    def __init__(self, seed: int, shards: int, part: int = 0) -> None:
        self._raw = _stream(seed, _DEAL, part)
        self._shards = shards
        self._left = np.empty(0, dtype=np.uint16)

    def owners(self, lines: int) -> npt.NDArray[np.uint16]:
        """The shards of the next `lines` train lines, shape (lines,)."""
        blocks = -(-max(0, lines - len(self._left)) // self._shards)
        if blocks:
            raw: UInt64s = self._raw.random_raw(blocks * self._shards).reshape(blocks, self._shards)
            fresh = np.argsort(raw, axis=1, kind="stable").astype(np.uint16).ravel()
            self._left = np.concatenate((self._left, fresh))
        owners, self._left = self._left[:lines], self._left[lines:]
        return owners


class HoldOut:
    """Chooses one line out of each stretch of 1/fraction consecutive lines for the test set.

    A stretch of its own for each test line keeps the number right to one and the test set spread over the
    whole source, also when the source is sorted.
    """

    def __init__(self, seed: int, fraction: float, part: int = 0) -> None:
        self._raw = _stream(seed, _HOLD_OUT, part)
        self._length = 1 / fraction if fraction > 0 else 0.0
        self._stretch = 0  # the first one not yet drawn
        self._line = 0  # of the source, over all objects
        self._chosen = np.empty(0, dtype=np.int64)

    def chosen(self, lines: int) -> npt.NDArray[np.bool_]:
        """Which of the next `lines` lines are held out, shape (lines,)."""
        mask = np.zeros(lines, dtype=np.bool_)
        end = self._line + lines
        if self._length:
            count = int(end / self._length) + 1 - self._stretch
            if count > 0:
                bounds = np.arange(self._stretch, self._stretch + count + 1, dtype=np.float64) * self._length
                edges = np.ceil(bounds).astype(np.int64)
                part = (self._raw.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
                picks = edges[:-1] + np.floor(part * np.diff(edges)).astype(np.int64)
                self._chosen = np.concatenate((self._chosen, picks))
                self._stretch += count
            here = np.searchsorted(self._chosen, end)
            mask[self._chosen[:here] - self._line] = True
            self._chosen = self._chosen[here:]
        self._line = end
        return mask


def is_taken(first: int, lines: int, wanted: int, count: int) -> npt.NDArray[np.bool_]:
    """Which of `lines` held lines, from the place `first` on, are of the test set: `wanted` of `count`."""
    places = np.arange(first, first + lines)
    taken: npt.NDArray[np.bool_] = (places + 1) * wanted // count > places * wanted // count
    return taken


class Split:
    """Cuts runs of whole lines into one piece a shard, and one of the lines that are held out."""

    def __init__(self, seed: int, shards: int, test_fraction: float, part: int = 0) -> None:
        self._dealer = Dealer(seed, shards, part)
        self._hold_out = HoldOut(seed, test_fraction, part)
        self._shards = shards
        self.lines = [0] * shards
        """Lines given so far to each shard."""
        self.held = 0
        """Lines held out so far."""

    def pieces(self, segment: bytes) -> tuple[list[bytes], bytes]:
        r"""A piece of `segment`, which ends with a newline, for each shard, and what is held out.

        A piece holds its lines in the source's order; a piece without a line is empty.
        """
        lines = segment.split(b"\n")  # not splitlines: \r and others are part of a line
        lines.pop()
        test = self._hold_out.chosen(len(lines))
        owners = np.full(len(lines), self._shards, dtype=np.uint16)
        train = np.flatnonzero(~test)
        owners[train] = self._dealer.owners(len(train))
        *pieces, held = self._sorted(lines, owners)
        self.held += len(lines) - len(train)
        return pieces, held

    def deal(self, lines: list[bytes]) -> list[bytes]:
        """Pieces of lines that were held out, but are not needed for the test."""
        *pieces, _ = self._sorted(lines, self._dealer.owners(len(lines)))
        return pieces

    def source_line(self, lines: int, wanted: int, shard: int | None, place: int) -> int:
        """Return which of the part's `lines` lines, from 0, was dealt to the `place`-th line of a shard.

        For a split that has dealt nothing yet. `wanted`: how many lines the test set has; `shard` None: find
        a line of the test set. Takes some seconds for 100 million lines.
        """
        held = [np.empty(0, dtype=np.int64)]
        for begin in range(0, lines, STEP):
            test = self._hold_out.chosen(min(STEP, lines - begin))
            held.append(begin + np.flatnonzero(test))
            train = np.flatnonzero(~test)
            mine = train[self._dealer.owners(len(train)) == shard] if shard is not None else train[:0]
            if place < len(mine):
                return begin + int(mine[place])
            place -= len(mine)
        every = np.concatenate(held)
        taken = is_taken(0, len(every), wanted, max(1, len(every)))
        if shard is None:
            return int(every[taken][place])
        rest = every[~taken]
        return int(rest[self._dealer.owners(len(rest)) == shard][place])

    def _sorted(self, lines: list[bytes], owners: npt.NDArray[np.uint16]) -> list[bytes]:
        order = np.argsort(owners, kind="stable").tolist()
        sorted_lines = itemgetter(*order)(lines) if len(order) > 1 else tuple(lines)
        pieces, first = [], 0
        for bucket, count in enumerate(np.bincount(owners, minlength=self._shards + 1).tolist()):
            mine = sorted_lines[first : first + count]
            first += count
            if bucket < self._shards:
                self.lines[bucket] += count
            pieces.append(b"\n".join(mine) + b"\n" if count else b"")
        return pieces
