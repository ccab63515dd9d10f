"""Tracking of a run: event files for TensorBoard, and a stand-in for an MLflow server, also a dead and a slow one."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from launcher.io import run_record
from launcher.paths import OutputPaths
from launcher.schema import RunFile
from launcher.supervisor import run_tracking
from launcher.supervisor.run_tracking import PENDING, RunTracking
from launcher.supervisor.timings import Timings
from testkit.http_servers import serving
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import train_settings

HEADER = "pass,rank,attempt,samples,seconds,samples_per_second,train_loss,test_auc\n"
FINGERPRINT = {"program": "p" * 64, "trainers": 2, "args": ["--rate=0.1"], "empty": ""}


class StandIn(BaseHTTPRequestHandler):
    """Keeps experiments, runs and artifacts in memory, as the REST API of MLflow does; `fail` answers with 500."""

    def do_GET(self) -> None:
        self._answer(404, {"error_code": "RESOURCE_DOES_NOT_EXIST"})

    def do_PUT(self) -> None:
        self.server.artifacts[self.path] = self.rfile.read(int(self.headers["Content-Length"]))  # type: ignore[attr-defined]
        self._answer(200, {})

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call = self.path.removeprefix("/api/2.0/mlflow/")
        server: Any = self.server
        server.calls.append((call, given, self.headers.get("Authorization")))
        answer: dict[str, Any] = {}
        if server.fails:
            self._answer(500, {})
            return
        if call == "experiments/create":
            answer = {"experiment_id": "7"}
        elif call == "runs/create":
            server.run = {
                "info": {"run_id": "r1", "artifact_uri": "mlflow-artifacts:/7/r1/artifacts"},
                "data": {},
            }
            answer = {"run": server.run}
        elif call == "runs/search":
            answer = {"runs": [server.run]} if server.run else {}
        self._answer(200, answer)

    def _answer(self, code: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Any]:
    with serving(StandIn, calls=[], artifacts={}, run=None, fails=False) as made:
        yield made


def write_run(root: Path, state: str, passes: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    rows = [
        f"{n},{rank},0,100,2.0,50.0,{1 / (n + 1)},{0.5 + n / 10 if rank == 0 else ''}\n"
        for n in range(passes)
        for rank in range(2)
    ]
    (root / "metrics.csv").write_text(HEADER + "".join(rows))
    (root / "report.html").write_text("<html>")
    record = RunFile(run_id="job-1", output_id="o1", fingerprint=FINGERPRINT, started=1000.0, state=state)
    run_record.write(OutputPaths(root), record, lambda: None)


def request(tmp_path: Path, uri: str = "", tensorboard: bool = False) -> dict[str, Any]:
    common = {"output": str(tmp_path / "output"), "runs": str(tmp_path / "runs"), "experiment": "shop"}
    return {**common, "tensorboard": tensorboard, "uri": uri, "name": "job-1"}


def test_a_run_is_found_again_and_gets_metrics_settings_state_and_files(
    tmp_path: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    uri = f"http://127.0.0.1:{server.server_address[1]}/"
    for state, passes in (("training", 1), ("training", 2), ("complete", 2)):
        write_run(tmp_path / "output", state, passes)
        run_tracking._track(request(tmp_path, uri))
    assert [call for call, _, _ in server.calls].count("runs/create") == 1
    [created] = [given for call, given, _ in server.calls if call == "runs/create"]
    assert (created["experiment_id"], created["run_name"], created["start_time"]) == ("7", "job-1", 1_000_000)
    batches = [given for call, given, _ in server.calls if call == "runs/log-batch"]
    params = {one["key"]: one["value"] for given in batches for one in given.get("params", [])}
    assert params == {"program": "p" * 64, "trainers": "2", "args": '["--rate=0.1"]'}
    metrics = [(one["key"], one["value"], one["step"]) for one in batches[-1]["metrics"]]
    assert metrics == [
        *(("samples_per_second", 100.0, 1), ("train_loss", 1.0, 1), ("test_auc", 0.5, 1)),
        *(("samples_per_second", 100.0, 2), ("train_loss", 0.5, 2), ("test_auc", 0.6, 2)),
    ]
    assert [given["status"] for call, given, _ in server.calls if call == "runs/update"] == [
        "RUNNING"
    ] * 2 + ["FINISHED"]
    assert server.artifacts == {"/api/2.0/mlflow-artifacts/artifacts/7/r1/artifacts/report.html": b"<html>"}
    assert {authorization for _, _, authorization in server.calls} == {"Bearer secret"}
    assert not (tmp_path / "output" / PENDING).exists()


def test_what_was_not_sent_is_sent_by_the_next_run(tmp_path: Path, server: Any) -> None:
    uri = f"http://127.0.0.1:{server.server_address[1]}"
    write_run(tmp_path / "output", "complete", 2)
    (tmp_path / "output" / PENDING).touch()  # as the launcher does before it starts the helper
    server.fails = True
    with pytest.raises(OSError, match="500"):
        run_tracking._track(request(tmp_path, uri))
    (tmp_path / "runs").mkdir()
    (tmp_path / "output").rename(tmp_path / "runs" / "job-1")
    write_run(tmp_path / "output", "training", 0)
    server.fails = False
    run_tracking._track(request(tmp_path, uri))
    assert "FINISHED" in [given.get("status") for _, given, _ in server.calls]
    assert not (tmp_path / "runs" / "job-1" / PENDING).exists()


def test_event_files_grow_and_contain_each_metric_once(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    sizes = []
    for passes in (1, 3, 3):
        write_run(tmp_path / "output", "training", passes)
        run_tracking._track(request(tmp_path, tensorboard=True))
        [file] = (tmp_path / "output" / "tensorboard").iterdir()
        sizes.append((file.stat().st_ino, file.stat().st_size))
    assert sizes[0][0] == sizes[1][0], "TensorBoard follows the file that it has opened"
    assert sizes[1] == sizes[2]
    content, events = file.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        events.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    found = [(one.step, one.summary.value[0].tag) for one in events[1:]]
    assert found == [
        (step, tag) for step in (1, 2, 3) for tag in ("samples_per_second", "train_loss", "test_auc")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("is_slow", [False, True])
def test_a_dead_or_slow_server_does_not_delay_the_run(tmp_path: Path, is_slow: bool) -> None:
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), StandIn
    ) as silent:  # it accepts connections, and answers nothing
        uri = f"http://127.0.0.1:{silent.server_address[1]}"
        if not is_slow:
            silent.server_close()
        settings = train_settings(tmp_path, mlflow_uri=uri)
        write_run(settings.layout.output, "training", 1)
        settings.work.log("x").parent.mkdir(parents=True)
        timings = Timings(track=0.01, track_request=0.5, track_end=0.5, stop=1.0)
        tracking = RunTracking(settings, timings, lambda: False)
        tracking.start()
        until(lambda: tracking._failures)
        tracking.finish()
        tracking._thread.join(30)
        assert not tracking._thread.is_alive(), "its requests have limits, too"
        assert (settings.layout.output / PENDING).is_file()


def test_nothing_is_written_to_the_output_after_the_loss_of_the_lease(tmp_path: Path) -> None:
    settings = train_settings(tmp_path, tensorboard=True)
    write_run(settings.layout.output, "training", 1)
    settings.work.log("x").parent.mkdir(parents=True)
    tracking = RunTracking(settings, Timings(track=0.01, track_end=0.5), lambda: True)
    tracking.start()
    tracking.finish()
    tracking._thread.join(30)
    assert not (settings.layout.output / PENDING).exists()
    assert not (settings.layout.output / "tensorboard").exists()
