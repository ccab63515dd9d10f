"""Tests of `serve --follow`: the server switches to each new model, and keeps the present one if it cannot."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from launcher.errors import DataError, GangError, SettingsError
from launcher.io import cgroup_memory, files
from launcher.serving import model_check, model_follower, model_sources
from launcher.serving.model_follower import ModelFollower
from launcher.serving.paddle_served import Model, ModelError, model_server
from launcher.serving.paddle_served.model_server import ModelServer
from testkit.waiting import until

from .test_http_server import Client

ROOT = Path(__file__).parents[3]
ROW = {"words": "5 77", "size": 0.5}
LOOK_SECONDS = "0.2"


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


def metric(text: str, name: str) -> str:
    """Return the value of a metric, with its labels in `name`, in a text of /metrics."""
    return next(line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} "))


class ServerProcess:
    """`python -m launcher serve --follow` on loopback, with clients that request predictions all the time."""

    def __init__(self, address: str, work: Path, env: dict[str, str] | None = None) -> None:
        self.log = work.with_suffix(".log")
        command = [sys.executable, "-m", "launcher", "serve", "--model", address, "--work", str(work)]
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
        self.health: list[int] = []
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
                    self.health.append(client.get("/healthz").status_code)
                except Exception as error:
                    self.errors.append(error)
                    return

    def metric(self, name: str) -> str:
        """Return the value of a metric."""
        return metric(httpx.get(f"{self.url}/metrics", timeout=60).text, name)

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
        try:
            assert self.process.wait(60) in (0, -signal.SIGTERM), self.log.read_text()
        finally:
            self.kill()
        assert not self.errors, self.log.read_text()
        assert {status for status, _, _ in self.answers} == {200}
        assert set(self.health) == {200}, "the pod was ready all the time"


@contextlib.contextmanager
def serving(*given: Any) -> Iterator[ServerProcess]:
    server = ServerProcess(*given)
    try:
        yield server
        server.stop()
    finally:
        server._stop.set()
        server.kill()


@pytest.mark.slow
def test_requests_are_answered_while_the_server_follows_a_folder(
    made: SimpleNamespace, tmp_path: Path
) -> None:
    folder, work = tmp_path / "output" / "model", tmp_path / "work"
    folder.parent.mkdir()
    write_variant(made.folder, folder, 1)
    with serving(str(folder), work) as server:
        first = server.wait_for_model(folder)
        assert first == pytest.approx(made.expected([5, 77], 0.5), rel=1e-5)
        shutil.rmtree(folder)  # a new run has no model until it is complete
        write_variant(made.folder, folder, 2)
        second = server.wait_for_model(folder)
        assert second == pytest.approx(Model(folder).predict([ROW])[0].tolist())
        assert abs(second[0] - first[0]) > 1e-3
        assert server.metric("paddle_serve_model_created_seconds") == "2.0"
        until(lambda: len(list((work / "served").iterdir())) == 1, "the removal of the former model")

        fill_with_sevens(write_variant(made.folder, tmp_path / "other", 3) / "network.pdmodel")
        shutil.rmtree(folder)
        (tmp_path / "other").rename(folder)
        rejected = 'paddle_serve_model_failures_total{reason="model"}'
        until(lambda: server.metric(rejected) == "1.0", "the rejection", 60, 0.1, server.log.read_text)
        count = len(server.answers)
        until(lambda: len(server.answers) > count + 50, "more answers", 60)
        assert server.answers[-1][2] == second, "the former model stays"
        assert server.metric(rejected) == "1.0", "a model is rejected once"
        log = server.log.read_text()
        assert log.count("is rejected") == 1
        assert f"{folder} is rejected; the server keeps model " in log
        assert "was killed by SIGSEGV: a file of the model is damaged" in log

        write_variant(made.folder, folder, 4)
        fourth = server.wait_for_model(folder)
        assert fourth == pytest.approx(Model(folder).predict([ROW])[0].tolist())
        assert server.metric('paddle_serve_model_failures_total{reason="source"}') == "0.0"


class ExportBucket:
    """moto's S3 with the exports of one job."""

    def __init__(self, url: str) -> None:
        import boto3

        self.env = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        access = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        self.client: Any = boto3.client("s3", endpoint_url=url, **access)
        self.client.create_bucket(Bucket="bucket")

    def export(self, model: Path, run: str, damaged: bool = False) -> None:
        """Export a model; `damaged` changes one file after its sha256 was calculated."""
        listed = []
        for path in files.folder_files(model):
            name, content = f"model/{path.relative_to(model).as_posix()}", path.read_bytes()
            listed.append({"name": name, "bytes": len(content), "sha256": files.sha256_file(path)})
            if damaged and name.endswith("network.pdmodel"):
                content = b"\7" * len(content)
            self.put(f"{run}/{name}", content)
        marker = {"version": 1, "runId": run, "finished": 1.5}
        self.put(f"{run}/_SUCCESS.json", json.dumps(marker | {"files": listed}).encode())
        self.put("latest.json", json.dumps(marker | {"to": f"s3://bucket/models/job/{run}/"}).encode())

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket="bucket", Key=f"models/job/{key}", Body=content)


