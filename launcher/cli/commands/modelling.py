"""`try`, `predict`, `serve`: a program and a model on this machine, without a cluster."""

# ruff: noqa: PLR0917 - a command's options are its parameters
from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher.cli import predicting, render, trying
from launcher.cli.options import Format, Output, say

app = typer.Typer()


@app.command("try")
def try_out(
    program: Annotated[
        Path, typer.Argument(metavar="PROGRAM", help="A program's folder or file, or one of ours: ctr, …")
    ],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Rows to train with; .gz is unpacked.")],
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows to test with; else some of --data are held out.")
    ] = None,
    held_out: Annotated[float, typer.Option(min=0.001, max=0.5, help="Share of rows to test with.")] = 0.1,
    table: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A side table of the program (data.tables).")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the program.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Read only the first N rows of each file.")
    ] = None,
    passes: Annotated[int, typer.Option(min=1)] = 3,
    batch_size: Annotated[int, typer.Option(min=1)] = 256,
    csv: Annotated[bool, typer.Option("--csv", help="The files are csv (data.format); else lines.")] = False,
    delimiter: Annotated[str, typer.Option(help="Between fields of csv.")] = ",",
    header: Annotated[bool, typer.Option(help="Whether the first csv record names the columns.")] = True,
    columns: Annotated[str, typer.Option(help="csv columns to keep: a,b or 0,3; empty: all.")] = "",
    encoding: Annotated[str, typer.Option(help="Of the files.")] = "utf-8",
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where the model goes.")] = Path("tried-model"),
    output: Format = Output.text,
) -> None:
    """Train a program in this one process, write its model, predict a row with it; no cluster."""
    asked = trying.Request(
        program=program,
        data=data,
        test=test,
        held_out=held_out,
        tables=table or [],
        options=option or [],
        rows=rows,
        passes=passes,
        batch_size=batch_size,
        csv=csv,
        delimiter=delimiter,
        header=header,
        columns=trying.columns(columns),
        encoding=encoding,
        to=to,
    )
    done = trying.run(asked, say if output is Output.json else lambda text: print(text, flush=True))
    if output is Output.json:
        render.print_json(done)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="What `results --to` copied; or a model/.")],
    cells: Annotated[
        list[str] | None, typer.Argument(metavar="COLUMN=VALUE…", help="One row; the label may be left out.")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="More rows, a JSON object a line; -: stdin.")
    ] = None,
    output: Format = Output.text,
) -> None:
    """What a model says of rows: the program's own words, or the whole vector."""
    found = predicting.run(model, cells or [], rows)
    if output is Output.json:
        render.print_json(found)
        return
    for one in found:
        print(predicting.text(one))
    unknown = [f"{count} of {table}" for table, count in found[0]["unknownIds"].items() if count]
    if unknown:
        say(f"ids that the model does not know, read as zeros: {', '.join(unknown)}")


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False
)
def serve(context: typer.Context) -> None:
    """Serve a model over HTTP: --model DIR or s3://…; /predict, /healthz, /metrics, OpenAPI at /docs."""
    from launcher import serve as serving  # pods run it without this command line: launcher/__main__.py

    raise typer.Exit(serving.main(context.args))
