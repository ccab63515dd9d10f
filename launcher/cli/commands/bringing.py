"""`push`, `base`: what a training is made of."""

# ruff: noqa: PLR0917 - a command's options are its parameters
from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher.cli import push as pushing
from launcher.cli import render
from launcher.cli.cluster import CHART, NAMESPACE, connect
from launcher.cli.options import Context, Format, Kubeconfig, Namespace, Output, Release, on_a_session, say
from launcher.cli.session import COPY_SECONDS, ClusterSession, Session

app = typer.Typer()


@app.command()
@on_a_session
def push(
    session: Session,
    src: Annotated[
        Path, typer.Argument(metavar="SRC", help="A program's folder, or a data file with --source.")
    ],
    name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Its name on the storage.")] = None,
    source: Annotated[bool, typer.Option("--source", help="SRC is a data file for file:// sources.")] = False,
    job: Annotated[
        str | None, typer.Option(metavar="NAME", help="For that jobName; default: the release's present one.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what has that name already.")] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="See first whether the program has all its parts.")
    ] = True,
    output: Format = Output.text,
) -> None:
    """Bring a program or a data file onto the shared storage, and say which values name it."""
    parcel = pushing.source(src, name) if source else pushing.program(src, name, check)
    with session.storage(seconds=COPY_SECONDS, writable=True, job=job, takes=("job",)) as storage:
        where = pushing.send(storage, parcel, force, say)
    if output is Output.json:
        render.print_json({"path": where, "values": parcel.values})
        return
    values = [f"--set-string {key}={value}" for key, value in parcel.values.items()]
    if isinstance(session, ClusterSession) and job is None:
        print(f"{where} is there. Train with it:")
        command = f"helm upgrade {session.release} charts/paddle-training -n {session.cluster.namespace}"
        print(" \\\n    ".join([f"  {command} --reset-then-reuse-values", *values]))
    else:
        print("\n  ".join([f"{where} is there. Use it with these values:", *values]))


@app.command()
def base(
    release: Release = CHART,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print the values that are the cluster's, not one training's: image, storage, scheduling, network.

    With `--reset-values -f base.yaml -f MINE.yaml` a training is one whole file, and nothing of the last
    one stays in it.
    """
    cluster = connect(kubeconfig, context, namespace)
    print(ClusterSession(cluster, release, say).base().rstrip("\n"))