@pytest.fixture
def bucket() -> Iterator[ExportBucket]:
    pytest.importorskip("moto.server", reason="moto is only in the environment of the tests")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    httpx.post(f"{url}/moto-api/reset", timeout=60).raise_for_status()  # moto keeps one state per process
    yield ExportBucket(url)
    httpx.post(f"{url}/moto-api/reset", timeout=60).raise_for_status()
    server.stop()


@pytest.mark.slow
def test_requests_are_answered_while_the_server_follows_latest_json(
    made: SimpleNamespace, tmp_path: Path, bucket: ExportBucket
) -> None:
    one, two = (write_variant(made.folder, tmp_path / str(factor), factor) for factor in (1, 2))
    bucket.export(one, "run-1")
    with serving("s3://bucket/models/job", tmp_path / "work", bucket.env) as server:
        first = server.wait_for_model(one)
        bucket.export(write_variant(made.folder, tmp_path / "3", 3), "run-2", damaged=True)
        rejected = 'paddle_serve_model_failures_total{reason="model"}'
        until(lambda: server.metric(rejected) == "1.0", "the rejection", 60, 0.1, server.log.read_text)
        assert server.answers[-1][2] == first, "the former model stays"
        assert (
            "run-2/model/network.pdmodel does not have the sha256 in _SUCCESS.json" in server.log.read_text()
        )
        bucket.export(two, "run-3")
        assert server.wait_for_model(two) != first
        assert (
            f"model {Model(two).version} of s3://bucket/models/job/run-3/ replaces" in server.log.read_text()
        )
        about = httpx.get(f"{server.url}/model", timeout=60).json()
        assert (about["version"], about["created"]) == (Model(two).version, 2)


class Following:
    """A follower and its server in this process; the test says when the follower looks."""

    def __init__(self, made: SimpleNamespace, root: Path, size_limit: int | None = None) -> None:
        self.made, self.folder, self.work = made, root / "output" / "model", root / "work"
        self.folder.parent.mkdir()
        write_variant(made.folder, self.folder, 1)
        source = model_sources.open_source(str(self.folder), "--model")
        self.follower = ModelFollower(source, self.work, 1, size_limit)
        self.server = ModelServer(Model(self.follower.copy_first(str(self.folder))), workers=2)
        self.client = Client(self.server)
        self.first = self.server.model
        assert self.client.post("/predict", json={"rows": [ROW]}).status_code == 200

    def look(self) -> None:
        self.follower.look(self.server)

    def publish(self, change: Callable[[Path], object], factor: float = 2) -> Path:
        """Publish another model after `change` was called with its folder."""
        new = write_variant(self.made.folder, self.folder.with_name("other"), factor)
        change(new)
        shutil.rmtree(self.folder)
        return new.rename(self.folder)

    def failures(self, reason: str) -> str:
        return metric(
            self.client.get("/metrics").text, f'paddle_serve_model_failures_total{{reason="{reason}"}}'
        )


@pytest.fixture
def following(made: SimpleNamespace, tmp_path: Path) -> Following:
    return Following(made, tmp_path)


