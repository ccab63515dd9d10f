"""Test of mode sync on a real server: a gradient counts for its own step."""

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
