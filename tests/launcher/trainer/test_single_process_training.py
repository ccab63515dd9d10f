"""Tests of training in one process: table steps match Paddle's optimizers, and the model predicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .conftest import load, write_program

# Paddle warns of its own expressions, and here it runs in the tests' process.
pytestmark = [pytest.mark.paddle, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(autouse=True)
def static() -> None:
    import paddle

    paddle.enable_static()


def new_table(optimizer: object, width: int = 3):
    from launcher.trainer.paddle_internals import optimizer_rule
    from launcher.trainer.single_process import MemoryTable

    return MemoryTable(width, 0.1, optimizer_rule(optimizer), seed=1)


def by_paddle(make: Callable[[list], Any], start: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """Return the result of the same steps by Paddle's optimizer of a dense parameter."""
    import paddle

    paddle.disable_static()
    try:
        value = paddle.create_parameter(start.shape, "float32")
        value.set_value(start)
        optimizer = make([value])
        for gradient in gradients:
            (value * paddle.to_tensor(gradient)).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
        return value.numpy()
    finally:
        paddle.enable_static()


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_a_table_steps_like_paddles_optimizer(kind: str) -> None:
    import paddle

    make = getattr(paddle.optimizer, kind)
    table = new_table(make(0.1))
    ids = np.array([7, 1 << 63], np.uint64).view(np.int64)
    start = table.look_up(ids, train=True)
    random = np.random.default_rng(0)
    gradients = [random.normal(size=(2, 3)).astype(np.float32) for _ in range(5)]
    for gradient in gradients:
        table.step(ids, gradient)
    wanted = by_paddle(lambda parameters: make(0.1, parameters=parameters), start, gradients)
    assert np.allclose(table.look_up(ids, train=False), wanted, atol=1e-6)


def test_an_id_that_comes_twice_in_a_batch_steps_once_with_both_gradients() -> None:
    import paddle

    table = new_table(paddle.optimizer.SGD(0.5))
    ids = np.array([[5, 0], [5, 9]])
    start = table.look_up(ids, train=True)
    assert not start[0, 1].any(), "0 is padding"
    table.step(ids, np.ones((2, 2, 3), np.float32))
    after = table.look_up(ids, train=False)
    assert np.allclose(start[0, 0] - after[0, 0], 1.0)
    assert np.allclose(start[1, 1] - after[1, 1], 0.5)
    assert not after[0, 1].any()
    assert len(table) == 2


def test_untrained_ids_read_as_zeros_and_create_no_row() -> None:
    import paddle

    table = new_table(paddle.optimizer.Adam(0.1))
    assert not table.look_up(np.array([3, 4]), train=False).any()
    assert len(table) == 0
    table.look_up(np.arange(5000), train=True)
    ids, vectors = table.rows()
    assert ids.tolist() == list(range(1, 5000))
    assert np.array_equal(vectors, table.look_up(np.arange(1, 5000), train=False))
    assert 0.09 < np.abs(vectors).max() <= 0.1, "within the spread"


SHARED = """
import numpy as np
import paddle
from launcher.program import Ids, Real

COLUMNS = ("a", "b", "y", "z")
LABEL = "labels"

def inputs(job): return {"a": Ids(1), "b": Ids(2), "labels": Real(2)}

def parse(row, job):
    labels = [float(row["y"]), float(row["z"])]
    return {"a": int(row["a"]), "b": [int(x) for x in row["b"].split()], "labels": labels}

def network(data, job):
    swapped = paddle.concat([data["b"][:, 1:], data["b"][:, :1]], axis=1)  # ids that are computed
    one = job.embedding(data["a"], 2, "shared", pool="sum")
    other = job.embedding(swapped, 2, "shared", pool="sum")
    score = paddle.static.nn.fc(one + other, 2, name="score")
    first, second = paddle.split(paddle.square(score - data["labels"]), 2, axis=1)
    return score, {"y": paddle.mean(first), "z": paddle.mean(second)}

def metrics(prediction, label):
    square = np.square(prediction - label).mean(axis=0)
    return {"y": float(square[0]), "z": float(square[1])}

def optimizer(job): return paddle.optimizer.Adam(0.05)
"""


def test_several_losses_and_labels_slots_of_one_table_and_computed_ids(tmp_path: Path) -> None:
    from launcher.trainer import conversion
    from launcher.trainer.single_process import SingleProcessTrainer

    data = tmp_path / "data"
    data.mkdir()
    random = np.random.default_rng(0)
    lines = []
    for a, b, c in random.integers(1, 6, (2000, 3)).tolist():
        lines.append(f"{a}\t{b} {c}\t{(a + b + c) / 5}\t{(a * a + b * b + c * c) / 25}\n")
    (data / "train.txt").write_text("".join(lines[:1800]))
    (data / "test.txt").write_text("".join(lines[1800:]))
    program = load(write_program(tmp_path / "own", SHARED))
    train, test = conversion.convert_staged(program, data, tmp_path / "records", 0, test=True)
    done = list(SingleProcessTrainer(program).passes(train, test, 8, 64))
    for name in ("y", "z"):
        assert (
            done[-1][name] < 0.01 < np.var([float(line.split("\t")["yz".index(name) + 2]) for line in lines])
        )
    assert done[-1]["loss"] < done[0]["loss"]
