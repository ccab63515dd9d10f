"""`training.exportTo`: whole gangs that export to moto's S3, which refuses and hangs as a test says."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.export import folder
from launcher.settings import TrainSettings
from tests.launcher.core.kit import LoopbackGang, environ

pytest.importorskip("moto.server", reason="moto is only in the environment of the tests")

RUN = "quick-start-0a1b2c3d"
FOLDER = f"models/quick-start/{RUN}/"
MODEL = {"model": {"network.pdmodel": 1000, "parts/network.pdiparams": 17_000_000}}
SMALL = {"model": {"network.pdmodel": 1000}}


class Store:
    """moto's S3 behind a door that counts requests, and keeps some out."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self.puts: list[str] = []
        """Keys that were written, in order; of a large file, each part."""
        self.asked = 0
        self.answers: dict[str, list[Any]] = {}
        """End of a key → what its next writes meet: a status, or a number of seconds to wait."""
        self.over = threading.Event()
        """Whether the test is over: who still waits then writes nothing."""
        self._server = make_server("127.0.0.1", 0, self._door, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def _door(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.asked += 1
        key = environ["PATH_INFO"].partition("/")[2].partition("/")[2]
        if environ["REQUEST_METHOD"] == "PUT" and key:
            waiting = next((w for end, w in self.answers.items() if key.endswith(end) and w), [])
            answer = waiting.pop(0) if waiting else None
            if isinstance(answer, float):
                answer = 500 if self.over.wait(answer) else None
            if answer is not None:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                code = {403: "AccessDenied", 503: "SlowDown"}.get(answer, "InternalError")
                start(f"{answer} {code}", [("Content-Type", "application/xml")])
                return [f"<Error><Code>{code}</Code><Message>told to</Message></Error>".encode()]
            self.puts.append(key)
        return self._moto(environ, start)  # type: ignore[no-any-return]

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def server() -> Iterator[Store]:
    store = Store()
    yield store
    store.stop()


class Exporting:
    """A bucket, and gangs that export to it."""

    def __init__(self, store: Store, client: Any, root: Path) -> None:
        self.store, self.client, self.root = store, client, root
        self.env = {
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-west-2",
            "PADDLE_LAUNCHER_EXPORT_TO": "s3://bucket/models",
        }

    def gang(self, **more: Any) -> LoopbackGang:
        more = {"trainers": 2, "fake": SMALL, "PADDLE_LAUNCHER_PASSES": "1", **self.env, **more}
        return LoopbackGang(self.root, **more)

    def listed(self) -> list[str]:
        return [o["Key"] for o in self.client.list_objects_v2(Bucket="bucket").get("Contents", [])]

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket="bucket", Key=key)["Body"].read())

    def put(self, key: str, value: Any) -> None:
        self.client.put_object(Bucket="bucket", Key=key, Body=json.dumps(value).encode())


@pytest.fixture
def exporting(server: Store, tmp_path: Path) -> Iterator[Exporting]:
    import boto3

    access = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-west-2"}
    client = boto3.client("s3", endpoint_url=server.url, **access)
    client.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    made = Exporting(server, client, tmp_path)
    server.answers, server.puts, server.asked, server.over = {}, [], 0, threading.Event()
    yield made
    server.over.set()
    for key in made.listed():
        client.delete_object(Bucket="bucket", Key=key)
    client.delete_bucket(Bucket="bucket")
    client.close()


