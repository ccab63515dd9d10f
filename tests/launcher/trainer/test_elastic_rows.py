"""Test of trainers whose number changes inside a pass: each row is trained exactly once."""

from __future__ import annotations

import json
import shutil
import threading
import types
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import EXIT_SETTINGS
from launcher.io import checkpoints, files, thread_jobs
from launcher.paths import Position
from launcher.trainer import pass_rows
from testkit.waiting import PATIENCE
from testkit.written_data import write_data

from .conftest import TRAINED, prepare_own
from .loopback_training import LoopbackTraining

pytestmark = pytest.mark.paddle

PROGRAM = (
    TRAINED
    + """
import json
from pathlib import Path
from launcher.trainer import fleet_trainer

COLUMNS = ("number",)
LABEL = "number"

def inputs(job):
    return {"ids": Ids(1), "number": Real()}

def parse(row, job):
    return {"ids": [int(row["number"])], "number": float(row["number"])}

def network(data, job):
    found = paddle.static.nn.fc(job.embedding(data["ids"], 2, "table")[:, 0], 1)
    return found, paddle.mean(paddle.square(found - data["number"] / 1000))

train_step = fleet_trainer.FleetTrainer._step

def step(self, batch, exe, scope):
    with Path("batches").open("a") as file:
        file.write(json.dumps([int(each) for each in batch["number"][:, 0]]) + "\\n")
    return train_step(self, batch, exe, scope)

fleet_trainer.FleetTrainer._step = step
"""
)
"""Writes the numbers of the rows of each batch into the trainer's working folder."""
SHARDS = [37, 22, 41]


def train(gang: LoopbackTraining, end: Position | None) -> list[int]:
    """Run an attempt; return the rows that its trainers trained before `end`, after which it counts as failed."""
    gang.finish()
    found = []
    batches = end.batches - (gang.resume.batches if gang.resume else 0) if end else None
    for rank in range(len(gang.world)):
        log = gang.settings(rank).work_dir / "batches"
        found += [row for line in log.read_text().splitlines()[:batches] for row in json.loads(line)]
        log.unlink()
    if end is not None:
        shutil.rmtree(gang.output.model)
        for at in checkpoints.finished_checkpoints(gang.output.root):
            if at > end:
                shutil.rmtree(gang.output.checkpoint(at))
    return found


def test_each_row_is_trained_once_over_changes_of_the_number_of_trainers(tmp_path: Path) -> None:
    starts = [sum(SHARDS[:n]) for n in range(len(SHARDS))]
    rows = [
        [str(row) for row in range(start, start + count)] for start, count in zip(starts, SHARDS, strict=True)
    ]
    values = {
        "batch_size": 4,
        "checkpoint_every_batches": 3,
        "keep_checkpoints": 20,
        "passes": 2,
        "min_trainers": 1,
    }
    gang = prepare_own(tmp_path, PROGRAM, rows, rows[0], **values)
    write_data(tmp_path / "job", rows, rows[0], digest="loopback")
    trained = Counter[int]()
    for world, end in (((0, 1, 2), 3), ((1,), 6)):
        gang = replace(gang, world=world)
        trained.update(train(gang, Position(0, end)))
        contents = checkpoints.read_contents(gang.output.checkpoint(Position(0, end)))
        assert sum(samples for samples, _, _ in contents.ranks) == trained.total()
        assert [parts for parts, _, _ in contents.history] == [3, 1][: end // 3]
        assert contents.shard_rows == SHARDS
        gang = gang.next_attempt(Position(0, end))
    gang = replace(gang, world=(0, 1))
    path = gang.output.checkpoint(Position(0, 6)) / checkpoints.CONTENTS
    saved = path.read_text()
    changed = files.read_json(path) or {}
    changed["shardRows"] = [37, 23, 41]
    files.write_json(path, files.with_checksum(changed))
    assert replace(gang, world=(1,)).run()["0/trainer"] == EXIT_SETTINGS, (
        "the program may have changed, so what remains is unknown"
    )
    assert "the program uses 22 rows of shard 1, but it used 23 when the checkpoint" in gang.log(1)
    path.write_text(saved)
    trained.update(train(gang, None))
    twice = Counter(dict.fromkeys(range(sum(SHARDS)), 2))
    assert trained == twice, "once in each of the two passes"
    samples = [int(row["samples"]) for row in gang.read_metrics() if row["attempt"] == str(gang.attempt)]
    assert [sum(samples[:2]), sum(samples[2:])] == [sum(SHARDS)] * 2


def test_a_trainer_reports_progress_while_it_waits_for_the_shards_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the launcher would take it for hung."""
    monkeypatch.setattr(thread_jobs, "_WAIT_SECONDS", 0.01)
    has_reported = threading.Event()
    rows = object.__new__(pass_rows.PassRows)
    rows._check = has_reported.set
    rows._exchange = types.SimpleNamespace(
        exchange=lambda value, _: [has_reported.wait(PATIENCE * 10), value]
    )
    assert rows._exchange_while_checking("own", "waiting") == [True, "own"]
