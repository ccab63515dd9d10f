"""Tests of mode geo: the order of the start, the servers' barrier, and the gradients of Adam.

Each test runs a script in its own process with its own import of Paddle, because the scripts change Paddle's classes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import run_python, write_program

pytestmark = pytest.mark.paddle
STEPS = 300

PROGRAM = """
import paddle
from launcher.program import Ids, Real

COLUMNS = ("id", "label")
LABEL = "label"

def inputs(job):
    return {"ids": Ids(1), "label": Real()}

def parse(row, job):
    return {"ids": int(row["id"]), "label": float(row["label"])}

def network(data, job):
    sums = paddle.sum(job.embedding(data["ids"], 9, "own", rows=80, spread=0.5), axis=[1, 2])
    guess = paddle.static.nn.fc(paddle.unsqueeze(sums, 1), 1, name="guess")
    return guess, paddle.mean(paddle.square(guess - data["label"]))

def metrics(prediction, label):
    return {}

def optimizer(job):
    return paddle.optimizer.Adam(0.05)
"""

TRAIN = """
import json, sys
from pathlib import Path
import numpy as np
import paddle
from launcher.trainer import program_loader as programs
from launcher.trainer.graph.network_builder import build_network

path, steps = Path(sys.argv[1]), int(sys.argv[2])
paddle.enable_static()
program = programs.load_program(path, path.parent)
network = build_network(program, "copied")
with paddle.static.program_guard(network.main, network.startup):
    program.module.optimizer(program.job).minimize(network.loss)
[name] = [v.name for v in network.main.list_vars() if v.persistable and v.name.startswith("own_moment1")]
exe, rng = paddle.static.Executor(paddle.CPUPlace()), np.random.default_rng(1)
exe.run(network.startup)
moment = paddle.static.global_scope().find_var(name).get_tensor()
wrong, shapes = [], set()
for _ in range(steps):
    rows = int(rng.integers(1, 20))
    ids = rng.integers(1, 80, (rows, 1))
    before = np.array(moment)
    [found] = exe.run(network.main, {"ids": ids, "label": rng.random((rows, 1), np.float32)},
                      [network.prediction])
    shapes.add(found.shape == (rows, 1))
    still = np.setdiff1d(np.arange(80), ids)
    moved = ~np.isclose(np.array(moment)[still], np.float32(0.9) * before[still], rtol=1e-5, atol=1e-12)
    wrong += still[moved.any(axis=1)].tolist()
print(json.dumps([len(wrong), bool(np.array(moment).any()), sorted(shapes)]))
"""

START = """
import json
from types import SimpleNamespace
from paddle.distributed.communicator import Communicator
from paddle.distributed.ps import the_one_ps
from launcher.trainer.fleet_process import FleetProcess
from launcher.trainer.pserver_client import PserverClient

def take_turns(rank):
    order = []
    Communicator.init_params = lambda self, context: order.append("parameters")
    settings = SimpleNamespace(rank=rank)
    PserverClient._take_turns(SimpleNamespace(settings=settings, barrier=lambda: order.append("barrier")))
    Communicator.init_params(None, {})
    return order

role = SimpleNamespace(_worker_num=lambda: 3)
context = {"is_heter_ps_mode": False, "role_maker": role, "is_sync": False}
found = []
for change in (lambda: None, FleetProcess._open_barrier):
    change()
    description = the_one_ps.the_one_ps_pb2.TableParameter()
    the_one_ps.BarrierTable(context, 0)._set(description)
    found.append(description.common.trainer_num)
print(json.dumps([take_turns(0), take_turns(1), found]))
"""


def run_script(script: str, *arguments: str) -> list[Any]:
    """Run Python code in a new process, and return the JSON array in the last line of its output."""
    return list(json.loads(run_python(script, *arguments).splitlines()[-1]))


def test_trainer_0_sends_its_parameters_before_the_others_fetch_them_without_the_servers_barrier() -> None:
    first, second, trainers_at_barrier = run_script(START)
    assert first == ["parameters", "barrier"]
    assert second == ["barrier", "parameters"]
    assert trainers_at_barrier == [3, 1], (
        "Paddle's own number, and the one that lets each trainer through alone"
    )


def test_adam_gives_no_gradient_to_a_row_that_is_not_in_the_batch(tmp_path: Path) -> None:
    """Unpatched, Paddle 2.6.2 sometimes reads such a gradient from memory after the batch's own.

    It did so for 11, 27 and 18 rows in three times 300 batches.
    """
    path = write_program(tmp_path / "own", PROGRAM)
    wrong, trained, row_counts_match = run_script(TRAIN, str(path), str(STEPS))
    assert trained
    assert row_counts_match == [True], "the network itself sees the batch's rows, and no other"
    assert wrong == 0, f"in {STEPS} batches {wrong} rows had a gradient without being there"
