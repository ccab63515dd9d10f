"""`resume`: continue a stopped or failed training."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.cluster import object_states
from launcher.cli.cluster.job_restart import restart_failed_training
from launcher.cli.commands.stop import find_jobs
from launcher.cli.job_sessions import Session
from launcher.cli.shared_options import report, require_cluster, with_session
from launcher.cli.suggested_commands import command_text
from launcher.cli.views.follow_run import describe_following, explain_interrupt, follow_run, print_line


@with_session
def resume(
    session: Session,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then follow the run until it is over, as `wait` does.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="With --follow: stop waiting after this time (exit code 2)."
        ),
    ] = 24 * 3600.0,
) -> None:
    """Continue a stopped or failed training from its newest checkpoint."""
    session = require_cluster(session, "resume")
    if not restart_failed_training(session.cluster, session.run(), print):
        for job in find_jobs(session, "resume", suspended=True):
            name = object_states.name_of(job)
            session.cluster.suspend_job(name, False)
            print(f"resumed: {name}")
    if follow:
        with explain_interrupt(lambda: describe_following(session.options()), report):
            follow_run(session, timeout, print_line, report)
    else:
        print(f"  follow it:    {command_text('wait', *session.options())}")
