"""Check what a program's network() and metrics() return: shapes of prediction, loss and label."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher.errors import SettingsError, setting_error
from launcher.trainer.program_loader import TrainingProgram, innermost_line
from launcher.trainer.records.row_parsing import Arrays

ROWS = 61
"""Rows that `check_batch` is given: a prime, so that hardly any width divides it or equals it."""
COMBINING = ("elementwise_", "bce_loss", "log_loss", "huber_loss", "sigmoid_cross_entropy", "kldiv_loss")
"""Paddle's operators that combine a label and a prediction of the same shape."""
SHAPES = "See network(data, job) in launcher/programs/README.md."


def check_outputs(program: TrainingProgram, returned: Any) -> tuple[Any, Any]:
    """Check what network() returned while the graph was built.

    Returns:
        The prediction, and the loss or the sum of the losses, as static variables.

    Raises:
        SettingsError: no pair, a loss of more than one number, or a prediction without the batch dimension.
    """
    import paddle

    if not (isinstance(returned, (tuple, list)) and len(returned) == 2):
        raise _wrong(
            program,
            f"returned {returned!r}, but must return (prediction, loss)",
            "end it with `return prediction, loss`",
        )
    prediction, loss = returned
    losses = loss if isinstance(loss, Mapping) else {"loss": loss}
    for name, value in {"prediction": prediction, **losses}.items():
        if not isinstance(value, paddle.static.Variable):
            raise _wrong(
                program,
                f"returned {value!r} as {name}, but must return a Paddle variable",
                f"return the output of a Paddle layer as {name}",
            )
    for name, value in losses.items():
        if math.prod(value.shape) != 1:
            raise _wrong(
                program,
                f"returned {name!r} of shape {_format_shape(value.shape)}, but it must be one number",
                "take its mean over the batch: paddle.mean(…)",
            )
    if -1 not in prediction.shape:
        raise _wrong(
            program,
            f"returned a prediction of shape {_format_shape(prediction.shape)}, but it must have a row for "
            "each row of the batch: [batch, …]",
            "return the prediction before any mean or sum over the batch",
        )
    return prediction, paddle.add_n(list(losses.values())) if isinstance(loss, Mapping) else loss


def check_broadcasts(program: TrainingProgram, main: Any) -> None:
    """Raise `SettingsError` if network() combines the label with a value of another shape.

    Paddle then repeats one of them (broadcasting): the loss compares values of different rows, without an error.
    """
    block = main.global_block()
    label = frozenset({program.label})
    sources = {name: frozenset({name}) for name in program.inputs}
    for op in block.ops:
        found = [sources.get(name, frozenset({""})) for name in op.input_arg_names]
        if op.type.startswith(COMBINING) and len(found) == 2 and label in found:
            shapes = [tuple(block.var(name).shape) for name in op.input_arg_names]
            other = found[1 - found.index(label)]
            if program.label not in other and shapes[0] != shapes[1] and all(-1 in s for s in shapes):
                line = innermost_line(program.path, "\n".join(op.attr("op_callstack")))
                own, theirs = shapes if found[0] == label else reversed(shapes)
                raise _wrong(
                    program,
                    f"combines the label {program.label} of shape {_format_shape(own)} with a value of shape "
                    f"{_format_shape(theirs)} at {line}; Paddle repeats one of them silently",
                    "give both one shape: the width of Real(…) in inputs(), the size of the last layer, or "
                    "paddle.reshape. If it is intended, repeat with paddle.expand_as(…)",
                )
        for name in op.output_arg_names:
            sources[name] = frozenset().union(*found)


def check_batch(
    program: TrainingProgram, predict: Callable[[Arrays], NDArray[Any]], batch: Arrays
) -> list[str]:
    """Predict one batch of rows, and call metrics() with it.

    Returns:
        The names of the scores; empty when metrics() cannot be calculated from these rows.

    Raises:
        SettingsError: the prediction has another number of rows than the batch, or metrics() gives no numbers.
    """
    labels = batch[program.label]
    prediction = predict(batch)
    if prediction.shape[:1] != labels.shape[:1]:
        raise _wrong(
            program,
            f"returned a prediction of shape {list(prediction.shape)} for a batch of {len(labels)} rows, "
            "but it must have a row for each: [batch, …]",
            "return the prediction before any mean or sum over the batch",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as about a class without rows
            found = program.module.metrics(prediction, labels)
    except Exception as error:
        if isinstance(error, ValueError | ArithmeticError) and (labels == labels[0]).all():
            return []  # rows of one class have no AUC, for example
        shapes = f"prediction {list(prediction.shape)} and label {list(labels.shape)}"
        raise program.failed(f"metrics() on {shapes}", error) from error
    values = found if isinstance(found, Mapping) else {}
    wrong = [name for name, value in values.items() if np.size(value) != 1]
    if wrong or not values:
        shown = f"more or less than one number as {', '.join(wrong)}" if wrong else repr(found)
        raise SettingsError(
            f"metrics() of the program {program.path} returned {shown}, but must return {{name: number}} "
            "with one or more names. Fix: return for example {'error': float(…)}"
        )
    return [str(name) for name in values]


def check_metric(program: TrainingProgram, keep_best: str, scores: Collection[str]) -> None:
    """Raise `SettingsError` unless `keep_best` is one of `scores`; empty `scores` mean that none is known yet."""
    if keep_best and scores and keep_best not in scores:
        raise setting_error(
            "training.keepBest (PADDLE_LAUNCHER_KEEP_BEST)",
            keep_best,
            f"one of {', '.join(scores)}",
            f"metrics() of the program {program.path} returns no other score",
            "Set one of them, or leave training.keepBest and training.patience out",
        )


def _wrong(program: TrainingProgram, what: str, fix: str) -> SettingsError:
    return SettingsError(f"network() of the program {program.path} {what}. Fix: {fix}. {SHAPES}")


def _format_shape(shape: Any) -> str:
    return f"[{', '.join('batch' if size == -1 else str(size) for size in shape)}]"
