"""Tests of `serve --follow`: as a process with a folder, and in this process with the models of a bucket."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from launcher.io import files
from launcher.serving.paddle_served import Model
from launcher.serving.paddle_served.http_server import ModelServer
from launcher.serving.serve import ModelFollower
from local.paths import CLONE
from testkit.waiting import until

from .conftest import ROW, read_metric, write_variant
from .test_hostile_exports import entry, put
from .test_http_server import Client


def export(bucket: Any, model: Path, run: str, damaged: str = "") -> None:
    """Export a model to the bucket; the file `damaged` has other bytes than its sha256 says."""
    listed = []
    for path in files.folder_files(model):
        name, content = f"model/{path.relative_to(model).as_posix()}", path.read_bytes()
        listed.append(entry(name, content))
        body = b"\7" * len(content) if path.name == damaged else content
        bucket.put_object(Bucket="bucket", Key=f"models/job/{run}/{name}", Body=body)
    marker = {"version": 1, "runId": run, "finished": 1.5}
    put(bucket, f"models/job/{run}/_SUCCESS.json", marker | {"files": listed})
    put(bucket, "models/job/latest.json", marker | {"to": f"s3://bucket/models/job/{run}/"})


START = (
    "import runpy, sys; from launcher.serving import serve; serve.LEAVE_SECONDS = 3; "
    "runpy.run_module('launcher', run_name='__main__', alter_sys=True)"
)
"""Starts `python -m launcher`; clients are told to leave 3 s before the server ends, instead of 20."""


class ServerProcess:
    """`python -m launcher serve --follow` on loopback, with clients that request predictions all the time."""

    def __init__(self, model: Path, work: Path) -> None:
        self.log = work.with_suffix(".log")
        command = [sys.executable, "-c", START, "serve", "--model", str(model), "--work", str(work)]
        command += ["--follow", "0.2", "--port", "0", "--workers", "2"]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CLONE), "PYTHONUNBUFFERED": "1"}
        env |= {"PADDLE_LAUNCHER_TERMINATION_LOG": os.devnull}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self.answers: list[tuple[int, str, list[float]]] = []
        """Status, version of the model and prediction of each answer."""
        self._stop, pool = threading.Event(), ThreadPoolExecutor(3)
        try:
            self.url = until(self._address, "the server's address", 60, 0.1, self.log.read_text)
            self._clients = [pool.submit(self._request_in_a_loop) for _ in range(3)]
        except BaseException:
            self.close()
            raise

    def _address(self) -> str | None:
        assert self.process.poll() is None, self.log.read_text()
        _, found, rest = self.log.read_text().partition("Uvicorn running on ")
        return rest.split()[0] if found and " " in rest else None

    def _request_in_a_loop(self) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            while not self._stop.wait(0.1):  # without a pause, three clients would keep both cores busy
                answer = client.post("/predict", json={"rows": [ROW]})
                version = answer.headers["Model-Version"]
                self.answers.append((answer.status_code, version, answer.json()["predictions"][0]))
                if client.get("/healthz").status_code == 503:  # Kubernetes sends no more requests
                    return

    def wait_for_model(self, folder: Path) -> list[float]:
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

    def wait_for_end(self, *codes: int) -> None:
        """Wait until the server has ended; fail if a request failed, or its exit code is not in `codes`."""
        for client in self._clients:
            client.result()
        assert self.process.wait(60) in codes, self.log.read_text()
        assert {status for status, _, _ in self.answers} == {200}

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop clients and server; fail if a request failed, or if the server did not exit by itself."""
        self._stop.set()
        wait(self._clients)
        self.process.send_signal(number)
        self.wait_for_end(0, *([-number] if number == signal.SIGTERM else []))
        assert "Traceback" not in self.log.read_text()

    def close(self) -> None:
        """Stop the clients, and kill the server if it still runs."""
        self._stop.set()
        self.process.kill()
        self.process.wait(60)


@pytest.mark.slow
def test_a_server_ends_for_a_newer_model_without_a_lost_request_and_its_next_start_serves_it(
    made: SimpleNamespace, tmp_path: Path
) -> None:
    folder, work = tmp_path / "output" / "model", tmp_path / "work"
    folder.parent.mkdir()
    write_variant(made.folder, folder, 1)
    with contextlib.closing(ServerProcess(folder, work)) as server:
        first = server.wait_for_model(folder)
        assert first == pytest.approx(made.expected([5, 77], 0.5), rel=1e-5)
        shutil.rmtree(folder)  # a new run has no model until it is complete
        write_variant(made.folder, folder, 2)
        server.wait_for_end(0)
        newer = f"the newer model of {folder} is copied to {work / 'served'}: the server exits, and its next start"
        assert newer in server.log.read_text()
        assert {answer[2][0] for answer in server.answers} == {first[0]}
    with contextlib.closing(ServerProcess(folder, work)) as server:
        second = server.wait_for_model(folder)
        assert second == pytest.approx(Model(folder).predict([ROW])[0].tolist())
        assert abs(second[0] - first[0]) > 1e-3
        metrics = httpx.get(f"{server.url}/metrics", timeout=60).text
        assert read_metric(metrics, "paddle_serve_model_created_seconds") == "2.0"
        assert "copying" not in server.log.read_text(), "the copy of the first process is used"
        server.stop(signal.SIGINT)


@pytest.mark.slow
def test_a_server_follows_latest_json_and_rejects_a_damaged_download(
    made: SimpleNamespace,
    tmp_path: Path,
    s3: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    one, two = (write_variant(made.folder, tmp_path / str(factor), factor) for factor in (1, 2))
    export(s3, one, "run-1")
    follower = ModelFollower("s3://bucket/models/job", tmp_path / "work", 1, None)
    server = ModelServer(Model(follower.open_first()), workers=2)
    assert server.model.version == Model(one).version
    export(s3, write_variant(made.folder, tmp_path / "3", 3), "run-2", "network.pdmodel")
    follower.look(server)
    rejected = 'paddle_serve_model_failures_total{reason="model"}'
    assert read_metric(Client(server).get("/metrics").text, rejected) == "1.0"
    assert not follower.newer
    assert "run-2/model/network.pdmodel does not have the sha256 in _SUCCESS.json" in caplog.text
    export(s3, two, "run-3")
    follower.look(server)
    assert follower.newer == "s3://bucket/models/job/run-3/"
    caplog.clear()
    second = Model(ModelFollower("s3://bucket/models/job", tmp_path / "work", 1, None).open_first())
    assert "copying" not in caplog.text
    assert (second.version, second.about["created"]) == (Model(two).version, 2)
