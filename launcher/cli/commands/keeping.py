"""`runs`, `compare`, `clean`: the trainings of one job beside each other; `leftovers` of a release."""

# ruff: noqa: PLR0917 - a command's options are its parameters
from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from launcher.cli import cleaning, reasons, render
from launcher.cli import leftovers as left
from launcher.cli import runs as runs_of
from launcher.cli.options import (
    ClaimOption,
    Format,
    ImageOption,
    JobOption,
    Output,
    confirmed,
    on_a_session,
    say,
)
from launcher.cli.problems import UsageError
from launcher.cli.session import COPY_SECONDS, ClusterSession, Session

app = typer.Typer()


@app.command()
@on_a_session
def runs(
    session: Session,
    job: JobOption = None,
    claim: ClaimOption = None,
    image: ImageOption = None,
    output: Format = Output.text,
) -> None:
    """List the job's runs, also those that were moved aside: settings, score, time and pod hours."""
    with session.storage(job=job, claim=claim, image=image, takes=("job", "claim", "image")) as storage:
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
    with session.storage(job=job, takes=("job",)) as storage:
        found = runs_of.load(storage)
    both = runs_of.pair(found, one, other)
    if output is Output.json:
        told = {"differing": runs_of.differing(both), "diff": runs_of.program_diff(*both)}
        render.print_json({**told, "runs": [past.as_json() for past in both]})
    else:
        render.consoles()[0].print(runs_of.comparison(*both))


@app.command()
@on_a_session
def clean(
    session: Session,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME…]", help="With --sources: which ones; default: all.")
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="NAME", help="Remove this job's whole folder instead.")
    ] = None,
    sources: Annotated[
        bool, typer.Option("--sources", help="Remove pushed data files that no release refers to instead.")
    ] = False,
    keep: Annotated[int, typer.Option(min=0, metavar="N", help="Keep the newest N of them.")] = 5,
    older_than: Annotated[
        float, typer.Option(min=0, metavar="DAYS", help="Keep those that ended within so many days.")
    ] = 0.0,
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Keep the run with the best score, too.")
    ] = False,
    by: Annotated[
        str, typer.Option(metavar="SCORE", help="Which score --keep-best takes; default: the first one.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    claim: ClaimOption = None,
    image: ImageOption = None,
) -> None:
    """Remove runs that were moved aside, a whole job, or data files; never what a live run uses."""
    if job is not None and sources:
        raise UsageError("--job and --sources: name one of them.")
    if names and not sources:
        raise UsageError(f"{' '.join(names)}: names are of --sources. A run's job is named with --job NAME.")
    chosen = cleaning.SOURCES if sources else job
    with session.storage(
        COPY_SECONDS, writable=True, job=chosen, claim=claim, image=image, takes=("claim", "image")
    ) as storage:

        def find() -> list[cleaning.Found]:
            if sources:
                return cleaning.sources(session, storage, names or [])
            if job is not None:
                return cleaning.job(session, storage)
            return cleaning.old_runs(session, storage, keep, older_than, by if keep_best else None)

        found = find()
        for one in found:
            if one.kept:
                say(f"keeps {one.path}: {one.kept}")
        root = storage.sibling(".")
        going = cleaning.with_sizes(root, found)
        if (job or names) and len(going) < len(found):
            raise UsageError("nothing was removed: something of it is in use, see above.")
        if not going:
            say("nothing to remove")
            return
        for one in going:
            say(f"removes {one.path}: {one.size:,} bytes" + (f" ({one.about})" if one.about else ""))
        what = ", ".join(one.path for one in going)
        if not yes and not confirmed(f"Remove for good: {what}?"):
            raise UsageError(f"{what} would be removed for good; nothing was. Fix: --yes in scripts.")
        now = {one.path: one.kept for one in find()}  # it may have come into use while the question waited
        used = {one.path: now.get(one.path, "it is not there any more") for one in going}
        if lost := "; ".join(f"{path}: {why}" for path, why in used.items() if why):
            raise UsageError(f"nothing was removed. Meanwhile this changed: {lost}.")
        size = cleaning.remove(root, going)
    print(f"removed {what}: {size:,} bytes")


@app.command()
@on_a_session
def leftovers(
    session: Session,
    remove: Annotated[bool, typer.Option("--remove", help="Remove them; else they are only listed.")] = False,
    output: Format = Output.text,
) -> None:
    """List, or remove, what a failed upgrade, an uninstall or a deleted namespace left of a release.

    Where a failed upgrade replaced the data, --remove also makes the release's data Job again.
    """
    if not isinstance(session, ClusterSession):
        raise UsageError("--path reads a folder: leftovers are objects of a cluster.")
    found, data = left.look(session)
    if remove:
        left.remove(session.cluster, found, data)
    if output is Output.json:
        name = reasons.name(data) if data else None
        render.print_json({"leftovers": [asdict(one) for one in found], "dataJob": name, "removed": remove})
        return
    for one in found:
        print(f"keeps {one}: {one.kept}" if one.kept else f"{'removed' if remove else 'left over:'} {one}")
    if data is not None:
        done = "is made again" if remove else "would be made again"
        print(f"job {reasons.name(data)} {done}: the storage holds other data than it made")
    if not found and data is None:
        print("nothing is left over")
    elif any(one.kept for one in found):
        at = f"{session.release} -n {session.cluster.namespace}"
        print(
            f"to go back: helm get values {at} --revision N -o yaml > good.yaml; "
            f"helm upgrade {at} charts/paddle-training --reset-values -f good.yaml"
        )
    elif not remove:
        print("--remove does it; nothing was changed")
