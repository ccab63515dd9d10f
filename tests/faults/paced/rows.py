"""A data-parallel script with `run.batches` whose model is the number of times that each row was trained in each epoch.

Each step takes STEP_SECONDS or longer. The model is exact: an epoch in which a row was left out, or was trained twice,
shows in it, whatever the number of processes was and however often the training continued from a checkpoint.
"""

import json
import time

import numpy as np
import paddle
import paddle.distributed as dist

from launcher.program import ScriptRun

ROWS = 3000
STEP_SECONDS = 0.2

run = ScriptRun()
run.init_parallel_env()
path = run.checkpoint and run.checkpoint / "counts.npy"
counts = np.load(path) if path else np.zeros((run.epochs, ROWS), "int64")


def save(epoch, step):
    """Save how often each row was trained."""
    with run.save(epoch, step) as folder:
        np.save(folder / "counts.npy", counts)


for epoch in range(run.start[0], run.epochs):
    batches = run.batches(epoch, ROWS)
    for step, rows in enumerate(batches, batches.first):
        trained = np.zeros(ROWS, "int64")
        np.add.at(trained, rows, 1)
        if run.world_size > 1:
            added = paddle.to_tensor(trained)
            dist.all_reduce(added)
            trained = added.numpy()
        counts[epoch] += trained
        time.sleep(STEP_SECONDS)
        run.report(epoch, step + 1, batches.steps, loss=1.0, samples=len(rows))
        if run.should_save():
            save(epoch, step + 1)
    run.end_epoch(epoch)
    if run.rank == 0:
        save(epoch + 1, 0)

if run.rank == 0:
    with run.save_model() as folder:
        found = [[int(number) for number in np.unique(epoch)] for epoch in counts]
        (folder / "counts.json").write_text(json.dumps({"epochs": found}))
