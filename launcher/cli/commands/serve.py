"""`serve`: serve a model over HTTP. Serving pods start the same server through launcher/__main__.py."""

from __future__ import annotations

import typer


def serve(context: typer.Context) -> None:
    """Serve a model (--model DIR or --model s3://BUCKET/PREFIX) over HTTP until the process is stopped.

    POST /predict returns predictions. /healthz and /metrics are for monitoring, /docs describes the API.
    """
    from launcher.serving import serve as server

    raise typer.Exit(server.main(context.args))
