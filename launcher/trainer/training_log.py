"""Write a trainer's log, its `progress.json`, and the run's `metrics.csv`."""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import metrics
from launcher.errors import DivergedError
from launcher.io import files
from launcher.log import log
from launcher.paths import OutputPaths

if TYPE_CHECKING:
    from launcher.trainer.records.row_parsing import Arrays

WRITE_SECONDS = 0.5
"""Shortest time between two writes of progress.json, unless the state changes."""
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


class ProgressFile:
    """Writes `<work dir>/progress.json` at most twice a second, and at once when the state changes.

    The file is replaced atomically but not synced: training must not wait for a disk, and the file is of no
    use after its pod is gone.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._temp = path.with_name(f".{path.name}.tmp")
        self._clock = clock
        self._written = float("-inf")
        self._marks: dict[str, float] = {}
        self._values: dict[str, object] = {
            "pass": 0,
            "batch": 0,
            "batches": 0,
            "samples_per_second": 0.0,
            "loss": None,
            "state": "starting",
            "saved": None,
            "bytes": 0,
            "marks": self._marks,
        }

    def note(self, **values: object) -> None:
        """Set fields (docs/reference/file-formats.md) for the next write of progress.json.

        NaN and infinity become null, since JSON has neither.
        """
        for key, value in values.items():
            self._values[key] = None if isinstance(value, float) and not math.isfinite(value) else value

    def set(self, **values: object) -> None:
        """Set fields, and write the file if WRITE_SECONDS have passed or `state` or `saved` changed."""
        changed = any(key in ("state", "saved") and self._values[key] != new for key, new in values.items())
        self.note(**values)
        if changed or self._clock() - self._written >= WRITE_SECONDS:
            self.write()

    def mark(self, name: str, **values: object) -> None:
        """Record the Unix time at which event `name` (such as `imported`, `joined`) first occurred; write the file."""
        self._marks.setdefault(name, time.time())
        self.note(**values)
        self.write()

    def stepped(self, **values: object) -> None:
        """Set fields after a trained batch; the first batch also sets the state `training`."""
        if "first_batch" not in self._marks:
            self.mark("first_batch", state="training", **values)
        else:
            self.set(**values)

    def resume_training(self) -> None:
        """Set the state `training` before further batches, so the launcher applies its progress deadline.

        Before the very first batch the state stays: that batch may take longer.
        """
        if "first_batch" in self._marks:
            self.set(state="training")

    def write(self) -> None:
        """Write the file now.

        Raises:
            StorageError: the pod's disk is full.
        """
        self._written = self._clock()
        with files.storage_errors(self._path):
            self._temp.write_text(json.dumps(self._values), "utf-8")
            self._temp.replace(self._path)


class TrainerLog:
    """Prints the trainer's log to stdout: a dot every dotPeriod batches, a line every logPeriod batches."""

    def __init__(self, log_period: int, dot_period: int) -> None:
        self.log_period = log_period
        self.dot_period = dot_period
        self._dots = False
        self._began = time.monotonic()

    def batch(self, number: int, batch: int, samples: int, average: float, current: float) -> None:
        """Print a line or a dot for a batch, if one is due.

        Args:
            number: the pass, from 0; the line counts from 1.
            batch: the batch of the pass, from 1.
            samples: rows of the pass so far.
            average: mean loss of the pass so far.
            current: loss of this batch.
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
        """Prepare to measure the batches of pass `number` (from 0) that follow its first `done` batches.

        Args:
            log: the trainer's log.
            progress: the trainer's progress.json.
            number: the pass, from 0.
            done: batches that are already in `totals`.
            totals: the totals so far; new batches are added.
        """
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


def write_metrics(
    output_dir: Path,
    number: int,
    attempt: int,
    ranks: list[tuple[int, float, float]],
    tests: Mapping[str, float],
) -> None:
    """Add one row for each rank to metrics.csv, which is replaced atomically.

    Rows of the same pass and attempt are replaced. A damaged file is copied aside, and its intact rows are
    kept.

    Args:
        output_dir: the run's output folder.
        number: the pass, from 0.
        attempt: the attempt, from 0.
        ranks: (samples, seconds, mean training loss) of each rank, in rank order.
        tests: scores by metric, for rank 0's row.
    """
    path = OutputPaths(output_dir).metrics_csv
    content = files.read_bytes(path) or b""
    update = metrics.add_pass(content.decode(errors="replace"), number, attempt, ranks, tests)
    if update.is_damaged:
        names = (path.with_name(f"{path.name}.damaged-{n}") for n in itertools.count(1))
        copy = next(name for name in names if not name.exists())
        files.write_atomically(copy, content)
        log.warning(
            "%s was damaged: %d of its %d rows are kept, and the damaged file is now %s. The training is not affected. "
            "Fix: if you need the other rows, look for them in that file",
            path, update.intact, update.rows, copy.name,
        )  # fmt: skip
    files.write_atomically(path, update.text)
