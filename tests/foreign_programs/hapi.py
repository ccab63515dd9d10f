"""Train with paddle.Model.fit."""

import argparse
from pathlib import Path

import numpy as np
import paddle


class Points(paddle.io.Dataset):
    """Points, and whether their sum is above 2."""

    def __init__(self, size):
        random = np.random.RandomState(1)
        self.rows = random.rand(size, 4).astype("float32")
        self.labels = (self.rows.sum(1, keepdims=True) > 2).astype("int64")

    def __getitem__(self, index):
        return self.rows[index], self.labels[index]

    def __len__(self):
        return len(self.rows)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--save_dir", default="saved")
given = parser.parse_args()

network = paddle.nn.Sequential(paddle.nn.Linear(4, 16), paddle.nn.ReLU(), paddle.nn.Linear(16, 2))
model = paddle.Model(network)
optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
model.prepare(optimizer, paddle.nn.CrossEntropyLoss(), paddle.metric.Accuracy())
saved = sorted(int(path.stem) for path in Path(given.save_dir).glob("[0-9]*.pdparams"))
done = saved[-1] + 1 if saved else 0
if saved:
    print(f"resume training from epoch {saved[-1]}", flush=True)
    model.load(f"{given.save_dir}/{saved[-1]}")
model.fit(
    Points(2048), batch_size=16, epochs=given.epochs - done, verbose=2, log_freq=4, shuffle=False,
    callbacks=[paddle.callbacks.ModelCheckpoint(1, given.save_dir)] if not done else None,
)  # fmt: skip
