"""Write a trainer's log, and measure the loss and speed of a pass."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.errors import DivergedError
from launcher.io.progress_file import ProgressFile

if TYPE_CHECKING:
    from launcher.trainer.records.row_parsing import Arrays

FIRST_SECONDS, REPORT_SECONDS = 1.0, 5.0
"""Seconds until the first progress line of a long step, and between later ones."""


class ReportTimer:
    """Decides when to print a progress line: FIRST_SECONDS after the start, then every REPORT_SECONDS."""

    def __init__(self) -> None:
        self._next = time.monotonic() + FIRST_SECONDS

    def due(self) -> bool:
        """Return whether a progress line is due now; if so, the caller must print it."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + REPORT_SECONDS
        return True


class TrainerLog:
    """Prints the trainer's log to stdout: a dot every dotPeriod batches, a line every logPeriod batches."""

    def __init__(self, log_period: int, dot_period: int) -> None:
        self.log_period = log_period
        self.dot_period = dot_period
        self._dots = False
        self._began = time.monotonic()

    def batch(self, number: int, batch: int, samples: int, average: float, current: float) -> None:
        """Print a line or a dot for a batch, if one is due.

        The pass `number` counts from 0, and `batch` from 1. The losses are the mean of the pass so far (`average`)
        and that of this batch (`current`).
        """
        if batch % self.log_period == 0:
            self.line(
                f"Pass={number + 1} Batch={batch} samples={samples} AvgCost={average:.6g} CurrentCost={current:.6g}"
            )
        elif batch % self.dot_period == 0:
            sys.stdout.write(".")
            sys.stdout.flush()
            self._dots = True

    def line(self, text: str) -> None:
        """Print a line, with the seconds since the start."""
        sys.stdout.write(f"{chr(10) if self._dots else ''}[{time.monotonic() - self._began:8.2f}s] {text}\n")
        sys.stdout.flush()
        self._dots = False


@dataclass
class PassTotals:
    """Totals of one rank in its current pass; a checkpoint inside a pass contains them."""

    samples: float = 0.0
    seconds: float = 0.0
    loss: float = 0.0
    """Sum of each batch's mean loss times its rows."""


class PassMeter:
    """Adds up rows, loss and seconds of one pass, and reports them to the log and to progress.json."""

    def __init__(
        self, log: TrainerLog, progress: ProgressFile, number: int, done: int, totals: PassTotals
    ) -> None:
        """Prepare to measure the batches of pass `number` (from 0) after its first `done`; add them to `totals`."""
        self.batch = done
        self._log, self._progress, self._number, self._totals = log, progress, number, totals
        self._samples = 0.0
        self._seconds = 0.0
        self._began = 0.0

    def start_clock(self) -> None:
        """Start to measure time, before batches are trained."""
        self._began = time.monotonic()

    def add_batch(self, batch: Arrays, loss: float) -> None:
        """Add a trained batch and its mean loss.

        Raises:
            DivergedError: the loss is NaN or infinite.
        """
        self.batch += 1
        if not math.isfinite(loss):
            raise diverged_error(loss, self._number, self.batch)
        rows = len(next(iter(batch.values())))
        self._totals.loss += loss * rows
        self._totals.samples += rows
        self._samples += rows
        average = self._totals.loss / self._totals.samples
        self._log.batch(self._number, self.batch, int(self._totals.samples), average, loss)
        seconds = self._seconds + time.monotonic() - self._began
        self._progress.stepped(samples_per_second=round(self._samples / seconds, 1), loss=average)

    def stop_clock(self) -> float:
        """Return the seconds since `start_clock`, and add them to the totals."""
        seconds = time.monotonic() - self._began
        self._seconds += seconds
        self._totals.seconds += seconds
        return seconds


def diverged_error(loss: float, number: int, batch: int) -> DivergedError:
    """Return the error for a NaN or infinite loss. Passes count from 0, batches from 1."""
    why, fix = "training diverged", "lower the learning rate (--set learning_rate=… where it is an option)"
    if (number, batch) == (0, 1):
        why = "nothing was learned yet"
        fix = "see network() for a logarithm, root or division of 0 or less, and parse() for huge numbers"
    return DivergedError(f"the loss is {loss} at pass {number + 1}, batch {batch}: {why}. Fix: {fix}.")
