"""The options of `try`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.launch.check_before_upload import row_format
from launcher.io import files

if TYPE_CHECKING:
    from launcher.trainer.single_process.trial_data import RowFormat


@dataclass(frozen=True, kw_only=True)
class TryOptions:
    """The options of `try`."""

    program: Annotated[
        Path,
        typer.Argument(
            metavar="PROGRAM", help="A program's folder or file, or the name of an example: ctr, …"
        ),
    ]
    data: Annotated[
        Path, typer.Option(metavar="FILE", help="Rows to train on, also compressed (.gz, .bz2, .xz).")
    ]
    test: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rows to test on; default: a part of --data (--held-out)."),
    ] = None
    held_out: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Fraction of the rows to test on, without --test.")
    ] = 0.1
    table: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A side table: a file that the program reads next to the rows."),
    ] = None
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the program.")
    ] = None
    rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Read only the first N rows of each file.")
    ] = None
    passes: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 3
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 256
    csv: Annotated[bool, typer.Option("--csv", help="The files are CSV (data.format); default: lines.")] = (
        False
    )
    delimiter: Annotated[str, typer.Option(help="Delimiter between the fields of CSV.")] = ","
    header: Annotated[bool, typer.Option(help="Whether the first CSV record has the column names.")] = True
    columns: Annotated[
        str, typer.Option(help="CSV columns to keep, by name or number: a,b or 0,3; default: all.")
    ] = ""
    quoting: Annotated[
        str, typer.Option(help="Quotes in CSV: minimal, or none if they are ordinary characters.")
    ] = "minimal"
    encoding: Annotated[str, typer.Option(help="Character encoding of the files.")] = "utf-8"
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the model.")] = Path("tried-model")

    def row_format(self) -> RowFormat:
        """Return the format of the files."""
        data: dict[str, Any] = {
            "format": "csv" if self.csv else "lines",
            "delimiter": self.delimiter,
            "header": self.header,
        }
        data |= {"columns": parse_columns(self.columns), "quoting": self.quoting, "encoding": self.encoding}
        return row_format(data, "--{}")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of the program or script as command-line arguments, such as `--width=4`."""
        return tuple(f"--{option}" for option in self.settings or ())

    def copy_tables(self, folder: Path) -> None:
        """Make `folder` with copies of the side tables."""
        folder.mkdir()
        for table in self.table or ():
            files.copy_file(table, folder / table.name)


def parse_columns(text: str) -> tuple[str | int, ...]:
    """Return the columns of `--columns a,b` as names, or of `--columns 0,3` as numbers."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    return tuple(int(name) for name in names) if all(n.isdecimal() for n in names) else tuple(names)
