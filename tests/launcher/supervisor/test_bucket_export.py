"""Tests of `training.exportTo` with gangs of launchers that export to moto's S3, with injected errors and delays."""

from __future__ import annotations

import hashlib
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.errors import ExportError, SettingsError
from launcher.io import run_record
from launcher.io.bucket_export_format import run_folder_url
from launcher.io.retry import Retry
from launcher.paths import OutputPaths
from launcher.schema import RunFile
from launcher.settings import TrainSettings
from launcher.supervisor.bucket_export import BucketExport, ModelUpload
from launcher.supervisor.timings import Timings
from tests.launcher.supervisor.loopback_gang import FAST, LoopbackGang, pod_environ, train_settings

pytestmark = pytest.mark.slow

pytest.importorskip("moto.server", reason="moto is only in the environment of the tests")

RUN = "quick-start-0a1b2c3d"
LATEST = "models/quick-start/latest.json"
FOLDER = f"models/quick-start/{RUN}/"
MODEL = {"model": {"network.pdmodel": 1000, "parts/network.pdiparams": 17_000_000}}
SMALL = {"model": {"network.pdmodel": 1000}}


class FakeS3:
    """HTTP server in front of moto's S3 that counts requests and injects errors and delays."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self.puts: list[str] = []
        """Written keys in order; a large file has one entry per part."""
        self.requests = 0
        self.answers: dict[str, list[Any]] = {}
        """End of a key → answers to its next writes: an HTTP status, or seconds to wait."""
        self.test_over = threading.Event()
        """Set at the end of a test: delayed requests then write nothing."""
        self._server = make_server("127.0.0.1", 0, self._handle, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def _handle(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request: with the next injected answer for its key, otherwise as moto does."""
        self.requests += 1
        key = environ["PATH_INFO"].partition("/")[2].partition("/")[2]
        if environ["REQUEST_METHOD"] == "PUT" and key:
            waiting = next((w for end, w in self.answers.items() if key.endswith(end) and w), [])
            answer = waiting.pop(0) if waiting else None
            if isinstance(answer, float):
                answer = 500 if self.test_over.wait(answer) else None
            if answer is not None:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                code = {403: "AccessDenied", 503: "SlowDown"}.get(answer, "InternalError")
                start(f"{answer} {code}", [("Content-Type", "application/xml")])
                return [f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()]
            self.puts.append(key)
        return self._moto(environ, start)  # type: ignore[no-any-return]

    def stop(self) -> None:
        """Stop the HTTP server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class ExportBucket:
    """A bucket, and gangs that export to it."""

    def __init__(self, store: FakeS3, client: Any, root: Path) -> None:
        self.store, self.client, self.root = store, client, root
        self.env = {
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-west-2",
            "export_to": "s3://bucket/models",
        }

    def build_gang(self, **more: Any) -> LoopbackGang:
        """Return a gang of two trainers that exports to the bucket; `more`: its other arguments."""
        more = {"trainers": 2, "fake": SMALL, "passes": 1, **self.env, **more}
        return LoopbackGang(self.root, **more)

    @property
    def output(self) -> OutputPaths:
        """The output folder of the runs of `settings`."""
        return OutputPaths(self.settings().layout.output)

    def settings(self, **env: str) -> TrainSettings:
        """Return the settings of a run without launchers."""
        return train_settings(self.root, runtime="v1", **{**self.env, **env})

    def write_output(self, *files: str) -> None:
        """Write the output folder of a complete run with these files."""
        for file in files:
            path = self.output.root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file)
        record = RunFile(run_id=RUN, state="complete", finished=10.0, fingerprint={"program": "p"})
        run_record.write(self.output, record)

    def build_upload(self, tries: int = 1, **env: str) -> ModelUpload:
        """Return the upload of that folder by this process, which does not wait between `tries`."""
        retry = Retry(tries, sleep=lambda _: None, error=ExportError)
        return ModelUpload(self.settings(**env), "output-1", retry)

    def list_keys(self) -> list[str]:
        """Return all keys of the bucket."""
        return [o["Key"] for o in self.client.list_objects_v2(Bucket="bucket").get("Contents", [])]

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        return bytes(self.client.get_object(Bucket="bucket", Key=key)["Body"].read())

    def put(self, key: str, value: Any) -> None:
        """Write an object as JSON."""
        self.client.put_object(Bucket="bucket", Key=key, Body=json.dumps(value).encode())


@pytest.fixture(scope="module")
def server() -> Iterator[FakeS3]:
    """Return one S3 server for all tests of this module."""
    store = FakeS3()
    # moto keeps one state per process, so that tests of another module may have left a bucket
    httpx.post(f"{store.url}/moto-api/reset", timeout=60).raise_for_status()
    yield store
    store.stop()


@pytest.fixture
def bucket(server: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExportBucket]:
    """Return an empty bucket, which is removed at the end of the test."""
    import boto3

    access = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-west-2"}
    client = boto3.client("s3", endpoint_url=server.url, **access)
    client.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    bucket = ExportBucket(server, client, tmp_path)
    for name in (name for name in bucket.env if name.startswith("AWS_")):
        monkeypatch.setenv(name, bucket.env[name])
    server.answers, server.puts, server.requests, server.test_over = {}, [], 0, threading.Event()
    yield bucket
    server.test_over.set()
    for key in bucket.list_keys():
        client.delete_object(Bucket="bucket", Key=key)
    client.delete_bucket(Bucket="bucket")
    client.close()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return the log of uploads in this process."""
    caplog.set_level(logging.INFO, "launcher")
    return caplog


