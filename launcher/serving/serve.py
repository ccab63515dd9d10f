"""`python -m launcher serve`: serve a model over HTTP, from a folder or from an export in an S3 bucket."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import DataError
from launcher.io import s3
from launcher.serving import download
from launcher.serving.paddle_served.__main__ import build_parser, serve
from launcher.serving.paddle_served.errors import ServedError


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    Raises:
        LauncherError: the model cannot be downloaded or served.
    """
    command = build_parser("python -m launcher serve")
    command.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="folder for the download of a model from s3://… (the folder of a run's export)",
    )
    given = command.parse_args(arguments)
    folder = Path(given.model)
    if given.model.startswith(s3.SCHEME):
        sys.stderr.write(f"downloading {given.model} to {given.work}\n")
        folder = download.download_model(given.model, given.work / "served", "--model")
    try:
        serve(folder, given.host, given.port, given.workers)
    except ServedError as error:
        raise DataError(str(error)) from error
    return 0
