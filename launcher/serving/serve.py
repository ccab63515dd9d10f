"""`python -m launcher serve`: serve a model over HTTP, from a folder or from an export in an S3 bucket."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import DataError
from launcher.io import files, s3
from launcher.log import log, start_logging
from launcher.serving import download
from launcher.serving.paddle_served.__main__ import build_parser, serve
from launcher.serving.paddle_served.errors import ServedError

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


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
        help="folder for copies of models from s3://… (the folder of a run's export), or with --follow",
    )
    command.add_argument(
        "--follow",
        type=float,
        metavar="SECONDS",
        help="look for a newer model about every SECONDS, in the folder --model or in latest.json of the job's exports "
        "s3://…; copy it to --work, check it, and end with exit code 0, so that the next start serves it",
    )
    command.add_argument(
        "--work-limit",
        type=_bytes,
        metavar="SIZE",
        help="limit of the folder --work, such as 10Gi (--follow)",
    )
    given = command.parse_args(arguments)
    if given.follow is not None and given.follow <= 0:
        command.error(
            f"--follow is {given.follow:g}, but must be more than 0 seconds. Fix: set the seconds between searches"
        )
    work = given.work / "served"
    try:
        if given.follow is not None:
            _serve_and_follow(given, work)
        elif given.model.startswith(s3.SCHEME):
            sys.stderr.write(f"downloading {given.model} to {given.work}\n")
            files.remove_path(work / "model")  # the disk need not have room for two
            folder = download.download_model(given.model, work, "--model")
            serve(folder, given.host, given.port, given.workers)
        else:
            serve(Path(given.model), given.host, given.port, given.workers)
    except ServedError as error:
        raise DataError(str(error)) from error
    return 0


def _serve_and_follow(given: argparse.Namespace, work: Path) -> None:
    from launcher.serving.model_follower import ModelFollower

    start_logging("serve")
    follower = ModelFollower(given.model, work, given.follow, given.work_limit)
    serve(follower.open_first(), given.host, given.port, given.workers, follower.follow)
    if follower.newer:
        log.info(
            "the newer model of %s is copied to %s: the server exits, and its next start serves that model. Kubernetes "
            "starts it again",
            *(follower.newer, work),
        )


def _bytes(quantity: str) -> int:
    """Return a Kubernetes quantity in bytes: `10Gi` → 10737418240."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k|Ki|[MGT]i?|)", quantity)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{quantity!r} is not a size. Fix: give bytes, or a number with k, Ki, M, Mi, G, Gi, T or Ti: 10Gi"
        )
    return int(float(match[1]) * _UNITS[match[2]])
