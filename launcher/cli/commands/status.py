"""`status`: the current state of a run. `wait`: follow a run until it is over."""

from __future__ import annotations

from launcher.cli.job_sessions import LOG_LINES, Session
from launcher.cli.run_display import follow_run, status_screen
from launcher.cli.run_files import check_intact
from launcher.cli.shared_options import FollowTimeout, Format, with_session
from launcher.cli.terminal import console, print_json


@with_session
def status(session: Session, output: Format = "text") -> None:
    """Show the state of the data Job and of each rank, the restarts, and what the run waits for."""
    view = session.read_view(LOG_LINES)
    if output == "json":
        print_json(view.as_json())
    else:
        console().print(status_screen(view, session.options()))
    check_intact(view.damage, view.where)


@with_session
def wait(session: Session, timeout: FollowTimeout = 7200.0, output: Format = "text") -> None:
    """Follow the run until it is complete, through restarts and upgrades that replace it.

    Exit code 0 when complete, 1 when failed, 2 when --timeout expired.
    """
    view = follow_run(session, timeout, to_stderr=output == "json")
    if output == "json":
        print_json(view.as_json())
