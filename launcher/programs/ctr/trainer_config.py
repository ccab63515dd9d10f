"""Predict whether an advertisement is clicked, with DeepFM or wide & deep, from Criteo's public files.

A row is a label (1: clicked), 13 counts and 26 categories of 8 hexadecimal digits, separated by tabs. Counts
and categories may be empty. Every value of a category has a weight and a vector in one embedding table.
"""

import math

import numpy as np
import paddle
from scores import metrics  # noqa: F401

from launcher.program import Ids, Job, Real, hash64

COUNTS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
COLUMNS = ("label", *COUNTS, *CATEGORIES)
LABEL = "label"
BLANK = {"label": "0"}  # stands for the unknown label of a row to predict
MODELS = ("deepfm", "wide_deep")
OPTIONS = {
    "model": "deepfm",
    "width": 16,
    "hidden": "64,32",
    "learning_rate": 0.0003,
    # Adam of the embedding table. With an epsilon as large as the gradients, the steps of a rare id are as small
    # as its gradients, so its row learns less noise. Training still diverges when gradients arrive very late.
    "table_rate": 0.01,
    "table_epsilon": 0.01,
    "spread": 0.03,
}
LARGEST = 1e15  # a larger count is an error in the data
SLOTS = tuple((column, number << 40) for number, column in enumerate(CATEGORIES, 1))


def inputs(job: Job) -> dict:
    """Return the inputs: an id per category, the counts, and the label."""
    return {"ids": Ids(len(CATEGORIES)), "counts": Real(len(COUNTS)), "label": Real()}


def parse(row: dict, job: Job) -> dict:
    """Convert one row (column → text) to the network's inputs; raise ValueError for an invalid row."""
    if row["label"] not in ("0", "1"):
        raise ValueError(f"column label is {row['label']!r}, but must be 0 or 1")
    return {
        # An id contains the number of its column, so the same text gets another id in another column. An empty
        # category has an id as well.
        "ids": [slot + _number(row[column]) for column, slot in SLOTS],
        "counts": [_log(column, row[column]) for column in COUNTS],
        "label": float(row["label"]),
    }


def parse_columns(columns: dict, job: Job) -> dict:
    """Convert rows of a Parquet file to the network's inputs, whole columns at a time.

    The columns of the label and the counts have numbers, the columns of the categories have texts. The inputs get the
    same values as from parse(). This function is faster: it converts each different text of a column only once.

    Raise ValueError if a label is not 0 or 1, or a count is above LARGEST.
    """
    labels = np.asarray(columns["label"])
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("column label has other values than the numbers 0 and 1")
    counts = np.stack([np.nan_to_num(columns[column], posinf=np.inf) for column in COUNTS], axis=1)
    if not (counts <= LARGEST).all():
        raise ValueError(f"a column of {COUNTS[0]} to {COUNTS[-1]} has a number above {LARGEST:g}")
    ids = np.empty((len(labels), len(SLOTS)), np.int64)
    for place, (column, slot) in enumerate(SLOTS):
        known = {text: slot + _number(text) for text in set(columns[column])}
        ids[:, place] = [known[text] for text in columns[column]]
    return {"ids": ids, "counts": np.log1p(np.maximum(counts, 0.0)), "label": labels}


def _number(text: str) -> int:
    """Return a number below 2**40 for a category's text; 0 for an empty text.

    A text of 8 hexadecimal digits gives the value of these digits plus 1. Any other text gives a hash.
    """
    if not text:
        return 0
    if len(text) == 8 and text.isalnum():
        try:
            return int(text, 16) + 1
        except ValueError:
            pass
    return (hash64(text) >> 25) + (1 << 32) + 1


def _log(column: str, text: str) -> float:
    """Return log(1 + count), because counts cover orders of magnitude; 0 for an empty or negative count.

    Raise ValueError if `text` is not a count up to LARGEST; `column` is for the message.
    """
    try:
        value = float(text or 0)
    except ValueError:
        value = math.nan
    if not value <= LARGEST:
        raise ValueError(f"column {column} is {text!r}, but must be a number up to {LARGEST:g} or empty")
    return math.log1p(max(value, 0.0))


def check_labels(labels: np.ndarray) -> None:
    """Raise ValueError if all rows have the same label: a model would learn nothing, and could have no AUC."""
    if labels.min() == labels.max():
        raise ValueError(
            f"column label: all {len(labels)} rows have {labels[0, 0]:g}, but the training needs rows with a "
            "click and rows without. Fix: check that the first column is the label"
        )


def network(data, job):
    """Return the probability of a click, float32 [batch, 1], and the loss."""
    model, width = job.options["model"], job.options["width"]
    if model not in MODELS:
        raise ValueError(
            f"--model={model}, but must be one of {', '.join(MODELS)}. Fix: correct "
            "the option (--set model=…, or training.args)"
        )
    if width < 2:
        raise ValueError(
            f"--width={width}, but must be at least 2: an id has a weight and a vector of width - 1 numbers. "
            "Fix: correct the option (--set width=…, or training.args)"
        )
    # Little momentum (beta1), since the gradients of several trainers arrive late anyway.
    table_optimizer = paddle.optimizer.Adam(
        job.options["table_rate"], beta1=0.5, epsilon=job.options["table_epsilon"]
    )
    rows = job.embedding(
        data["ids"], width, "category", spread=job.options["spread"], optimizer=table_optimizer
    )
    # The first number of an embedding row is the weight, the others are the vector. Weights and vectors are
    # separated only after the rows are summed, because splitting each row, forward and backward, took a fifth
    # of a step. So the deep part also gets the weights.
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
    """Return the optimizer of all parameters except the embedding table."""
    return paddle.optimizer.Adam(job.options["learning_rate"])


def describe(prediction: np.ndarray) -> str:
    """Return the text of one row's prediction, such as `clicked with a chance of 3.2%`."""
    return f"clicked with a chance of {prediction[0]:.1%}"
