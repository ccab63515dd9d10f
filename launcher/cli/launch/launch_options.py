"""The options that `run` and `sweep` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Program = Annotated[
    Path,
    typer.Argument(
        metavar="PROGRAM", help="A program's folder, or the name of an example: quick_start, ctr, …"
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|URL",
        help="The training data: a file of this machine (it is uploaded), s3://…, https://…, or file://NAME "
        "for a file on the storage.",
    ),
]
ValuesFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--values", "-f", metavar="VALUES.yaml", help="A file with chart values; later ones override."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A value of the chart (training.batchSize=128), or an option of the program (width=4).",
    ),
]
Trainers = Annotated[int | None, typer.Option(min=1, help="Number of training pods.")]
Passes = Annotated[int | None, typer.Option(min=1, help="Passes over the data.")]
Chart = Annotated[
    str | None,
    typer.Option(
        metavar="PATH|oci://…", help="A chart to use instead of the one that comes with the launcher."
    ),
]
BaseRelease = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The release whose image and storage a new release uses."),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check/--no-check", help="First parse the first rows and train on some of them on this machine."
    ),
]
ReplaceData = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Replace a data file with the same name on the storage without asking."),
]
