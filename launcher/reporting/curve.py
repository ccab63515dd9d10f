"""What a run's `metrics.csv` says, as plain tables and as the picture `curve.png`.

`python -m launcher.reporting.curve OUTPUT_DIR` draws the picture of one output folder. Importing this
module is cheap: matplotlib is loaded only when something is drawn.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import best, record
from launcher.errors import LauncherError
from launcher.files import write_whole
from launcher.layout import Output

TEST = "test_"
COLUMNS = ("pass", "rank", "attempt", "samples", "seconds", "samples_per_second", "train_loss")


@dataclass(frozen=True)
class Row:
    """One line of metrics.csv: pass and rank count from 0, `tests` maps the metric's name (without test_)."""

    number: int
    rank: int
    attempt: int
    samples: int
    seconds: float
    samples_per_second: float
    train_loss: float
    tests: dict[str, float] = field(default_factory=dict)


def parse_metrics(text: str) -> list[Row]:
    """The rows of a metrics.csv, sorted by pass and rank.

    A pass that was trained again after a restart counts with its newest attempt. Lines that are not whole are
    left out: the file may be read while it is written by an older launcher.
    """
    latest: dict[tuple[int, int], Row] = {}
    header, *lines = metrics_lines(text)
    if set(COLUMNS) - set(header) - {"attempt"}:  # damaged: the first columns are always the same
        header = [*COLUMNS, *(name for name in header if name.startswith(TEST))]
    for line in lines:
        row = _row(dict(zip(header, line, strict=False)))
        if row is None:
            continue
        key = (row.number, row.rank)
        if key not in latest or row.attempt >= latest[key].attempt:
            latest[key] = row
    return [latest[key] for key in sorted(latest)]


def metrics_lines(text: str) -> list[list[str]]:
    """Return the fields of each line of a metrics.csv, the header first; none of a line that is no CSV.

    Line by line: a damaged quotation mark hides no line after its own.
    """
    return [_fields(line) for line in text.removesuffix("\n").split("\n")]


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def is_row(fields: Sequence[str]) -> bool:
    """Whether these fields are a whole row: numbers, of which only scores may be left out."""
    values = [_float(field) for field in fields if field]
    return None not in values and _row(dict(zip(COLUMNS, fields, strict=False))) is not None


def _row(line: dict[str, Any]) -> Row | None:
    tests = {}
    for key, value in line.items():
        if isinstance(key, str) and key.startswith(TEST) and value:
            number = _float(value)
            if number is not None:
                tests[key.removeprefix(TEST)] = number
    try:
        return Row(
            number=int(line["pass"]),
            rank=int(line["rank"]),
            attempt=int(line.get("attempt") or 0),
            samples=int(line["samples"]),
            seconds=float(line["seconds"]),
            samples_per_second=float(line["samples_per_second"]),
            train_loss=float(line["train_loss"]),
            tests=tests,
        )
    except (KeyError, TypeError, ValueError):
        return None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def read_metrics(path: Path) -> list[Row]:
    """`parse_metrics` of a file; no rows when it is absent."""
    try:
        return parse_metrics(path.read_text("utf-8", "replace"))
    except FileNotFoundError:
        return []


def mean_loss(rows: Sequence[Row]) -> float:
    """Training loss over ranks, weighted by their samples; nan without any."""
    samples = sum(row.samples for row in rows)
    return sum(row.train_loss * row.samples for row in rows) / samples if samples else math.nan


