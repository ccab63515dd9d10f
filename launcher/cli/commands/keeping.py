"""`runs`, `compare`, `clean`: the trainings of one job beside each other."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from launcher.cli import render
from launcher.cli import runs as runs_of
from launcher.cli.options import Format, JobOption, Output, on_a_session, say
from launcher.cli.problems import UsageError
from launcher.cli.session import COPY_SECONDS, Session

app = typer.Typer()


@app.command()
@on_a_session
def runs(
    session: Session,
    job: JobOption = None,
    output: Format = Output.text,
) -> None:
    """List the job's runs, also those that were moved aside: settings, score, time and pod hours."""
    with session.storage(job=job) as storage:
        found = runs_of.load(storage)
    if output is Output.json:
        render.print_json([past.as_json() for past in found])
    else:
        render.consoles()[0].print(runs_of.runs_table(found) if found else "no run has written there yet")


@app.command()
@on_a_session
def compare(
    session: Session,
    one: Annotated[
        str, typer.Argument(metavar="A", help="A run's name as `runs` shows it, or its beginning.")
    ] = runs_of.CURRENT,
    other: Annotated[str | None, typer.Argument(metavar="B", help="Another; else the newest but A.")] = None,
    job: JobOption = None,
    output: Format = Output.text,
) -> None:
    """Show the settings in which two runs differ, and their losses and scores pass by pass."""
    with session.storage(job=job) as storage:
        found = runs_of.load(storage)
    both = runs_of.pair(found, one, other)
    if output is Output.json:
        render.print_json({"differing": runs_of.differing(both), "runs": [past.as_json() for past in both]})
    else:
        render.consoles()[0].print(runs_of.comparison(*both))


@app.command()
@on_a_session
def clean(
    session: Session,
    keep: Annotated[int, typer.Option(min=0, metavar="N", help="Keep the newest N of them.")] = 5,
    older_than: Annotated[
        float, typer.Option(min=0, metavar="DAYS", help="Keep those that ended within so many days.")
    ] = 0.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove runs that were moved aside; never one that a pod uses, nor the present output."""
    with session.storage(seconds=COPY_SECONDS, writable=True) as storage:
        found = runs_of.load(storage)
        going, staying = runs_of.unused(found, keep, older_than, runs_of.read_by_pods(session, found))
        for past, why in staying:
            say(f"keeps {past.name}: {why}")
        if not going:
            say("nothing to remove")
            return
        names = ", ".join(past.name for past in going)
        if not yes and not (sys.stdin.isatty() and typer.confirm(f"Remove for good: {names}?", err=True)):
            raise UsageError(
                f"{names} would be removed for good; nothing was. Say --yes where nobody can be asked."
            )
        freed = runs_of.remove(storage, going)
    print(f"removed {names}: {freed:,} bytes are free")