def test_a_complete_run_is_exported_with_its_marker_last_and_only_once(bucket: ExportBucket) -> None:
    with bucket.build_gang(trainers=1, fake=MODEL, report=True) as gang:
        assert gang.start().wait_for_exit() == [0], gang.pod_log(0)
        marker = json.loads(bucket.get(FOLDER + "_SUCCESS.json"))
        names = [entry["name"] for entry in marker["files"]]
        model = ["model/network.pdmodel", "model/parts/network.pdiparams"]
        assert names == [*model, "run.json", "report.html"]
        for entry in marker["files"]:
            content = bucket.get(FOLDER + entry["name"])
            assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["bytes"], entry["sha256"])
            if entry["name"] != "run.json":  # its field `exported` is set after the upload
                assert content == (gang.output / entry["name"]).read_bytes()
        exported_run, run = json.loads(bucket.get(FOLDER + "run.json")), gang.read_json("run.json")
        assert exported_run["state"] == run["state"] == "complete"
        assert exported_run == run | {"exported": None, "checksum": exported_run["checksum"]}
        assert run["exported"]["to"] == f"s3://bucket/{FOLDER}"
        assert (run["exported"]["objects"], marker["outputId"]) == (4, run["outputId"])
        puts = [*bucket.store.puts]
        assert puts[0] == FOLDER + "started.json"
        assert puts.count(FOLDER + "model/parts/network.pdiparams") == 3, "17 MB go in parts of 8 MiB"
        assert puts[-2:] == [FOLDER + "_SUCCESS.json", "models/quick-start/latest.json"]
        latest = json.loads(bucket.get("models/quick-start/latest.json"))
        assert (latest["runId"], latest["to"]) == (RUN, f"s3://bucket/{FOLDER}")
        status = gang.read_json("status.json")
        assert (status["state"], status["exportTo"]) == ("complete", f"s3://bucket/{FOLDER}")
        assert "exported 4 objects" in gang.pod_log(0)
        assert f"exported s3://bucket/{FOLDER}model/network.pdmodel (1,000 bytes)" in gang.pod_log(0)
        assert gang.running_pids() == []
        assert gang.start().wait_for_exit() == [0], gang.pod_log(0)
        assert bucket.store.puts == puts
        assert "contains this model already" in gang.pod_log(0)
        later = gang.read_json("run.json")
        differ = {key for key in run if run[key] != later[key]}
        assert differ <= {"holder", "checksum"}, "only the lease holder differs"


def test_a_failed_upload_is_retried(bucket: ExportBucket, lines: pytest.LogCaptureFixture) -> None:
    bucket.store.answers = {
        "network.pdmodel": [503] * 5,
        "_SUCCESS.json": [500] * 5,
        "started.json": [503],
    }
    bucket.write_output("model/network.pdmodel")
    upload = bucket.build_upload(tries=8)
    upload.reserve()
    upload.copy()
    assert FOLDER + "_SUCCESS.json" in bucket.list_keys()
    assert "attempt 2 of 8" in lines.text