def pass_table(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One dict a pass.

    Pass, ranks, samples, seconds (of the slowest rank), samples_per_second (sum of the ranks), train_loss
    (weighted mean) and each test metric under its column's name.
    """
    by_pass: dict[int, list[Row]] = {}
    for row in rows:
        by_pass.setdefault(row.number, []).append(row)
    table = []
    for number, group in sorted(by_pass.items()):
        tests = {TEST + key: value for row in group for key, value in row.tests.items()}
        table.append(
            {
                "pass": number,
                "ranks": len(group),
                "samples": sum(row.samples for row in group),
                "seconds": max(row.seconds for row in group),
                "samples_per_second": sum(row.samples_per_second for row in group),
                "train_loss": mean_loss(group),
                **tests,
            }
        )
    return table


def restart_marks(rows: Iterable[Row]) -> list[tuple[float, str]]:
    """(place on the axis of passes, which counts from 1; label) of each change of attempt between two
    passes."""
    attempts: dict[int, int] = {}
    for row in rows:
        attempts[row.number] = max(row.attempt, attempts.get(row.number, 0))
    ends = sorted(attempts.items())
    return [
        ((before + after) / 2 + 1, f"attempt {attempt}")
        for (before, earlier), (after, attempt) in itertools.pairwise(ends)
        if attempt != earlier
    ]


def draw_curve(output_dir: Path) -> Path | None:
    """Draw `curve.png` from `metrics.csv` of an output folder; None when there is nothing to draw yet.

    Raises StorageError when the folder cannot be written.
    """
    output = Output(Path(output_dir))
    rows = read_metrics(output.metrics_csv)
    if not rows:
        return None
    try:
        run = record.read(output)[0] or {}
    except LauncherError:  # the picture does without the mark
        run = {}
    with _matplotlib_folder(output.root):
        picture = _drawn(rows, best.of_run(run, pass_table(rows)))
    write_whole(output.curve_png, picture)
    return output.curve_png


@contextlib.contextmanager
def _matplotlib_folder(spare: Path) -> Iterator[None]:
    """A writable folder for matplotlib's cache: a pod's root is read-only, and its user has no home."""
    given = os.environ.get("MPLCONFIGDIR")
    if given and os.access(given, os.W_OK):
        yield
        return
    try:
        parent = tempfile.gettempdir()
    except FileNotFoundError:
        parent = str(spare)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".matplotlib-") as scratch:
        os.environ["MPLCONFIGDIR"] = scratch
        try:
            yield
        finally:
            if given is None:
                del os.environ["MPLCONFIGDIR"]
            else:
                os.environ["MPLCONFIGDIR"] = given


def _drawn(rows: Sequence[Row], found: Mapping[str, Any]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    table = pass_table(rows)
    metrics = sorted({key for line in table for key in line if key.startswith(TEST)})
    figure = Figure(figsize=(5.2 * (1 + len(metrics)), 4.0), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 1 + len(metrics), squeeze=False)[0]

    ranks = sorted({row.rank for row in rows})
    loss = axes[0]
    for rank in ranks if len(ranks) > 1 else ():
        own = [row for row in rows if row.rank == rank]
        label = f"rank {rank}" if len(ranks) <= 8 else None
        x, y = [row.number + 1 for row in own], [row.train_loss for row in own]
        loss.plot(x, y, linewidth=0.9, alpha=0.6, marker=".", markersize=4, label=label)
    name = "mean of all ranks" if len(ranks) > 1 else "rank 0"
    passes = [line["pass"] + 1 for line in table]
    loss.plot(
        passes, [line["train_loss"] for line in table], color="black", linewidth=2, marker="o", label=name
    )
    loss.set(title="Training loss", ylabel="loss")
    loss.legend(frameon=False)

    for axis, metric in zip(axes[1:], metrics, strict=True):
        points = [(line["pass"] + 1, line[metric]) for line in table if metric in line]
        axis.plot(*zip(*points, strict=True), color="tab:red", linewidth=2, marker="o")
        title = metric.removeprefix(TEST)
        axis.set(title=f"Test {title}, last {points[-1][1]:.4f}", ylabel=title)
        if found.get("metric") == title:
            at, value = found["pass"] + 1, found["value"]
            axis.plot(at, value, color="tab:green", marker="*", markersize=14)
            axis.set(title=f"Test {title}, best {value:.4f} after pass {at}")
    marks = restart_marks(rows)
    for axis in axes:
        for place, label in marks:
            axis.axvline(place, color="grey", linewidth=0.8, linestyle=":")
            if len(marks) > 12:
                continue  # the words would lie upon each other
            where = axis.get_xaxis_transform()
            axis.text(place, 0.99, label, transform=where, rotation=90, fontsize=6, color="grey", va="top")
        axis.set_xlabel("pass")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.grid(alpha=0.3)
        axis.margins(x=0.05, y=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "paddle-training"})
    return buffer.getvalue()


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the picture of one output folder; 1 when there is nothing to draw."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) != 1:
        print("usage: python -m launcher.reporting.curve OUTPUT_DIR", file=sys.stderr)  # noqa: T201 - this is its channel
        return 64
    drawn = draw_curve(Path(arguments[0]))
    print(drawn or f"no passes in {arguments[0]}/metrics.csv yet", file=sys.stdout if drawn else sys.stderr)
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