def replace_in(name: str, old: str, new: str) -> Callable[[Path], object]:
    """Return a function that replaces a text in the file `name` of a folder, and its size in model.json."""

    def change(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        description = json.loads((folder / "model.json").read_text())
        if name in description["files"]:
            description["files"][name] = path.stat().st_size
            (folder / "model.json").write_text(json.dumps(description))

    return change


PROGRAM = "program/trainer_config.py"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace_in("model.json", '"version": 2', '"version": 3'), "has a model of version 3"),
        (lambda folder: (folder / "network.pdiparams").unlink(), "network.pdiparams is missing"),
        (lambda folder: fill_with_sevens(folder / "ids.pdmodel"), "was killed by SIGSEGV"),
        (replace_in(PROGRAM, "BLANK = {", "BLANK = {}; _ = {"), "rejects a row that was predicted before: row 1 has"),
        (
            replace_in(PROGRAM, "words = [int", 'row["words"] = "x"; raise ValueError("no"); words = [int'),
            "rejects a row that was predicted before: row 1: no",
        ),
        (lambda folder: (folder / "model.json").write_text("[]"), "has a model of version None"),
        (
            lambda folder: np.load(next(folder.glob("embeddings/word*/vectors.npy")), mmap_mode="r+").fill(np.nan),
            "is NaN or infinite",
        ),
    ],
)  # fmt: skip
def test_a_model_that_cannot_replace_the_present_one_is_rejected_once(
    following: Following, caplog: pytest.LogCaptureFixture, change: Callable[[Path], object], message: str
) -> None:
    following.publish(change)
    for _ in range(3):
        following.look()
    assert following.server.model is following.first
    assert following.client.post("/predict", json={"rows": [ROW]}).status_code == 200
    [rejected] = [record.getMessage() for record in caplog.records if "is rejected" in record.getMessage()]
    assert message in rejected
    assert f"the server keeps model {following.first.version}:" in rejected
    assert (following.failures("model"), following.failures("source")) == ("1.0", "0.0")
    assert len(list(following.work.iterdir())) == 1, "the copy is removed"
    following.publish(lambda _: None, factor=5)
    following.look()
    assert following.server.model is not following.first, "the next model is not rejected"


def test_a_model_with_new_columns_or_another_shape_is_rejected(
    following: Following, made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_check, "check_in_process", lambda *_: None)
    following.first.last_row = None  # no request yet
    following.publish(replace_in(PROGRAM, "BLANK = {", "BLANK = {}; _ = {"))
    with pytest.raises(ModelError, match=r"needs the columns kind, which requests do not have"):
        model_follower._open_compatible(following.folder, following.first)
    monkeypatch.setattr(Model, "self_check", lambda model, _: (3,) if model is following.first else (5,))
    with pytest.raises(ModelError, match=r"predictions have the shape \(5,\) instead of \(3,\)"):
        model_follower._open_compatible(made.folder, following.first)


