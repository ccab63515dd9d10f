"""A server process that follows a model, and clients that request predictions from it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from launcher.serving.paddle_served import Model
from testkit.waiting import until

ROOT = Path(__file__).parents[3]
ROW = {"words": "5 77", "size": 0.5}
LOOK_SECONDS = "0.2"
START = (
    "import runpy, sys; from launcher.serving import serve; serve.LEAVE_SECONDS = 3; "
    "runpy.run_module('launcher', run_name='__main__', alter_sys=True)"
)
"""Starts `python -m launcher`; clients are told to leave 3 s before the server ends, instead of 20."""
PAUSE_SECONDS = 0.1  # of a client between two requests, or three clients would keep both cores busy


def write_variant(source: Path, target: Path, factor: float) -> Path:
    """Replace the folder `target` by a copy of a model with vectors multiplied by `factor`, as a training does."""
    new = target.with_name("new")
    shutil.copytree(source, new)
    vectors = np.load(next(new.glob("embeddings/word*/vectors.npy")), mmap_mode="r+")
    vectors *= factor
    vectors.flush()
    description = json.loads((new / "model.json").read_text())
    (new / "model.json").write_text(json.dumps(description | {"created": factor}))
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)
    return target


def fill_with_sevens(path: Path) -> None:
    """Replace the content of a file by as many other bytes. Paddle crashes when it reads such a network."""
    path.write_bytes(b"\7" * path.stat().st_size)


def read_metric(text: str, name: str) -> str:
    """Return the value of a metric, with its labels in `name`, in a text of /metrics."""
    return next(line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} "))


class ServerProcess:
    """`python -m launcher serve --follow` on loopback, with clients that request predictions all the time."""

    def __init__(self, address: str, work: Path, env: dict[str, str] | None = None) -> None:
        self.log = work.with_suffix(".log")
        command = [sys.executable, "-c", START, "serve", "--model", address, "--work", str(work)]
        command += ["--follow", LOOK_SECONDS, "--port", "0", "--workers", "2"]
        given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                env=given | {"PADDLE_LAUNCHER_TERMINATION_LOG": os.devnull} | (env or {}),
                stdout=log,
                stderr=log,
            )
        self.url = until(self._address, "the server's address", 60, 0.1, self.log.read_text)
        self.answers: list[tuple[int, str, Any]] = []
        """Status, version of the model and prediction of each answer."""
        self.errors: list[Exception] = []
        self._stop = threading.Event()
        self._clients = [threading.Thread(target=self._request_in_a_loop) for _ in range(3)]
        for client in self._clients:
            client.start()

    def _address(self) -> str | None:
        assert self.process.poll() is None, self.log.read_text()
        _, found, rest = self.log.read_text().partition("Uvicorn running on ")
        return rest.split()[0] if found and " " in rest else None

    def _request_in_a_loop(self) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post("/predict", json={"rows": [ROW]})
                    version = answer.headers["Model-Version"]
                    self.answers.append((answer.status_code, version, answer.json()["predictions"][0]))
                    if client.get("/healthz").status_code == 503:  # Kubernetes sends no more requests
                        return
                    self._stop.wait(PAUSE_SECONDS)
                except Exception as error:
                    self.errors.append(error)
                    return

    def metric(self, name: str) -> str:
        """Return the value of a metric."""
        return read_metric(httpx.get(f"{self.url}/metrics", timeout=60).text, name)

    def wait_for_model(self, folder: Path) -> Any:
        """Wait until all clients got an answer of the model in `folder`, and return its prediction."""
        version = Model(folder).version
        until(
            lambda: self.answers and all(seen[1] == version for seen in self.answers[-5:]),
            f"answers of model {version}",
            60,
            0.1,
            self.log.read_text,
        )
        return self.answers[-1][2]

    def kill(self) -> None:
        """Kill the server, if it still runs, and wait until it ended."""
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> None:
        """Stop clients and server; fail if a request failed, or if the server did not exit by itself."""
        self._stop.set()
        for client in self._clients:
            client.join()
        self.process.send_signal(signal.SIGTERM)
        self.wait_for_end(0, -signal.SIGTERM)

    def wait_for_end(self, *codes: int) -> None:
        """Wait until the server has ended; fail if a request failed, or its exit code is not in `codes`."""
        for client in self._clients:
            client.join()
        try:
            assert self.process.wait(60) in codes, self.log.read_text()
        finally:
            self.kill()
        assert not self.errors, self.log.read_text()
        assert {status for status, _, _ in self.answers} == {200}


@contextlib.contextmanager
def serving(*given: Any) -> Iterator[ServerProcess]:
    server = ServerProcess(*given)
    try:
        yield server
        if server.process.returncode is None:
            server.stop()
    finally:
        server._stop.set()
        server.kill()
