"""Tests of the evaluation by all trainers together and by trainer 0 alone."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from launcher.errors import DataError
from launcher.trainer import conversion, evaluation, export
from launcher.trainer import program_loader as programs
from launcher.trainer.record_files import Arrays, Records

from .conftest import load, write_program

PROGRAM = """
import numpy as np
from launcher.program import Ids, Real
COLUMNS = ("number",)
LABEL = "number"
def inputs(job): return {"ids": Ids(1), "number": Real()}
def parse(row, job): return {"ids": int(row["number"]), "number": float(row["number"])}
def network(data, job): ...
def metrics(prediction, label):
    return {"wrong": np.sum(prediction != 2 * label), "rows": len(label), "sum": prediction.sum()}
def optimizer(job): ...
"""


class AllReduce:
    """Adds the arrays of several threads, as gloo does for real trainers."""

    def __init__(self, trainers: int) -> None:
        self.trainers = trainers
        self._arrays: dict[int, Any] = {}
        self._barrier = threading.Barrier(trainers, timeout=20)

    def total(self, rank: int, values: Any) -> Any:
        self._arrays[rank] = values
        self._barrier.wait()
        found = sum(self._arrays.values())
        self._barrier.wait()
        return found


class Fake:
    """A trainer whose prediction is twice the id."""

    def __init__(self, all_reduce: AllReduce, rank: int) -> None:
        self._all_reduce, self.rank, self.count = all_reduce, rank, all_reduce.trainers
        self.trainers = self
        self.predicted = 0

    def predict(self, arrays: Arrays) -> Any:
        self.predicted += len(arrays["ids"])
        return (2 * arrays["ids"]).astype(np.float32)

    def gather(self, values: list[float]) -> Any:
        mine = np.zeros((self._all_reduce.trainers, len(values)))
        mine[self.rank] = values
        return self.total(mine)

    def total(self, values: Any) -> Any:
        return self._all_reduce.total(self.rank, values)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> programs.TrainingProgram:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return load(write_program(tmp_path / "own", PROGRAM))


def scored(
    program: programs.TrainingProgram, folder: Path, rows: int, has: list[bool]
) -> tuple[list[dict[str, float]], list[int]]:
    """Return every trainer's score, and how many rows each predicted."""
    text = folder / "test.txt"
    text.write_text("".join(f"{n}\n" for n in range(rows)))
    test: Records = conversion.convert_text(program, text, "test.txt", folder / "records")
    all_reduce = AllReduce(len(has))
    fakes = [Fake(all_reduce, rank) for rank in range(len(has))]
    testers = [
        evaluation.Evaluator(program, cast(Any, fake), test if has[rank] else None)
        for rank, fake in enumerate(fakes)
    ]
    found: dict[int, dict[str, float]] = {}
    threads = [
        threading.Thread(target=lambda rank=rank: found.update({rank: testers[rank].score()}))
        for rank in range(len(has))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(len(has))], [fake.predicted for fake in fakes]


@pytest.mark.parametrize(
    ("rows", "has", "most"),
    [
        *((rows, [True] * 3, rows // 3 + 1) for rows in (1, 2, 10, 1000)),
        (100, [True, False, False], 100),
    ],
)
def test_all_trainers_predict_a_share_of_a_test_set_that_all_have_and_else_trainer_0_alone(
    program: programs.TrainingProgram,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    rows: int,
    has: list[bool],
    most: int,
) -> None:
    monkeypatch.setattr(evaluation, "CHUNK", 100)
    scores, predicted = scored(program, tmp_path, rows, has)
    assert scores == [{"wrong": 0, "rows": rows, "sum": rows * (rows - 1)}, {}, {}]
    assert max(predicted) <= most
    assert all(has) or predicted == [rows, 0, 0]


def test_a_model_with_a_nan_score_is_written_with_its_other_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = load(write_program(tmp_path / "program", PROGRAM))
    with pytest.raises(DataError, match=r"cannot score the model .*model\.json\. Fix: "):
        export.score_model(program, cast(Any, None), tmp_path)
    monkeypatch.setattr(export, "_write_networks", lambda *_: ([], []))
    scores = {"auc": float("nan"), "error": 0.5}
    assert export.export_from_memory(tmp_path / "model", program, {}, {}, lambda _: scores) == scores
    for name in ("score.json", "model.json"):
        value = json.loads((tmp_path / "model" / name).read_text())
        assert value.get("score", value) == {"error": 0.5}
