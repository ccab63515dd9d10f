"""A script for parameter servers with flags and a loop over batches."""

import argparse

import numpy as np
import paddle
from paddle.distributed import fleet

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--save_model_dir", default="model")
given = parser.parse_args()

paddle.enable_static()
fleet.init()
ids = paddle.static.data("ids", [None, 1], "int64")
label = paddle.static.data("label", [None, 1], "float32")
found = paddle.static.nn.sparse_embedding(ids, [1000, 8], param_attr=paddle.ParamAttr(name="table"))
score = paddle.static.nn.fc(paddle.reshape(found, [-1, 8]), 1)
loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(score, label))
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
table = strategy.sparse_table_configs.add()
table.table_name, table.shard_num = "table", 20
fleet.distributed_optimizer(paddle.optimizer.SGD(0.1), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    random = np.random.RandomState(fleet.worker_index())
    for epoch in range(given.epochs):
        for step in range(20):
            rows = random.randint(0, 1000, (16, 1))
            feed = {"ids": rows, "label": (rows % 2).astype("float32")}
            (value,) = exe.run(feed=feed, fetch_list=[loss])
            print(f"epoch: {epoch}, step: {step}, loss: {float(value):.4f}", flush=True)
    fleet.save_persistables(exe, given.save_model_dir)
    fleet.stop_worker()
