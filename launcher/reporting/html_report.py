"""Write report.html, one self-contained page about a run, and curve.png.

The page is made from the files in the run's output folder, the manifest of the job's data, and, for the current output,
the files of earlier runs. `python -m launcher.reporting.html_report OUTPUT_DIR` writes both files into the output
folder OUTPUT_DIR. The import of this module is cheap: matplotlib is loaded only when something is drawn.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from launcher import metrics
from launcher.io.files import UnreadableError, read_bytes, write_atomically
from launcher.metrics import TEST, MetricsRow
from launcher.paths import OutputPaths
from launcher.reporting import text_formats
from launcher.reporting.saved_runs import (
    CURRENT,
    EARLIER,
    JOB,
    FoundFiles,
    Passes,
    SavedRun,
    parse_runs,
    pass_rows,
    run_patterns,
    run_rows,
    score_columns,
)
from launcher.schema import ManifestFile, RestartRecord, RunFile, describe_data

PAGE = Path(__file__).with_name("report.html")
STYLE = Path(__file__).with_name("report.css")
EARLIER_RUNS = 20
"""Largest number of earlier runs that the report compares: the newest ones."""
SHARDS = 64
"""Largest number of shards that the report lists."""
LOSS = "train_loss"
RANKS = 16
"""With more ranks than this, only their mean is drawn: single lines would cover each other."""
LABELLED_RESTARTS = 12
"""With more restarts than this, their vertical lines have no labels, which would cover each other."""
MEAN, TEST_LINE, RANK, BEST, RESTART, GRID = "#1f4fbf", "#d62728", "#a0a0a0", "#2ca02c", "#808080", "#dddddd"


def write_report(root: Path) -> Path | None:
    """Write report.html and curve.png into the output folder `root`; return the path of report.html.

    If there is no run.json yet, write nothing and return None. Before the first pass is finished, curve.png is not
    written. If a file other than run.json is damaged, the page says so and is made without that file.

    Raises:
        UnreadableError: run.json or its copy is damaged, and neither of the two is intact.
        StorageError, StorageFailedError: a file cannot be read or written.
    """
    root = root.absolute()
    job, output = root.parent, OutputPaths(Path(root.name))
    earlier = [EARLIER] if root.name == CURRENT else []
    paths = [path for pattern in run_patterns(root.name, *earlier) for path in job.glob(pattern)]
    read = {path.relative_to(job).as_posix(): read_bytes(path) for path in (*paths, job / JOB.manifest)}
    found = FoundFiles({name: content for name, content in read.items() if content is not None})
    manifest = found.json(ManifestFile, JOB.manifest) or {}
    runs = parse_runs({name: found.contents[name] for name in found.contents if "/" in name})
    run = next((one for one in runs if one.folder == root.name), SavedRun(root.name, RunFile()))
    if run.is_unknown:
        raise UnreadableError(f"{job}: {run.damage[output.run_json.as_posix()]}")
    if not run.record.content:
        return None
    png, svg = draw(found.metrics(output), run.best, root)
    damage = [text for one in runs for text in one.damage.values()] + list(found.damage.values())
    others = [one for one in runs if one is not run]
    page = render_page(
        root.resolve().parent.name, run, manifest=manifest, damage=damage, earlier=others, curves=svg
    )
    report = root / output.report_html.name
    write_atomically(report, page.encode())
    if png:
        write_atomically(root / output.curve_png.name, png)
    return report


def render_page(
    job: str,
    run: SavedRun,
    *,
    manifest: Mapping[str, Any],
    earlier: Sequence[SavedRun],
    curves: str,
    damage: Sequence[str] = (),
) -> str:
    """Return the HTML page of a run of `job`.

    Args:
        manifest: manifest of the data; {} if there is none.
        earlier: the earlier runs to compare with, newest first.
        curves: the SVG element of `draw`.
        damage: a sentence for each damaged file.
    """
    record = run.record
    compared = table(*run_rows([run, *earlier[:EARLIER_RUNS]]), marked=0) if earlier else ""
    sections = [
        section("Cause of the failure", f"<pre>{escape(record.cause)}</pre>" if record.cause else ""),
        section("Warning", escape(record.warning or "")),
        section("Damaged files", f"<pre>{escape(chr(10).join(damage))}</pre>" if damage else ""),
        section("Passes", _pass_table(run)),
        section("Comparison with earlier runs", compared),
        section("Settings", key_values(run.settings)),
        section("Data", _data(manifest)),
        section("Restarts", restart_table(record.restarts)),
        section("Timings", key_values(_timings(run))),
    ]
    outcome = record.state if record.cause else text_formats.scores(record.score) or "-"
    return Template(PAGE.read_text("utf-8")).substitute(
        style=STYLE.read_text("utf-8"),
        title=escape(f"{job}: {outcome}"),
        job=escape(job),
        run=escape(f"{record.run_id} · {text_formats.utc_time(record.finished)}"),
        state=escape(record.state),
        tiles=_tiles(run),
        curves=section("Curves", curves),
        sections="".join(sections),
        footer=escape(
            f"Release {record.release} in namespace {record.namespace}. Passes count from 1, attempts from 0; times "
            "are in UTC."
        ),
    )


def section(title: str, content: str) -> str:
    """Return a section of a page with a heading; empty without content. `content` is HTML, `title` a fixed text."""
    return f'<section class="card"><h2>{title}</h2>{content}</section>' if content else ""


def _tiles(run: SavedRun) -> str:
    tiles = [
        (name, f"{value:.4f}" if isinstance(value, float) else str(value))
        for name, value in run.record.score.items()
    ]
    speed = max((row["samples_per_second"] for row in run.passes), default=0.0)
    tiles.append(("passes", str(len(run.passes))))
    if best := run.best:
        early = ", stopped early" if best["endedEarly"] else ""
        tiles.append((f"best {best['metric']}{early}", f"pass {best['pass'] + 1}"))
    tiles += [
        ("trainers", str(run.record.fingerprint.get("trainers", "?"))),
        ("samples/s", text_formats.rate(speed)),
        ("duration", text_formats.duration(run.seconds)),
        ("restarts", str(len(run.record.restarts))),
    ]
    return join_tiles(tiles)


def join_tiles(tiles: Iterable[tuple[str, str]]) -> str:
    """Return the HTML of small cards, one for each (name, value) of `tiles`."""
    return "".join(
        f'<div class="card tile"><span class="soft">{escape(name)}</span><b>{escape(value)}</b></div>'
        for name, value in tiles
    )


def _pass_table(run: SavedRun) -> str:
    best = run.best.get("pass")
    return table(
        *pass_rows({"": run.passes}),
        next((n for n, row in enumerate(run.passes) if row["pass"] == best), None),
    )


def _data(manifest: Mapping[str, Any]) -> str:
    if not manifest:
        return ""
    test, shards = manifest.get("test") or {}, manifest.get("shards") or []
    values = {key: manifest.get(key) for key in ("source", "sha256", "member", "format")}
    rows = {
        "training rows": f"{manifest.get('lines', 0):,}",
        "test rows": f"{test.get('lines', 0):,}",
        "test set": manifest.get("testSource") or f"{manifest.get('testFraction')} of the rows",
        "seed": manifest.get("seed"),
    }
    values |= {"content": describe_data(manifest)} if manifest.get("files") else rows
    pairs = key_values({key: str(value) for key, value in values.items() if value not in (None, "")})
    if not shards:
        return pairs
    lines = [
        [
            f"{shard['index']}",
            f"{shard.get('lines', 0):,}",
            f"{shard['bytes']:,}",
            (shard.get("sha256") or "")[:16],
        ]
        for shard in shards[:SHARDS]
    ]
    more = f" (the first {SHARDS} are listed)" if len(shards) > SHARDS else ""
    listed = table([">shard", ">rows", ">bytes", "sha256"], lines)
    return f"{pairs}<details><summary>{len(shards)} shards{more}</summary>{listed}</details>"


def restart_table(restarts: Iterable[RestartRecord]) -> str:
    """Return an HTML table of the restarts, each with its cause; empty if there are none."""
    lines = []
    for restart in restarts:
        first, _, rest = (restart.cause.strip() or "unknown cause").partition("\n")
        cause = escape(first)
        if rest:
            cause = f"<details><summary>{cause}</summary><pre>{escape(rest)}</pre></details>"
        at = text_formats.utc_time(restart.at or None)
        lines.append(
            f'<tr><td>{at}</td><td class="n">{restart.attempt}</td><td class="wide">{cause}</td></tr>'
        )
    head = '<tr><th>time</th><th class="n">attempt</th><th>cause</th></tr>'
    return f"<table>{head}{''.join(lines)}</table>" if lines else ""


def _timings(run: SavedRun) -> dict[str, str]:
    trained = sum(float(row["seconds"]) for row in run.passes)
    values = {
        "started": text_formats.utc_time(run.record.started or None),
        "finished": text_formats.utc_time(run.record.finished),
        "passes (of the slowest rank)": text_formats.duration(trained),
    }
    if run.seconds is not None:
        rest = max(0.0, run.seconds - trained)
        values["start, checkpoints, tests and restarts"] = text_formats.duration(rest)
    return values | ({} if run.pod_hours is None else {"pod hours": f"{run.pod_hours:.2f}"})


def table(headings: Sequence[str], lines: Sequence[Sequence[str]], marked: int | None = None) -> str:
    """Return an HTML table; an empty text if there are no lines.

    `headings` of columns with numbers start with `>`; `marked` is the index of the highlighted line.
    """
    right = [' class="n"' if heading.startswith(">") else "" for heading in headings]
    top = "".join(
        f"<th{side}>{escape(heading.lstrip('>'))}</th>" for heading, side in zip(headings, right, strict=True)
    )
    body = "".join(
        ('<tr class="here">' if number == marked else "<tr>")
        + "".join(f"<td{side}>{escape(cell)}</td>" for cell, side in zip(line, right, strict=True))
        + "</tr>"
        for number, line in enumerate(lines)
    )
    return f"<table><tr>{top}</tr>{body}</table>" if lines else ""


def key_values(values: Mapping[str, object]) -> str:
    """Return an HTML table with a row for each key and its value; empty without keys."""
    lines = (
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(str(value))}</td></tr>'
        for key, value in values.items()
    )
    return f"<table>{''.join(lines)}</table>" if values else ""


def draw(rows: Sequence[MetricsRow], best: Mapping[str, Any], spare: Path) -> tuple[bytes, str]:
    """Draw a plot of each metric; return (the content of curve.png, the same plots as an SVG element).

    Both are empty if no pass is finished yet. `best` is the result of `metrics.best_pass`. `spare` is a folder for
    temporary files, which is used only if the system has no writable folder for them.
    """
    passes = metrics.pass_table(rows)
    if not passes:  # matplotlib takes most of the time of a report
        return b"", ""
    png, svg = io.BytesIO(), io.StringIO()
    with _matplotlib_cache(spare):
        import matplotlib
        from matplotlib.figure import Figure

        names = score_columns(passes)
        figure = Figure(figsize=(5.2 * len(names), 4.0), dpi=120, layout="constrained")
        for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            _plot(axis, name, rows, best)
            _add_titles(axis, name, passes, best)
        figure.savefig(png, format="png")
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
            figure.savefig(svg, format="svg")
    element = svg.getvalue()[svg.getvalue().index("<svg") :]
    return png.getvalue(), re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.S)


def _plot(axis: Any, name: str, rows: Sequence[MetricsRow], best: Mapping[str, Any]) -> None:
    """Plot one metric over the passes, with marks for restarts and the best pass."""
    from matplotlib.ticker import MaxNLocator

    ranks = sorted({row.rank for row in rows})
    several = name == LOSS and len(ranks) > 1
    for rank in ranks if several and len(ranks) <= RANKS else ():
        x, y = zip(*((row.number + 1, row.train_loss) for row in rows if row.rank == rank), strict=True)
        label = "single ranks" if rank == 0 else None
        axis.plot(x, y, linewidth=0.9, alpha=0.6, marker=".", markersize=4, label=label, color=RANK)
    finite = [row for row in metrics.pass_table(rows) if math.isfinite(row.get(name, math.nan))]
    axis.plot(
        [row["pass"] + 1 for row in finite],
        [row[name] for row in finite],
        color=MEAN if name == LOSS else TEST_LINE, linewidth=2, marker="o", markersize=5,
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


def _add_titles(axis: Any, name: str, passes: Passes, best: Mapping[str, Any]) -> None:
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

    Without MPLCONFIGDIR, matplotlib would look for its cache in the home folder, which a pod does not have. If
    MPLCONFIGDIR is already set to a writable folder, or to a folder that can be created, it is not changed. Otherwise
    this creates a folder and removes it after the block. The folder is in the system's folder for temporary files, or
    in `spare` if that is not writable (the root file system of a pod is read-only).
    """
    if given := os.environ.get("MPLCONFIGDIR"):
        with contextlib.suppress(OSError):
            Path(given).mkdir(parents=True, exist_ok=True)
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


def main(arguments: Iterable[str]) -> int:
    """Write report.html of the output folder in `arguments`; return the exit code.

    The exit code is 1 if the folder has no run.json, and 65 if run.json is damaged.
    """
    folder = Path(*arguments)
    try:
        written = write_report(folder)
    except UnreadableError as error:
        print(error)  # noqa: T201
        return error.exit_code
    print(written or f"{folder} has no run.json yet. Fix: give the output folder of a run")  # noqa: T201
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:2]))
