"""quick_start (`plain.py` here), but a batch begins PACE seconds after the one before it, or later.

So the run lasts long enough on any machine for a fault to be injected, detected and repaired while it trains.
"""

import time

import numpy as np
import paddle
import plain
from plain import *  # noqa: F403

PACE = 0.01
begun = [0.0]


def wait(label):
    time.sleep(max(0.0, begun[-1] + PACE - time.monotonic()))
    begun[:] = [time.monotonic()]
    return np.array(label)


def network(data, job):
    block = paddle.static.default_main_program().current_block()
    label = block.create_var(name="label_in_time", dtype="float32", shape=data["label"].shape)
    # The loss asks for the label, the prediction does not: the exported model never waits.
    paddle.static.py_func(func=wait, x=data["label"], out=label)
    return plain.network({**data, "label": label}, job)
