"""geo's start: nobody waits at the servers' barrier, and trainer 0's parameters are there before others take
them. In a process of its own, since Paddle must not be loaded beside what the other tests load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import needs_paddle

ROOT = Path(__file__).resolve().parents[3]

TURNS = """
import json, sys
from types import SimpleNamespace
from paddle.distributed.communicator import Communicator
from launcher.worker.trainer import Trainer
order = []
Communicator.init_params = lambda self, context: order.append("parameters")
settings = SimpleNamespace(rank=int(sys.argv[1]))
Trainer._take_turns(SimpleNamespace(settings=settings, barrier=lambda: order.append("meet")))
Communicator.init_params(None, {})
print(json.dumps(order))
"""

BARRIER = """
import json
from types import SimpleNamespace
from paddle.distributed.ps import the_one_ps
from launcher.worker.session import Session
role = SimpleNamespace(_worker_num=lambda: 3)
context = {"is_heter_ps_mode": False, "role_maker": role, "is_sync": False}
found = []
for change in (lambda: None, Session._open_barrier):
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


@needs_paddle
@pytest.mark.parametrize(("rank", "order"), [(0, ["parameters", "meet"]), (1, ["meet", "parameters"])])
def test_trainer_0_sends_its_parameters_before_the_others_take_them(rank: int, order: list[str]) -> None:
    assert run(TURNS, str(rank)) == order


@needs_paddle
def test_the_servers_barrier_lets_each_trainer_through_alone() -> None:
    assert run(BARRIER) == [3, 1]
