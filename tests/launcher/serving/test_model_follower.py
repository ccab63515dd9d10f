"""Tests of the model follower in one process: it loads each new model, and keeps the present one if it cannot."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launcher.errors import GangError, SettingsError
from launcher.io import cgroup_memory, files
from launcher.serving import model_check, model_follower
from launcher.serving.model_follower import ModelFollower
from launcher.serving.paddle_served import Model, ModelError, model_server
from launcher.serving.paddle_served.model_server import ModelServer
from testkit.waiting import until

from .following_server import (
    ROW,
    fill_with_sevens,
    read_metric,
    write_variant,
)
from .test_http_server import Client


class Following:
    """A follower and its server in this process; the follower checks for a new model only when a test calls `look`."""

    def __init__(self, made: SimpleNamespace, root: Path, size_limit: int | None = None) -> None:
        self.made, self.folder, self.work = made, root / "output" / "model", root / "work"
        self.folder.parent.mkdir()
        write_variant(made.folder, self.folder, 1)
        self.follower = ModelFollower(str(self.folder), self.work, 1, size_limit)
        self.server = ModelServer(Model(self.follower.copy_first()), workers=2)
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
        return read_metric(
            self.client.get("/metrics").text, f'paddle_serve_model_failures_total{{reason="{reason}"}}'
        )


@pytest.fixture
def following(made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Following:
    """Return a follower that checks new models only in this process; `isolated` checks them in two, as the product."""
    monkeypatch.setattr(model_check, "check_in_subprocess", lambda *_: None)
    return Following(made, tmp_path)


@pytest.fixture
def isolated(made: SimpleNamespace, tmp_path: Path) -> Following:
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


def rename_column(folder: Path) -> None:
    """Rename an optional column of the model, which requests may have because the present model knows it."""
    for name in (PROGRAM, "model.json"):
        replace_in(name, '"kind"', '"sort"')(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace_in("model.json", '"version": 2', '"version": 3'), "has a model of version 3"),
        (lambda folder: (folder / "network.pdiparams").unlink(), "network.pdiparams is missing"),
        (replace_in(PROGRAM, "BLANK = {", "BLANK = {}; _ = {"), "rejects a row that was predicted before: row 1 has"),
        (lambda folder: (folder / "model.json").write_text("[]"), "has a model of version None"),
        (rename_column, "it rejects the columns kind, which requests may have"),
        (
            lambda folder: np.load(next(folder.glob("embeddings/word*/vectors.npy")), mmap_mode="r+").fill(np.nan),
            "is NaN or infinite",
        ),
    ],
)  # fmt: skip
def test_a_model_that_cannot_replace_the_present_one_is_rejected_once(
    following: Following, caplog: pytest.LogCaptureFixture, change: Callable[[Path], object], message: str
) -> None:
    assert_rejected_once(following, caplog, change, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: fill_with_sevens(folder / "ids.pdmodel"), "was killed by SIGSEGV"),
        (
            replace_in(PROGRAM, "words = [int", 'row["words"] = "x"; raise ValueError("no"); words = [int'),
            "rejects a row that was predicted before: row 1: no. Fix: correct its program and",
        ),
    ],
)  # fmt: skip
def test_a_model_is_rejected_by_a_process_of_its_own_before_the_server_opens_it(
    isolated: Following,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], object],
    message: str,
) -> None:
    opened = []
    open_compatible = model_follower._open_compatible
    monkeypatch.setattr(
        model_follower, "_open_compatible", lambda *given: opened.append(1) or open_compatible(*given)
    )
    assert_rejected_once(isolated, caplog, change, message)
    assert len(opened) == 1, "only the model that was not rejected"


def assert_rejected_once(
    following: Following, caplog: pytest.LogCaptureFixture, change: Callable[[Path], object], message: str
) -> None:
    """Publish a model after `change`; assert that it is rejected with `message`, and the next model is not."""
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
    assert caplog.text.count("looking for a newer model failed; the server keeps model") == 1
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


def test_a_program_that_hangs_is_stopped_at_the_deadline_of_the_check(isolated: Following) -> None:
    isolated.publish(replace_in(PROGRAM, "COLUMNS =", "while True: pass\nCOLUMNS ="))
    with pytest.raises(ModelError, match=r"did not end within 2 s\. Fix: "):
        model_check.check_in_subprocess(isolated.folder, None, seconds=2)


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
    assert "was replaced or removed while it was copied" in following.follower._problem
    following.look()
    assert following.server.model.about["created"] == 7


def test_a_folder_without_a_model_is_a_settings_error_at_the_start(tmp_path: Path) -> None:
    follower = ModelFollower(str(tmp_path), tmp_path / "work", 1, None)
    with pytest.raises(
        SettingsError, match=r"--model is '.*', but must be .*: there is no model\. Fix: wait"
    ):
        follower.copy_first()
