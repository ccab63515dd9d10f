"""`python -m launcher serve`: a model of the shared storage, or of an export in a bucket, over HTTP."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launcher import fetch, s3
from launcher.errors import DataError
from launcher.served.__main__ import parser, serve
from launcher.served.errors import ServedError


def main(arguments: Sequence[str]) -> int:
    """Serves until it is told to stop; returns the exit code. Raises `LauncherError`."""
    command = parser("python -m launcher serve")
    command.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="where a model of s3://… is brought to (the run's folder of an export)",
    )
    given = command.parse_args(arguments)
    folder = Path(given.model)
    if given.model.startswith(s3.SCHEME):
        sys.stderr.write(f"bringing {given.model} to {given.work}\n")
        folder = fetch.model(given.model, given.work / "served", "--model")
    try:
        serve(folder, given.host, given.port, given.workers)
    except ServedError as error:
        raise DataError(str(error)) from error
    return 0
