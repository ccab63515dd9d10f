"""When to save inside a pass: `training.saveEvery` and `stop`, at the same batch on every rank."""

from __future__ import annotations

from collections.abc import Callable

MEASURED_SECONDS = 5.0  # of steps, before minutes are made batches: the first batches are slow
ASK_SECONDS = 10.0  # of steps, between two questions whether somebody wants a checkpoint


class Schedule:
    """Counts batches since the last save. Every rank asks it at the same batches, with the same outcome."""

    def __init__(
        self,
        batches: int,
        minutes: float,
        slowest: Callable[[float], float],
        ask: Callable[[int, int], tuple[bool, int]],
    ) -> None:
        """`slowest`: the greatest of all ranks' values; a meeting of all ranks.

        `ask(step, proposed)` returns whether a checkpoint is wanted after so many batches of this attempt,
        and after how many to ask again. All ranks get the answer of the first one, so none waits for another.
        """
        self.every = batches
        self._ask = ask
        self._ask_at = 1
        self._wanted = False
        self._seconds = minutes * 60
        self._slowest = slowest
        self._steps = 0
        self._since = 0

    def span(self, most: int) -> int:
        """How many batches, of `most`, may be trained before it must hear of them."""
        most = min(most, self._ask_at - self._steps)
        if self.every:
            most = min(most, max(1, self.every - self._since))
        if self._seconds:  # at the 1st, 2nd, 4th, 8th… batch
            most = min(most, (1 << self._steps.bit_length()) - self._steps)
        return most

    def trained(self, batches: int, seconds: float) -> bool:
        """After a span; `seconds`: of all batches of this attempt. Whether a save is due."""
        self._since += batches
        self._steps += batches
        if self._steps == self._ask_at:
            ahead = int(self._steps * min(1.0, ASK_SECONDS / max(seconds, 1e-3)))
            wanted, self._ask_at = self._ask(self._steps, self._steps + max(1, ahead))
            self._wanted = self._wanted or wanted
        # The ranks meet until they have seen enough to agree on a speed.
        if self._seconds and self._steps & (self._steps - 1) == 0:
            spent = self._slowest(seconds)
            if spent >= min(MEASURED_SECONDS, self._seconds / 2):
                batches = max(1, int(self._seconds * self._steps / spent))
                self.every = min(batches, self.every or batches)
                self._seconds = 0.0
        return self.due

    @property
    def due(self) -> bool:
        """Whether the last save is so many batches ago, or a checkpoint is wanted."""
        return self._wanted or 0 < self.every <= self._since

    def saved(self) -> None:
        """A save was made, of whichever kind."""
        self._since, self._wanted = 0, False
