"""Builds a program's networks on a user's machine as pservers and trainers do, without any server."""

from __future__ import annotations

import logging
from typing import Any

from paddle.distributed import fleet

from launcher.worker.graph import Graph
from launcher.worker.network import begin
from launcher.worker.parts import shards
from launcher.worker.program import Program
from launcher.worker.samples import Arrays
from launcher.worker.shapes import check_batch
from launcher.worker.single import Single


class _Alone(fleet.UserDefinedRoleMaker):  # type: ignore[misc]
    """Trainer 0 of one trainer and one server that nobody asks."""

    def __init__(self) -> None:
        endpoints: dict[str, Any] = {"server_endpoints": ["127.0.0.1:1"], "worker_endpoints": ["127.0.0.1:2"]}
        super().__init__(current_id=0, role=fleet.Role.WORKER, worker_num=1, **endpoints)

    def _gloo_init(self) -> None:
        """Meets no other trainer."""


def check(program: Program, batch: Arrays | None, *, mode: str, batch_size: int, delta_saves: int) -> None:
    """Build the networks of the model and of the servers, and train one batch of rows.

    Args:
        program: the user's program.
        batch: `shapes.ROWS` rows, or fewer; None: there are none here, and nothing is trained.
        mode: training.mode.
        batch_size: training.batchSize, in rows.
        delta_saves: training.deltaSaves.

    Raises:
        SettingsError: the program cannot be trained; the message names its function and line.
    """
    single = Single(program)
    if batch is not None:
        with program.calling("network()"):
            check_batch(program, single.predict, batch)
            single.step(batch)
    begin(single.seed)
    logging.disable(logging.INFO)  # Paddle's notes on its strategy
    try:
        Graph(program, _Alone(), mode=mode, batch_size=batch_size, delta_saves=delta_saves, shards=shards(1))
    finally:
        logging.disable(logging.NOTSET)
