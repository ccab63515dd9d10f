"""Tests of `training.initModelPath`: a new run starts with the parameters of an earlier one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from launcher.errors import DataError, SettingsError
from launcher.paths import Position
from launcher.schema import CheckpointContents, CheckpointTable
from launcher.script_run import ScriptRun
from launcher.trainer import initial_model, row_files, server_tables
from launcher.trainer.server_tables import RowShape

from .loopback_training import PROGRAMS, LoopbackTraining, prepare_training

Staged = Callable[..., list[Path]]
RECOMMENDATION = PROGRAMS / "recommendation"
FIRST = {"MODE": "sync", "PASSES": "2", "ARGS": '["--learning_rate=0.05"]'}
STILL = {
    "INIT_MODEL_PATH": "earlier/output",
    "ARGS": '["--learning_rate=0.0000001"]',
    "BATCH_SIZE": "200",
}
"""Settings of a run that learns almost nothing, so that its score is the initial model's."""


@pytest.mark.paddle
def test_a_new_run_starts_with_a_model_or_a_checkpoint_in_every_mode(tmp_path: Path, staged: Staged) -> None:
    data = staged("ratings", 2)
    first = prepare_training(tmp_path / "first", data[:1], RECOMMENDATION, **FIRST).finish()
    learnt = first.read_score()["rmse"]
    values = STILL | {"INIT_MODEL_PATH": ""}
    fresh = prepare_training(tmp_path / "fresh", data[:1], RECOMMENDATION, **values).finish()
    assert abs(fresh.read_score()["rmse"] - learnt) > 0.05
    assert not fresh.output.before_json.exists()
    for mode, ranks, has_model in (("async", 2, True), ("sync", 1, False)):
        root = tmp_path / mode
        source = root / "earlier" / "output"
        shutil.copytree(first.output.root, source)
        if not has_model:
            shutil.rmtree(source / "model")
        gang = prepare_training(root, data[:ranks], RECOMMENDATION, MODE=mode, **STILL).finish()
        assert gang.read_score()["rmse"] == pytest.approx(learnt, abs=2e-3), mode
        assert "started with the parameters of earlier/output" in gang.log(ranks - 1)
        before = json.loads(gang.output.before_json.read_text())
        assert before["score"]["rmse"] == pytest.approx(learnt, abs=2e-3), "tested before it trained"
        assert gang.log().index("before training, with the parameters of") < gang.log().index("Pass=1 ")
        assert not list(gang.output.root.glob(".init*"))
    gang = gang.next_attempt(Position(1), PASSES="2").finish()
    assert "started with" not in gang.log(), "a run with checkpoints resumes from them"


@pytest.mark.paddle
def test_an_initial_model_of_another_network_is_a_settings_error(
    quick_start: tuple[LoopbackTraining, set[int]], tmp_path: Path
) -> None:
    first, _ = quick_start
    root = tmp_path / "second"
    shutil.copytree(first.output.root, root / "earlier" / "output")
    second = prepare_training(root, first.data, first.program, "trainer_config.emb.py", **STILL)
    assert second.run()["0/trainer"] == 64
    [message] = [line for line in second.log().splitlines() if line.startswith("error: ")]
    difference = "word_weight is a table of width 1 in that model and absent in the program"
    for part in ("training.initModelPath", "its network differs", difference):
        assert part in message


def settings(tmp_path: Path, init_model: str) -> SimpleNamespace:
    return SimpleNamespace(job_path=tmp_path, init_model=init_model, work_dir=tmp_path / "work")


@pytest.mark.parametrize("given", ["/somewhere", "../other/output", "nothing/output"])
def test_find_rejects_a_folder_that_is_not_a_run(tmp_path: Path, given: str) -> None:
    with pytest.raises(SettingsError, match=r"training\.initModelPath is '.*', but must be an earlier run"):
        initial_model.InitialModel.find(settings(tmp_path, given))


def test_a_checkpoint_of_a_script_is_no_initial_model(tmp_path: Path) -> None:
    output = tmp_path / "other-job" / "output"
    with ScriptRun({"PADDLE_LAUNCHER_OUTPUT_DIR": str(output)}).save(1, 0) as folder:
        (folder / "weights").write_bytes(b"weights")
    with pytest.raises(
        SettingsError, match=r"pass-00000 cannot be read: .* belongs to a checkpoint of a script"
    ):
        initial_model.InitialModel.find(settings(tmp_path, "other-job/output"))


def test_find_reads_a_downloaded_model_and_removes_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download_model(url: str, into: Path, asked_by: str) -> Path:
        assert (url, asked_by) == ("s3://bucket/models/job", initial_model.KEY)
        (into / "model").mkdir(parents=True)
        return into / "model"

    monkeypatch.setattr(initial_model.download, "download_model", download_model)
    monkeypatch.setattr(initial_model, "_read_model", lambda folder: ({"w": folder.is_dir()}, {}))
    found = initial_model.InitialModel.find(settings(tmp_path, "s3://bucket/models/job"))
    assert found.values == {"w": True}
    assert not (tmp_path / "work" / "init").exists()


def test_binary_rows_are_read_by_shard_and_verified(tmp_path: Path) -> None:
    shape, shards = RowShape(2, "sgd"), 12
    ids = np.arange(1, 200, dtype=np.uint64)
    values = np.repeat(ids.astype(np.float32)[:, None], shape.columns[0], axis=1)
    (tmp_path / "tables/t").mkdir(parents=True)
    listed = {}
    for shard in range(shards):
        own = ids % np.uint64(shards) == shard
        nothing = np.zeros(0, np.uint64), iter(())
        path = tmp_path / row_files.file_name("t", shard)
        written = row_files.write_shard(path, shape, shard, shards, [(ids[own], [values[own]]), nothing])
        listed[path.relative_to(tmp_path).as_posix()] = written
    tables = {"t": CheckpointTable(2, "sgd")}
    contents = cast(CheckpointContents, SimpleNamespace(shards=shards, files=listed, tables=tables))
    stored = initial_model._checkpoint_table(tmp_path, contents, "t")
    found = server_tables.TableRows.concatenate(stored.read(shards, {3, 7}), 2)
    assert found.ids.tolist() == [key for key in ids.tolist() if key % shards in (3, 7)]
    assert (found.vectors[:, 1] == found.ids).all()
    every = server_tables.TableRows.concatenate(stored.read(5, {0}), 2)
    assert every.ids.tolist() == ids.tolist(), "another number of shards reads all files"
    del listed[row_files.file_name("t", 11)]
    with pytest.raises(DataError, match=r"^training\.initModelPath: \S+/shard-00011.rows is not listed in "):
        list(stored.read(shards, {11}))
    damaged = tmp_path / row_files.file_name("t", 3)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    list(stored.read(shards, {7}))
    with pytest.raises(
        DataError,
        match=r"^training\.initModelPath: .*shard-00003.rows has changed .* Fix: specify another run",
    ):
        list(stored.read(shards, {3}))