def test_after_a_failed_export_a_second_start_repeats_only_the_export(bucket: ExportBucket) -> None:
    bucket.store.answers = {"network.pdmodel": [403]}
    with bucket.build_gang() as gang:
        assert gang.start().wait_for_exit() == [75, 75], gang.pod_log(0)
        for rank in (0, 1):
            cause = gang.termination_message(rank)
            assert "the training is complete and its model is in output/" in cause
            assert (
                f"export to s3://bucket/{FOLDER} failed: s3://bucket/{FOLDER}model/network.pdmodel" in cause
            )
            assert "AccessDenied (403)" in cause
            assert "repeats only the export" in cause
        assert bucket.list_keys() == [FOLDER + "started.json"], "no marker before all files are uploaded"
        run, status = gang.read_json("run.json"), gang.read_json("status.json")
        assert (run["state"], run["exported"]) == ("complete", None)
        assert status["state"] == "failed"
        assert "the training is complete" in status["cause"]
        assert not (gang.output / "run.lock").exists()
    with bucket.build_gang(report=True) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        assert "nothing to start" in gang.pod_log(0)
        assert FOLDER + "_SUCCESS.json" in bucket.list_keys()
        assert gang.read_json("run.json")["exported"]["objects"] == 3
        assert b"Cause of the failure" not in bucket.get(FOLDER + "report.html"), (
            "the cause belongs to the first start"
        )
        assert gang.read_json("run.json")["finished"] == run["finished"], "the model was not trained again"
        assert json.loads(bucket.get(FOLDER + "run.json"))["state"] == "complete"


def test_a_model_that_has_changed_is_uploaded_again(bucket: ExportBucket) -> None:
    bucket.write_output("model/network.pdmodel")
    bucket.build_upload().copy()
    bucket.store.puts.clear()
    bucket.build_upload().copy()
    assert bucket.store.puts == []
    (bucket.output.model / "network.pdmodel").write_bytes(b"another")
    bucket.build_upload().copy()
    assert bucket.get(FOLDER + "model/network.pdmodel") == b"another"
    marker = json.loads(bucket.get(FOLDER + "_SUCCESS.json"))
    assert marker["files"][0]["sha256"] == hashlib.sha256(b"another").hexdigest()


def test_the_newest_export_is_found_with_the_program_that_trained_it(bucket: ExportBucket) -> None:
    previous = {"init_model": "previous"}
    assert bucket.build_upload(**previous).reserve()["latest"] is None
    bucket.write_output("model/network.pdmodel")
    bucket.build_upload(**previous).copy()
    latest = bucket.build_upload(PADDLE_LAUNCHER_K8S_JOB="quick-start-1", **previous).reserve()["latest"]
    assert latest == {"to": f"s3://bucket/{FOLDER}", "program": "p"}


def test_latest_json_keeps_the_model_that_was_trained_last_and_is_written_by_the_next_start_after_an_error(
    bucket: ExportBucket, lines: pytest.LogCaptureFixture
) -> None:
    bucket.store.answers = {"latest.json": [403]}
    bucket.write_output("model/network.pdmodel")
    bucket.build_upload().copy()
    assert "latest.json was not updated" in lines.text
    assert LATEST not in bucket.list_keys()
    bucket.build_upload().copy()
    latest = json.loads(bucket.get(LATEST))
    assert (latest["runId"], latest["trained"]) == (RUN, 10.0)
    later = {"runId": "later", "to": "s3://bucket/models/quick-start/later/", "trained": 1e12}
    bucket.put(LATEST, later)
    bucket.build_upload().copy()
    assert "latest.json keeps the model of s3://bucket/models/quick-start/later/" in lines.text
    assert json.loads(bucket.get(LATEST)) == later
    assert FOLDER + "_SUCCESS.json" in bucket.list_keys()


def test_without_a_model_folder_the_last_pass_is_exported(bucket: ExportBucket) -> None:
    """Runtime v1 writes no output/model."""
    bucket.write_output("pass-00000/done", "pass-00001/done")
    bucket.build_upload().copy()
    marker = json.loads(bucket.get(FOLDER + "_SUCCESS.json"))
    assert [entry["name"] for entry in marker["files"]] == ["pass-00001/done", "run.json"]


def build_export(bucket: ExportBucket, target: str = "s3://bucket/models", **timings: float) -> BucketExport:
    """Return the export of a run without launchers, which starts the helper process."""
    settings = bucket.settings(export_to=target)
    settings.work_dir.mkdir()
    return BucketExport(settings, Timings(**{**FAST, **timings}), time.sleep)


