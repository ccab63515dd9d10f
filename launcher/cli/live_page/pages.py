"""The pages of the dashboard as HTML: the list of releases, the page of a release, and two of its runs side by side.

Every text from a cluster or a file is escaped. Links contain names, never paths. Charts of a metric over the passes are
SVG elements that follow the colours of the page: the command line has no matplotlib, which draws the charts
of report.html.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlencode

from launcher.cli.errors import CliError
from launcher.cli.live_page.readings import Seen
from launcher.cli.run_display import (
    JOB_COLUMNS,
    RANK_COLUMNS,
    first_line,
    job_row,
    rank_row,
    remarks,
    status_line,
)
from launcher.cli.run_files import choose_pair, diff_programs, setting_rows
from launcher.cli.run_view import RunView
from launcher.cli.terminal import escape_controls
from launcher.reporting.html_report import join_tiles, key_values, restart_table, section, table
from launcher.reporting.saved_runs import Passes, SavedRun, pass_rows, run_rows, score_columns
from launcher.reporting.text_formats import best_pass, duration, number, rate, scores, utc_time

PAGE = Path(__file__).with_name("page.html")
LIVE_SECONDS, STALE_SECONDS = 6.0, 30.0
"""A state that is older than this is shown with its age, as a warning: the first number holds after an error, the
second without an error."""
WIDTH, HEIGHT = 440, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 24  # the margins of the plot
DOTS = 100
"""Largest number of points of a line that are drawn as dots; of a longer line, only the last point is drawn as a dot. A
dot shows its value under the mouse."""
LARGEST = 1e300
"""Values from this one on are not drawn, because values of a damaged file must not overflow."""
Points = Sequence[tuple[int, float]]
"""(pass counted from 1, value below LARGEST) of each pass."""


def _page(
    title: str, seen: Seen[Any], content: str, *, where: str = "", state: str = "", links: Mapping[str, str]
) -> str:
    """Return a whole page; `content` is HTML, and `links` maps the text of each link to its address."""
    problem = seen.problem
    if seen.value is None:
        problem = problem or "reading …"
    elif seen.age > (LIVE_SECONDS if problem else STALE_SECONDS):
        problem = f"{problem + '. ' if problem else ''}This is the state of {duration(seen.age)} ago."
    page = Template(PAGE.read_text("utf-8")).substitute(
        title=escape(f"{title}: {state}" if state else title),
        heading=escape(title),
        where=escape(where),
        state=_state(state) if state else "",
        problem=f'<p class="card problem" role="status">{escape(problem)}</p>' if problem else "",
        content=content,
        footer=f"State of {utc_time(time.time() - seen.age)}. Passes count from 1, attempts from 0; times are in UTC."
        if seen.value is not None
        else "",
        links="".join(f'<a href="{link}">{text}</a>' for text, link in links.items()),
    )
    return escape_controls(page)


def _state(state: str) -> str:
    return f'<span class="state {escape(state)}">{escape(state)}</span>'


def _link(page: str, release: str) -> str:
    """Return the address of a page of a release; it has no character that HTML must escape."""
    return f"/{page}?{urlencode({'release': release})}"


def render_absent(release: str) -> str:
    """Return the page of a release that does not exist."""
    problem = "there is no release with this name; it may have been uninstalled"
    return _page(release or "Trainings", Seen(None, problem=problem), "", links={"All trainings": "/"})


def render_overview(where: str, names: Seen[Any], views: Mapping[str, Seen[RunView]]) -> str:
    """Return the page with the list of releases.

    `names` says how old the list is, and `views` has the view of each release by the release's name.
    """
    content = "".join(_card(name, seen) for name, seen in views.items())
    if names.value is not None and not views:
        content = section("No releases yet", "Start a training with the command <code>run PROGRAM</code>.")
    return _page("Trainings", names, f'<div class="releases">{content}</div>', where=where, links={})


def _card(release: str, seen: Seen[RunView]) -> str:
    view = seen.value
    link = f'<a href="{_link("run", release)}">{escape(release)}</a>'
    texts, chart = [seen.problem or "reading …"], ""
    if view:
        about = status_line(view).partition(": ")[2]
        cause = first_line(view.cause) if view.is_over and view.cause else ""
        texts = [seen.problem, view.run_id or "", about, cause]
        chart = _charts({"": view.passes}, 1)
    return (
        f'<section class="card"><h2>{link} {_state(view.state) if view else ""}</h2>'
        f"{_bar(view) if view else ''}{_notes(texts)}{chart}</section>"
    )


def _bar(view: RunView) -> str:
    if view.progress is None:
        return ""
    done = view.progress.fraction
    return f'<div class="done"><progress value="{done:.3f}" aria-label="done"></progress> {done:.0%}</div>'


def render_run(release: str, seen: Seen[RunView]) -> str:
    """Return the page of a release: what `status` prints, with curves."""
    links = {"All trainings": "/", "Runs of this job, compared": _link("runs", release)}
    view = seen.value
    if view is None:
        return _page(release, seen, "", links=links)
    jobs = [job_row(kind, job) for kind, job in (("data", view.data), ("training", view.training)) if job]
    log = f'<p class="soft">{escape(view.log_of)}</p><pre class="log">{escape(chr(10).join(view.log))}</pre>'
    restarts = view.progress.restarts if view.progress else ()
    content = [
        _bar(view),
        f'<div class="tiles">{join_tiles(_tiles(view))}</div>',
        section("Cause of the failure" if view.state == "failed" else "Cause", _notes([view.cause])),
        section("Notes", _notes([*remarks(view), *view.damage.values()])),
        section("Curves", _charts({"": view.passes})),
        section("Ranks", table(RANK_COLUMNS, [rank_row(rank) for rank in view.ranks])),
        section("Restarts", restart_table(reversed(restarts))),
        section("Newest log lines", log if view.log else ""),
        section("Passes", _pass_table({"": view.passes})),
        section("Jobs", table(JOB_COLUMNS, [[str(cell) for cell in row] for row in jobs])),
    ]
    return _page(release, seen, "".join(content), where=view.run_id or "", state=view.state, links=links)


def _notes(texts: Iterable[str]) -> str:
    return "".join(f'<p class="note">{escape(text)}</p>' for text in texts if text)


def _tiles(view: RunView) -> list[tuple[str, str]]:
    tiles = [*(scores({key: value}).partition(" ")[::2] for key, value in view.score.items())]
    if progress := view.progress:
        current = len(view.passes) if progress.number is None else progress.number + 1
        tiles.append(("pass", f"{current} of {progress.passes or '?'}"))
        tiles += [("read from the log", progress.log_progress)] if progress.log_progress else []
        if not view.is_over:
            tiles += [("batch", f"{progress.batch or 0} of {progress.batches}")] if progress.batches else []
            tiles += [("samples/s", rate(progress.samples_per_second)), ("loss", number(progress.loss))]
            tiles.append(("time left", duration(progress.eta)))
        tiles.append(("restarts", str(len(progress.restarts))))
    tiles += [("best pass", best_pass(view.best).removeprefix("best "))] if view.best else []
    return tiles + ([("exported to", view.exported)] if view.exported else [])


def _charts(runs: Mapping[str, Passes], count: int | None = None) -> str:
    """Return a chart of the training loss and of each test score; `runs` has the passes of each run, by the run's name.

    Only the first `count` charts are returned; None: all charts.
    """
    charts = [
        draw_chart(key, {name: points_of(passes, key) for name, passes in runs.items()})
        for key in score_columns(*runs.values())[:count]
    ]
    return f'<div class="charts">{"".join(charts)}</div>' if any(charts) else ""


def _pass_table(runs: Mapping[str, Passes]) -> str:
    columns, rows = pass_rows(runs)
    shown = table(columns, rows[::-1])
    return f"<details><summary>{len(rows)} finished</summary>{shown}</details>" if rows else ""


def render_runs(release: str, seen: Seen[list[SavedRun]], one: str | None, other: str | None) -> str:
    """Return the page of a job's runs, with two runs side by side.

    `one` and `other` are the names of these two runs. If `one` is None, it is the newest run; if `other` is None, it is
    the newest other run.
    """
    links = {"All trainings": "/", "Current run": _link("run", release)}
    found = seen.value or []
    content = section("Runs", table(*run_rows(found)))
    if len(found) > 1:
        try:
            content += _comparison(release, found, choose_pair(found, one or found[0].name, other))
        except CliError as error:
            content += section("Comparison", escape(str(error)))
    damage = [text for run in found for text in run.damage.values()]
    content += section("Damaged files", _notes(damage))
    return _page(f"Runs of {release}", seen, content, links=links)


def _comparison(release: str, found: Sequence[SavedRun], pair: Sequence[SavedRun]) -> str:
    selects = ""
    for key, chosen in zip(("a", "b"), pair, strict=True):
        options = "".join(
            f"<option{' selected' if run is chosen else ''}>{escape(run.name)}</option>" for run in found
        )
        selects += f'<label>{key.upper()} <select name="{key}">{options}</select></label> '
    form = f'<input type="hidden" name="release" value="{escape(release)}">{selects}<button>Compare</button>'
    passes = {run.name: run.passes for run in pair}
    rows, diff = setting_rows(pair), "\n".join(diff_programs(*pair))
    summary = {run.name: ", ".join(filter(None, (run.state, scores(run.record.score)))) for run in pair}
    return "".join(
        [
            section("Comparison", f'<form action="/runs">{form}</form>{key_values(summary)}'),
            section("Curves", _charts(passes)),
            section("Settings that differ", table(["setting", *passes], rows) or "none"),
            section("Passes", _pass_table(passes)),
            section("Differences of the programs", f"<pre>{escape(diff)}</pre>" if diff else ""),
        ]
    )


def draw_chart(title: str, lines: Mapping[str, Points]) -> str:
    """Return a chart as an HTML figure; empty if no line has a point.

    The chart has one line for each entry of `lines`, which maps the name of the line to its points.
    """
    xs, ys = ([point[axis] for line in lines.values() for point in line] for axis in (0, 1))
    if not xs:
        return ""
    first, last, low, high = min(xs), max(xs), min(ys), max(ys)
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    low, high = low - margin, high + margin

    def place(number: float, value: float) -> str:
        share = (number - first) / (last - first) if last > first else 0.5
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        return f"{x:.1f},{TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM):.1f}"

    drawn = []
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    step *= next(factor for factor in (5, 2, 1) if factor * step <= (high - low) / 2)
    for count in range(math.ceil(low / step), math.floor(high / step) + 1):
        value = count * step
        y = place(first, value).partition(",")[2]
        drawn.append(f'<path class="grid" d="M{LEFT},{y}H{WIDTH - RIGHT}"/>')
        drawn.append(f'<text class="y" x="{LEFT - 8}" y="{y}" dy="4">{value:.4g}</text>')
    for pass_number in sorted({first, (first + last) // 2, last}):
        x = place(pass_number, low).partition(",")[0]
        drawn.append(f'<text class="x" x="{x}" y="{HEIGHT - 6}">{pass_number}</text>')
    keys = []
    for style, (name, line) in enumerate(lines.items()):
        drawn.append(f'<polyline class="line line-{style}" points="{" ".join(place(*at) for at in line)}"/>')
        for pass_number, value in line if len(line) <= DOTS else line[-1:]:
            x, y = place(pass_number, value).split(",")
            tip = escape(f"{name} pass {pass_number}: {value:.4f}".strip())
            drawn.append(
                f'<circle class="dot line-{style}" cx="{x}" cy="{y}" r="3"><title>{tip}</title></circle>'
            )
        newest = f"{line[-1][1]:.4f}" if line else "-"
        keys.append(f'<span class="key line-{style}">{escape(name)} <b>{newest}</b></span>')
    return (
        f"<figure><figcaption>{escape(title)} {''.join(keys)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)} over the passes">'
        f"{''.join(drawn)}</svg></figure>"
    )


def points_of(passes: Passes, key: str) -> list[tuple[int, float]]:
    """Return the points of a column of a pass table (`launcher.metrics.pass_table`).

    NaN, and values whose amount is LARGEST or more, are left out.
    """
    return [(int(row["pass"]) + 1, row[key]) for row in passes if abs(row.get(key, math.nan)) < LARGEST]
