"""What people see of a trainer: its log, progress.json and metrics.csv."""

from __future__ import annotations

import csv
import io
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher import files
from launcher.layout import Output

COLUMNS = ("pass", "rank", "attempt", "samples", "seconds", "samples_per_second", "train_loss")
LEAST_SECONDS = 0.5  # between two writes of progress.json


class Progress:
    """Writes `<work dir>/progress.json`, at most twice a second, and at once when the state changes."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._written = float("-inf")
        self._values: dict[str, object] = {
            "pass": 0,
            "batch": 0,
            "batches": 0,
            "samples_per_second": 0.0,
            "loss": None,
            "state": "starting",
        }

    def set(self, **values: object) -> None:
        """Takes new values and writes them if it is time. JSON knows no NaN: it becomes null."""
        changed = values.get("state", self._values["state"]) != self._values["state"]
        self._values.update(
            {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in values.items()}
        )
        if changed or self._clock() - self._written >= LEAST_SECONDS:
            self.write()

    def write(self) -> None:
        """Writes now. Renamed but not synced: it lives on the pod's own disk and is soon replaced."""
        self._written = self._clock()
        files.write_json(self._path, self._values)


class Log:
    """The old trainer's lines: a dot every dotPeriod batches, a line every logPeriod."""

    def __init__(self, log_period: int, dot_period: int) -> None:
        self.log_period = log_period
        self.dot_period = dot_period
        self._dots = False
        self._began = time.monotonic()

    def batch(self, number: int, batch: int, samples: int, average: float, current: float) -> None:
        """`batch` counts from 1 in the pass; `samples` and `average` (loss) are of the pass so far."""
        if batch % self.log_period == 0:
            self.line(
                f"Pass={number} Batch={batch} samples={samples} "
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
    """The rows that are there, but those of the same pass and attempt: a second start writes them anew."""
    if not path.is_file():
        return []
    rows = list(csv.reader(io.StringIO(path.read_text("utf-8"))))
    if not rows or rows[0] != header:
        return []
    return [row for row in rows[1:] if len(row) == len(header) and (row[0], row[2]) != again]
