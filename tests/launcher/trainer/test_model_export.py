"""Tests of exporting the model from real servers with two trainers at the same time."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launcher.errors import StorageFailedError
from launcher.io import checkpoints
from launcher.io.checkpoints import CheckpointFolder
from launcher.io.progress_file import ProgressFile
from launcher.paths import OutputPaths, Position
from launcher.schema import CheckpointTable, RankFiles
from launcher.serving.paddle_served import Model
from launcher.trainer import export, row_files, server_tables
from launcher.trainer.server_tables import RowShape
from tests.launcher.io.test_checkpoints import publish

from .conftest import TRAINED, prepare_own
from .loopback_training import SHARDS

pytestmark = pytest.mark.paddle
IDS_A_ROW = 100
ROWS = 30  # of each rank
PROGRAM = (
    TRAINED
    + f"""
COLUMNS = ("first",)

def inputs(job):
    return {{"ids": Ids({IDS_A_ROW}), "label": Real()}}

def parse(row, job):
    first = int(row["first"])
    ids = [(n * 0x9E3779B97F4A7C15) % 2**64 for n in range(first, first + {IDS_A_ROW})]
    return {{"ids": ids, "label": first / 6000}}

def network(data, job):
    pooled = job.embedding(data["ids"], 3, "pooled", pool="mean", spread=0.5)
    first = job.embedding(data["ids"][:, :1], 1, "first", pool="sum", spread=0.5)
    guess = paddle.static.nn.fc(paddle.concat([pooled, first], 1), 1, name="guess")
    return guess, paddle.mean(paddle.square(guess - data["label"]))

def optimizer(job):
    return paddle.optimizer.Adam(0.01)
