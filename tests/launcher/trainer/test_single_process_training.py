"""Tests of training in one process: table steps match Paddle's optimizers, and the model predicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .conftest import TRAINED, load, write_program
from .test_embedding_tables import step

# Paddle warns of its own expressions, and here it runs in the tests' process.
pytestmark = [pytest.mark.paddle, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(autouse=True)
def static() -> None:
    import paddle

    paddle.enable_static()


def new_table(optimizer: object, width: int = 3):
    from launcher.trainer.paddle_internals import optimizer_rule
    from launcher.trainer.single_process import MemoryTable

    return MemoryTable(width, 0.1, optimizer_rule(optimizer, "table"), seed=1)


@pytest.mark.parametrize("kind", ["adam", "sgd", "adagrad"])
def test_a_table_steps_as_those_of_the_servers_with_the_sum_or_mean_of_an_ids_gradients(kind: str) -> None:
    from paddle.optimizer import SGD, Adagrad, Adam

    optimizers = {
        "adam": Adam(0.1, beta1=0.8, beta2=0.9, epsilon=0.01),
        "sgd": SGD(0.5),
        "adagrad": Adagrad(0.2, initial_accumulator_value=0.1),
    }
    table = new_table(optimizers[kind], width=4)
    ids = np.array([[7, 1 << 63], [7, 0]], np.uint64).view(np.int64)  # 0 is padding
    (seven, high), (_, padding) = table.look_up(ids, train=True)
    fresh = {"m": 0, "v": 0, "b1": 0.8, "b2": 0.9, "sum": 0}
    rows, random = [{"w": seven, **fresh}, {"w": high, **fresh}], np.random.default_rng(0)
    for _ in range(5):
        gradients = random.normal(size=(2, 2, 4)).astype(np.float32)
        table.step(ids, gradients)
        rows[0] = step(kind, rows[0], gradients[0, 0] + gradients[1, 0], 2)
        rows[1] = step(kind, rows[1], gradients[0, 1], 1)
    expected = [[rows[0]["w"], rows[1]["w"]], [rows[0]["w"], padding]]
    assert np.allclose(table.look_up(ids, train=False), expected, atol=1e-5)
    assert not padding.any()
    assert len(table.rows().ids) == 2


def test_untrained_ids_read_as_zeros_and_create_no_row() -> None:
    import paddle

    table = new_table(paddle.optimizer.Adam(0.1))
    assert not table.look_up(np.array([3, 4]), train=False).any()
    assert not len(table.rows().ids)
    table.look_up(np.arange(5000), train=True)
    ids, vectors = table.rows()
    assert ids.tolist() == list(range(1, 5000))
    assert np.array_equal(vectors, table.look_up(np.arange(1, 5000), train=False))
    assert 0.09 < np.abs(vectors).max() <= 0.1, "within the spread"


SHARED = (
    TRAINED
    + """
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
)


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
    train, test = conversion.convert_staged(program, data, tmp_path / "records", 0)
    done = list(SingleProcessTrainer(program).passes(train, test, 8, 64))
    for name in ("y", "z"):
        assert (
            done[-1][name] < 0.01 < np.var([float(line.split("\t")["yz".index(name) + 2]) for line in lines])
        )
    assert done[-1]["loss"] < done[0]["loss"]
