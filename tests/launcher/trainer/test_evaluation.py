"""Tests of the evaluation by all trainers together and by trainer 0 alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from launcher.errors import DataError
from launcher.trainer import conversion, evaluation, export
from launcher.trainer import program_loader as programs
from launcher.trainer.record_files import Arrays

from .conftest import STUBS, load, write_program

PROGRAM = (
    STUBS
    + """
COLUMNS = ("number",)
LABEL = "number"
def inputs(job): return {"ids": Ids(1), "number": Real()}
def parse(row, job): return {"ids": int(row["number"]), "number": float(row["number"])}
def metrics(prediction, label):
    return {"wrong": np.sum(prediction != 2 * label), "rows": len(label), "sum": prediction.sum()}
"""
)


class Fake:
    """A trainer whose prediction is twice the id. `total` returns the sum of the arrays of the ranks so far."""

    def __init__(self, rank: int, has: list[bool], arrays: list[Any]) -> None:
        self.rank, self.count, self._has, self._arrays = rank, len(has), has, arrays
        self.trainers = self
        self.predicted = 0

    def predict(self, arrays: Arrays) -> Any:
        self.predicted += len(arrays["ids"])
        return (2 * arrays["ids"]).astype(np.float32)

    def gather(self, values: list[float]) -> Any:
        assert values == [self._has[self.rank]]
        return np.array([self._has]).T

    def total(self, values: Any) -> Any:
        self._arrays.append(values)
        return sum(self._arrays)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> programs.TrainingProgram:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return load(write_program(tmp_path / "own", PROGRAM))


def scored(
    program: programs.TrainingProgram, folder: Path, rows: int, has: list[bool]
) -> tuple[list[dict[str, float]], list[int]]:
    """Return every trainer's score, and how many rows each predicted. Rank 0 is last: it gets the sum of all."""
    text = folder / "test.txt"
    text.write_text("".join(f"{n}\n" for n in range(rows)))
    test = conversion.convert_text(program, text, "test.txt", folder / "records")
    arrays: list[Any] = []
    fakes = [cast(Any, Fake(rank, has, arrays)) for rank in range(len(has))]
    scores = [
        evaluation.evaluate_together(program, fake, test if has[fake.rank] else None)
        for fake in reversed(fakes)
    ]
    return scores[::-1], [fake.predicted for fake in fakes]


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
        evaluation.score_model(program, cast(Any, None), tmp_path)
    monkeypatch.setattr(export, "_write_networks", lambda *_: ([], []))
    scores = {"auc": float("nan"), "error": 0.5}
    assert export.export_from_memory(tmp_path / "model", program, {}, {}, lambda _: scores) == scores
    for name in ("score.json", "model.json"):
        value = json.loads((tmp_path / "model" / name).read_text())
        assert value.get("score", value) == {"error": 0.5}