def test_a_complete_run_is_copied_whole_with_its_marker_last(exporting: Exporting) -> None:
    with exporting.gang(fake=MODEL) as gang:
        assert gang.start().wait() == [0, 0], gang.pod_log(0)
        marker = json.loads(exporting.get(FOLDER + "_SUCCESS.json"))
        names = [entry["name"] for entry in marker["files"]]
        model = ["model/network.pdmodel", "model/parts/network.pdiparams"]
        assert names == [*model, "run.json", "report.html"]
        for entry in marker["files"]:
            content = exporting.get(FOLDER + entry["name"])
            assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["bytes"], entry["sha256"])
            if entry["name"] != "run.json":  # it says afterwards where it was exported to
                assert content == (gang.output / entry["name"]).read_bytes()
        exported_run, run = json.loads(exporting.get(FOLDER + "run.json")), gang.json("run.json")
        assert exported_run["state"] == run["state"] == "complete"
        assert exported_run == run | {"exported": None, "checksum": exported_run["checksum"]}
        assert run["exported"]["to"] == f"s3://bucket/{FOLDER}"
        assert (run["exported"]["objects"], marker["outputId"]) == (4, run["outputId"])
        puts = exporting.store.puts
        assert puts[0] == FOLDER + "started.json"
        assert puts.count(FOLDER + "model/parts/network.pdiparams") == 3, "17 MB go in parts of 8 MiB"
        assert puts[-2:] == [FOLDER + "_SUCCESS.json", "models/quick-start/latest.json"]
        latest = json.loads(exporting.get("models/quick-start/latest.json"))
        assert (latest["runId"], latest["to"]) == (RUN, f"s3://bucket/{FOLDER}")
        status = gang.json("status.json")
        assert (status["state"], status["exportTo"]) == ("complete", f"s3://bucket/{FOLDER}")
        assert "exported 4 objects" in gang.pod_log(0)
        assert f"exported s3://bucket/{FOLDER}model/network.pdmodel (1,000 bytes)" in gang.pod_log(0)
        assert gang.alive() == []


def test_without_export_to_nothing_is_asked_of_the_store(exporting: Exporting) -> None:
    before = exporting.store.asked
    with exporting.gang(PADDLE_LAUNCHER_EXPORT_TO="") as gang:
        assert gang.start().wait() == [0, 0], gang.pod_log(0)
        assert exporting.store.asked == before
        assert (gang.json("run.json")["exported"], gang.json("status.json")["exportTo"]) == (None, None)


def test_an_upload_that_fails_is_tried_again(exporting: Exporting) -> None:
    exporting.store.answers = {
        "network.pdmodel": [503] * 5,
        "_SUCCESS.json": [500] * 5,
        "started.json": [503],
    }
    with exporting.gang() as gang:
        assert gang.start().wait() == [0, 0], gang.pod_log(0)
        assert FOLDER + "_SUCCESS.json" in exporting.listed()
        assert "try 2 of 8" in gang.pod_log(0)


@pytest.mark.parametrize("answer", [403, 503])
def test_an_export_that_fails_for_good_loses_nothing_and_a_second_start_repeats_only_it(
    exporting: Exporting, answer: int
) -> None:
    exporting.store.answers = {"network.pdmodel": [answer] * 100}
    with exporting.gang(timings={"export_tries": 3}) as gang:
        assert gang.start().wait() == [75, 75], gang.pod_log(0)
        for rank in (0, 1):
            cause = gang.termination(rank)
            assert "the training is complete and its model is whole in output/" in cause
            assert (
                f"export to s3://bucket/{FOLDER} failed: s3://bucket/{FOLDER}model/network.pdmodel" in cause
            )
            assert {403: "AccessDenied (403)", 503: "3 tries in a row: S3 answered 503"}[answer] in cause
            assert "only the export is repeated" in cause
        assert exporting.listed() == [FOLDER + "started.json"], "no marker without all that it names"
        run, status = gang.json("run.json"), gang.json("status.json")
        assert (run["state"], run["exported"]) == ("complete", None)
        assert status["state"] == "failed"
        assert "the training is complete" in status["cause"]
        assert not (gang.output / "run.lock").exists()
    exporting.store.answers.clear()
    with exporting.gang() as gang:
        assert gang.start().wait() == [0, 0], gang.pod_log(0)
        assert "nothing to start" in gang.pod_log(0)
        assert FOLDER + "_SUCCESS.json" in exporting.listed()
        assert gang.json("run.json")["exported"]["objects"] == 3
        assert b"Why it failed" not in exporting.get(FOLDER + "report.html"), "that was the first start"
        assert gang.json("run.json")["finished"] == run["finished"], "it was not trained again"
        assert json.loads(exporting.get(FOLDER + "run.json"))["state"] == "complete"


def test_a_second_start_of_an_exported_run_uploads_nothing(exporting: Exporting) -> None:
    with exporting.gang() as gang:
        assert gang.start().wait() == [0, 0], gang.pod_log(0)
        first = gang.json("run.json")
    exporting.store.puts.clear()
    with exporting.gang() as gang:
        assert gang.start().wait() == [0, 0], gang.pod_log(0)
        assert exporting.store.puts == []
        assert "holds this model already" in gang.pod_log(0)
        later = gang.json("run.json")
        differ = {key for key in first if first[key] != later[key]}
        assert differ <= {"holder", "checksum"}, "only who held it last"


