"""`python -m paddle_served --model DIR`: the model in DIR over HTTP."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .errors import ModelError, ServedError
from .model import Model, description

STOP_SECONDS = 10
"""For requests that are at work when the process is told to stop."""


def parser(prog: str) -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(prog=prog, description="Serve a trained model over HTTP.")
    made.add_argument("--model", required=True, metavar="DIR", help="the folder `model` of a run's output")
    made.add_argument("--host", default="127.0.0.1", help="address to listen on (0.0.0.0: all)")
    made.add_argument("--port", type=int, default=8080)
    made.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="predictions at once")
    return made


def serve(model: Path, host: str, port: int, workers: int) -> None:
    """Serves until the process is told to stop. Raises `ModelError`."""
    began = time.monotonic()
    description(model)  # a wrong folder is told before Paddle is loaded
    opened = Model(model)
    took = time.monotonic() - began
    try:
        import uvicorn

        from .server import application
    except ImportError as error:
        raise ModelError(
            f"the HTTP server cannot be loaded ({error}). Install it: pip install './served[serve]' in "
            "the project's folder."
        ) from error
    print(f"{model}: {len(opened.tables)} tables, opened in {took:.2f} s", flush=True)  # noqa: T201
    app = application(opened, workers, took)
    uvicorn.run(
        app, host=host, port=port, log_level="info", access_log=False, timeout_graceful_shutdown=STOP_SECONDS
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 for a model that cannot be served."""
    given = parser("python -m paddle_served").parse_args(arguments)
    try:
        serve(Path(given.model), given.host, given.port, given.workers)
    except ServedError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
