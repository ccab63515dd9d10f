"""quick_start's logistic regression as a data-parallel script, whose steps take PACED_SECONDS or longer.

Two runs with the same settings end with exactly the same parameters, also if one of them was interrupted and continued
from a checkpoint.
"""

import hashlib
import json
import os
import time

os.environ["OMP_NUM_THREADS"] = "1"  # before Paddle is imported: one order of additions

import numpy as np
import paddle
import paddle.distributed as dist
import texts

from launcher.program import Job, ScriptRun

BUCKETS, WORDS = 4096, 48
FIRST_ATTEMPT = os.environ["PADDLE_LAUNCHER_ATTEMPT"] == "0"
PACE = float(os.environ.get("PACED_SECONDS", "0.02")) if FIRST_ATTEMPT else 0.02

run = ScriptRun()
run.init_parallel_env()
paddle.seed(1)


class BagOfWords(paddle.nn.Layer):
    """The sum of one weight per word, and a bias."""

    def __init__(self):
        super().__init__()
        spread = paddle.nn.initializer.Normal(std=0.001)
        self.weights = paddle.nn.Embedding(BUCKETS, 1, padding_idx=0, weight_attr=spread)
        self.bias = self.create_parameter([1], is_bias=True)

    def forward(self, words):
        return self.weights(words).sum(axis=1) + self.bias


def read_rows(path):
    """Return the word ids of all texts of a file, int64 [rows, WORDS] with 0 for no word, and the labels [rows, 1]."""
    job, words, labels = Job({"buckets": BUCKETS - 1}), [], []
    for line in path.read_text("utf-8").splitlines():
        row = texts.parse(dict(zip(texts.COLUMNS, line.split("\t"), strict=True)), job)
        if row is not None:
            ids = [number + 1 for number in row["words"][:WORDS]]
            words.append(ids + [0] * (WORDS - len(ids)))
            labels.append([row["label"]])
    return np.array(words), np.array(labels, "float32")


def save(epoch, step):
    """Save all that training needs to continue with `step` of `epoch`."""
    with run.save(epoch, step) as folder:
        paddle.save(network.state_dict(), f"{folder}/model.pdparams")
        paddle.save(optimizer.state_dict(), f"{folder}/optimizer.pdopt")


def measure_scores():
    """Return the score `error` on the test set."""
    words, labels = tests
    with paddle.no_grad():
        prediction = paddle.nn.functional.sigmoid(network(paddle.to_tensor(words))).numpy()
    return texts.metrics(prediction, labels)


network = BagOfWords()
model = paddle.DataParallel(network)
optimizer = paddle.optimizer.Adam(0.03, parameters=model.parameters())
if run.checkpoint:
    network.set_state_dict(paddle.load(f"{run.checkpoint}/model.pdparams"))
    optimizer.set_state_dict(paddle.load(f"{run.checkpoint}/optimizer.pdopt"))

local, processes = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
words, labels = (values[local::processes] for values in read_rows(run.train_file))
tests = read_rows(run.test_file)
steps = paddle.to_tensor([len(words) // run.batch_size])
dist.all_reduce(steps, op=dist.ReduceOp.MIN)
steps = int(steps.item())

for epoch in range(run.start[0], run.epochs):
    order = np.random.default_rng(epoch).permutation(len(words))
    for step in range(steps):
        if (epoch, step) < run.start:
            continue
        begun = time.monotonic()
        chosen = order[step * run.batch_size : (step + 1) * run.batch_size]
        found = model(paddle.to_tensor(words[chosen]))
        loss = paddle.nn.functional.binary_cross_entropy_with_logits(found, paddle.to_tensor(labels[chosen]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        time.sleep(max(0.0, begun + PACE - time.monotonic()))
        run.report(epoch, step + 1, steps, loss=float(loss), samples=len(chosen))
        if run.should_save():
            save(epoch, step + 1)
    with run.testing():
        scores = measure_scores() if run.rank == 0 else {}
    run.end_epoch(epoch, **scores)
    if run.rank == 0:
        save(epoch + 1, 0)

state = sorted((name, value.numpy().tobytes()) for name, value in network.state_dict().items())
(run.output / f"parameters-{run.rank}.txt").write_text(hashlib.sha256(repr(state).encode()).hexdigest())
if run.rank == 0:
    with run.save_model() as folder:
        (folder / "score.json").write_text(json.dumps(measure_scores()))
        paddle.save(network.state_dict(), f"{folder}/model.pdparams")
