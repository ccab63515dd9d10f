"""Builds a program's networks on a user's machine as pservers and trainers do, without any server."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from paddle.distributed import fleet

from launcher.worker.graph import Graph
from launcher.worker.network import begin
from launcher.worker.parts import shards
from launcher.worker.program import Program
from launcher.worker.samples import Arrays, row_type, split
from launcher.worker.shapes import ROWS, check_batch
from launcher.worker.single import Single


class _Alone(fleet.UserDefinedRoleMaker):  # type: ignore[misc]
    """Trainer 0 of one trainer and one server that nobody asks."""

    def __init__(self) -> None:
        endpoints: dict[str, Any] = {"server_endpoints": ["127.0.0.1:1"], "worker_endpoints": ["127.0.0.1:2"]}
        super().__init__(current_id=0, role=fleet.Role.WORKER, worker_num=1, **endpoints)

    def _gloo_init(self) -> None:
        """Meets no other trainer."""


def check(
    program: Program, batch: Arrays | None, *, mode: str, batch_size: int, delta_saves: int
) -> list[str]:
    """Build the networks of the model and of the servers, and train one batch of rows.

    Args:
        program: the user's program.
        batch: `shapes.ROWS` rows, or fewer; None: there are none here, and nothing is trained.
        mode: training.mode.
        batch_size: training.batchSize, in rows.
        delta_saves: training.deltaSaves.

    Returns:
        The names of its scores; empty when metrics() could not be called with such rows.

    Raises:
        SettingsError: the program cannot be trained; the message names its function and line.
    """
    single = Single(program)
    if batch is not None:
        with program.calling("network()"):
            scores = check_batch(program, single.predict, batch)
            single.step(batch)
    else:
        scores = _scores_of_made_up_rows(program, single)
    begin(single.seed)
    logging.disable(logging.INFO)  # Paddle's notes on its strategy
    try:
        Graph(program, _Alone(), mode=mode, batch_size=batch_size, delta_saves=delta_saves, shards=shards(1))
    finally:
        logging.disable(logging.NOTSET)
    return scores


def _scores_of_made_up_rows(program: Program, single: Single) -> list[str]:
    """The scores' names; empty when metrics() cannot do with such rows: labels 0 and 1, all else 0."""
    rows = np.zeros(ROWS, row_type(program.inputs))
    rows[program.label][::2] = 1
    try:
        return check_batch(program, single.predict, split(rows))
    except Exception:  # whatever a program makes of rows that it never meets
        return []
