"""Sentiment of short texts: logistic regression on a bag of words (a weight a word, summed over the text)."""

import paddle
from texts import BLANK, COLUMNS, check_labels, describe, inputs, metrics, parse  # noqa: F401

LABEL = "label"
OPTIONS = {"buckets": 65536, "words": 48, "learning_rate": 0.03}


def network(data, job):
    words, label = data["words"], data["label"]
    score = job.embedding(words, 1, "word_weight", rows=job.options["buckets"], spread=0.001, pool="sum")
    bias = paddle.static.create_parameter(
        [1], "float32", name="bias", default_initializer=paddle.nn.initializer.Constant(0.0)
    )
    # A tenth: every batch of every trainer moves the one bias, and asynchronously it would swing.
    score = score + 0.1 * bias
    loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(score, label))
    return paddle.nn.functional.sigmoid(score), loss


def optimizer(job):
    return paddle.optimizer.Adam(job.options["learning_rate"])
