"""Calculate the program's metrics on a test set.

Trainer 0 alone predicts a small test set; of a large one every trainer predicts a share. Staging decides
which: it copies a large test set to all pods, a small one to rank 0's pod only
(launcher/supervisor/shared_storage/input_staging.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from launcher.errors import DataError
from launcher.serving.paddle_served import Model, ServedError
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.record_files import Arrays, Records

if TYPE_CHECKING:  # it imports Paddle
    from launcher.trainer.fleet_trainer import FleetTrainer

CHUNK = 65536  # rows that are predicted at once


def calculate_metrics(
    program: TrainingProgram, predictions: NDArray[np.float32], labels: NDArray[Any]
) -> dict[str, float]:
    """Return metric → value from the program's metrics(). Raise `SettingsError` if that function fails.

    Predictions have the shape [rows, …], labels [rows, width].
    """
    with program.calling("metrics()"):
        found = program.module.metrics(predictions, labels)
        return {name: float(value) for name, value in found.items()}


def finite_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores that JSON can represent: an AUC of rows of one class, for example, is NaN."""
    return {name: value for name, value in scores.items() if math.isfinite(value)}


def evaluate(
    program: TrainingProgram, predict: Callable[[Arrays], NDArray[np.float32]], blocks: Iterable[Arrays]
) -> dict[str, float]:
    """Predict all rows, and return the program's metrics of them: metric → value."""
    predictions, labels = [], []
    for block in blocks:
        predictions.append(predict(block))
        labels.append(block[program.label])
    return calculate_metrics(program, np.concatenate(predictions), np.concatenate(labels))


def score_model(program: TrainingProgram, test: Records, folder: Path) -> dict[str, float]:
    """Return metric → value of the exported model in `folder` on the rows of `test`; it is opened without servers.

    Raises:
        DataError: the model cannot be opened.
        SettingsError: metrics() of `program` failed.
    """
    try:
        model = Model(folder)
        return evaluate(program, lambda rows: model.predict_arrays(rows).predictions, test.blocks(CHUNK))
    except ServedError as error:
        raise DataError(f"cannot score the model in {folder}: {error}") from error


def evaluate_together(
    program: TrainingProgram, trainer: FleetTrainer, test: Records | None
) -> dict[str, float]:
    """Evaluate the current parameters on the test set; all trainers call this together.

    Args:
        program: the training program.
        trainer: this trainer.
        test: the complete test set; None if this trainer's pod has none. Only trainer 0 must have the job's test set.
            If all trainers have it, each predicts a share of the rows; else trainer 0 predicts all.

    Returns:
        {metric: value} on trainer 0; {} on the other trainers, and on trainer 0 without a test set.

    Raises:
        SettingsError: the program's metrics() fails.
    """
    trainers, is_first = trainer.trainers, trainer.trainers.rank == 0
    is_shared = bool(trainers.gather([float(test is not None)]).all())
    if test is None or not (is_shared or is_first):
        return {}
    if not is_shared:
        return evaluate(program, trainer.predict, test.blocks(CHUNK))
    predictions = _predict_together(trainer, test)
    return calculate_metrics(program, predictions, test.read_input(program.label)) if is_first else {}


def _predict_together(trainer: FleetTrainer, test: Records) -> NDArray[np.float32]:
    """Predict this trainer's share of the rows, and exchange the predictions with all trainers.

    Return the predictions of all rows, float32 [rows, …].
    """
    rank, count = trainer.trainers.rank, trainer.trainers.count
    first, last = test.rows * rank // count, test.rows * (rank + 1) // count
    # With fewer rows than trainers this share may be empty: predict one row, only for the shape.
    blocks = test.blocks(CHUNK, first, max(last, first + 1))
    mine = np.concatenate([trainer.predict(block) for block in blocks])[: last - first]
    every = np.zeros((test.rows, *mine.shape[1:]))
    every[first:last] = mine
    return trainer.trainers.total(every).astype(np.float32)
