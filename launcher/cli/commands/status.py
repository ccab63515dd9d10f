"""`status`: the present state of a run."""

from __future__ import annotations

from launcher.cli.job_sessions import Session
from launcher.cli.shared_options import Format, OutputFormat, with_session
from launcher.cli.storage.run_files import check_intact
from launcher.cli.terminal import console, print_json
from launcher.cli.views.status_text import status_screen


@with_session
def status(session: Session, output: Format = OutputFormat.text) -> None:
    """Show the state of the data Job and of each rank, the restarts, and what the run waits for."""
    view = session.read_view(log=True)
    if output is OutputFormat.json:
        print_json(view.as_json())
    else:
        console().print(status_screen(view, session.options()))
    check_intact(view.damage, view.where)
