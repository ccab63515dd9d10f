"""Divide the rows of a pass among trainers whose number may change inside the pass, so that each row is trained once.

A pass has the rows of all shards, one shard after another. Each shard has its own order of rows in each pass. An
attempt divides the rows that remain in the pass into one part for each trainer, and each part into the same number of
batches. Which rows remain can be calculated from the number of rows in each shard and from the history of the pass
(`History`). So a checkpoint stores only these numbers, and every trainer calculates the same parts from them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Interval = tuple[int, int, int]
"""(shard, first row, end): the rows of a shard from the first one to the end (exclusive), in the order of the pass."""
Part = list[Interval]
"""The rows of one trainer, in the order in which it trains them."""
History = Sequence[Sequence[int]]
"""What was trained of a pass: a list of the divisions of the pass, in order. Each division is [number of trainers,
number of batches that each trainer has trained, number of batches in each part]. The last number is 0 if it is unknown.
Consecutive attempts with the same number of trainers are one division."""


def count_rows(part: Iterable[Interval]) -> int:
    """Return the number of rows in the intervals."""
    return sum(end - first for _, first, end in part)


def cut(part: Iterable[Interval], first: int, end: int | None = None) -> Part:
    """Return the rows of a part from row number `first` up to row number `end`, exclusive; None: up to the last row."""
    found, start = [], 0
    for shard, low, high in part:
        begin = max(low, low + first - start)
        stop = high if end is None else min(high, low + end - start)
        if begin < stop:
            found.append((shard, begin, stop))
        start += high - low
    return found


def first_row(rows: int, steps: int, batch: int) -> int:
    """Return the number of the first row of a batch.

    The sizes of two batches differ by at most one row. A part with fewer rows than batches has one row in each batch
    and repeats its rows, so the result may be above `rows`.

    Args:
        rows: the number of rows in the part.
        steps: the number of batches; 0 only if no part has rows.
        batch: the number of the batch, from 0.
    """
    even, more = divmod(max(rows, steps), steps or 1)
    return batch * even + min(batch, more)


def remaining(part: Part, steps: int, done: int) -> Iterator[Interval]:
    """Yield the rows that remain after `done` of the `steps` batches of a part; then repeat the part without end."""
    rest = cut(part, first_row(rows := count_rows(part), steps, done) % rows)
    return itertools.chain(rest, itertools.chain.from_iterable(itertools.repeat(part)))


def batch_sizes(part: Part, steps: int, done: int) -> list[int]:
    """Return the number of rows in each batch that remains after `done` of the `steps` batches of a part."""
    begins = [first_row(count_rows(part), steps, step) for step in range(done, steps + 1)]
    return [end - begin for begin, end in itertools.pairwise(begins)]


def divide(rows: Sequence[int], history: History, trainers: int) -> list[Part]:
    """Divide the rows that remain in a pass into one part for each of `trainers` trainers.

    If nothing of the pass is trained yet and there are as many trainers as shards, each part is one shard. Otherwise
    the sizes of the parts differ by at most one row.

    Args:
        rows: the number of rows of each shard.
        history: what was trained of the pass; empty: nothing.
        trainers: the number of parts.
    """
    left = [(shard, 0, count) for shard, count in enumerate(rows)]
    if history:
        *before, (parts, done, steps) = history
        found = divide(rows, before, parts)
        left = [
            interval for part in found for interval in cut(part, first_row(count_rows(part), steps, done))
        ]
    elif trainers == len(rows):
        return [[interval] for interval in left]
    total = count_rows(left)
    return [cut(left, total * n // trainers, total * (n + 1) // trainers) for n in range(trainers)]


@dataclass(frozen=True)
class Division:
    """What remains of a pass, divided among the trainers of an attempt."""

    rows: tuple[int, ...]
    """The number of rows of each shard."""
    earlier: tuple[tuple[int, ...], ...]
    """The history of the pass before this division."""
    parts: list[Part]
    """The rows of each trainer, including the rows of the batches that are done."""
    done: int
    """The number of batches of each part that earlier attempts have trained in this same division."""
    steps: int
    """The number of batches in each part, including those that are done."""

    @classmethod
    def resume(cls, rows: Sequence[int], history: History, trainers: int, batch_size: int) -> Division:
        """Divide the rows that remain in a pass after `history` into batches of at most `batch_size` rows.

        If the newest division in the history has the same number of trainers, the result continues that division. The
        number of batches then stays the same, even if `batch_size` is different now; an unknown number (0) is
        calculated from `batch_size`.
        """
        earlier, done, recorded = [tuple(each) for each in history], 0, 0
        if earlier and earlier[-1][0] == trainers:
            _, done, recorded = earlier.pop()
        parts = divide(rows, earlier, trainers)
        steps = math.ceil(max(map(count_rows, parts)) / batch_size)
        steps = recorded or (steps if earlier else max(1, steps))
        return cls(tuple(rows), tuple(earlier), parts, done, steps)

    @property
    def trained_before(self) -> int:
        """Return the number of batches that each trainer trained in the divisions of the pass before this one."""
        return sum(done for _, done, _ in self.earlier)

    def history(self, done: int) -> list[list[int]]:
        """Return the history of the pass after `done` batches of each part of this division."""
        own = [[len(self.parts), done, self.steps]] if done else []
        return [*map(list, self.earlier), *own]
