"""Train with fleet's sharding: the optimizer's state is divided among the processes."""

import argparse
import time
from pathlib import Path

import numpy as np
import paddle
from paddle.distributed import fleet

parser = argparse.ArgumentParser()
parser.add_argument("--save")
parser.add_argument("--steps", type=int, default=60)
given = parser.parse_args()

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": 1, "sharding_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
paddle.seed(1)
network = paddle.nn.Sequential(paddle.nn.Linear(4, 16), paddle.nn.ReLU(), paddle.nn.Linear(16, 1))
optimizer = paddle.optimizer.Adam(0.01, parameters=network.parameters())
model = fleet.distributed_model(network)
optimizer = fleet.distributed_optimizer(optimizer)
rank, first = fleet.worker_index(), 0
folder = Path(given.save)
steps = [{int(path.name.split("-")[0]) for path in folder.glob(f"*-{k}.pdparams")} for k in range(2)]
if common := steps[0] & steps[1]:
    first = max(common)
    model.set_state_dict(paddle.load(f"{folder}/{first}-{rank}.pdparams"))
    optimizer.set_state_dict(paddle.load(f"{folder}/{first}-{rank}.pdopt"))
    print(f"resume from step {first}", flush=True)
for step in range(first, given.steps):
    rows = np.random.RandomState(step * 2 + rank).rand(8, 4).astype("float32")
    loss = (model(paddle.to_tensor(rows)) - paddle.to_tensor(rows.sum(1, keepdims=True))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    print(f"step {step + 1}/{given.steps}, loss: {float(loss):.4f}", flush=True)
    time.sleep(0.1)
    if (step + 1) % 20 == 0:
        paddle.save(optimizer.state_dict(), f"{folder}/{step + 1}-{rank}.pdopt")
        paddle.save(model.state_dict(), f"{folder}/{step + 1}-{rank}.pdparams")