@pytest.mark.parametrize(
    ("target", "answers", "message"),
    [
        ("s3://absent/models", [], "NoSuchBucket.*There is no such bucket"),
        ("s3://bucket/models", [403], "AccessDenied.*must allow s3:PutObject"),
        ("s3://bucket/models", [503] * 99, "could not be written after 3 attempts in a row"),
    ],
)
def test_a_bucket_that_cannot_be_written_is_rejected(
    bucket: ExportBucket, target: str, answers: list[Any], message: str
) -> None:
    bucket.store.answers = {"started.json": answers}
    with pytest.raises(
        SettingsError, match=rf"training.exportTo is '{target}', but must be .*{message}"
    ) as caught:
        build_export(bucket, target, export_tries=3).reserve("output-1")
    assert str(caught.value).count("Fix: ") == 1
    assert bucket.list_keys() == []


def test_the_export_folder_of_another_training_is_not_written(bucket: ExportBucket) -> None:
    upload = bucket.build_upload()
    upload.reserve()
    bucket.put(FOLDER + "_SUCCESS.json", {"outputId": "of another cluster", "files": []})
    keys, words = bucket.list_keys(), "contains the model of another training"
    bucket.write_output("model/network.pdmodel")
    with pytest.raises(ExportError, match=words):
        upload.copy()
    with pytest.raises(SettingsError, match=f"{words}.*set another runId"):
        build_export(bucket).reserve("output-1")
    assert bucket.list_keys() == keys


def read_state(gang: LoopbackGang) -> str | None:
    """Return the state in status.json, or None before it is written."""
    path = gang.output / "status.json"
    return json.loads(path.read_text())["state"] if path.exists() else None


def test_the_other_ranks_wait_for_an_export_which_only_a_stop_of_rank_0_interrupts_until_its_next_pod(
    bucket: ExportBucket,
) -> None:
    bucket.store.answers = {"network.pdmodel": [30.0]}
    short = {"pserver_exit": 0.2, "stop": 0.5, "farewell": 0.5, "curve": 0.5}
    with bucket.build_gang(trainers=3, timings=short) as gang:
        gang.start().wait_until(lambda: read_state(gang) == "exporting" and len(gang.running_pids()) == 4)
        assert gang.read_json("status.json")["exportTo"] == f"s3://bucket/{FOLDER}"
        gang.processes[1].send_signal(signal.SIGTERM)
        assert gang.processes[1].wait(15) == 143
        time.sleep(3)  # longer than all deadlines that the other ranks have without an export
        assert (gang.processes[0].poll(), gang.processes[2].poll()) == (None, None), gang.pod_log(2)
        assert read_state(gang) == "exporting"
        gang.processes[0].send_signal(signal.SIGTERM)
        assert gang.wait_for_exit(15) == [143, 143, 0], "rank 2 has nothing left to do"
        assert gang.running_pids() == []
        assert "received SIGTERM" in gang.termination_message(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["exported"]) == ("complete", None)
        assert read_state(gang) == "stopped"
        assert FOLDER + "_SUCCESS.json" not in bucket.list_keys()
        bucket.store.answers = {}
        assert gang.start(0).processes[0].wait(15) == 0, gang.pod_log(0)
        assert FOLDER + "_SUCCESS.json" in bucket.list_keys()
        assert read_state(gang) == "complete"
        assert gang.start(1).processes[1].wait(15) == 0, "its next pod finds a complete run"


def test_an_export_that_hangs_fails_at_its_deadline(bucket: ExportBucket) -> None:
    bucket.store.answers = {"network.pdmodel": [20.0]}
    bucket.write_output("model/network.pdmodel")
    with pytest.raises(ExportError, match="failed: it did not finish within 2 s"):
        build_export(bucket, export=2.0).copy("output-1")


@pytest.mark.parametrize("target", ["s3://bucket/models", "s3://bucket/models/"])
def test_each_job_and_run_has_its_own_folder(target: str) -> None:
    for run, name in (("a-1", "a"), ("a-2", "a"), ("a-1", "b")):
        environ = pod_environ(export_to=target, PADDLE_LAUNCHER_K8S_JOB=run, JOB_NAME=name)
        assert run_folder_url(TrainSettings.from_environ(environ)) == f"s3://bucket/models/{name}/{run}/"
