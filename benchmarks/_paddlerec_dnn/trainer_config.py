"""PaddleRec's model `dnn` (models/rank/dnn) as a program of runtime fleet: the same rows, sizes and optimizer."""

import math

import numpy as np
import paddle

from launcher.program import Ids, Job, Real

COLUMNS = ("line",)
LABEL = "click"
OPTIONS = {"learning_rate": 0.001}
SLOTS, COUNTS, WIDTH, SIZES = 26, 13, 9, (512, 256, 128, 32)


def inputs(job: Job) -> dict:
    return {"ids": Ids(SLOTS), "dense": Real(COUNTS), "click": Real()}


def parse(row: dict, job: Job) -> dict:
    found = {}
    for part in row["line"].split():
        slot, _, value = part.partition(":")
        found.setdefault(slot, []).append(value)
    return {
        "ids": [int(found.get(str(slot), ["0"])[0]) for slot in range(1, SLOTS + 1)],
        "dense": [float(value) for value in found["dense_feature"]],
        "click": float(found["click"][0]),
    }


def network(data, job):
    rows = job.embedding(data["ids"], WIDTH, "factors")
    hidden = paddle.concat([paddle.reshape(rows, [-1, SLOTS * WIDTH]), data["dense"]], axis=1)
    for number, size in enumerate(SIZES):
        start = paddle.nn.initializer.Normal(std=1 / math.sqrt(hidden.shape[1]))
        hidden = paddle.static.nn.fc(
            hidden,
            size,
            weight_attr=paddle.ParamAttr(initializer=start),
            activation="relu",
            name=f"fc_{number}",
        )
    score = paddle.static.nn.fc(hidden, 1, name="score")
    loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(score, data["click"]))
    return paddle.nn.functional.sigmoid(score), loss


def optimizer(job: Job):
    return paddle.optimizer.Adam(job.options["learning_rate"])


def metrics(prediction: np.ndarray, label: np.ndarray) -> dict:
    return {"error": float(np.mean((prediction > 0.5) != (label > 0.5)))}
