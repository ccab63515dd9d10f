"""Plots of a run's metrics.csv, drawn by matplotlib: the file curve.png, and SVG for the page report.html.

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
from launcher.errors import LauncherError
from launcher.io import run_record
from launcher.io.files import write_atomically
from launcher.metrics import TEST, MetricsRow
from launcher.paths import OutputPaths

LOSS = "train_loss"
RANKS = 16
"""With more ranks than this, only their mean is drawn: single lines would cover each other."""
LABELLED_RESTARTS = 12
"""With more restarts than this, their vertical lines have no labels, which would cover each other."""


MEAN, TEST_LINE, RANK, BEST = "#000001", "#d62728", "#a0a0a0", "#2ca02c"
RESTART, TEXT, GRID = "#808080", "#000002", "#dddddd"  # matplotlib leaves out #000000, the default of SVG
VARIABLES = {
    MEAN: "var(--accent)",
    TEST_LINE: "var(--accent)",
    RANK: "var(--soft)",
    BEST: "var(--good)",
    RESTART: "var(--warn)",
    TEXT: "var(--soft)",
    GRID: "var(--line)",
}
"""Colours of the plots, and the CSS variables of report.html that replace them: it has a light and a dark scheme."""


def read_metrics(path: Path) -> list[MetricsRow]:
    """Return the rows of the file metrics.csv at `path`; an empty list if the file is absent."""
    try:
        return metrics.parse_metrics(path.read_text("utf-8", "replace"))
    except FileNotFoundError:
        return []


def test_metrics(passes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the column names of the test metrics (`test_…`) in a pass table, sorted."""
    return sorted({key for row in passes for key in row if key.startswith(TEST)})


def draw_png(output_dir: Path) -> Path | None:
    """Draw curve.png from metrics.csv of an output folder.

    Returns:
        The path of curve.png; None, and nothing is drawn, if no pass is finished yet.

    Raises:
        StorageError: the folder cannot be written.
    """
    output = OutputPaths(output_dir)
    rows = read_metrics(output.metrics_csv)
    if not rows:
        return None
    try:
        run = run_record.read(output)[0] or {}
    except LauncherError:  # then the best pass is not marked
        run = {}
    passes = metrics.pass_table(rows)
    best = metrics.best_pass(run, passes)
    with _matplotlib_cache(output.root):
        from matplotlib.figure import Figure

        names = [LOSS, *test_metrics(passes)]
        figure = Figure(figsize=(5.2 * len(names), 4.0), dpi=120, layout="constrained")
        for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            _plot(axis, name, rows, best)
            _add_titles(axis, name, passes, best)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": "paddle-training"})
    write_atomically(output.curve_png, buffer.getvalue())
    return output.curve_png


def draw_svgs(rows: Sequence[MetricsRow], best: Mapping[str, Any], spare: Path) -> dict[str, str]:
    """Return `train_loss` and the columns of the test metrics → SVG element for a page with the style of report.html.

    Metrics without a finite value are absent. A pointer over a pass shows its value. `best` is the result of
    `metrics.best_pass`, `spare` a folder for temporary files, used only if the system has no writable one.
    """
    passes = metrics.pass_table(rows)
    drawn: dict[str, str] = {}
    if not passes:  # matplotlib takes most of the time of a report
        return drawn
    with _matplotlib_cache(spare):
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report", "path.simplify": True}):
            for name in [LOSS, *test_metrics(passes)]:
                points = _points(passes, name)
                if not points:
                    continue
                figure = Figure(figsize=(4.2, 2.4), layout="constrained")
                _plot(figure.subplots(), name, rows, best)
                text = io.StringIO()
                no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
                figure.savefig(text, format="svg", transparent=True, metadata=no_metadata)
                marked = best.get("pass") if name == f"{TEST}{best.get('metric')}" else None
                drawn[name] = _for_page(text.getvalue(), points, None if marked is None else marked + 1)
    return drawn


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
    (line,) = axis.plot(
        x, y, color=MEAN if name == LOSS else TEST_LINE, linewidth=2, marker="o", markersize=5,
        label="mean of all ranks" if several else "rank 0",
    )  # fmt: skip
    line.set_gid("mean")
    if name == f"{TEST}{best.get('metric')}":
        axis.plot(best["pass"] + 1, best["value"], color=BEST, marker="*", markersize=14)
    marks = metrics.restart_marks(rows)
    for place, label in marks:
        axis.axvline(place, color=RESTART, linewidth=0.8, linestyle=":")
        if len(marks) <= LABELLED_RESTARTS:
            where = axis.get_xaxis_transform()
            axis.text(place, 0.99, label, transform=where, rotation=90, fontsize=7, color=RESTART, va="top")
    axis.set_xlabel("pass", color=TEXT)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.tick_params(color=GRID, labelcolor=TEXT)
    axis.grid(color=GRID)
    axis.set_axisbelow(True)
    axis.margins(x=0.05, y=0.15)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["bottom", "left"]].set_color(GRID)


def _add_titles(axis: Any, name: str, passes: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> None:
    """Add title, label and legend to a plot of curve.png; in the page they are HTML."""
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


def _for_page(svg: str, points: Sequence[tuple[int, float]], best: int | None) -> str:
    """Convert matplotlib's SVG file to an element of report.html that uses the page's colours and font.

    Each of the `points` (pass, value) of the metric's line (SVG id `mean`) gets a title, which browsers show on hover;
    that of the pass `best` says so.
    """
    svg = svg[svg.index("<svg") :]
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r' (?:width|height)="[^"]*pt"', "", svg)  # the style sheet sets them
    svg = re.sub(r"font: [^;\"]*(\d+px)[^;\"]*;", r"font-size: \1;", svg)
    svg = svg.replace('id="mean"', 'class="mean"')
    svg = re.sub(r' id="(?![mp][0-9a-f]{10}")[^"]*"', "", svg)  # such ids occur in each SVG of the page
    svg = re.sub(r"\s+", " ", svg).replace("> <", "><")
    # Coordinates need two decimals only; labels of ticks, which are text between tags, stay.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), svg)
    start = svg.index('class="mean"')
    end = svg.index("</g>", svg.index("<use", start))
    titles = (
        f"<title>{'best: ' if number == best else ''}pass {number}: {value:.6g}</title>"
        for number, value in points
    )
    marked = re.sub(r"(<use [^>]*?) ?/>", lambda use: f"{use[1]}>{next(titles)}</use>", svg[start:end])
    return svg[:start] + marked + svg[end:]


@contextlib.contextmanager
def _matplotlib_cache(spare: Path) -> Iterator[None]:
    """Give matplotlib a writable cache folder, if need be below `spare`: a pod's root is read-only, without a home."""
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
