"""Write a trainer's log, and measure the loss and speed of a pass."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.errors import DivergedError

if TYPE_CHECKING:
    from launcher.trainer.record_files import Arrays

FIRST_SECONDS, REPORT_SECONDS = 1.0, 5.0
"""Seconds from the start of a long step to its first progress line, and seconds between further progress lines."""


class ReportTimer:
    """Decides when to print a progress line: FIRST_SECONDS after the start, then every REPORT_SECONDS."""

    def __init__(self) -> None:
        self._next = time.monotonic() + FIRST_SECONDS

    def due(self) -> bool:
        """Return whether a progress line is due now. If it returns True, the caller must print a line."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + REPORT_SECONDS
        return True


class TrainerLog:
    """Prints the trainer's log to stdout: a dot after every `dot_period` batches, a line after every `log_period`."""

    def __init__(self, log_period: int, dot_period: int) -> None:
        self.log_period = log_period
        self.dot_period = dot_period
        self._dots = False
        self._began = time.monotonic()

    def batch(self, meter: PassMeter, loss: float) -> None:
        """Print a line or a dot after a batch, if it is due.

        `meter` is the meter of the current pass, to which the batch was just added. `loss` is the batch's mean loss.
        """
        if meter.batch % self.log_period == 0:
            self.line(
                f"Pass={meter.number + 1} Batch={meter.batch} samples={int(meter.totals.samples)} "
                f"AvgCost={meter.average:.6g} CurrentCost={loss:.6g}"
            )
        elif meter.batch % self.dot_period == 0:
            sys.stdout.write(".")
            sys.stdout.flush()
            self._dots = True

    def line(self, text: str) -> None:
        """Print a line. It begins with the seconds since this object was created."""
        sys.stdout.write(f"{chr(10) if self._dots else ''}[{time.monotonic() - self._began:8.2f}s] {text}\n")
        sys.stdout.flush()
        self._dots = False


@dataclass
class PassTotals:
    """Holds the sums of one rank over the batches of its current pass.

    A checkpoint inside a pass contains these sums, so that a resumed pass continues to add to them.
    """

    samples: float = 0.0
    seconds: float = 0.0
    loss: float = 0.0
    """Sum over all batches of the batch's mean loss times its number of rows."""


class PassMeter:
    """Adds up rows, loss and seconds of one pass of a trainer."""

    def __init__(
        self, number: int, totals: PassTotals, show: Callable[[PassMeter, float], None], done: int = 0
    ) -> None:
        """Prepare to measure a pass.

        Args:
            number: number of the pass, from 0.
            totals: the sums of the pass, to which each batch is added.
            show: called after each batch with this object and the batch's mean loss.
            done: number of batches of the pass that are already trained. `totals` contains these batches.
        """
        self.number, self.batch, self.totals = number, done, totals
        self._show = show
        self._samples = self._seconds = self._began = 0.0

    @property
    def average(self) -> float:
        """The mean loss of the pass so far, over its rows."""
        return self.totals.loss / self.totals.samples

    @property
    def rate(self) -> float:
        """Samples per second of the measured batches. The value is correct only while the clock runs."""
        return self._samples / max(self._seconds + time.monotonic() - self._began, 1e-9)

    def start_clock(self) -> None:
        """Start to measure the time. Call this before batches are trained."""
        self._began = time.monotonic()

    def add_batch(self, batch: Arrays, loss: float) -> None:
        """Add a trained batch and its mean loss to the totals, then call `show`.

        Raises:
            DivergedError: the loss is NaN or infinite.
        """
        self.batch += 1
        if not math.isfinite(loss):
            raise diverged_error(loss, self.number, self.batch)
        rows = len(next(iter(batch.values())))
        self.totals.loss += loss * rows
        self.totals.samples += rows
        self._samples += rows
        self._show(self, loss)

    def stop_clock(self) -> float:
        """Stop measuring the time. Return the seconds since `start_clock`, and add them to the totals."""
        seconds = time.monotonic() - self._began
        self._seconds += seconds
        self.totals.seconds += seconds
        return seconds


def diverged_error(loss: float, number: int, batch: int) -> DivergedError:
    """Return the error for a NaN or infinite loss.

    Args:
        loss: the loss.
        number: number of the pass, from 0.
        batch: number of the batch in the pass, from 1.
    """
    why, fix = "training diverged", "lower the learning rate (--set learning_rate=… where it is an option)"
    if (number, batch) == (0, 1):
        why = "nothing was learned yet"
        fix = "see network() for a logarithm, root or division of 0 or less, and parse() for huge numbers"
    return DivergedError(f"the loss is {loss} at pass {number + 1}, batch {batch}: {why}. Fix: {fix}.")
