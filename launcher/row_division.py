"""Divide the rows of a pass among trainers whose number may change inside the pass, so that each row is trained once.

The rows of a pass are those of all shards one after another, each shard in its own order of this pass. An attempt
divides what remains of them into one part for each trainer, and each part into the same number of batches. What remains
after some batches follows from the rows of each shard and the history: how many trainers trained how many batches of
how many. So a checkpoint stores only these numbers, and every trainer calculates the same parts from them.
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
"""[trainers, batches that each of them trained, batches of each of their parts] of each division of a pass, in order.
Where two consecutive ones have the same number of trainers, they are one."""


def count_rows(part: Iterable[Interval]) -> int:
    """Return the number of rows in the intervals."""
    return sum(end - first for _, first, end in part)


def cut(part: Iterable[Interval], first: int, end: int | None = None) -> Part:
    """Return the rows of a part from its row `first` to its row `end` (exclusive; None: its last row)."""
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
    """Yield the rows of a part that remain after `done` of `steps` batches; then repeat the part without end."""
    rest = cut(part, first_row(rows := count_rows(part), steps, done) % rows)
    return itertools.chain(rest, itertools.chain.from_iterable(itertools.repeat(part)))


def batch_sizes(part: Part, steps: int, done: int) -> list[int]:
    """Return the number of rows of each batch of a part after the first `done` of `steps`."""
    begins = [first_row(count_rows(part), steps, step) for step in range(done, steps + 1)]
    return [end - begin for begin, end in itertools.pairwise(begins)]


def divide(rows: Sequence[int], history: History, trainers: int) -> list[Part]:
    """Return the parts into which `trainers` trainers divide what remains of a pass.

    A pass that nobody has begun is divided at the borders of the shards if there are as many trainers as shards. Else
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
    """The rows of each trainer at the beginning of this division."""
    done: int
    """Batches of each part that earlier attempts with the same number of trainers have trained."""
    steps: int
    """Batches of each part, with those that are done."""

    @classmethod
    def resume(cls, rows: Sequence[int], history: History, trainers: int, batch_size: int) -> Division:
        """Divide what remains of a pass after `history` into batches of at most `batch_size` rows.

        If the newest division of the history has as many parts as there are trainers, its number of batches does not
        change, even if the batch size has changed.
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
        """Return the number of batches that each trainer has trained in the earlier divisions of the pass."""
        return sum(done for _, done, _ in self.earlier)

    def history(self, done: int) -> list[list[int]]:
        """Return the history of the pass after `done` batches of each part of this division."""
        own = [[len(self.parts), done, self.steps]] if done else []
        return [*map(list, self.earlier), *own]
