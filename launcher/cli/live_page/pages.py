"""The pages of the dashboard as HTML: the list of releases, the page of a release, and two of its runs side by side.

Every text from a cluster or a file is escaped. Links contain names, never paths.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlencode

from launcher.cli.errors import CliError
from launcher.cli.live_page.line_chart import draw_chart, points_of
from launcher.cli.live_page.readings import Seen
from launcher.cli.run_comparison import choose_pair, diff_programs, run_rows, setting_rows
from launcher.cli.run_display import (
    JOB_COLUMNS,
    RANK_COLUMNS,
    first_line,
    job_row,
    rank_row,
    remarks,
    status_line,
)
from launcher.cli.run_files import SavedRun
from launcher.cli.run_view import RunView
from launcher.cli.terminal import escape_controls, pass_rows, score_columns
from launcher.reporting.html_report import join_tiles, key_values, restart_table, section, table
from launcher.reporting.text_formats import best_pass, duration, number, rate, scores, utc_time

PAGE = Path(__file__).with_name("page.html")
LIVE_SECONDS, STALE_SECONDS = 6.0, 30.0
"""An older state is shown with its age, as a warning: after an error, and without one."""
Passes = Sequence[Mapping[str, Any]]


def _page(
    title: str, seen: Seen[Any], content: str, *, where: str = "", state: str = "", links: Mapping[str, str]
) -> str:
    """Return a whole page; `content` is HTML, `links` are addresses by a fixed text."""
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
    """Return the list of releases; `views` are by the releases' names."""
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
        section("Restarts", restart_table([asdict(one) for one in reversed(restarts)])),
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
    """Return a chart of the training loss and of each test score; `runs` are the passes by the run's name.

    Only the first `count` charts are returned; None: all.
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
    """Return the page of a job's runs, with two of them side by side; None: the newest, and the newest other one."""
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
