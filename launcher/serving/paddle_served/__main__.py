"""`python -m paddle_served --model DIR`: serve the model in DIR over HTTP."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .model import Model, ModelError, ServedError, read_description

if TYPE_CHECKING:
    import uvicorn

    from .http_server import ModelServer

STOP_SECONDS = 10
"""How many seconds running requests may take after the process was asked to stop."""


def _integer(low: int, high: int) -> Callable[[str], int]:
    """Return a function that converts an option's text to an integer, and rejects other values than `low` to `high`."""

    def parse(text: str) -> int:
        if not (
            text.isascii() and text.isdecimal() and len(text) <= len(str(high)) and low <= int(text) <= high
        ):
            raise argparse.ArgumentTypeError(f"it is {text!r}. Fix: set an integer from {low} to {high}")
        return int(text)

    return parse


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command line. `prog` is the name of the command in its help text."""
    parser = argparse.ArgumentParser(prog=prog, description="Serve a trained model over HTTP.")
    parser.add_argument("--model", required=True, metavar="DIR", help="folder `model` of a run's output")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (0.0.0.0: all)")
    parser.add_argument("--port", type=_integer(0, 65535), default=8080)
    parser.add_argument(
        "--workers",
        type=_integer(1, 1024),
        default=os.cpu_count() or 1,
        help="number of concurrent predictions",
    )
    return parser


def serve(
    model: Path,
    host: str,
    port: int,
    workers: int,
    starting: Callable[[ModelServer, uvicorn.Server], object] = lambda *_: None,
) -> None:
    """Serve a model over HTTP until SIGTERM or SIGINT, or until a thread of `starting` stops the server.

    `workers` is the number of concurrent predictions. The function `starting` is called with the application and its
    uvicorn server before the server accepts requests. It may start a thread that stops the server.

    After a signal, uvicorn stops the server, and then sends the same signal to the process again. After SIGINT (Ctrl-C)
    this function returns. SIGTERM kills the process. Only process 1 of a container ignores the second SIGTERM, so there
    this function returns, too.

    Raises:
        ModelError: the model cannot be read, or the packages of the HTTP server are not installed.
        SystemExit: the server cannot listen on the address. The exit code is 3.
    """
    began = time.monotonic()
    read_description(model)  # finds a wrong folder before Paddle is imported
    opened = Model(model)
    took = time.monotonic() - began
    try:
        import uvicorn

        from .http_server import ModelServer
    except ImportError as error:
        raise ModelError(
            f"the HTTP server cannot be imported ({error}). Fix: run pip install './served[serve]' in the "
            "project's folder"
        ) from error
    about = f"version {opened.version}, {len(opened.tables)} tables, opened in {took:.2f} s"
    print(f"{model}: {about}", flush=True)  # noqa: T201
    application = ModelServer(opened, workers, took)
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        log_level="info",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server = uvicorn.Server(config)
    starting(application, server)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code: 1 if the model cannot be served, else 0.

    `serve` describes what SIGTERM and SIGINT do, and when it raises `SystemExit`.
    """
    given = build_parser("python -m paddle_served").parse_args(arguments)
    try:
        serve(Path(given.model), given.host, given.port, given.workers)
    except ServedError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