"""
)
WROTE = re.compile(r"(\w+): wrote (\d+) of (\d+) rows")


def test_two_trainers_write_every_row_and_export_again_from_the_checkpoint(tmp_path: Path) -> None:
    firsts = [str(first) for first in range(1, 1 + 2 * ROWS * IDS_A_ROW, IDS_A_ROW)]
    shards = [firsts[::2], firsts[1::2]]
    gang = prepare_own(tmp_path, PROGRAM, shards, ["1", "5901"], BATCH_SIZE="8").finish()
    count = 2 * ROWS * IDS_A_ROW
    wrote = [{name: (int(own), int(all_)) for name, own, all_ in WROTE.findall(gang.log(n))} for n in (0, 1)]
    assert all(each["pooled"][0] > 1000 for each in wrote), "both write a share"
    assert sum(each["pooled"][0] for each in wrote) == count
    assert {each["first"][1] for each in wrote} == {2 * ROWS}
    model = Model(gang.output.model)
    pooled = model.tables["pooled"]
    every = np.sort(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    assert (pooled.ids == every).all()
    checkpoint = gang.output.checkpoint(Position(1))
    about = checkpoints.read_contents(checkpoint).tables["pooled"]
    files = sorted((checkpoint / "tables/pooled").iterdir())
    shape = server_tables.RowShape(3, about.rule)
    ids, vectors = server_tables.TableRows.concatenate(
        row_files.read_rows([(path, None) for path in files], shape, SHARDS), 3
    )
    assert (ids == every).all()
    assert np.array_equal(pooled.vectors, vectors)
    assert model.score["rmse"] == pytest.approx(float(gang.read_metrics()[0]["test_rmse"]), rel=1e-4)
    assert gang.read_score() == model.score
    before = pooled.vectors.copy()

    shutil.rmtree(gang.output.model)
    second = gang.next_attempt(Position(1)).finish()
    assert "Pass=" not in second.log(), "no pass was left to train"
    assert np.array_equal(Model(gang.output.model).tables["pooled"].vectors, before)
    assert not list(gang.output.root.glob(".model*"))


def test_changed_ids_of_a_checkpoint_prevent_the_export(tmp_path: Path) -> None:
    output = tmp_path / "output"
    folder = CheckpointFolder(output, Position(1), 0)
    folder.create(100)
    held = [np.array(ids, np.uint64) for ids in ([3, 15, 2**64 - 1], [], [5])]
    (folder.folder / "tables/pooled").mkdir(parents=True)
    for shard, ids in enumerate(held):
        name, shape = row_files.file_name("pooled", shard), RowShape(1, "sgd")
        groups = [(ids, [np.ones((len(ids), shape.columns[0]), np.float32)]), (ids[:0], [])]
        entry = row_files.write_shard(folder.folder / name, shape, shard, 3, groups)
        folder.add_rank_files(shard, RankFiles({name: entry}, {}))
    config = tmp_path / "trainer_config.py"
    config.touch()
    publish(folder, config, 3, tables={"pooled": CheckpointTable(1, "sgd")}, shards=3)
    layout = SimpleNamespace(output=output)
    settings: list[Any] = [
        SimpleNamespace(layout=layout, rank=rank, trainers=2, attempt=0) for rank in (0, 1)
    ]
    found = export._map_ids(settings[0], Position(1))["pooled"]
    assert [ids.tolist() for ids in found] == [[3, 15, 2**64 - 1], [5]]
    flipped = OutputPaths(output).checkpoint(Position(1)) / row_files.file_name("pooled", 0)
    content = bytearray(flipped.read_bytes())
    content[row_files.HEADER.itemsize] ^= 1
    flipped.write_bytes(content)
    with pytest.raises(StorageFailedError, match=r"the ids in shard-00000\.rows have changed"):
        export._map_ids(settings[0], Position(1))
    assert "have changed" in str(checkpoints.unusable_reason(flipped.parents[2])), (
        "the next attempt trains that pass again"
    )
    export._map_ids(settings[1], Position(1))  # each rank verifies a share of the files


def test_the_state_is_writing_while_a_rank_writes_its_part_of_the_model(tmp_path: Path, monkeypatch) -> None:
    from launcher.trainer import training_loop

    monkeypatch.setattr(training_loop, "export_model", lambda *_: None)
    here = SimpleNamespace(
        settings=SimpleNamespace(rank=1),
        progress=ProgressFile(tmp_path / "progress.json"),
        **dict.fromkeys(("program", "trainer", "log", "test")),
    )
    training_loop.TrainingLoop._export(here, Position(1))
    assert json.loads((tmp_path / "progress.json").read_text())["state"] == "writing"


def test_the_state_is_training_again_after_a_checkpoint_was_published_inside_a_pass(tmp_path: Path) -> None:
    """Otherwise the launcher would request no checkpoint before a pod stops, since the rank does not train."""
    from launcher.trainer import training_loop

    published = Position(0, 4)
    here = SimpleNamespace(
        checkpoints=SimpleNamespace(published=lambda wait: published, expected_bytes=5),
        progress=ProgressFile(tmp_path / "progress.json"),
        first=False,
        settings=SimpleNamespace(store_address="127.0.0.1:1/trainers"),
    )
    training_loop.TrainingLoop._report_published(here, "training")
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert (progress["state"], progress["saved"]) == ("training", {"pass": 0, "batch": 4})


def test_a_trainer_waits_to_be_stopped_only_where_all_trainers_wait(tmp_path: Path, monkeypatch) -> None:
    """Each trainer finds a checkpoint that was written meanwhile at a batch of its own, and mode sync waits for all."""
    from launcher.io import requested_checkpoints
    from launcher.trainer import training_loop

    held = []
    monkeypatch.setattr(requested_checkpoints, "wait_while_held", lambda *_: held.append(1))
    here = SimpleNamespace(
        checkpoints=SimpleNamespace(published=lambda wait: Position(0, 4), expected_bytes=5),
        progress=ProgressFile(tmp_path / "progress.json"),
        first=False,
        settings=SimpleNamespace(store_address="127.0.0.1:1/trainers"),
    )
    training_loop.TrainingLoop._report_published(here, "training")
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert (held, progress["state"], progress["saved"]) == ([], "training", {"pass": 0, "batch": 4})
    training_loop.TrainingLoop._report_published(here, "saving", wait=True)
    assert held == [1]


@pytest.mark.parametrize(("others", "waits"), [([[0.0], [1.0]], 2), ([[0.0], [0.0]], 1)])
def test_all_trainers_wait_for_a_checkpoint_if_one_of_them_is_held(
    tmp_path: Path, monkeypatch, others: list[list[float]], waits: int
) -> None:
    """They ask the launcher at different times, so some may hear that ranks wait to be taken in, and some not."""
    from launcher.io import requested_checkpoints
    from launcher.trainer import training_loop

    monkeypatch.setattr(requested_checkpoints, "is_held", lambda *_: False)
    waited = []
    here = SimpleNamespace(
        trainers=SimpleNamespace(gather=lambda own: np.array([own, *others], np.float64)),
        schedule=SimpleNamespace(requested=False, reset=lambda: None),
        checkpoints=SimpleNamespace(save=lambda *_: None, expected_bytes=5),
        progress=ProgressFile(tmp_path / "progress.json"),
        settings=SimpleNamespace(store_address="127.0.0.1:1/trainers"),
        division=None,
        scores=[],
        _report_published=lambda state, wait: waited.append(wait),
    )
    training_loop.TrainingLoop._save(here, Position(1), None)
    assert waited == [True] * waits
