"""`push`: upload a program or a data file to the shared storage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli import uploads
from launcher.cli.job_sessions import ClusterSession, Session
from launcher.cli.packages import find_requirements
from launcher.cli.shared_options import Format, RequirementsOption, ScriptOption, YesOption, with_storage
from launcher.cli.storage import COPY_SECONDS, StorageRequest
from launcher.cli.terminal import print_json, print_line, report


@with_storage
def push(
    session: Session,
    request: StorageRequest,
    *,
    src: Annotated[Path, typer.Argument(metavar="SRC", help="A program's folder, or data with --source.")],
    source: Annotated[
        bool, typer.Option("--source", help="SRC is a data file, or a folder of files, for file:// sources.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what has that name on the storage.")
    ] = False,
    script: ScriptOption = None,
    requirements: RequirementsOption = None,
    yes: YesOption = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="First check that the program defines what it must.")
    ] = True,
    output: Format = "text",
) -> None:
    """Upload a program or a data file to the shared storage, and print the chart values that refer to it."""
    upload = (
        uploads.plan_source(src)
        if source
        else uploads.plan_program(src, check=check, chosen_file=script or "")
    )
    needed = None if source else find_requirements(src, requirements)
    chart_values = dict(upload.values)
    with session.storage(replace(request, seconds=COPY_SECONDS, writable=True)) as storage:
        if needed and isinstance(session, ClusterSession):
            run = session.run_if_installed()
            image = request.image or (run.image if run else "of the reader pod")
            chart_values |= uploads.send_packages(needed, image, storage, yes)
        elif needed:
            report(f"{needed} is not read: with --path the image is unknown, for which packages are chosen")
        path = uploads.send(storage, upload, force)
    if output == "json":
        print_json({"path": path, "values": chart_values})
        return
    values = [f"--set-string {key}={value}" for key, value in chart_values.items()]
    if isinstance(session, ClusterSession) and request == StorageRequest():
        print_line(f"uploaded {path}. Train with it:")
        command = f"helm upgrade {session.release} charts/paddle-training -n {session.cluster.namespace}"
        print_line(" \\\n    ".join([f"  {command} --reset-then-reuse-values", *values]))
    else:
        print_line("\n  ".join([f"uploaded {path}. Use it with these values:", *values]))
