"""`stop`, `resume`: a run saved and suspended, and continued."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli import launching, live, reasons
from launcher.cli import stopping as stopping_of
from launcher.cli.options import confirmed, on_a_session, say
from launcher.cli.problems import UsageError
from launcher.cli.session import ClusterSession, Session
from launcher.cli.words import command

NONE_SAVED = "none saved; `resume` continues from the newest earlier checkpoint"

app = typer.Typer()


def _on_a_cluster(session: Session, doing: str) -> ClusterSession:
    if not isinstance(session, ClusterSession):
        raise UsageError(f"--path reads a folder: {doing} needs the cluster that the training runs on.")
    return session


@app.command()
@on_a_session
def stop(
    session: Session,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long to wait for the checkpoint.")
    ] = 600.0,
    checkpoint: Annotated[
        bool,
        typer.Option(
            "--checkpoint/--no-checkpoint", help="Save one first; else lose what came after the newest."
        ),
    ] = True,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Stop also when no checkpoint could be saved; do not ask.")
    ] = False,
) -> None:
    """Save a checkpoint and stop the training (its Job is suspended); `resume` continues it."""
    session = _on_a_cluster(session, "stop")
    jobs = stopping_of.own_jobs(session, "stop", suspended=False)
    saved = stopping_of.save(session, timeout, say) if checkpoint else stopping_of.Asked()
    if saved.why:
        loss = (
            f"no checkpoint could be saved: {saved.why}. Without one the run resumes from its newest earlier "
            "checkpoint, or from the start; what it trained after that is lost."
        )
        say(loss)
        if not yes and not confirmed("Stop anyway?"):
            raise UsageError("nothing was stopped. Fix: try again later, or accept the loss with --yes.")
    stopping_of.suspend(session, jobs, say)
    at = session.options()
    print(f"stopped: {', '.join(reasons.name(job) for job in jobs)}")
    print(f"checkpoint: {saved if saved.folder else NONE_SAVED}")
    print(f"  continue:     {command('resume', *at)}")
    gone = f"helm uninstall {session.release} -n {session.cluster.namespace}"
    print(f"  remove it:    {gone} (data, checkpoints and models stay)")


@app.command()
@on_a_session
def resume(
    session: Session,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the run to its end, as wait.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="With --follow: exit code 2 after so many seconds.")
    ] = (24 * 3600.0),
) -> None:
    """Continue a stopped training from its newest checkpoint."""
    session = _on_a_cluster(session, "resume")
    for job in stopping_of.own_jobs(session, "resume", suspended=True):
        session.cluster.suspend_job(reasons.name(job), False)
        print(f"resumed: {reasons.name(job)}")
    if follow:
        with launching.interrupted(session, say):
            live.to_the_end(session, timeout)
    else:
        print(f"  follow it:    {command('wait', *session.options())}")
