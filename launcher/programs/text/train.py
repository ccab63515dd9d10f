"""Train a convolutional network for the sentiment of short texts: a data-parallel script for runtime collective.

It needs PaddlePaddle 2.6 or newer. docs/how-to/own-script.md explains the object `run`. predict.py uses the model.
"""

import argparse
import copy
import os
import shutil
import sys

import numpy as np
import paddle
import paddle.distributed as dist
import words
from paddle import nn
from paddle.nn import functional as F

from launcher.program import ScriptRun

parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float, default=0.002)
parser.add_argument("--weight_decay", type=float, default=1.0)
parser.add_argument("--averaged", type=int, default=500, help="steps over which the parameters are averaged")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--amp", action="store_true", help="compute in half precision; on GPUs only")
args = parser.parse_args()


class Network(nn.Layer):
    """Calculates a score for each class of a text.

    A word's vector is the scaled sum of the vectors of its pieces. The network applies filters to one, two and three
    neighbouring words, keeps the highest value of each filter, and calculates the scores from these values.
    """

    def __init__(self, width=32, filters=64):
        super().__init__()
        small = paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, 0.01))
        self.vectors = nn.Embedding(words.IDS, width, padding_idx=0, weight_attr=small)
        self.filters = nn.LayerList(nn.Conv1D(width, filters, size, padding=size - 1) for size in (1, 2, 3))
        self.highest = nn.AdaptiveMaxPool1D(1)
        self.drop_words, self.drop_values = nn.Dropout(0.3, axis=[0, 1]), nn.Dropout(0.5)
        self.scores = nn.Linear(3 * filters, len(words.CLASSES))

    def forward(self, ids):  # int64 [batch, words, pieces]
        vectors = self.drop_words(0.2 * self.vectors(ids).sum(axis=2)).transpose([0, 2, 1])
        found = paddle.concat([self.highest(F.relu(each(vectors))) for each in self.filters], axis=1)
        return self.scores(self.drop_values(found.squeeze(2)))  # float32 [batch, classes]


run = ScriptRun()  # in every process, before the first step
run.init_parallel_env()
together = run.world_size > 1
paddle.seed(args.seed)
network = Network()
average = copy.deepcopy(network)  # the mean of the latest parameters makes fewer errors than the current ones
average.eval()
values, rate = network.parameters(), args.learning_rate
optimizer = paddle.optimizer.AdamW(rate, parameters=values, weight_decay=args.weight_decay)
if run.checkpoint:
    network.set_state_dict(paddle.load(f"{run.checkpoint}/network.pdparams"))
    average.set_state_dict(paddle.load(f"{run.checkpoint}/average.pdparams"))
    optimizer.set_state_dict(paddle.load(f"{run.checkpoint}/optimizer.pdopt"))
model = paddle.DataParallel(network) if together else network
amp = args.amp and paddle.device.is_compiled_with_cuda()
scaler = paddle.amp.GradScaler(enable=amp)

local, processes = os.environ.get("PADDLE_LOCAL_RANK", "0"), os.environ.get("PADDLE_LOCAL_SIZE", "1")
own = slice(int(local), None, int(processes))  # the processes of a pod share its texts
rows, labels = (each[own] for each in words.read_rows(run.train_file))
steps = paddle.to_tensor([len(rows) // run.batch_size])
if together:
    dist.all_reduce(steps, op=dist.ReduceOp.MIN)  # all processes must do the same number of steps
steps = int(steps.item())
if not steps:
    sys.exit(
        f"process {run.rank}: {len(rows)} texts with the sentiment {' or '.join(words.CLASSES)}, and in one process "
        f"fewer than training.batchSize ({run.batch_size}). Fix: reduce it, or check data.columns"
    )


def save(epoch, step):
    """Save all that training needs to continue with `step` of `epoch`."""
    with run.save(epoch, step) as folder:
        paddle.save(network.state_dict(), f"{folder}/network.pdparams")
        paddle.save(average.state_dict(), f"{folder}/average.pdparams")
        paddle.save(optimizer.state_dict(), f"{folder}/optimizer.pdopt")


@paddle.no_grad()
def update_average(done):
    """Move the averaged parameters towards the current ones; `done` is the number of steps so far."""
    for mean, present in zip(average.parameters(), values, strict=True):
        mean.add_((present - mean) / min(done, args.averaged))


@paddle.no_grad()
def test():
    """Return `error`: the share of the test set's texts whose predicted class is wrong."""
    rows, labels = words.read_rows(run.test_file)
    batches = np.split(rows, range(256, len(rows), 256))
    found = np.concatenate([average(paddle.to_tensor(batch)).argmax(1).numpy() for batch in batches])
    return {"error": float((found != labels).mean())}


for epoch in range(run.start[0], run.epochs):
    paddle.seed(args.seed + epoch * run.world_size + run.rank)  # the processes drop different words
    order = np.random.default_rng([args.seed, epoch]).permutation(len(rows))
    for step in range(run.start[1] if epoch == run.start[0] else 0, steps):
        batch = order[step * run.batch_size : (step + 1) * run.batch_size]
        with paddle.amp.auto_cast(enable=amp):
            loss = F.cross_entropy(model(paddle.to_tensor(rows[batch])), paddle.to_tensor(labels[batch]))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        update_average(epoch * steps + step + 1)
        run.report(epoch, step + 1, steps, loss=float(loss), samples=len(batch))
        if run.should_save():
            save(epoch, step + 1)
    with run.testing():
        scores = test() if run.rank == 0 and run.test_file else {}
    run.end_epoch(epoch, **scores)
    if run.rank == 0:
        print(f"epoch {epoch + 1}: {scores}", flush=True)
        save(epoch + 1, 0)

if run.rank == 0:
    with run.save_model() as folder:
        shape = [None, words.WORDS, words.PIECES]
        paddle.jit.save(average, f"{folder}/model", [paddle.static.InputSpec(shape, "int64")])
        shutil.copy(words.__file__, folder)
