"""`status`: the current state of a run. `wait`: follow a run until it is over."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.job_sessions import Session
from launcher.cli.run_display import follow_run, status_screen
from launcher.cli.run_files import check_intact
from launcher.cli.shared_options import MAX_WAIT, Format, OutputFormat, with_session
from launcher.cli.terminal import console, print_json


@with_session
def status(session: Session, output: Format = OutputFormat.text) -> None:
    """Show the state of the data Job and of each rank, the restarts, and what the run waits for."""
    view = session.read_view(log=True)
    if output is OutputFormat.json:
        print_json(view.as_json())
    else:
        console().print(status_screen(view, session.options()))
    check_intact(view.damage, view.where)


@with_session
def wait(
    session: Session,
    timeout: Annotated[
        float,
        typer.Option(
            min=0, max=MAX_WAIT, metavar="SECONDS", help="Stop waiting after this time (exit code 2)."
        ),
    ] = 7200.0,
    output: Format = OutputFormat.text,
) -> None:
    """Follow the run until it is complete, through restarts and upgrades that replace it.

    Exit code 0 when complete, 1 when failed, 2 when --timeout expired.
    """
    view = follow_run(session, timeout, to_stderr=output is OutputFormat.json)
    if output is OutputFormat.json:
        print_json(view.as_json())
