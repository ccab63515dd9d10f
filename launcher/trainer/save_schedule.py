"""Decide when to save a checkpoint inside a pass, at the same batch on every rank.

The reasons are `training.checkpointEvery` (batches or minutes) and a request: by a user (`launcher stop`), or by the
coordinator, for example because a pod must exit.
"""

from __future__ import annotations

from collections.abc import Callable

MEASURED_SECONDS = 5.0
"""Seconds of training before the minutes between two checkpoints are converted to a number of batches. The speed is not
measured earlier, because the first batches are slow. If half of the time between two checkpoints is shorter, the speed
is measured after that half."""
ASK_SECONDS = 10.0
"""Approximate seconds of training between two checks for a request."""


class SaveSchedule:
    """Decides after which batches of a pass a checkpoint is saved, by counting the batches since the last checkpoint.

    Every rank calls the methods after the same batches, and gets the same answers.
    """

    def __init__(
        self,
        batches: int,
        minutes: float,
        slowest: Callable[[float], float],
        ask: Callable[[int, int], tuple[bool, int]],
    ) -> None:
        """Create the schedule of one attempt.

        Args:
            batches: number of batches between two checkpoints; 0 if batches do not decide.
            minutes: minutes between two checkpoints; 0 if the time does not decide.
            slowest: takes the seconds that this rank has trained in this attempt. Waits until every rank has called it,
                and returns the largest of these numbers.
            ask: `ask(step, proposed)` asks rank 0's launcher whether a checkpoint is requested. It returns
                (whether to save now, the step at which every rank must ask again). `step` is the number of batches that
                each rank has trained in this attempt. `proposed` is the step at which this rank would like to ask
                again. The launcher decides when the first of the ranks asks for a step. The other ranks get the same
                answer when they reach this step, so no rank waits for another.
        """
        self.every = batches
        self._ask = ask
        self._ask_at = 1
        self.requested = False
        """Whether a user or the launcher requested the checkpoint that is due."""
        self._seconds = minutes * 60
        self._slowest = slowest
        self._steps = 0
        self._since = 0

    def next_span(self, most: int) -> int:
        """Return how many batches, at most `most`, to train before the next call of `record`."""
        most = min(most, self._ask_at - self._steps)
        if self.every:
            most = min(most, max(1, self.every - self._since))
        return most

    def record(self, batches: int, seconds: float) -> bool:
        """Record that `batches` more batches were trained. Return whether to save a checkpoint now.

        `seconds` is the time that this rank has trained in this attempt so far.
        """
        self._since += batches
        self._steps += batches
        if self._steps == self._ask_at:
            ahead = int(self._steps * min(1.0, ASK_SECONDS / max(seconds, 1e-3)))
            requested, self._ask_at = self._ask(self._steps, self._steps + max(1, ahead))
            self.requested = self.requested or requested
            if self._seconds:
                # The ranks exchange their seconds of training until these suffice to measure the speed.
                spent = self._slowest(seconds)
                if spent >= min(MEASURED_SECONDS, self._seconds / 2):
                    batches = max(1, int(self._seconds * self._steps / spent))
                    self.every = min(batches, self.every or batches)
                    self._seconds = 0.0
        return self.is_due

    @property
    def is_due(self) -> bool:
        """Return whether to save a checkpoint now, because enough batches were trained or because it is requested."""
        return self.requested or 0 < self.every <= self._since

    def reset(self) -> None:
        """Start to count batches from 0 again. Call this after every checkpoint, also at the end of a pass."""
        self._since, self.requested = 0, False