def test_a_request_is_finished_by_the_model_that_it_began_with(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, finish, waits = threading.Event(), threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        waits.set()
        time.sleep(seconds)

    monkeypatch.setattr(model_server, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    answer = following.first.answer

    def slow(rows: Any) -> Any:
        began.set()
        assert finish.wait(60)
        return answer(rows)

    monkeypatch.setattr(following.first, "answer", slow)
    following.publish(lambda _: None)
    with ThreadPoolExecutor() as pool:
        old = pool.submit(following.client.post, "/predict", json={"rows": [ROW]})
        assert began.wait(60)
        looking = pool.submit(following.look)
        until(lambda: following.server.model is not following.first, "the switch", 60)
        new = following.client.post("/predict", json={"rows": [ROW]})
        assert waits.wait(60), "the former model is open until its request is answered"
        finish.set()
        looking.result(60)
        former = old.result(60)
    assert former.status_code == new.status_code == 200
    assert former.headers["Model-Version"] == following.first.version
    assert new.headers["Model-Version"] == following.server.model.version != following.first.version
    assert former.json()["predictions"] != new.json()["predictions"]
    assert not hasattr(following.first, "_network"), "the former model is closed"
    assert following.failures("model") == "0.0"


def test_requests_that_never_end_do_not_keep_the_server_from_switching(
    following: Following, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_server, "DRAIN_SECONDS", 0.0)
    following.server._present.requests += 1
    following.publish(lambda _: None)
    following.look()
    assert following.server.model is not following.first
    assert "1 requests to model" in caplog.text
    assert "stays in memory until they end" in caplog.text


def test_modules_that_a_program_imports_late_are_those_of_its_own_model(following: Following) -> None:
    def change(label: str) -> Callable[[Path], object]:
        def change(folder: Path) -> None:
            replace_in(
                PROGRAM,
                "def describe(prediction):",
                "def describe(prediction):\n    from late import WORD as word",
            )(folder)
            replace_in(PROGRAM, 'f"most likely', 'word + f"most likely')(folder)
            (folder / "program" / "late.py").write_text(f"WORD = {label!r}\n")

        return change

    for label, factor in (("one ", 2), ("two ", 3)):
        following.publish(change(label), factor)
        following.look()
        answer = following.client.post("/predict", json={"rows": [ROW]}).json()
        assert answer["words"][0].startswith(label), following.failures("model")
    assert len([path for path in sys.path if path.startswith(str(following.work))]) == 1


def test_a_temporary_problem_is_logged_once_and_the_model_is_loaded_afterwards(
    following: Following, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = following.follower._source
    newest = source.newest

    def fail() -> Any:
        raise GangError("S3 does not answer")

    following.publish(lambda _: None)
    monkeypatch.setattr(source, "newest", fail)
    following.look()
    following.look()
    assert following.failures("source") == "2.0"
    assert caplog.text.count("no newer model could be found or copied; the server keeps model") == 1
    monkeypatch.setattr(source, "newest", newest)
    assert following.failures("model") == "0.0"
    following.look()
    assert following.server.model is not following.first


def test_a_model_that_exceeds_the_work_volume_is_not_copied(made: SimpleNamespace, tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in files.folder_files(made.folder))
    following = Following(made, tmp_path, size_limit=int(size * 1.9))
    following.publish(lambda _: None)
    following.look()
    assert following.server.model is following.first
    assert following.failures("source") == "1.0"
    assert following.follower._problem.startswith("model.sizeLimit is ")
    following.follower._size_limit = int(size * 2.1)
    following.look()
    assert following.server.model is not following.first


def test_a_model_that_does_not_fit_into_memory_is_rejected_with_the_memory_it_needs(
    following: Following, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(f"{512 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{900 << 20}\n")
    stat = f"anon {452 << 20}\nactive_file {300 << 20}\ninactive_file {148 << 20}\n"
    (tmp_path / "memory.stat").write_text(stat)
    assert cgroup_memory.used_bytes(tmp_path) == 452 << 20, "without the page cache"
    with pytest.raises(
        ModelError, match=r"needs about 64 MiB .* uses 452 of its 512 MiB\. Fix: .* at least 517Mi"
    ):
        model_check.require_memory(following.folder, tmp_path)
    (tmp_path / "memory.current").write_text(f"{800 << 20}\n")
    model_check.require_memory(following.folder, tmp_path)
    old = tmp_path / "memory"
    old.mkdir()
    (tmp_path / "memory.current").unlink()
    (old / "memory.usage_in_bytes").write_text("1000\n")
    (old / "memory.stat").write_text("cache 300\ntotal_active_file 100\ntotal_inactive_file 200\n")
    assert cgroup_memory.used_bytes(tmp_path) == 700
    monkeypatch.setattr(model_check.cgroup_memory, "limit", lambda _: 1)
    following.publish(lambda _: None)
    following.look()
    assert following.failures("model") == "1.0"


def test_a_program_that_hangs_is_stopped_at_the_deadline_of_the_check(following: Following) -> None:
    following.publish(replace_in(PROGRAM, "COLUMNS =", "while True: pass\nCOLUMNS ="))
    with pytest.raises(ModelError, match=r"did not end within 2 s\. Fix: "):
        model_check.check_in_process(following.folder, None, seconds=2)


def test_a_folder_that_is_replaced_while_it_is_copied_is_copied_again(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = files.copy_folder

    def replaced(source: Path, target: Path) -> None:
        copy(source, target)
        following.publish(lambda _: None, 7)

    following.publish(lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(files, "copy_folder", replaced)
        following.look()
    assert following.failures("source") == "1.0"
    assert "was replaced while it was copied" in following.follower._problem
    following.look()
    assert following.server.model.about["created"] == 7


def test_a_folder_without_a_model_is_a_settings_error_at_the_start(tmp_path: Path) -> None:
    follower = ModelFollower(model_sources.open_source(str(tmp_path), "--model"), tmp_path / "work", 1, None)
    with pytest.raises(
        SettingsError, match=r"--model is '.*', but must be .*: there is no model\. Fix: wait"
    ):
        follower.copy_first(str(tmp_path))


@pytest.mark.slow
def test_latest_json_must_have_the_address_of_a_run(
    bucket: ExportBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    source = model_sources.open_source("s3://bucket/models/job", "--model")
    assert source.newest() is None
    for content in (b"{", b"[]", b'{"finished": 1}', b'{"to": 1}'):
        bucket.put("latest.json", content)
        with pytest.raises(DataError, match=r"latest\.json"):
            source.newest()
