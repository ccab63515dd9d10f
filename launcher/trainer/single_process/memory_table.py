"""Train an embedding table in this process' memory by the same rules as on the parameter servers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launcher.trainer.checkpoint.table_files import TableRows
from launcher.trainer.graph.table_optimizers import OptimizerRule

FIRST = 1024
"""Initial capacity in rows; it is doubled when the table is full."""


class MemoryTable:
    """Holds vectors by 64-bit id; a row is added when its id is first trained on. Id 0 is padding: zeros."""

    def __init__(self, width: int, spread: float, rule: OptimizerRule, seed: int) -> None:
        self.width = width
        self._spread, self._rule = spread, rule
        self._random = np.random.default_rng(seed)
        self._place: dict[int, int] = {0: 0}
        self._values = np.zeros((FIRST, width), np.float32)
        self._first = np.zeros_like(self._values)
        """Adam's mean gradients, Adagrad's sums of squares."""
        self._second = np.zeros_like(self._values)
        """Adam's mean squares."""
        self._steps = np.zeros((FIRST, 1))

    def __len__(self) -> int:
        return len(self._place) - 1

    def _grow(self, ids: list[int]) -> None:
        """Add a row to the table for each of the ids that has none; enlarge the arrays if they are full."""
        before = len(self._place)
        for each in ids:
            self._place.setdefault(each, len(self._place))
        count = len(self._place)
        if count > len(self._values):
            more = max(count, 2 * len(self._values)) - len(self._values)
            names = ("_values", "_first", "_second", "_steps")
            for name in names:
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros((more, array.shape[1]), array.dtype)]))
        size = (count - before, self.width)
        self._values[before:count] = self._random.uniform(-self._spread, self._spread, size)

    def look_up(self, ids: NDArray[np.int64], train: bool) -> NDArray[np.float32]:
        """Return the vectors of some ids, shape [*ids.shape, width].

        Args:
            ids: int64, any shape.
            train: add rows for unknown ids; otherwise their vectors are zeros.
        """
        unique, back = np.unique(ids, return_inverse=True)
        wanted = unique.tolist()
        if train:
            self._grow(wanted)
        places = np.array([self._place.get(each, 0) for each in wanted], np.int64)
        found: NDArray[np.float32] = self._values[places][back.reshape(-1)]
        return found.reshape(*ids.shape, self.width)

    @np.errstate(over="ignore", invalid="ignore")  # the next loss is NaN, which is reported
    def step(self, ids: NDArray[np.int64], gradients: NDArray[np.float32]) -> None:
        """Update the rows by one step of the optimizer, with the sum (Adagrad: the mean) of each id's gradients.

        Args:
            ids: shape [n], all of them looked up before with `train`.
            gradients: shape [n, width].
        """
        unique, back, times = np.unique(ids, return_inverse=True, return_counts=True)
        order = np.argsort(back.reshape(-1), kind="stable")
        first = np.cumsum(times) - times
        total = np.add.reduceat(gradients.reshape(-1, self.width)[order], first, axis=0)
        used = unique != 0
        total, times = total[used], times[used]
        at = np.array([self._place[each] for each in unique[used].tolist()], np.int64)
        rule = self._rule
        if rule.kind == "sgd":
            self._values[at] -= rule.rate * total
        elif rule.kind == "adagrad":
            mean = total / times[:, None]
            self._values[at] -= rule.rate * mean / np.sqrt(rule.initial + self._first[at])
            self._first[at] += np.square(mean)
        else:
            self._steps[at] += 1
            self._first[at] = rule.beta1 * self._first[at] + (1 - rule.beta1) * total
            self._second[at] = rule.beta2 * self._second[at] + (1 - rule.beta2) * np.square(total)
            late = np.sqrt(1 - rule.beta2 ** self._steps[at])
            rate = rule.rate * late / (1 - rule.beta1 ** self._steps[at])
            self._values[at] -= rate * self._first[at] / (np.sqrt(self._second[at]) + rule.epsilon * late)

    def rows(self) -> TableRows:
        """Return all rows, in ascending order of their ids."""
        ids = np.array(list(self._place), np.int64).view(np.uint64)
        order = np.argsort(ids)[1:]  # without 0
        return TableRows(ids[order], self._values[order])
