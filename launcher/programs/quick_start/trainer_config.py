"""Predict the sentiment of short texts by logistic regression on a bag of words: the sum of one weight per word."""

import paddle
from texts import BLANK, COLUMNS, check_labels, describe, inputs, metrics, parse  # noqa: F401

LABEL = "label"
OPTIONS = {"buckets": 65536, "words": 48, "learning_rate": 0.03}


def network(data, job):
    """Return the probability of a positive text, float32 [batch, 1], and the loss."""
    words, label = data["words"], data["label"]
    score = job.embedding(words, 1, "word_weight", spread=0.001, pool="sum")
    bias = paddle.static.create_parameter(
        [1], "float32", name="bias", default_initializer=paddle.nn.initializer.Constant(0.0)
    )
    # Every batch of every trainer updates the same bias. With asynchronous updates the bias would oscillate, so
    # the factor 0.1 slows it down.
    score = score + 0.1 * bias
    loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(score, label))
    return paddle.nn.functional.sigmoid(score), loss


def optimizer(job):
    """Return the optimizer of all parameters."""
    return paddle.optimizer.Adam(job.options["learning_rate"])
