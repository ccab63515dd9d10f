"""`status`, `logs`, `wait`, `results`: how the present training goes, and what it left behind."""

# ruff: noqa: PLR0917 - a command's options are its parameters
from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli import live, render
from launcher.cli import logs as logs_of
from launcher.cli import results as results_of
from launcher.cli import runs as runs_of
from launcher.cli.options import ClaimOption, Format, ImageOption, JobOption, Output, on_a_session, say
from launcher.cli.session import COPY_SECONDS, OUTPUT, Session
from launcher.layout import Output as LayoutOutput
from launcher.reporting import figures

app = typer.Typer()


class Role(StrEnum):
    """Whose log."""

    trainer = "trainer"
    pserver = "pserver"
    data = "data"


@app.command()
@on_a_session
def status(
    session: Session,
    output: Format = Output.text,
) -> None:
    """State of the data Job and the training, rank by rank, its restarts, and why what waits does not run."""
    view = session.look(log=True)
    if output is Output.json:
        render.print_json(view.as_json())
    else:
        render.consoles()[0].print(render.screen(view))


@app.command()
@on_a_session
def logs(
    session: Session,
    rank: Annotated[int, typer.Option(min=0, help="Which rank.")] = 0,
    role: Annotated[
        Role | None, typer.Option(help="trainer or pserver: that process's log. Default: the pod's own log.")
    ] = None,
    server: Annotated[int, typer.Option(min=0, help="Which pserver of the rank.")] = 0,
    attempt: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="K",
            help="That attempt's log. They count from 0, as their folders node_<rank>/attempt-<K>/ do; "
            "default: the newest.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run is over, restarts included.")
    ] = False,
) -> None:
    """Print a log: of the pod while it exists, else from output/node_<rank>/ on the shared storage."""
    for block in logs_of.read(
        session,
        rank=rank,
        role=role.value if role else None,
        server=server,
        attempt=attempt,
        following=follow,
        say=say,
    ):
        sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()


@app.command()
@on_a_session
def wait(
    session: Session,
    timeout: Annotated[
        float, typer.Option(min=0, help="Give up after so many seconds (exit code 2).")
    ] = 7200.0,
    output: Format = Output.text,
) -> None:
    """Follow the run through its restarts, and the one that replaces it, if any.

    Exit 0 when complete, 1 when failed, 2 when --timeout passed.
    """
    view = live.to_the_end(session, timeout, lines_to=say if output is Output.json else live.to_stdout)
    if output is Output.json:
        render.print_json(view.as_json())


@app.command()
@on_a_session
def results(
    session: Session,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Copy model, curve, metrics and logs there.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there already.")] = False,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="One that was moved aside, as `runs` shows it."),
    ] = None,
    job: JobOption = None,
    claim: ClaimOption = None,
    image: ImageOption = None,
    output: Format = Output.text,
) -> None:
    """Score and table of passes; with --to a verified copy of model, curve, report, metrics and logs."""
    with session.storage(
        COPY_SECONDS, fresh=to is not None, job=job, claim=claim, image=image, takes=("job", "claim", "image")
    ) as storage:
        folder = OUTPUT
        if run is not None:
            folder = LayoutOutput(Path(runs_of.find(runs_of.load(storage), run).folder))
        found = results_of.load(storage, storage.where, folder)
        if to is not None and not found.has_model:
            say(f"the run is {found.state} and has no {folder.model} yet; copying what there is")
        copied = results_of.copy(storage, to, force, say, folder) if to is not None else {}
    if output is Output.json:
        render.print_json({**found.__dict__, "copied": {"to": str(to), "files": copied} if to else None})
        return
    out, _ = render.consoles()
    restarts = f" (restarts: {len(found.restarts)}; `status` tells why)" if found.restarts else ""
    finished = f" at {figures.at_time(found.finished)}" if found.finished else ""
    out.print(f"run {found.run_id}: {found.state}{finished}{restarts}")
    score = figures.scores(found.score) or "none yet"
    out.print(", ".join(filter(None, (f"score on the test set: {score}", figures.best(found.best)))))
    if found.passes:
        out.print(results_of.pass_table(found.passes))
    if found.exported:
        out.print(f"exported to {found.exported}")
    if to is None:
        out.print(
            f"on the storage: {found.where}/{folder.root} ({', '.join(results_of.COPIED)}, node_*/); "
            "--to DIR copies it"
        )
    else:
        out.print(f"copied to {to}: " + ", ".join(sorted({name.split("/", 1)[0] for name in copied})))
        if "report.html" in copied:
            out.print(f"all about it on one page, in any browser: {to / 'report.html'}")
