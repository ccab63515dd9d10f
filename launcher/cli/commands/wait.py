"""`wait`: follow a run until it is over."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.job_sessions import Session
from launcher.cli.shared_options import Format, OutputFormat, report, with_session
from launcher.cli.views.follow_run import follow_run, print_line
from launcher.cli.views.terminal_output import print_json


@with_session
def wait(
    session: Session,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Stop waiting after this time (exit code 2).")
    ] = 7200.0,
    output: Format = OutputFormat.text,
) -> None:
    """Follow the run until it is complete, through restarts and upgrades that replace it.

    Exit code 0 when complete, 1 when failed, 2 when --timeout expired.
    """
    view = follow_run(session, timeout, report if output is OutputFormat.json else print_line, report)
    if output is OutputFormat.json:
        print_json(view.as_json())
