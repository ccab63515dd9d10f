"""Predict the sentiment of short texts: one hidden layer after the mean of the words' vectors."""

import paddle
from texts import BLANK, COLUMNS, check_labels, describe, inputs, metrics, parse  # noqa: F401

LABEL = "label"
OPTIONS = {"buckets": 65536, "words": 48, "width": 16, "hidden": 16, "learning_rate": 0.005}


def network(data, job):
    """Return the probability of a positive text, float32 [batch, 1], and the loss."""
    words, label = data["words"], data["label"]
    mean = job.embedding(words, job.options["width"], "word_vector", spread=0.05, pool="mean")
    hidden = paddle.static.nn.fc(mean, job.options["hidden"], activation="relu", name="hidden")
    score = paddle.static.nn.fc(hidden, 1, name="score")
    loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(score, label))
    return paddle.nn.functional.sigmoid(score), loss


def optimizer(job):
    """Return the optimizer of all parameters."""
    return paddle.optimizer.Adam(job.options["learning_rate"])
