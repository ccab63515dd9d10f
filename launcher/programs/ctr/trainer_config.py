"""Will an advertisement be clicked? DeepFM, or wide & deep, on rows as Criteo publishes them.

A row is a label (1: clicked), 13 counts and 26 categories of 8 hexadecimal digits, tab separated; any of them
may be empty. Every category has a weight and a vector, in one table of any size.
"""

import math

import numpy as np
import paddle
from scores import metrics  # noqa: F401

from launcher.worker.interface import Ids, Job, Real, hash64

COUNTS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
COLUMNS = ("label", *COUNTS, *CATEGORIES)
LABEL = "label"
BLANK = {"label": "0"}  # any that parses: what is to be predicted has none
MODELS = ("deepfm", "wide_deep")
OPTIONS = {
    "model": "deepfm",
    "width": 16,
    "hidden": "64,32",
    "learning_rate": 0.0003,
    # Of weights and vectors. With an epsilon as large as gradients are, a rare id takes steps as small as its
    # gradient and learns little noise. Pushes that come very late still make it diverge.
    "table_rate": 0.01,
    "table_epsilon": 0.01,
    "spread": 0.03,
}
LARGEST = 1e15  # a count above it is a mistake
SLOTS = tuple((column, number << 40) for number, column in enumerate(CATEGORIES, 1))


def inputs(job: Job) -> dict:
    return {"ids": Ids(len(CATEGORIES)), "counts": Real(len(COUNTS)), "label": Real()}


def parse(row: dict, job: Job) -> dict:
    if row["label"] not in ("0", "1"):
        raise ValueError(f"column label is {row['label']!r}, but must be 0 or 1")
    return {
        # The column is in the id, so that one value in two columns is two ids. Empty is a value like others.
        "ids": [slot + _number(row[column]) for column, slot in SLOTS],
        "counts": [_log(column, row[column]) for column in COUNTS],
        "label": float(row["label"]),
    }


def _number(text: str) -> int:
    """0 for empty, a number below 2**40 for a value: that of its digits, or a hash of any other text."""
    if not text:
        return 0
    if len(text) == 8 and text.isalnum():
        try:
            return int(text, 16) + 1
        except ValueError:
            pass
    return (hash64(text) >> 25) + (1 << 32) + 1


def _log(column: str, text: str) -> float:
    """Counts grow over orders of magnitude. Empty, and the few below 0, are as 0."""
    try:
        value = float(text or 0)
    except ValueError:
        value = math.nan
    if not value <= LARGEST:
        raise ValueError(f"column {column} is {text!r}, but must be a number up to {LARGEST:g} or empty")
    return math.log1p(max(value, 0.0))


def check_labels(labels: np.ndarray) -> None:
    """A model that sees one class only learns nothing, and has no AUC."""
    if labels.min() == labels.max():
        raise ValueError(
            f"column label: all {len(labels)} rows have {labels[0, 0]:g}, but clicks and others are needed "
            "to learn from. See whether the first column is the label"
        )


def network(data, job):
    model, width = job.options["model"], job.options["width"]
    if model not in MODELS:
        raise ValueError(f"--model={model}, but it must be one of {', '.join(MODELS)}")
    if width < 2:
        raise ValueError(f"--width={width}, but it must be at least 2: a weight and a vector")
    # Little momentum: what several trainers push is late already.
    own = paddle.optimizer.Adam(job.options["table_rate"], beta1=0.5, epsilon=job.options["table_epsilon"])
    rows = job.embedding(data["ids"], width, "category", spread=job.options["spread"], optimizer=own)
    # A row's first number is its weight, the others are its vector. Apart only when they are summed: to split
    # all rows, forth and back, took a fifth of a step. So the deep part sees the weights, too.
    total = paddle.sum(rows, axis=1)
    score = total[:, :1] + paddle.static.nn.fc(data["counts"], 1, name="wide")
    if model == "deepfm":  # the sum of the products of all pairs of vectors
        squares = (paddle.square(total) - paddle.sum(paddle.square(rows), axis=1))[:, 1:]
        score = score + 0.5 * paddle.sum(squares, axis=1, keepdim=True)
    hidden = paddle.concat([paddle.reshape(rows, [-1, len(CATEGORIES) * width]), data["counts"]], axis=1)
    for layer, size in enumerate(job.options["hidden"].split(",")):
        hidden = paddle.static.nn.fc(hidden, int(size), activation="relu", name=f"deep_{layer}")
    score = score + paddle.static.nn.fc(hidden, 1, name="deep")
    loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(score, data["label"]))
    return paddle.nn.functional.sigmoid(score), loss


def optimizer(job):
    return paddle.optimizer.Adam(job.options["learning_rate"])


def describe(prediction: np.ndarray) -> str:
    return f"clicked with a chance of {prediction[0]:.1%}"
