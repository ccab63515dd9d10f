"""What people see of a trainer: its log, progress.json and metrics.csv."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import files
from launcher.errors import DivergedError
from launcher.layout import Output
from launcher.reporting.curve import COLUMNS, is_row, metrics_lines
from launcher.reporting.log import log

if TYPE_CHECKING:
    from launcher.worker.samples import Arrays

LEAST_SECONDS = 0.5  # between two writes of progress.json


FIRST_SECONDS, SAY_SECONDS = 1.0, 5.0


class Pace:
    """Says when to report progress: FIRST_SECONDS after the start, then every SAY_SECONDS."""

    def __init__(self) -> None:
        self._next = time.monotonic() + FIRST_SECONDS

    def due(self) -> bool:
        """Return whether it is time for a report, which then counts as made."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + SAY_SECONDS
        return True


class Progress:
    """Writes `<work dir>/progress.json`, at most twice a second, and at once when the state changes.

    It is replaced, but never synced: the training thread waits for no disk, and the file ends with its pod.
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
        """Takes new values for the next write. JSON knows no NaN: it becomes null."""
        for key, value in values.items():
            self._values[key] = None if isinstance(value, float) and not math.isfinite(value) else value

    def set(self, **values: object) -> None:
        """Takes new values and writes them if it is time."""
        changed = any(key in ("state", "saved") and self._values[key] != new for key, new in values.items())
        self.note(**values)
        if changed or self._clock() - self._written >= LEAST_SECONDS:
            self.write()

    def mark(self, name: str, **values: object) -> None:
        """Notes when this point of the start was reached."""
        self._marks.setdefault(name, time.time())
        self.note(**values)
        self.write()

    def stepped(self, **values: object) -> None:
        """A batch is done; with the first one, training has begun."""
        if "first_batch" not in self._marks:
            self.mark("first_batch", state="training", **values)
        else:
            self.set(**values)

    def going_on(self) -> None:
        """Batches follow: the launcher may look for a stall, unless the first of all is still to come."""
        if "first_batch" in self._marks:
            self.set(state="training")

    def write(self) -> None:
        """Writes now. Raises `StorageError` when the pod's disk is full."""
        self._written = self._clock()
        with files.storage(self._path):
            self._temp.write_text(json.dumps(self._values), "utf-8")
            self._temp.replace(self._path)


class Log:
    """The old trainer's lines: a dot every dotPeriod batches, a line every logPeriod."""

    def __init__(self, log_period: int, dot_period: int) -> None:
        self.log_period = log_period
        self.dot_period = dot_period
        self._dots = False
        self._began = time.monotonic()

    def batch(self, number: int, batch: int, samples: int, average: float, current: float) -> None:
        """Passes count from 0, and in the line from 1; batches from 1.

        `samples` and `average` (loss) are of the pass so far.
        """
        if batch % self.log_period == 0:
            self.line(
                f"Pass={number + 1} Batch={batch} samples={samples} "
                f"AvgCost={average:.6g} CurrentCost={current:.6g}"
            )
        elif batch % self.dot_period == 0:
            sys.stdout.write(".")
            sys.stdout.flush()
            self._dots = True

    def line(self, text: str) -> None:
        """One line with the seconds since the start."""
        sys.stdout.write(f"{chr(10) if self._dots else ''}[{time.monotonic() - self._began:8.2f}s] {text}\n")
        sys.stdout.flush()
        self._dots = False


@dataclass
class Sums:
    """What one rank has seen of the pass that it is in."""

    samples: float = 0.0
    seconds: float = 0.0
    loss: float = 0.0
    """Times samples."""


class Meter:
    """Adds up a pass. `told` hears of one batch after the other, as they end in the trainer's threads."""

    def __init__(self, log: Log, progress: Progress, number: int, done: int, sums: Sums) -> None:
        """`sums`: of the first `done` batches of pass `number`; what is told is added to it."""
        self.batch = done
        self._log, self._progress, self._number, self._sums = log, progress, number, sums
        self._samples = 0.0
        self._seconds = 0.0
        self._began = 0.0

    def go(self) -> None:
        """Batches follow."""
        self._began = time.monotonic()

    def told(self, batch: Arrays, loss: float) -> None:
        """Raises `DivergedError` for a loss that is no number."""
        self.batch += 1
        if not math.isfinite(loss):
            raise diverged(loss, self._number, self.batch)
        rows = len(next(iter(batch.values())))
        self._sums.loss += loss * rows
        self._sums.samples += rows
        self._samples += rows
        average = self._sums.loss / self._sums.samples
        self._log.batch(self._number, self.batch, int(self._sums.samples), average, loss)
        seconds = self._seconds + time.monotonic() - self._began
        self._progress.stepped(samples_per_second=round(self._samples / seconds, 1), loss=average)

    def pause(self) -> float:
        """Seconds since `go`."""
        seconds = time.monotonic() - self._began
        self._seconds += seconds
        self._sums.seconds += seconds
        return seconds


def diverged(loss: float, number: int, batch: int) -> DivergedError:
    """Return the error for a NaN or infinite loss. Passes count from 0, batches from 1."""
    why, fix = "training diverged", "lower the learning rate (--set learning_rate=… where it is an option)"
    if (number, batch) == (0, 1):
        why = "nothing was learned yet"
        fix = "see network() for a logarithm, root or division of 0 or less, and parse() for huge numbers"
    return DivergedError(f"the loss is {loss} at pass {number + 1}, batch {batch}: {why}. Fix: {fix}.")


def add_metrics(
    output_dir: Path,
    number: int,
    attempt: int,
    ranks: list[tuple[int, float, float]],
    tests: Mapping[str, float],
) -> None:
    """Adds one row a rank to metrics.csv; the file is replaced whole.

    `ranks`: (samples, seconds, mean training loss) in rank order. `tests`: metric → value, in rank 0's row.
    """
    path = Output(output_dir).metrics_csv
    header = [*COLUMNS, *(f"test_{name}" for name in tests)]
    rows = _rows(path, header, (str(number), str(attempt)))
    for rank, (samples, seconds, loss) in enumerate(ranks):
        values = [number, rank, attempt, int(samples), f"{seconds:.3f}"]
        values += [f"{samples / seconds if seconds else 0:.1f}", f"{loss:.6g}"]
        rows.append([*map(str, values), *(f"{v:.6g}" if rank == 0 else "" for v in tests.values())])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    files.write_whole(path, text.getvalue())


def _rows(path: Path, header: list[str], again: tuple[str, str]) -> list[list[str]]:
    """Return the rows of metrics.csv but those of the same pass and attempt: a second start writes them anew.

    A damaged file is copied aside, with a warning, and its other rows stay.
    """
    content = files.read_bytes(path) or b""
    there, *lines = metrics_lines(content.decode(errors="replace"))
    rows = [line for line in lines if len(line) == len(header) and is_row(line)]
    if content and (there != header or len(rows) != len(lines)):
        names = (path.with_name(f"{path.name}.damaged-{n}") for n in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        files.write_whole(aside, content)
        log.warning(
            "%s is damaged: %d of its %d rows are kept, and %s is as it was",
            path, len(rows), len(lines), aside.name,
        )  # fmt: skip
    return [row for row in rows if (row[0], row[2]) != again]
