"""Tests of the model follower in one process: it finds, copies and checks each newer model, or rejects it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launcher.errors import GangError, SettingsError
from launcher.io import cgroup_memory, files
from launcher.serving import serve
from launcher.serving.paddle_served import Model, ModelError, ServedError
from launcher.serving.paddle_served.http_server import ModelServer
from launcher.serving.serve import ModelFollower

from .conftest import ROW, read_metric, write_variant
from .test_http_server import Client


class Following:
    """A follower and its server in this process; the follower checks for a new model only when a test calls `look`."""

    def __init__(self, made: SimpleNamespace, root: Path, size_limit: int | None = None) -> None:
        self.made, self.folder, self.work = made, root / "output" / "model", root / "work"
        self.folder.parent.mkdir()
        write_variant(made.folder, self.folder, 1)
        self.follower = ModelFollower(str(self.folder), self.work, 1, size_limit)
        self.server = ModelServer(Model(self.follower.open_first()), workers=2)
        self.client = Client(self.server)
        self.first = self.server.model
        assert self.client.post("/predict", json={"rows": [ROW]}).status_code == 200

    def look(self) -> None:
        self.follower.look(self.server)

    def restarted(self) -> Model:
        """Return the model that the next start of the server opens."""
        return Model(ModelFollower(str(self.folder), self.work, 1, None).open_first())

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
    """Return a follower that checks new models in this process; `isolated` uses another one, as the product does."""

    def check(command: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
        try:
            serve.require_compatible(Path(command[3]), json.loads(given["input"]))
        except ServedError as error:
            return subprocess.CompletedProcess(command, 1, "", str(error))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(serve.subprocess, "run", check)
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


def fill_with_sevens(folder: Path) -> None:
    """Replace a network by as many other bytes. Paddle crashes when it reads them."""
    path = folder / "ids.pdmodel"
    path.write_bytes(b"\7" * path.stat().st_size)


PROGRAM = "program/trainer_config.py"


def rename_column(folder: Path) -> None:
    """Rename an optional column of the model, which requests may have because the served model knows it."""
    for name in (PROGRAM, "model.json"):
        replace_in(name, '"kind"', '"sort"')(folder)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("following", lambda folder: (folder / "network.pdiparams").unlink(), "network.pdiparams is missing"),
        ("following", replace_in(PROGRAM, "BLANK = {", "BLANK = {}; _ = {"),
         "rejects a row that was predicted before: row 1 has"),
        ("following", lambda folder: (folder / "model.json").write_text("[]"), "is damaged: it has no version"),
        ("following", rename_column, "it rejects the columns kind, which requests may have"),
        ("following",
         lambda folder: np.load(next(folder.glob("embeddings/word*/vectors.npy")), mmap_mode="r+").fill(np.nan),
         "is NaN or infinite"),
        ("isolated", fill_with_sevens, "was killed by SIGSEGV"),
        ("isolated", replace_in(PROGRAM, "words = [int", 'row["words"] = "x"; raise ValueError("no"); words = [int'),
         "rejects a row that was predicted before: row 1: no. Fix: correct its program and"),
        ("isolated",
         replace_in(PROGRAM, "COLUMNS =", 'import os; os.write(2, b"\\xff\\n"); raise ValueError("no")\nCOLUMNS ='),
         "trainer_config.py of the model cannot be imported: ValueError: no. Fix: "),
    ],
)  # fmt: skip
def test_a_model_that_cannot_replace_the_served_one_is_rejected_once(
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    *,
    kind: str,
    change: Callable[[Path], object],
    message: str,
) -> None:
    following: Following = request.getfixturevalue(kind)
    following.publish(change)
    for _ in range(3):
        following.look()
    assert not following.follower.newer
    assert following.client.post("/predict", json={"rows": [ROW]}).status_code == 200
    [rejected] = [record.getMessage() for record in caplog.records if "is rejected" in record.getMessage()]
    assert message in rejected
    assert f"the server keeps model {following.first.version}:" in rejected
    assert (following.failures("model"), following.failures("source")) == ("1.0", "0.0")
    assert len(list(following.work.iterdir())) == 1, "the copy is removed"
    following.publish(lambda _: None, factor=5)
    following.look()
    assert following.follower.newer == str(following.folder), "the next model is not rejected"


def test_a_model_with_new_columns_or_another_shape_is_rejected(
    following: Following, made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following.first.last_row = None  # no request yet
    following.publish(replace_in(PROGRAM, "BLANK = {", "BLANK = {}; _ = {"))
    with pytest.raises(ModelError, match=r"needs the columns kind, which requests do not have"):
        serve.check_in_subprocess(following.folder, following.first)
    monkeypatch.setattr(Model, "self_check", lambda model, _: (3,) if model is following.first else (5,))
    with pytest.raises(ModelError, match=r"predictions have the shape \(5,\) instead of \(3,\)"):
        serve.check_in_subprocess(made.folder, following.first)


def test_a_temporary_problem_is_logged_once_and_the_model_is_copied_afterwards(
    following: Following, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    newest = following.follower._newest

    def fail() -> Any:
        raise GangError("S3 does not answer")

    following.publish(lambda _: None)
    monkeypatch.setattr(following.follower, "_newest", fail)
    following.look()
    following.look()
    assert following.failures("source") == "2.0"
    assert caplog.text.count("looking for a newer model failed; the server keeps model") == 1
    monkeypatch.setattr(following.follower, "_newest", newest)
    assert following.failures("model") == "0.0"
    following.look()
    assert following.follower.newer


def test_a_model_that_exceeds_the_work_volume_is_not_copied(made: SimpleNamespace, tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in files.folder_files(made.folder))
    following = Following(made, tmp_path, size_limit=int(size * 1.9))
    following.publish(lambda _: None)
    following.look()
    assert not following.follower.newer
    assert following.failures("source") == "1.0"
    assert following.follower._problem.startswith("model.sizeLimit is ")
    following.follower._size_limit = int(size * 2.1)
    following.look()
    assert following.follower.newer


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
        serve.require_memory(following.folder, tmp_path)
    (tmp_path / "memory.current").write_text(f"{800 << 20}\n")
    serve.require_memory(following.folder, tmp_path)
    old = tmp_path / "memory"
    old.mkdir()
    (tmp_path / "memory.current").unlink()
    (old / "memory.usage_in_bytes").write_text("1000\n")
    (old / "memory.stat").write_text("cache 300\ntotal_active_file 100\ntotal_inactive_file 200\n")
    assert cgroup_memory.used_bytes(tmp_path) == 700
    monkeypatch.setattr(serve.cgroup_memory, "limit", lambda _: 1)
    following.publish(lambda _: None)
    following.look()
    assert following.failures("model") == "1.0"


def test_a_program_that_hangs_is_stopped_at_the_deadline_of_the_check(isolated: Following) -> None:
    isolated.publish(replace_in(PROGRAM, "COLUMNS =", "while True: pass\nCOLUMNS ="))
    with pytest.raises(ModelError, match=r"did not end within 2 s\. Fix: "):
        serve.check_in_subprocess(isolated.folder, isolated.first, seconds=2)


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
    assert following.restarted().about["created"] == 7


def test_a_folder_without_a_model_is_a_settings_error_at_the_start(tmp_path: Path) -> None:
    follower = ModelFollower(str(tmp_path), tmp_path / "work", 1, None)
    with pytest.raises(
        SettingsError, match=r"--model is '.*', but must be .*: there is no model\. Fix: wait"
    ):
        follower.open_first()


def test_the_next_start_serves_the_checked_copy_and_copies_nothing(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    following.publish(lambda _: None)
    following.look()
    assert len(list(following.work.iterdir())) == 2, "the served model is needed until the server has ended"
    monkeypatch.setattr(files, "copy_folder", lambda *_: pytest.fail("the model is copied again"))
    assert following.restarted().about["created"] == 2
    assert len(list(following.work.iterdir())) == 1, "the former model is removed"


@pytest.mark.parametrize("is_absent", [True, False])
def test_a_start_without_a_model_that_can_be_copied_serves_the_newest_copy(
    following: Following, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_absent: bool
) -> None:
    [first] = following.work.iterdir()
    os.utime(first, (1, 1))
    following.publish(lambda _: None)
    following.look()
    if is_absent:  # a new run has replaced `output/`
        shutil.rmtree(following.folder)
        reason = "there is no model"
    else:
        following.publish(lambda _: None, 3)
        monkeypatch.setattr(files, "free_bytes", lambda _: 0)
        reason = "no space left for a copy of the model"
    assert following.restarted().about["created"] == 2
    assert "the newest model cannot be served; the server starts with its last copy: " in caplog.text
    assert reason in caplog.text


def test_a_start_while_the_newest_model_is_damaged_serves_the_checked_copy(following: Following) -> None:
    """Regression: a model that appeared before the restart was opened without a check, and the checked copy removed."""
    following.publish(lambda _: None)
    following.look()
    following.publish(lambda folder: (folder / "network.pdiparams").unlink(), 3)
    for _ in range(2):
        assert following.restarted().about["created"] == 2
    assert len(list(following.work.iterdir())) == 1, "the damaged copy is removed"


def test_a_copy_whose_check_was_killed_is_checked_again(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    following.publish(lambda folder: (folder / "network.pdiparams").unlink())
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove_path", lambda _: None)  # as if the process had been killed before
        following.look()
    assert len(list(following.work.iterdir())) == 2
    assert following.restarted().version == following.first.version


def test_a_copy_of_another_address_is_not_served(following: Following, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no model"):
        ModelFollower(str(tmp_path / "other"), following.work, 1, None).open_first()
    assert not list(following.work.iterdir()), "the disk may have no room for more models"


def test_an_incomplete_copy_of_a_killed_process_is_copied_again(following: Following) -> None:
    [copy] = following.work.iterdir()
    (copy / "model").rename(copy / ".model.1.2.tmp")
    assert following.restarted().about["created"] == 1
    assert [path.name for path in copy.iterdir()] == ["model"]
