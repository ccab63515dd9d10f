"""Tests of tables on real servers: optimizers, ids, admission, eviction, and checkpoints of other gangs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.io import checkpoints
from launcher.paths import Position
from launcher.trainer import row_files
from launcher.trainer.server_tables import RowShape
from testkit.shared_fixtures import create_once

from .conftest import TRAINED, load, prepare_own, stage, write_program
from .loopback_training import LoopbackTraining

PROGRAM = (
    TRAINED
    + '''
COLUMNS = ("id", "other", "slopes", "late", "label")
OPTIONS = {"width": 4, "rule": "adam"}

def inputs(job):
    return {"ids": Ids(2), "slopes": Real(4), "late": Ids(1), "label": Real()}

def parse(row, job):
    slopes = [float(value) for value in row["slopes"].split()]
    return {"ids": [int(row["id"]), int(row["other"])], "slopes": slopes, "late": [int(row["late"])],
            "label": float(row["label"])}

def network(data, job):
    """The gradient of each vector is its row's slopes by the number of rows."""
    own = paddle.optimizer
    width = job.options["width"]
    tables = {
        "adam": own.Adam(0.1, beta1=0.8, beta2=0.9, epsilon=0.01),
        "sgd": own.SGD(0.5),
        "adagrad": own.Adagrad(0.2, initial_accumulator_value=0.1),
    }
    swap = {"sgd": own.SGD(0.5)}.get(job.options["rule"])
    slopes = paddle.unsqueeze(data["slopes"], 1)
    loss = 0.0
    for name, optimizer in tables.items():
        if name == "adam" and swap is not None:
            optimizer = swap
        vectors = job.embedding(data["ids"], width, name, spread=0.5, optimizer=optimizer)
        loss = loss + paddle.mean(paddle.sum(vectors[:, :, :4] * slopes, axis=[1, 2]))
    for name, more in (("admitted", {"admit": 3}), ("evicted", {"evict": 1})):
        vectors = job.embedding(data["late"], width, name, spread=0.5, **more)
        loss = loss + paddle.mean(paddle.sum(vectors[:, :, :4] * slopes, axis=[1, 2]))
    both = {"spread": 0.5, "optimizer": own.SGD(0.5)}
    pooled = job.embedding(data["ids"], width, "shared", pool="sum", weights=data["slopes"][:, :2], **both)
    single = job.embedding(data["late"], width, "shared", **both)
    loss = loss + paddle.mean(paddle.sum((pooled + single[:, 0])[:, :4] * data["slopes"], axis=1))
    guess = paddle.static.nn.fc(data["slopes"], 1, name="guess")
    return guess, loss + paddle.mean(paddle.square(guess - data["label"]))
