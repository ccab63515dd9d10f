"""One prediction by a trained model over HTTP: what `make demo` and `make try` end with."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.data import fields
from local import say
from local.errors import LocalError
from local.paths import CLONE

HOST = "127.0.0.1"
START_SECONDS = 60
SHOWN = 100  # characters of a row


def show(job: Path) -> str:
    """Serves `output/model` of a job's folder, asks it about the first row of the test set, and prints both.

    Returns:
        What the model says: the program's own words, or the prediction.

    Raises:
        LocalError: the server does not come up, or does not answer.
    """
    about = json.loads((job / "output" / "model" / "model.json").read_text("utf-8"))
    with (job / "test.txt").open(encoding="utf-8", errors="replace", newline="\n") as file:
        row = dict(zip(about["columns"], fields(next(file)), strict=True))
    with _server(job / "output" / "model") as port:
        known = {column: row[column] for column in _ask(port, "GET", "/model")["columns"]}
        answer = _ask(port, "POST", "/predict", {"rows": [known]})
    said = answer["words"][0] if answer["words"] else json.dumps(answer["predictions"][0])
    text = json.dumps(known, ensure_ascii=False)
    say.done(f"served: POST /predict {text if len(text) <= SHOWN else text[:SHOWN] + '…'}")
    say.done(f"answer: {said}")
    return str(said)


@contextlib.contextmanager
def _server(model: Path) -> Iterator[int]:
    """`python -m launcher serve` on a free port of loopback, which it gives; ended behind it."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port: int = free.getsockname()[1]
    argv = [sys.executable, "-m", "launcher", "serve", "--model", str(model), "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv, cwd=CLONE, env={**os.environ, "PYTHONPATH": str(CLONE)}, stdout=log, stderr=log
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    said = log.read().decode(errors="replace")[-2000:]
                    raise LocalError(f"`launcher serve --model {model}` does not answer:\n{said}")
                time.sleep(0.05)
            yield port
        finally:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((HOST, port), timeout=5).close()
        return True
    return False


def _ask(port: int, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    connection = http.client.HTTPConnection(HOST, port, timeout=START_SECONDS)
    given = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, given, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status != 200:
        raise LocalError(f"{method} {path} of the served model answered {answer.status}: {content}")
    return content
