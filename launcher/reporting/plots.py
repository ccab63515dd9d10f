"""Plots of a run's metrics.csv, drawn by matplotlib: the file curve.png, and the same plots in the page report.html.

Importing this module is cheap: matplotlib is loaded only when something is drawn.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import metrics
from launcher.metrics import TEST, MetricsRow

LOSS = "train_loss"
RANKS = 16
"""With more ranks than this, only their mean is drawn: single lines would cover each other."""
LABELLED_RESTARTS = 12
"""With more restarts than this, their vertical lines have no labels, which would cover each other."""


MEAN, TEST_LINE, RANK, BEST, RESTART, GRID = "#1f4fbf", "#d62728", "#a0a0a0", "#2ca02c", "#808080", "#dddddd"


def test_metrics(passes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the column names of the test metrics (`test_…`) in a pass table, sorted."""
    return sorted({key for row in passes for key in row if key.startswith(TEST)})


def draw(rows: Sequence[MetricsRow], best: Mapping[str, Any], spare: Path) -> tuple[bytes, str]:
    """Draw a plot of each metric, and return (the file curve.png, the same plots as an SVG element).

    Both are empty if no pass is finished yet. `best` is the result of `metrics.best_pass`, `spare` a folder for
    temporary files, used only if the system has no writable one.
    """
    passes = metrics.pass_table(rows)
    if not passes:  # matplotlib takes most of the time of a report
        return b"", ""
    png, svg = io.BytesIO(), io.StringIO()
    with _matplotlib_cache(spare):
        import matplotlib
        from matplotlib.figure import Figure

        names = [LOSS, *test_metrics(passes)]
        figure = Figure(figsize=(5.2 * len(names), 4.0), dpi=120, layout="constrained")
        for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            _plot(axis, name, rows, best)
            _add_titles(axis, name, passes, best)
        figure.savefig(png, format="png")
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
            figure.savefig(svg, format="svg")
    element = svg.getvalue()[svg.getvalue().index("<svg") :]
    return png.getvalue(), re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.S)


def _points(passes: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return (pass counted from 1, value) of the passes with a finite value."""
    return [(row["pass"] + 1, row[name]) for row in passes if math.isfinite(row.get(name, math.nan))]


def _plot(axis: Any, name: str, rows: Sequence[MetricsRow], best: Mapping[str, Any]) -> None:
    """Plot one metric over the passes, with marks for restarts and the best pass."""
    from matplotlib.ticker import MaxNLocator

    ranks = sorted({row.rank for row in rows})
    several = name == LOSS and len(ranks) > 1
    for rank in ranks if several and len(ranks) <= RANKS else ():
        x, y = zip(*((row.number + 1, row.train_loss) for row in rows if row.rank == rank), strict=True)
        label = "single ranks" if rank == 0 else None
        axis.plot(x, y, linewidth=0.9, alpha=0.6, marker=".", markersize=4, label=label, color=RANK)
    points = _points(metrics.pass_table(rows), name)
    x, y = zip(*points, strict=True) if points else ((), ())
    axis.plot(
        x, y, color=MEAN if name == LOSS else TEST_LINE, linewidth=2, marker="o", markersize=5,
        label="mean of all ranks" if several else "rank 0",
    )  # fmt: skip
    if name == f"{TEST}{best.get('metric')}":
        axis.plot(best["pass"] + 1, best["value"], color=BEST, marker="*", markersize=14)
    marks = metrics.restart_marks(rows)
    for place, label in marks:
        axis.axvline(place, color=RESTART, linewidth=0.8, linestyle=":")
        if len(marks) <= LABELLED_RESTARTS:
            where = axis.get_xaxis_transform()
            axis.text(place, 0.99, label, transform=where, rotation=90, fontsize=7, color=RESTART, va="top")
    axis.set_xlabel("pass")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.tick_params(color=GRID)
    axis.grid(color=GRID)
    axis.set_axisbelow(True)
    axis.margins(x=0.05, y=0.15)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["bottom", "left"]].set_color(GRID)


def _add_titles(axis: Any, name: str, passes: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> None:
    """Add title, label and legend to a plot."""
    if name == LOSS:
        axis.set(title="Training loss", ylabel="loss")
        axis.legend(frameon=False)
        return
    metric = name.removeprefix(TEST)
    last = [row[name] for row in passes if name in row][-1]
    title = f"Test {metric}, last {last:.4f}"
    if best.get("metric") == metric:
        title = f"Test {metric}, best {best['value']:.4f} after pass {best['pass'] + 1}"
    axis.set(title=title, ylabel=metric)


@contextlib.contextmanager
def _matplotlib_cache(spare: Path) -> Iterator[None]:
    """Set MPLCONFIGDIR, matplotlib's cache folder, to a writable folder while the `with` block runs.

    Otherwise matplotlib would look for its cache in the home folder, which a pod does not have. A writable
    MPLCONFIGDIR stays. Else this creates a folder in the system's folder for temporary files, or in `spare` if no such
    folder is writable (the root file system of a pod is read-only), and removes it after the block.
    """
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