'''
)
HIGH = 2**64 - 2
ROWS = [
    # id, other, slopes, late
    (7, 0, (8.0, -4.0, 2.0, 1.0), 50),
    (HIGH, 7, (1.0, 1.0, -3.0, 0.5), 51),
    (9, 9, (0.5, 2.0, 0.0, -2.0), HIGH),
    (1 << 63, 11, (-1.0, 0.25, 4.0, 3.0), 53),
]
"""One batch. 7 comes in two rows, 9 twice in one; 0 is padding."""


def lines(rows: list[tuple[Any, ...]] = ROWS) -> list[str]:
    return [f"{a}\t{b}\t{' '.join(map(str, slopes))}\t{late}\t1" for a, b, slopes, late in rows]


def slopes(rows: list[tuple[Any, ...]] = ROWS) -> dict[int, tuple[np.ndarray, int]]:
    """Return each id's total gradient in a step, and its number of appearances."""
    found: dict[int, tuple[np.ndarray, int]] = {}
    for a, b, gradient, _ in rows:
        for key in (a, b):
            if key:
                before, times = found.get(key, (np.zeros(4), 0))
                found[key] = before + np.array(gradient) / len(rows), times + 1
    return found


def gang(root: Path, text: str = PROGRAM, ranks: int = 1, **values: str) -> LoopbackTraining:
    few = {"MODE": "sync", "PASSES": "3", "KEEP_CHECKPOINTS": "20", "BATCH_SIZE": "4"}
    return prepare_own(root, text, [lines()] * ranks, **few | values)


def saved(started: LoopbackTraining, at: Position, table: str) -> dict[int, list[float]]:
    """Return the rows of a checkpoint by key."""
    folder = started.output.checkpoint(at)
    contents = checkpoints.read_contents(folder)
    about = contents.tables[table]
    shape = RowShape(about.width, about.rule)
    return {
        key: row
        for path in sorted((folder / "tables" / table).iterdir())
        for ids, values in row_files.read_shard(path, shape, contents.shards)
        for key, row in zip(ids.tolist(), values.tolist(), strict=True)
    }


def unpack(kind: str, fields: list[float]) -> dict[str, np.ndarray]:
    """Return a row's weights and optimizer state, each as four numbers."""
    numbers = np.array(fields[5:])
    if kind == "sgd":
        return {"w": numbers}
    if kind == "adagrad":
        return {"w": numbers[[0, 2, 3, 4]], "sum": numbers[[1, 5, 6, 7]]}
    return {
        "w": numbers[[0, 5, 6, 7]],
        "m": numbers[[1, 8, 9, 10]],
        "v": numbers[[2, 11, 12, 13]],
        "b1": numbers[[3, 14, 14, 14]],
        "b2": numbers[[4, 15, 15, 15]],
    }


def step(kind: str, row: dict[str, np.ndarray], gradient: np.ndarray, times: int) -> dict[str, np.ndarray]:
    """Apply one step of the named optimizer."""
    if kind == "sgd":
        return {"w": row["w"] - 0.5 * gradient}
    if kind == "adagrad":
        mean = gradient / times
        return {"w": row["w"] - 0.2 * mean / np.sqrt(0.1 + row["sum"]), "sum": row["sum"] + mean**2}
    m, v = 0.8 * row["m"] + 0.2 * gradient, 0.9 * row["v"] + 0.1 * gradient**2
    rate = 0.1 * np.sqrt(1 - row["b2"]) / (1 - row["b1"])
    w = row["w"] - rate * m / (np.sqrt(v) + 0.01)
    return {"w": w, "m": m, "v": v, "b1": row["b1"] * 0.8, "b2": row["b2"] * 0.9}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> LoopbackTraining:
    """Return a completed run of three passes, created once for all of pytest's processes."""
    root = tmp_path_factory.mktemp("tables")
    return create_once(tmp_path_factory, "tables", lambda: gang(root).finish())


@pytest.mark.paddle
def test_several_losses_train_tables_and_dense_parameters_as_their_sum(
    first: LoopbackTraining, tmp_path: Path
) -> None:
    named = (
        PROGRAM.replace("return guess, loss + ", 'return guess, {"tables": loss, "guess": ').rstrip() + "}\n"
    )
    ends = []
    for done in (first, gang(tmp_path, named, PASSES="1").finish()):
        contents = checkpoints.read_contents(done.output.checkpoint(Position(1)))
        rows = saved(
            done, Position(1), "adam"
        )  # their weights start with random numbers, their moments with 0
        moments = {key: unpack("adam", row)["m"].tolist() for key, row in rows.items()}
        ends.append((contents.files["params.npz"].sha256, moments))
    assert ends[0] == ends[1]
    assert any(ends[0][1][7])


@pytest.mark.paddle
def test_each_table_uses_its_optimizer_any_id_and_its_eviction(
    first: LoopbackTraining, tmp_path: Path
) -> None:
    gradients = slopes()
    for kind in ("adam", "sgd", "adagrad"):
        before, after = (saved(first, Position(number), kind) for number in (2, 3))
        assert set(before) == set(gradients), "ids of 64 bits are stored as they are, and 0 is not"
        for key, (gradient, times) in gradients.items():
            expected = step(kind, unpack(kind, before[key]), gradient, times)
            found = unpack(kind, after[key])
            for name, values in expected.items():
                assert np.allclose(found[name], values, rtol=2e-5, atol=1e-6), (kind, key, name)
    before, after = (saved(first, Position(number), "shared") for number in (2, 3))
    ids = {late for *_, late in ROWS}
    assert set(before) == ids | set(gradients), "two inputs' ids are in one table"
    for key in before:
        gradient = np.zeros(4)
        for *own, slope, late in ROWS:
            times = sum(slope[place] * (key == own[place]) for place in (0, 1)) + (key == late)
            gradient += np.array(slope) * times / len(ROWS)
        assert np.allclose(after[key][5:], before[key][5:] - 0.5 * gradient, rtol=2e-5, atol=1e-5), key
    for number, values in ((1, 6), (2, 6), (3, 9)):
        rows = saved(first, Position(number), "admitted")
        assert set(rows) == ids
        assert {len(row) for row in rows.values()} == {values}, (
            "the vector is created at the third appearance"
        )
    rows = lines([(7, 0, (1.0, 1.0, 1.0, 1.0), 50)] * 4)
    resumed = first.copied(tmp_path / "resumed", Position(3), PASSES="6")
    stage(resumed.data[0], rows, rows)
    resumed.finish()
    kept = [set(saved(resumed, Position(number), "evicted")) for number in (3, 4, 5, 6)]
    assert kept == [ids, {50}, {50}, {50}], "unseen from one save to the next, as in a run without a restart"
    assert set(saved(resumed, Position(6), "admitted")) == ids, "without evict no row is deleted"


@pytest.mark.paddle
def test_a_checkpoint_loads_on_more_or_fewer_servers_with_the_same_rows(tmp_path: Path) -> None:
    """5 servers load a checkpoint of 2, and one server loads theirs; each time follows a pass of one step.

    Of the 5 shards of a table, the two servers have 3 and 2; of the 5 dense numbers, the five have 2, 2, 1, 0 and 0.
    """
    started = gang(tmp_path, CONF_PADDLE_PORTS_NUM="2", PASSES="1").finish()
    for passes, servers in enumerate((5, 1), 1):
        before = {name: saved(started, Position(passes), name) for name in ("adam", "sgd", "adagrad")}
        params = dict(np.load(started.output.checkpoint(Position(passes)) / "params.npz"))
        values = {"CONF_PADDLE_PORTS_NUM": str(servers), "PASSES": str(passes + 1)}
        started = started.next_attempt(Position(passes), **values).finish()
        assert f"resumed from {Position(passes).folder}; the servers' values are verified" in started.log()
        for kind in ("adam", "sgd", "adagrad"):
            after = saved(started, Position(passes + 1), kind)
            for key, (gradient, times) in slopes().items():
                expected = step(kind, unpack(kind, before[kind][key]), gradient, times)
                assert np.allclose(unpack(kind, after[key])["w"], expected["w"], rtol=2e-5, atol=1e-6)
        contents = checkpoints.read_contents(started.output.checkpoint(Position(passes + 1)))
        dense = {name for name in contents.files if name.startswith("dense/")}
        assert len(dense) == servers, "each of them held a share"
        assert set(params) == set(
            np.load(started.output.checkpoint(Position(passes + 1)) / "params.npz").files
        )
    rejected = started.next_attempt(Position(3), CONF_PADDLE_PORTS_NUM="6")
    servers = tuple(f"0/pserver {number}" for number in range(6))
    assert rejected.run(without=servers)["0/trainer"] == 64
    for part in (
        "portsNum x trainers",
        "portsNum is 6, but must be 5 or 3",
        "shards of each table, and with 6 pservers",
    ):
        assert part in rejected.log()


@pytest.mark.paddle
def test_another_width_or_optimizer_than_in_the_checkpoint_is_one_message(
    first: LoopbackTraining, tmp_path: Path
) -> None:
    for option, difference in (
        ("--width=5", "its table adam has the width 4, but the program's has 5"),
        ("--rule=sgd", "its table adam has the optimizer adam, but the program's has sgd"),
    ):
        resumed = first.copied(tmp_path / option, Position(3), PASSES="4", ARGS=json.dumps([option]))
        assert resumed.run(without=("0/pserver 0",))["0/trainer"] == 64, "without waiting for the servers"
        [error] = [line for line in resumed.log().splitlines() if line.startswith("error: ")]
        assert f"training cannot resume from {Position(3).folder}: {difference}" in error
        rejected = resumed.output.checkpoint(Position(3)) / "rejected.json"
        assert not rejected.exists(), "with the old options it is good"


POOLED = (
    TRAINED
    + """
COLUMNS = ("label",)

def inputs(job):
    return {"ids": Ids(3), "weights": Real(3), "label": Real()}

def parse(row, job): ...

def network(data, job):
    found = [job.embedding(data["ids"], 2, f"table{n}", pool=pool, weights=weights)
             for n, (pool, weights) in enumerate([("sum", None), ("mean", None), ("mean", data["weights"])])]
    guess = paddle.static.nn.fc(paddle.concat(found, axis=1), 1, name="guess")
    return paddle.concat(found, axis=1), paddle.mean(guess)
"""
)


@pytest.mark.paddle
def test_vectors_are_pooled_without_padding_and_by_weight(tmp_path: Path) -> None:
    import paddle

    from launcher.trainer.network import build_network

    paddle.enable_static()
    network = build_network(load(write_program(tmp_path / "pooled", POOLED)), "served")
    executor, scope = paddle.static.Executor(paddle.CPUPlace()), paddle.static.Scope()
    vectors = np.array([[[1, 2], [3, 4], [0, 0]], [[0, 0], [0, 0], [0, 0]]], np.float32)
    feed = {
        "ids": np.array([[5, -2, 0], [0, 0, 0]]),
        "weights": np.array([[1, 3, 7], [1, 1, 1]], np.float32),
        "label": np.zeros((2, 1), np.float32),
        **{f"vectors@{n}": vectors for n in range(3)},
    }
    executor.run(network.startup, scope=scope)
    [found] = executor.run(network.main, feed=feed, fetch_list=[network.prediction], scope=scope)
    assert np.allclose(found, [[4, 6, 2, 3, 2.5, 3.5], [0] * 6])
