"""Tests of `serve --follow`: as a process with a folder, and in this process with the models of a bucket."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.io import files
from launcher.serving.paddle_served import Model
from launcher.serving.paddle_served.http_server import ModelServer
from launcher.serving.serve import ModelFollower
from testkit.waiting import until

from .following_server import (
    ROW,
    fill_with_sevens,
    read_metric,
    serving,
    write_variant,
)
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


@pytest.mark.slow
def test_a_server_ends_for_a_newer_model_without_a_lost_request_and_its_next_start_serves_it(
    made: SimpleNamespace, tmp_path: Path
) -> None:
    folder, work = tmp_path / "output" / "model", tmp_path / "work"
    folder.parent.mkdir()
    write_variant(made.folder, folder, 1)
    with serving(str(folder), work) as server:
        first = server.wait_for_model(folder)
        assert first == pytest.approx(made.expected([5, 77], 0.5), rel=1e-5)

        fill_with_sevens(write_variant(made.folder, tmp_path / "other", 3) / "network.pdmodel")
        shutil.rmtree(folder)
        (tmp_path / "other").rename(folder)
        rejected = 'paddle_serve_model_failures_total{reason="model"}'
        until(lambda: server.metric(rejected) == "1.0", "the rejection", 60, 0.1, server.log.read_text)
        count = len(server.answers)
        until(lambda: len(server.answers) > count + 20, "more answers", 60)
        assert server.answers[-1][2] == first, "the served model stays"
        assert server.metric(rejected) == "1.0", "a model is rejected once"
        assert server.metric('paddle_serve_model_failures_total{reason="source"}') == "0.0"

        shutil.rmtree(folder)  # a new run has no model until it is complete
        write_variant(made.folder, folder, 2)
        server.wait_for_end(0)
        log = server.log.read_text()
        assert log.count("is rejected") == 1
        assert f"{folder} is rejected; the server keeps model " in log
        assert "was killed by SIGSEGV: a file of the model is damaged" in log
        assert (
            f"the newer model of {folder} is copied to {work / 'served'}: the server exits, and its next start"
            in log
        )
        assert {answer[2][0] for answer in server.answers} == {first[0]}

    with serving(str(folder), work) as server:
        second = server.wait_for_model(folder)
        assert second == pytest.approx(Model(folder).predict([ROW])[0].tolist())
        assert abs(second[0] - first[0]) > 1e-3
        assert server.metric("paddle_serve_model_created_seconds") == "2.0"
        assert "copying" not in server.log.read_text(), "the copy of the first process is used"
        assert len(list((work / "served").iterdir())) == 1, "the former model is removed"


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
