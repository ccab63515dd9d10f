"""Tests of mode sync on a real server: a gradient counts for its own step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from launcher.paths import Position

from .conftest import stage
from .test_embedding_tables import PROGRAM, gang, lines, saved, unpack

STEPS = 4
NO_FLUSH = """
import time
from launcher.trainer.fleet_trainer import FleetTrainer

def end_step(trainer):
    time.sleep(0.5)  # instead of the flush, which ends too early if the pushing thread is late
    trainer.servers.barrier()

FleetTrainer._apply_step = end_step
"""


@pytest.mark.paddle
def test_gradients_of_two_steps_are_not_merged_although_a_flush_ends_too_early(tmp_path: Path) -> None:
    training = gang(tmp_path, PROGRAM + NO_FLUSH, PASSES="1")
    one_batch = lines([(7, 0, (1.0, 1.0, 1.0, 1.0), 50)] * 4)
    stage(training.data[0], one_batch * STEPS, one_batch)
    rows = saved(training.finish(), Position(1), "adam")
    power = unpack("adam", rows[7])["b1"][0]
    assert np.isclose(power, 0.8 ** (STEPS + 1)), "it starts with beta1, and each step multiplies it by beta1"


LATE = """
from launcher.trainer import paddle_internals
from launcher.trainer.fleet_trainer import FleetTrainer

# Paddle's flush waits 100 ms if no gradient has left its queue.
paddle_internals._PUSH_FLAGS = {k: 300 * ("interval" in k) for k in paddle_internals._PUSH_FLAGS}
flush = FleetTrainer._apply_step
rows = [np.zeros((1, 4))]  # row 7 after each step

def end_step(trainer):
    dense = trainer.parameters()
    flush(trainer)
    after = trainer.parameters()
    changed = {name for name in dense if not np.array_equal(dense[name], after[name])}
    assert changed == set(dense), f"of {set(dense)} only {changed} were trained in this step"
    rows.append(trainer.servers.rows("sgd", np.array([7])))
    assert not np.array_equal(rows[-1], rows[-2]), "the gradient of this step has not arrived"

FleetTrainer._apply_step = end_step
"""


@pytest.mark.paddle
def test_a_step_waits_for_gradients_that_a_late_thread_has_not_sent_yet(tmp_path: Path) -> None:
    training = gang(tmp_path, "import numpy as np\n" + PROGRAM + LATE, PASSES="1")
    one_batch = lines([(7, 0, (1.0, 1.0, 1.0, 1.0), 50)] * 4)
    stage(training.data[0], one_batch * STEPS, one_batch)
    assert "100 ms more" not in training.finish().log()


SHOW = """
import time
from launcher.trainer import paddle_internals, server_memory
from launcher.trainer.fleet_trainer import FleetTrainer

apply = FleetTrainer._apply_step

def show(trainer):
    apply(trainer)
    print("step", {name: value.tolist() for name, value in trainer.parameters().items()}, flush=True)

FleetTrainer._apply_step = show
"""
UNKNOWN_CLIENT = """
flush = paddle_internals.ServerConnection.flush
paddle_internals.ServerConnection.flush = lambda servers: (flush(servers), time.sleep(0.5))

class Unknown(server_memory.PendingPushes):
    def __init__(self, tables):
        for name, value in (("_STATE_BYTES", 40), ("_CLIENT", "missing"), ("SEARCHED_WORDS", (16, 8))):
            right = getattr(server_memory, name)
            setattr(server_memory, name, value)
            try:
                super().__init__(tables)
            except server_memory.LayoutError as error:
                found = error
            else:
                raise AssertionError(f"{name} = {value} is not noticed")
            setattr(server_memory, name, right)
        raise found

paddle_internals.PendingPushes = Unknown
"""
"""A client whose memory differs in three ways. Paddle's own wait of 100 ms ends too early on a busy machine."""


@pytest.mark.paddle
def test_steps_use_paddles_own_wait_if_the_check_of_the_client_fails(tmp_path: Path) -> None:
    steps = []
    for number, patch in enumerate(("", UNKNOWN_CLIENT)):
        training = gang(tmp_path / str(number), PROGRAM + SHOW + patch, PASSES="1")
        stage(training.data[0], lines() * STEPS, lines())
        log = training.finish().log()
        assert ("each step takes 100 ms more" in log) == bool(patch), patch
        steps.append([line for line in log.splitlines() if line.startswith("step ")])
    assert len(set(steps[0])) == STEPS
    assert steps[1] == steps[0], "the parameters after each step do not depend on how it waits"