def test_another_run_of_the_same_job_has_a_folder_of_its_own(exporting: Exporting) -> None:
    with exporting.gang() as gang:
        assert gang.start().wait() == [0, 0], gang.pod_log(0)
    before = {key: exporting.get(key) for key in exporting.listed() if key.startswith(FOLDER)}
    with exporting.gang(run="quick-start-ffff0000") as gang:
        assert gang.start().wait() == [0, 0], gang.pod_log(0)
    other = "models/quick-start/quick-start-ffff0000/"
    assert other + "_SUCCESS.json" in exporting.listed()
    assert json.loads(exporting.get("models/quick-start/latest.json"))["to"] == f"s3://bucket/{other}"
    assert {key: exporting.get(key) for key in before} == before


def test_a_model_that_was_trained_further_in_the_same_run_is_exported_again(exporting: Exporting) -> None:
    with exporting.gang() as gang:
        assert gang.start().wait() == [0, 0], gang.pod_log(0)
        (gang.output / "model" / "network.pdmodel").write_bytes(b"another")
    with exporting.gang() as gang:
        assert gang.start().wait() == [0, 0], gang.pod_log(0)
    assert exporting.get(FOLDER + "model/network.pdmodel") == b"another"
    marker = json.loads(exporting.get(FOLDER + "_SUCCESS.json"))
    assert marker["files"][0]["sha256"] == hashlib.sha256(b"another").hexdigest()


def test_without_a_model_folder_the_last_pass_is_exported(exporting: Exporting) -> None:
    """Runtime v1 leaves no output/model."""
    with exporting.gang(fake={}, PADDLE_LAUNCHER_PASSES="2") as gang:
        assert gang.start().wait() == [0, 0], gang.pod_log(0)
    marker = json.loads(exporting.get(FOLDER + "_SUCCESS.json"))
    assert [entry["name"] for entry in marker["files"]] == ["pass-00001/done", "run.json", "report.html"]


