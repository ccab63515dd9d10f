"""`runs`: list the runs of a job. `compare`: show how two of them differ."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from launcher.cli.errors import UsageError
from launcher.cli.job_sessions import Session
from launcher.cli.run_files import (
    CURRENT,
    SavedRun,
    check_intact,
    differing_settings,
    find_run,
    read_runs,
)
from launcher.cli.shared_options import Format, OutputFormat, with_storage
from launcher.cli.storage import StorageRequest
from launcher.cli.terminal import console, curve_table, pass_table, print_json, text_table
from launcher.reporting import text_formats


@with_storage
def runs(session: Session, request: StorageRequest, output: Format = OutputFormat.text) -> None:
    """List the job's current and earlier runs: settings, score, duration and pod hours (pods times hours)."""
    with session.storage(request) as storage:
        found = read_runs(storage)
    if output is OutputFormat.json:
        print_json([run.as_json() for run in found])
    else:
        console().print(_run_table(found) if found else "the job has no runs yet")
    for run in found:
        check_intact(run.damage, storage.where)


def _run_table(found: Sequence[SavedRun]) -> RenderableType:
    """Return a table with a row for each run, and a column for each setting that differs between them."""
    keys = [key for key in differing_settings(found) if key != "passes"]
    columns = ["run", "state", "started", ">duration", ">pod hours", ">passes", ">restarts", "score", *keys]
    rows: list[list[RenderableType]] = []
    for run in found:
        scores = (text_formats.scores(run.record.score), text_formats.best_pass(run.best))
        rows.append(
            [
                run.name + (" (current)" if run.folder == CURRENT else ""),
                run.state,
                text_formats.utc_time(run.record.started or None),
                text_formats.duration(run.seconds),
                "-" if run.pod_hours is None else f"{run.pod_hours:.2f}",
                str(len(run.passes)),
                str(len(run.record.restarts)),
                ", ".join(filter(None, scores)) or "-",
                *(Text(str(run.settings.get(key, "-"))) for key in keys),
            ]
        )
    return text_table(columns, rows)


DIFF_LINES = 100  # of two programs' diff, in a terminal


@with_storage
def compare(
    session: Session,
    request: StorageRequest,
    *,
    one: Annotated[
        str,
        typer.Argument(metavar="A", help="A run's name in `runs`, or its start; default: the current run."),
    ] = CURRENT,
    other: Annotated[
        str | None, typer.Argument(metavar="B", help="Another run; default: the newest one except A.")
    ] = None,
    output: Format = OutputFormat.text,
) -> None:
    """Show the settings in which two runs differ, and their losses and scores pass by pass."""
    with session.storage(request) as storage:
        found = read_runs(storage)
    pair = _choose_pair(found, one, other)
    for run in pair:
        check_intact(run.damage, storage.where)
    if output is OutputFormat.json:
        differences = {"differing": differing_settings(pair), "diff": _diff_programs(*pair)}
        print_json({**differences, "runs": [run.as_json() for run in pair]})
    else:
        console().print(_comparison(*pair))


def _choose_pair(found: Sequence[SavedRun], one: str, other: str | None) -> list[SavedRun]:
    """Return the two runs with these names; without `other`, `one` and the newest other run."""
    first = find_run(found, one)
    if other is not None:
        return [first, find_run(found, other)]
    second = next((run for run in found if run is not first), None)
    if second is None:
        raise UsageError(
            f"the job has one run only, {first.name}; `compare` needs two",
            "train again with another setting: run PROGRAM --set KEY=VALUE",
        )
    return [first, second]


def _diff_programs(one: SavedRun, other: SavedRun) -> list[str]:
    """Return the lines of a unified diff of the two programs, or a line that their text is unknown."""
    if one.settings.get("program") == other.settings.get("program"):
        return []
    lines: list[str] = []
    for name in sorted({*one.program, *other.program} if one.program and other.program else ()):
        old, new = (run.program.get(name, "").splitlines() for run in (one, other))
        lines += difflib.unified_diff(old, new, f"{one.name}/{name}", f"{other.name}/{name}", lineterm="")
    return lines or ["the programs differ, but their text was not saved"]


def _comparison(one: SavedRun, other: SavedRun) -> RenderableType:
    """Return what `compare` prints: the settings and programs that differ; losses and scores side by side."""
    pair = (one, other)
    keys = differing_settings(pair)
    settings: RenderableType = Text("the settings are the same")
    if keys:
        settings = text_table(
            ["setting", one.name, other.name],
            [[key, *(Text(str(run.settings.get(key, "-"))) for run in pair)] for key in keys],
        )
    passes = {run.name: run.passes for run in pair}
    lines = [Text(text_formats.best_pass(run.best) + f" in {run.name}") for run in pair if run.best]
    diff = _diff_programs(one, other)
    hidden = [f"{len(diff) - DIFF_LINES} more lines; -o json prints all"] if len(diff) > DIFF_LINES else []
    lines += map(Text, [*diff[:DIFF_LINES], *hidden])
    return Group(settings, pass_table(passes), curve_table(passes), *lines)
