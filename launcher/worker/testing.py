"""The program's metrics of the test set: by trainer 0, or by all, each its share, when the set is large.

Which it is follows from what was staged (launcher/storage/stage.py): where all have the rows, all predict.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from launcher.worker.program import Program
from launcher.worker.records import Records
from launcher.worker.samples import Arrays

CHUNK = 65536  # rows that are predicted at once


class Predicting(Protocol):
    """What is needed of a trainer."""

    def predict(self, arrays: Arrays) -> NDArray[np.float32]: ...

    def gather(self, values: list[float]) -> NDArray[np.float64]: ...

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]: ...


class Tester:
    """One trainer's part in testing. All trainers must call `score` together."""

    def __init__(self, program: Program, trainer: Predicting, rank: int, test: Records | None) -> None:
        """`test`: the whole set, or None where this trainer has none. Trainer 0 must have it."""
        self._program, self._trainer, self._rank, self._test = program, trainer, rank, test
        self._shared: bool | None = None

    def score(self) -> dict[str, float]:
        """{metric: value} with the parameters as they are now, on trainer 0; empty elsewhere."""
        if self._shared is None:
            self._shared = bool(self._trainer.gather([float(self._test is not None)]).all())
        predictions = self._merged() if self._shared else self._own()
        if self._rank or self._test is None:
            return {}
        labels = np.concatenate([block[self._program.label] for block in self._test.blocks(CHUNK)])
        with self._program.calling("metrics()"):
            found = self._program.module.metrics(predictions, labels)
        return {name: float(value) for name, value in found.items()}

    def _own(self) -> NDArray[np.float32] | None:
        if self._rank or self._test is None:
            return None
        return self._predicted(self._test, 0, self._test.rows)

    def _merged(self) -> NDArray[np.float32]:
        """All trainers' predictions, in the order of the rows."""
        test = self._test
        assert test is not None  # noqa: S101 - all have said that they have it
        trainers = len(self._trainer.gather([0.0]))
        first, last = (test.rows * rank // trainers for rank in (self._rank, self._rank + 1))
        # With fewer rows than trainers this one may have no share, and predicts a row only for its shape.
        mine = self._predicted(test, first, max(last, first + 1))[: last - first]
        whole = np.zeros((test.rows, *mine.shape[1:]))
        whole[first:last] = mine
        return self._trainer.total(whole).astype(np.float32)

    def _predicted(self, test: Records, first: int, last: int) -> NDArray[np.float32]:
        return np.concatenate([self._trainer.predict(block) for block in test.blocks(CHUNK, first, last)])