@pytest.mark.parametrize(
    ("target", "answers", "says"),
    [
        ("s3://absent/models", {}, "s3://absent/models/quick-start/.*NoSuchBucket.*There is no such bucket"),
        ("s3://bucket/models", {"started.json": [403]}, "AccessDenied.*must allow s3:PutObject"),
        ("s3://bucket/models", {"started.json": [503] * 99}, "could not be written, 3 tries in a row"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_trained(
    exporting: Exporting, target: str, answers: dict[str, list[Any]], says: str
) -> None:
    exporting.store.answers = answers
    with exporting.gang(PADDLE_LAUNCHER_EXPORT_TO=target, timings={"export_tries": 3}) as gang:
        assert gang.start().wait() == [64, 64], gang.pod_log(0)
        cause = gang.termination(1)
        assert f"training.exportTo (PADDLE_LAUNCHER_EXPORT_TO) is '{target}', but must be a bucket" in cause
        assert re.search(says, cause), cause
        assert "Mend that" in cause
        assert not (gang.output / "node_0").exists()
        assert exporting.listed() == []


def test_the_folder_of_another_training_with_the_same_names_is_never_written(exporting: Exporting) -> None:
    exporting.put(FOLDER + "_SUCCESS.json", {"outputId": "of another cluster", "files": []})
    with exporting.gang() as gang:
        assert gang.start().wait() == [64, 64], gang.pod_log(0)
        assert "holds the model of another training" in gang.termination(0)
        assert "runId to another text" in gang.termination(0)
        assert not (gang.output / "node_0").exists()
    assert exporting.listed() == [FOLDER + "_SUCCESS.json"]


def test_a_marker_that_another_training_put_meanwhile_is_not_overwritten(exporting: Exporting) -> None:
    with exporting.gang(FAKE_PASS_SECONDS="2") as gang:
        gang.start().until(gang.training)
        exporting.put(FOLDER + "_SUCCESS.json", {"outputId": "of another cluster", "files": []})
        assert gang.wait() == [75, 75], gang.pod_log(0)
        assert "holds the model of another training" in gang.termination(0)
        assert FOLDER + "model/network.pdmodel" not in exporting.listed()


def test_while_it_exports_status_says_so_the_others_wait_and_run_json_is_whole(exporting: Exporting) -> None:
    """Longer than all deadlines that the others have without an export."""
    exporting.store.answers = {"network.pdmodel": [6.0]}
    short = {"servers_end": 0.2, "stop": 0.5, "farewell": 0.5, "curve": 0.5}
    with exporting.gang(timings=short) as gang:
        gang.start().until(lambda: state_of(gang) == "exporting")
        assert gang.json("status.json")["exportTo"] == f"s3://bucket/{FOLDER}"
        assert (gang.json("run.json")["state"], gang.json("run.json")["exported"]) == ("complete", None)
        assert gang.wait() == [0, 0], gang.pod_log(1)
        assert state_of(gang) == "complete"


def state_of(gang: LoopbackGang) -> str | None:
    path = gang.output / "status.json"
    return json.loads(path.read_text())["state"] if path.exists() else None


def test_a_stop_of_rank_0_while_it_exports_ends_it_soon_and_its_next_pod_exports(
    exporting: Exporting,
) -> None:
    exporting.store.answers = {"network.pdmodel": [20.0]}
    with exporting.gang() as gang:
        gang.start().until(lambda: state_of(gang) == "exporting" and len(gang.alive()) == 3)
        gang.processes[0].send_signal(signal.SIGTERM)
        assert gang.wait(15) == [143, 0], "nothing is left to do for rank 1"
        assert gang.alive() == []
        assert "told to stop (SIGTERM)" in gang.termination(0)
        assert (gang.json("run.json")["state"], gang.json("run.json")["exported"]) == ("complete", None)
        assert gang.json("status.json")["state"] == "stopped"
        assert FOLDER + "_SUCCESS.json" not in exporting.listed()
        exporting.store.answers = {}
        assert gang.start(0).wait(15) == [0, 0], gang.pod_log(0)
        assert FOLDER + "_SUCCESS.json" in exporting.listed()


def test_a_stop_of_another_rank_while_rank_0_exports_changes_nothing(exporting: Exporting) -> None:
    exporting.store.answers = {"network.pdmodel": [3.0]}
    with exporting.gang() as gang:
        gang.start().until(lambda: state_of(gang) == "exporting" and len(gang.alive()) == 3)
        gang.processes[1].send_signal(signal.SIGTERM)
        assert gang.wait(30) == [0, 143], gang.pod_log(0)
        assert FOLDER + "_SUCCESS.json" in exporting.listed()
        assert gang.start(1).processes[1].wait(15) == 0, "its next pod finds the run complete"


def test_an_export_that_never_ends_has_a_deadline(exporting: Exporting) -> None:
    exporting.store.answers = {"network.pdmodel": [20.0]}
    with exporting.gang(timings={"export": 4.0}) as gang:
        assert gang.start().wait() == [75, 75], gang.pod_log(0)
        assert "failed: it did not end within 4 s" in gang.termination(1)
        assert gang.alive() == []


def test_an_export_whose_process_is_killed_is_said_with_the_signal(exporting: Exporting) -> None:
    exporting.store.answers = {"network.pdmodel": [20.0]}
    with exporting.gang() as gang:
        gang.start().until(lambda: state_of(gang) == "exporting" and len(gang.alive()) == 3)
        launchers = {process.pid for process in gang.processes.values()}
        (child,) = set(gang.alive()) - launchers
        os.kill(child, signal.SIGKILL)
        assert gang.wait(15) == [75, 75], gang.pod_log(0)
        assert "its process ended with signal SIGKILL" in gang.termination(0)


def test_the_launcher_itself_loads_no_boto3() -> None:
    code = "import sys, launcher.gang.agent; sys.exit('boto3' in sys.modules or 'botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("target", ["s3://bucket/models", "s3://bucket/models/"])
def test_each_job_and_run_has_its_own_folder(target: str) -> None:
    first, second, other = (
        TrainSettings.from_environ(
            environ(PADDLE_LAUNCHER_EXPORT_TO=target, PADDLE_LAUNCHER_K8S_JOB=run, JOB_NAME=name)
        )
        for run, name in (("a-1", "a"), ("a-2", "a"), ("a-1", "b"))
    )
    assert folder(first) == "s3://bucket/models/a/a-1/"
    assert folder(second) == "s3://bucket/models/a/a-2/"
    assert folder(other) == "s3://bucket/models/b/a-1/"
