"""Predict one test row with a trained model: the last step of `make demo` and `make try`.

A model of runtime fleet is served over HTTP. The example of runtime collective has a script predict.py.
"""

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

from launcher.dataprep.csv_records import split_fields
from local import console
from local.collective_python import ensure_collective_python
from local.external_commands import LocalError, free_port, run_command
from local.paths import CLONE

HOST = "127.0.0.1"
START_SECONDS = 60
SHOWN = 100  # characters of the request that are printed


def _read_test_row(job: Path) -> list[str]:
    """Return the fields of the first row of the test set in a job's folder."""
    with (job / "test.txt").open(encoding="utf-8", errors="replace", newline="\n") as file:
        return split_fields(next(file))


def print_script_prediction(job: Path, predict: Path) -> None:
    """Predict the last column of the first test row with an example's script, and print the answer.

    `predict` is the script; its arguments are the model's folder and the row's last column.

    Raises:
        LocalError: The script failed.
    """
    argv = [
        str(ensure_collective_python()),
        str(predict),
        str(job / "output" / "model"),
        _read_test_row(job)[-1],
    ]
    answer = run_command(argv, why=f"predicting a test row of {job.name}").strip()
    console.success(f"predict.py: {answer}")


def print_served_prediction(job: Path) -> None:
    """Serve the model of the job folder `job`, send it the first test row, and print request and answer.

    The answer is the text of the program's `describe`, or else the prediction as JSON.

    Raises:
        LocalError: The server did not start or did not answer.
    """
    about = json.loads((job / "output" / "model" / "model.json").read_text("utf-8"))
    row = dict(zip(about["columns"], _read_test_row(job), strict=True))
    with serve_model(job / "output" / "model") as (_, port):
        known = {column: row[column] for column in _send_request(port, "GET", "/model")["columns"]}
        answer = _send_request(port, "POST", "/predict", {"rows": [known]})
    text = answer["words"][0] if answer["words"] else json.dumps(answer["predictions"][0])
    request = json.dumps(known, ensure_ascii=False)
    console.success(f"served: POST /predict {request if len(request) <= SHOWN else request[:SHOWN] + '…'}")
    console.success(f"answer: {text}")


@contextlib.contextmanager
def serve_model(model: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Run `python -m launcher serve` during the block; yield its process id and its port on loopback.

    Raises:
        LocalError: The server did not start.
    """
    port = free_port()
    argv = [sys.executable, "-m", "launcher", "serve", "--model", str(model), "--port", str(port), *options]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv, cwd=CLONE, env={**os.environ, "PYTHONPATH": str(CLONE)}, stdout=log, stderr=log
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _is_listening(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    output = log.read().decode(errors="replace")[-2000:]
                    raise LocalError(
                        f"the model server (`python -m launcher serve --model {model}`), started for a sample "
                        f"prediction, did not answer. Fix: correct the cause in its output:\n{output}"
                    )
                time.sleep(0.01)
            yield process.pid, port
        finally:
            process.kill()
            process.wait()


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((HOST, port), timeout=5).close()
        return True
    return False


def _send_request(port: int, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    connection = http.client.HTTPConnection(HOST, port, timeout=START_SECONDS)
    given = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, given, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status != 200:
        raise LocalError(
            f"{method} {path} of the served model returned HTTP status {answer.status}: {content}. "
            f"Fix: correct the program's parse() or describe()"
        )
    return content
