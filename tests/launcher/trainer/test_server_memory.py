"""Tests of reading and writing the rows in the memory of a real pserver, which serves no trainer here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from launcher.runtimes.fleet import FleetRuntime
from launcher.trainer import server_memory

from .conftest import TRAINED, prepare_own

pytestmark = pytest.mark.paddle
PROGRAM = (
    TRAINED
    + """
COLUMNS = ("id", "label")
OPTIONS = {"width": 5}

def inputs(job):
    return {"ids": Ids(1), "label": Real()}

def parse(row, job):
    return {"ids": [int(row["id"])], "label": 1.0}

def network(data, job):
    own, loss = paddle.optimizer, 0.0
    tables = {"adam": own.Adam(0.1), "sgd": own.SGD(0.5), "adagrad": own.Adagrad(0.2, initial_accumulator_value=0.1)}
    for name, optimizer in tables.items():
        found = job.embedding(data["ids"], job.options["width"], name, optimizer=optimizer, admit=3, pool="sum")
        guess = paddle.static.nn.fc(found, 1, name=f"guess.{name}")
        loss = loss + paddle.mean(paddle.square(guess - data["label"]))
    return guess, loss
"""
)
BEGIN = """
import numpy as np, paddle
from paddle.distributed import fleet
from launcher.trainer import fleet_trainer, paddle_internals, program_loader, server_memory
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.server_tables import RowShape, ServerLayout

settings = ProcessSettings.from_environ()
program = program_loader.load_program(settings.program_file, settings.work.tables, settings.args)
layout = ServerLayout.read(settings)
_, network = fleet_trainer._build_graph(settings, program, layout)
with paddle.static.program_guard(network.main, network.startup):
    fleet.init_server()
numbers = paddle_internals.table_numbers()
shapes = network.shapes
own = range(layout.shards)
dense = paddle_internals.dense_shape(0, 1)
memory = server_memory.ServerMemory(numbers, shapes, layout.shards, own, dense)
random = np.random.default_rng(1)

def rows(table):
    groups = [group for shard in own for group in memory.read_shard(table, shard)]
    return {id_: row.tolist() for ids, chunks in groups if len(ids)
            for id_, row in zip(ids.tolist(), np.concatenate(list(chunks)))}

def new(ids, columns):
    return random.normal(size=(len(ids), columns)).astype(np.float32)

def as_dict(ids, values):
    return {id_: row.tolist() for id_, row in zip(ids.tolist(), values)}
"""
READ_AND_WRITE = """
for table, shape in shapes.items():
    full, short = shape.columns
    ids = np.unique(random.integers(1, 2**64, 4000, dtype=np.uint64))
    long, late = ids[::2], ids[1::2]
    expected = as_dict(long, first := new(long, full)) | as_dict(late, second := new(late, short))
    memory.write_rows(table, long, first)
    memory.write_rows(table, late, second)
    assert rows(table) == expected and memory.size(table) == len(ids)
    samples, vectors = memory.sample(table)
    assert len(samples) >= layout.shards
    for id_, vector in as_dict(samples, vectors).items():
        assert vector == shape.vectors(np.array([expected[id_]], np.float32))[0].tolist()
    # Both kinds of rows may change into the other one: a restore of a checkpoint does that.
    expected |= as_dict(long[:50], third := new(long[:50], short)) | as_dict(late[:50], fourth := new(late[:50], full))
    memory.write_rows(table, long[:50], third)
    memory.write_rows(table, late[:50], fourth)
    assert rows(table) == expected
    memory.count_unseen(table)
    assert rows(table) == {id_: [row[0], np.float32(row[1]) + np.float32(1), *row[2:]] for id_, row in expected.items()}
"""
NEW_ROWS = """
for table, shape in shapes.items():
    ids, new_ids = np.arange(1, 60, dtype=np.uint64), np.arange(100, 160, dtype=np.uint64)
    memory.write_rows(table, ids, new(ids, shape.columns[0]))
    memory._push(table, new_ids)
    vectors = shape.vectors(np.array([rows(table)[id_] for id_ in new_ids.tolist()], np.float32))
    assert np.abs(vectors).min(axis=0).all() and len(np.unique(vectors)) == vectors.size, vectors
"""
FIND_REASON = """
def reason(**changes):
    before = {key: getattr(server_memory, key) for key in changes}
    vars(server_memory).update(changes)
    try:
        server_memory.ServerMemory(numbers, shapes, layout.shards, own, dense)
    except server_memory.LayoutError as error:
        return str(error)
    finally:
        vars(server_memory).update(before)
    return ""

assert reason() == "", "the tables are empty again after the first check"
"""
OUTSIDE_ROWS = """
assert "lacks a symbol" in reason(_CORE="_ZN6paddle7missing")
assert "no list with the tables [0, 1, 2]" in reason(SEARCHED_WORDS=(1, 1))
adam, shapes["adam"] = shapes["adam"], RowShape(7, "sgd")
assert "table adam: sizes of the optimizers" in reason()
shapes["adam"], arrays = adam, dict(dense.arrays)
dense.arrays["Param"] = (4, None)
assert "found no vector of vectors with [4, 1] numbers" in reason()
dense.arrays.update(arrays, LearningRate=(1, 0.5))
assert "LearningRate has other numbers than expected" in reason()
"""
"""What is noticed before any row is created; after other differences the tables may contain rows."""
DENSE = """
# Three layers with one number for each element of a vector, and a bias.
assert list(memory.dense) == ["Param"] and len(memory.dense["Param"]) == 18, dense
assert (dense.part, dense.total) == (range(18), 18), dense
assert list(dense.arrays) == ["Param", "LearningRate"] and dense.arrays["LearningRate"][0] == 1
"""
SCRIPTS = {
    "rows": READ_AND_WRITE,
    "width 1": READ_AND_WRITE,
    "new rows are random": NEW_ROWS,
    "dense": DENSE,
    "what differs besides rows": FIND_REASON + OUTSIDE_ROWS,
    "maps": FIND_REASON + 'assert "ids and addresses of rows" in reason(MAPS=1)',
    "map": FIND_REASON + "assert reason(MAP_BYTES=56)",
    "mark": FIND_REASON + "assert reason(USED=1)",
    "row": FIND_REASON
    + 'shapes["adam"] = RowShape(5, "sgd")\nassert "table adam: numbers of a " in reason()',
}


@pytest.mark.parametrize("view", [server_memory._WORDS, server_memory._row_values(7)])
def test_views_of_the_memory_contain_all_addresses_of_arm64(view: NDArray[Any]) -> None:
    last = view[-1:].__array_interface__["data"][0]
    assert last + 16 >= 1 << 48


@pytest.mark.parametrize("name", SCRIPTS)
def test_rows_in_the_memory_of_a_pserver(tmp_path: Path, name: str) -> None:
    script, width = SCRIPTS[name], 1 if name == "width 1" else 5
    training = prepare_own(tmp_path, PROGRAM, [["1\t1"]], ARGS=json.dumps([f"--width={width}"]))
    [spec] = FleetRuntime().pservers(training.gang(0))
    training.run_code(spec, BEGIN + script)
