"""Check a program on a user's machine: build its networks as on the cluster, and train one batch."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from paddle.distributed import fleet

from launcher.trainer.checkpoint.table_files import choose_shard_count
from launcher.trainer.graph.network_builder import prepare_paddle
from launcher.trainer.graph.shape_checks import ROWS, check_batch
from launcher.trainer.graph.training_graph import TrainingGraph
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.records.row_parsing import Arrays, record_dtype, split_inputs
from launcher.trainer.single_process.single_process_trainer import SingleProcessTrainer


class _Alone(fleet.UserDefinedRoleMaker):  # type: ignore[misc]
    """Tells Paddle that this process is the only trainer, with one pserver that is never contacted."""

    def __init__(self) -> None:
        endpoints: dict[str, Any] = {"server_endpoints": ["127.0.0.1:1"], "worker_endpoints": ["127.0.0.1:2"]}
        super().__init__(current_id=0, role=fleet.Role.WORKER, worker_num=1, **endpoints)

    def _gloo_init(self) -> None:
        """Skip gloo, since there is no other trainer."""


def check_program(
    program: TrainingProgram,
    batch: Arrays | None,
    *,
    mode: str,
    batch_size: int,
    incremental_checkpoints: int,
) -> list[str]:
    """Build the network for one process and for training with pservers, and train one batch of rows.

    Args:
        batch: at most `shape_checks.ROWS` rows; None: no rows are available, and nothing is trained.

    Returns:
        The names of the program's scores; empty if metrics() cannot be calculated from these rows.

    Raises:
        SettingsError: the program cannot be trained; the message names its function and line.
    """
    single = SingleProcessTrainer(program)
    if batch is not None:
        with program.calling("network()"):
            scores = check_batch(program, single.predict, batch)
            single.step(batch)
    else:
        scores = _scores_of_generated_rows(program, single)
    prepare_paddle(single.seed)
    logging.disable(logging.INFO)  # Paddle's notes on its strategy
    try:
        TrainingGraph(
            program,
            _Alone(),
            mode=mode,
            batch_size=batch_size,
            incremental_checkpoints=incremental_checkpoints,
            shards=choose_shard_count(1),
        )
    finally:
        logging.disable(logging.NOTSET)
    return scores


def _scores_of_generated_rows(program: TrainingProgram, single: SingleProcessTrainer) -> list[str]:
    """Return the names of the scores of generated rows (zeros, with labels 0 and 1); empty if metrics() fails."""
    rows = np.zeros(ROWS, record_dtype(program.inputs))
    rows[program.label][::2] = 1
    try:
        return check_batch(program, single.predict, split_inputs(rows))
    except Exception:  # a program may fail with rows that it never gets
        return []
