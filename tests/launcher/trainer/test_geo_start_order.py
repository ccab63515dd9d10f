"""Tests of the start in mode geo: no wait at the servers' barrier, and trainer 0 sends its parameters first.

Each test runs in its own process, because Paddle must not be imported by other tests there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

TURNS = """
import json, sys
from types import SimpleNamespace
from paddle.distributed.communicator import Communicator
from launcher.trainer.pserver_client import PserverClient
order = []
Communicator.init_params = lambda self, context: order.append("parameters")
settings = SimpleNamespace(rank=int(sys.argv[1]))
PserverClient._take_turns(SimpleNamespace(settings=settings, barrier=lambda: order.append("barrier")))
Communicator.init_params(None, {})
print(json.dumps(order))
"""

BARRIER = """
import json
from types import SimpleNamespace
from paddle.distributed.ps import the_one_ps
from launcher.trainer.fleet_process import FleetProcess
role = SimpleNamespace(_worker_num=lambda: 3)
context = {"is_heter_ps_mode": False, "role_maker": role, "is_sync": False}
found = []
for change in (lambda: None, FleetProcess._open_barrier):
    change()
    description = the_one_ps.the_one_ps_pb2.TableParameter()
    the_one_ps.BarrierTable(context, 0)._set(description)
    found.append(description.common.trainer_num)
print(json.dumps(found))
"""


def run(program: str, *arguments: str) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.paddle
@pytest.mark.parametrize(("rank", "order"), [(0, ["parameters", "barrier"]), (1, ["barrier", "parameters"])])
def test_trainer_0_sends_its_parameters_before_the_others_fetch_them(rank: int, order: list[str]) -> None:
    assert run(TURNS, str(rank)) == order


@pytest.mark.paddle
def test_the_servers_barrier_lets_each_trainer_through_alone() -> None:
    assert run(BARRIER) == [3, 1]
