"""Tests of `training.keepBest` and `training.patience` on real servers: the kept checkpoint and the model."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from launcher.io import checkpoints
from launcher.paths import Position
from launcher.runtimes.fleet import FleetRuntime
from launcher.schema import CheckpointContents

from .conftest import prepare_own
from .loopback_training import LoopbackTraining

pytestmark = pytest.mark.paddle
PROGRAM = '''
import os
import signal
from pathlib import Path

import numpy as np
import paddle
from launcher.program import Ids, Real

COLUMNS = ("id", "one", "label")
LABEL = "label"
DIE = Path(__file__).with_name("die-at")

def inputs(job):
    return {"ids": Ids(1), "one": Real(), "label": Real()}

def parse(row, job):
    return {"ids": [int(row["id"])], "one": float(row["one"]), "label": float(row["label"])}

def network(data, job):
    """The vector and the weight grow by the same in each step, and so does the prediction."""
    vector = job.embedding(data["ids"], 1, "table", spread=0.0)
    zero = paddle.nn.initializer.Constant(0.0)
    grown = vector[:, 0] + paddle.static.nn.fc(data["one"], 1, weight_attr=zero, bias_attr=False)
    return grown, -paddle.mean(grown)

def metrics(prediction, label):
    error = float(np.mean(np.abs(prediction - label)))
    if DIE.exists() and prediction.mean() > float(DIE.read_text()):
        DIE.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"bias": float(np.mean(prediction - label)), "error": error}

def optimizer(job):
    return paddle.optimizer.SGD(1.0)
'''
STEP = {1: 2.0, 2: 3.0}
"""What a pass of one batch adds to the prediction, by ranks: 1 by the weight, the rest by the table."""


def prepare_training(root: Path, ranks: int = 2, best: int = 2, **values: str) -> LoopbackTraining:
    """Return a run whose error is 0 after pass `best` and grows afterwards."""
    rows = [f"7\t1\t{STEP[ranks] * best}"] * 4
    few = {
        "MODE": "sync",
        "PASSES": "9",
        "KEEP_CHECKPOINTS": "1",
        "BATCH_SIZE": "4",
        "KEEP_BEST": "error",
        "PATIENCE": "2",
    }
    return prepare_own(root, PROGRAM, [rows] * ranks, **few | values)


def next_attempt(gang: LoopbackTraining, **values: str) -> LoopbackTraining:
    return gang.next_attempt(checkpoints.newest_checkpoint(gang.output.root), **values)


def model(gang: LoopbackTraining) -> tuple[str, float]:
    """Return the model's checkpoint and error."""
    return str(checkpoints.model_checkpoint(gang.output.model)), gang.read_score()["error"]


def errors(gang: LoopbackTraining) -> list[float]:
    return [score for _, score in checkpoints.scores_by(contents(gang), "error")]


def contents(gang: LoopbackTraining) -> CheckpointContents:
    newest = checkpoints.newest_checkpoint(gang.output.root)
    assert newest is not None
    return checkpoints.read_contents(gang.output.checkpoint(newest))


def finished(gang: LoopbackTraining) -> list[Position]:
    return checkpoints.finished_checkpoints(gang.output.root)


def is_complete(gang: LoopbackTraining) -> bool:
    return FleetRuntime().is_complete(gang.output.root, gang.settings(0))


@pytest.mark.parametrize(("mode", "ranks", "period"), [("sync", 2, "1"), ("async", 1, "3")])
def test_a_run_that_ends_early_keeps_the_best_checkpoint_and_exports_it(
    tmp_path: Path, mode: str, ranks: int, period: str
) -> None:
    gang = prepare_training(tmp_path, ranks, MODE=mode, SAVING_PERIOD=period).finish()
    assert errors(gang) == pytest.approx([STEP[ranks] * n for n in (1, 0, 1, 2)], abs=1e-4)
    assert finished(gang) == [Position(4), Position(2)], (
        "keepCheckpoints is 1, and the best one is kept in addition"
    )
    assert model(gang) == ("pass-00001", pytest.approx(0, abs=1e-4))
    assert "stopped early after pass 4: training.patience is 2" in gang.log()
    assert gang.read_progress()["passes"] == 4, "so that the coordinator takes in no further rank"
    assert is_complete(gang)
    kept = json.loads(gang.output.program_json.read_text())
    assert kept["files"] == {"trainer_config.py": PROGRAM}
    assert kept["options"]["seed"] == "1", "a default"


def test_a_restart_before_the_early_end_changes_neither_the_end_nor_the_model(tmp_path: Path) -> None:
    gang = prepare_training(tmp_path, 1)
    (gang.program / "die-at").write_text(str(3.5 * STEP[1]))  # at the end of pass 4
    assert gang.run()["0/trainer"] == -signal.SIGKILL
    done = finished(gang)
    # The checkpoint of pass 3 is written while pass 4 is trained.
    assert done in ([Position(3), Position(2)], [Position(2)])
    assert not is_complete(gang)
    gang = next_attempt(gang).finish()
    assert f"resumed from {max(done).folder}" in gang.log()
    assert errors(gang) == pytest.approx([2, 0, 2, 4], abs=1e-4)
    assert finished(gang) == [Position(4), Position(2)]
    assert model(gang) == ("pass-00001", pytest.approx(0, abs=1e-4))


def test_a_later_start_with_other_patience_or_metric_resumes_and_exports_the_right_model(
    tmp_path: Path,
) -> None:
    gang = prepare_training(tmp_path, 1).finish()
    shutil.rmtree(gang.output.model)  # as after a kill between the last pass and the model
    assert not is_complete(gang)
    gang = next_attempt(gang).finish()
    assert "Pass=" not in gang.log()
    assert model(gang) == ("pass-00001", pytest.approx(0, abs=1e-4))

    more = next_attempt(gang, PATIENCE="3")
    assert not is_complete(more)
    more.finish()
    assert errors(more) == pytest.approx([2, 0, 2, 4, 6], abs=1e-4)
    assert finished(more) == [Position(5), Position(2)]
    assert model(more) == ("pass-00001", pytest.approx(0, abs=1e-4))
    assert is_complete(more)

    last = next_attempt(more, PATIENCE="0", KEEP_BEST="", PASSES="5")
    assert not is_complete(last), "its model must be of the last pass"
    last.finish()
    assert model(last) == ("pass-00004", pytest.approx(6, abs=1e-4))
    assert is_complete(last)

    lost = next_attempt(more)
    (lost.output.checkpoint(Position(2)) / "done").unlink()
    shutil.rmtree(lost.output.model)
    lost.finish()
    assert model(lost) == ("pass-00004", pytest.approx(6, abs=1e-4)), "the best remaining checkpoint"
    assert is_complete(lost)


def test_an_unknown_metric_is_rejected_before_training_with_a_list_of_the_known_ones(tmp_path: Path) -> None:
    gang = prepare_training(tmp_path, 1, KEEP_BEST="rmse")
    assert gang.run()["0/trainer"] == 64
    assert "training.keepBest is 'rmse', but must be one of bias, error" in gang.log()
    assert "Pass=" not in gang.log()
