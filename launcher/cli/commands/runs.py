"""`runs`: list the runs of a job. `compare`: show how two of them differ."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from launcher.cli.job_sessions import Session
from launcher.cli.run_comparison import choose_pair, diff_programs, run_rows, setting_rows
from launcher.cli.run_files import CURRENT, SavedRun, check_intact, differing_settings, read_runs
from launcher.cli.shared_options import Format, with_storage
from launcher.cli.storage import StorageRequest
from launcher.cli.terminal import console, curve_table, pass_rows, print_json, text_table
from launcher.reporting import text_formats


@with_storage
def runs(session: Session, request: StorageRequest, output: Format = "text") -> None:
    """List the job's current and earlier runs: settings, score, duration and pod hours (pods times hours)."""
    with session.storage(request) as storage:
        found = read_runs(storage)
    if output == "json":
        print_json([run.as_json() for run in found])
    else:
        console().print(text_table(*run_rows(found)) if found else "the job has no runs yet")
    for run in found:
        check_intact(run.damage, storage.where)


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
    output: Format = "text",
) -> None:
    """Show the settings in which two runs differ, and their losses and scores pass by pass."""
    with session.storage(request) as storage:
        found = read_runs(storage)
    pair = choose_pair(found, one, other)
    for run in pair:
        check_intact(run.damage, storage.where)
    if output == "json":
        differences = {"differing": differing_settings(pair), "diff": diff_programs(*pair)}
        print_json({**differences, "runs": [run.as_json() for run in pair]})
    else:
        console().print(_comparison(*pair))


def _comparison(one: SavedRun, other: SavedRun) -> RenderableType:
    """Return what `compare` prints: the settings and programs that differ; losses and scores side by side."""
    pair = (one, other)
    settings: RenderableType = Text("the settings are the same")
    if rows := setting_rows(pair):
        settings = text_table(["setting", one.name, other.name], rows)
    passes = {run.name: run.passes for run in pair}
    lines = [Text(text_formats.best_pass(run.best) + f" in {run.name}") for run in pair if run.best]
    diff = diff_programs(one, other)
    hidden = [f"{len(diff) - DIFF_LINES} more lines; -o json prints all"] if len(diff) > DIFF_LINES else []
    lines += map(Text, [*diff[:DIFF_LINES], *hidden])
    return Group(settings, text_table(*pass_rows(passes)), curve_table(passes), *lines)
