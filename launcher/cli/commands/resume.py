"""`resume`: continue a stopped or failed training."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.cluster.job_restart import continue_training
from launcher.cli.commands.stop import describe_wrong_state
from launcher.cli.job_sessions import Session
from launcher.cli.shared_options import require_cluster, with_session
from launcher.cli.terminal import command_text, print_line
from launcher.cli.views.follow_run import describe_following, explain_interrupt, follow_run

FOLLOW_SECONDS = 24 * 3600.0


@with_session
def resume(
    session: Session,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then follow the run until it is over, for at most a day.")
    ] = False,
) -> None:
    """Continue a stopped or failed training from its newest checkpoint."""
    session = require_cluster(session, "resume")
    if not continue_training(session.cluster, session.run()):
        raise describe_wrong_state(session, "resume", "suspended")
    if follow:
        with explain_interrupt(lambda: describe_following(session.options())):
            follow_run(session, FOLLOW_SECONDS)
    else:
        print_line(f"  follow it:    {command_text('wait', *session.options())}")
