"""Calculate the program's metrics on a test set.

Staging (launcher/supervisor/shared_storage/input_staging.py) copies a small test set to rank 0's pod only, and a large
test set to all pods. So trainer 0 predicts a small test set alone. Of a large test set, each trainer predicts a share.
In an elastic run, a small test set is copied to all pods, too, and each trainer predicts a share.
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

if TYPE_CHECKING:  # this module imports Paddle
    from launcher.trainer.fleet_trainer import FleetTrainer

CHUNK = 65536  # rows that are predicted at once


def calculate_metrics(
    program: TrainingProgram, predictions: NDArray[np.float32], labels: NDArray[Any]
) -> dict[str, float]:
    """Call the program's metrics(), and return its result: metric → value.

    Args:
        program: the training program.
        predictions: the predictions of some rows, shape [rows, …].
        labels: the labels of these rows, shape [rows, width].

    Raises:
        SettingsError: metrics() failed.
    """
    with program.calling("metrics()"):
        found = program.module.metrics(predictions, labels)
        return {name: float(value) for name, value in found.items()}


def finite_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores without NaN and infinite values, which JSON cannot represent.

    A score is NaN, for example, if it is an AUC and all rows have the same class.
    """
    return {name: value for name, value in scores.items() if math.isfinite(value)}


def evaluate(
    program: TrainingProgram, predict: Callable[[Arrays], NDArray[np.float32]], blocks: Iterable[Arrays]
) -> dict[str, float]:
    """Predict the rows of all blocks, and return the program's metrics of these predictions: metric → value.

    Args:
        program: the training program.
        predict: returns the predictions of a block.
        blocks: the inputs of some rows each, with the label.
    """
    predictions, labels = [], []
    for block in blocks:
        predictions.append(predict(block))
        labels.append(block[program.label])
    return calculate_metrics(program, np.concatenate(predictions), np.concatenate(labels))


def score_model(program: TrainingProgram, test: Records, folder: Path) -> dict[str, float]:
    """Open the exported model in `folder` without servers, and return its metrics on the test set: metric → value.

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
        test: the complete test set; None if this trainer's pod does not have it. If all trainers have the test set,
            each trainer predicts a share of the rows. Otherwise trainer 0 predicts all rows.

    Returns:
        {metric: value} on trainer 0; {} on the other trainers, and on trainer 0 if it has no test set.

    Raises:
        SettingsError: the program's metrics() failed.
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
    # With fewer rows than trainers this share may be empty. Then predict one row, to know the shape of a prediction.
    blocks = test.blocks(CHUNK, first, max(last, first + 1))
    mine = np.concatenate([trainer.predict(block) for block in blocks])[: last - first]
    every = np.zeros((test.rows, *mine.shape[1:]))
    every[first:last] = mine
    return trainer.trainers.total(every).astype(np.float32)
