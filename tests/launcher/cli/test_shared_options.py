"""Options that a decorator adds to commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from launcher.cli.shared_options import with_options


@dataclass(frozen=True)
class Size:
    """Options of the command of this test."""

    width: Annotated[int, typer.Option(min=1)]
    unit: Annotated[str, typer.Option("--in")] = "cm"
    scale: int = 2


def test_with_options_builds_the_parameter_from_annotated_fields_only() -> None:
    received: list[tuple[Size, bool]] = []
    app = typer.Typer()

    @app.command()
    @with_options(size=Size)
    def resize(size: Size, exact: Annotated[bool, typer.Option("--exact")] = False) -> None:
        received.append((size, exact))

    assert CliRunner().invoke(app, ["--width", "3", "--in", "m", "--exact"]).exit_code == 0
    assert CliRunner().invoke(app, ["--width", "4"]).exit_code == 0
    assert received == [(Size(3, "m"), True), (Size(4), False)]
    for arguments in (
        [],
        ["--width", "0"],
        ["--width", "3", "--scale", "5"],
        ["--width", "3", "--size", "1"],
    ):
        assert CliRunner().invoke(app, arguments).exit_code == 2, arguments
