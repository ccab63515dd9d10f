"""Train the model of a configuration on parameter servers, with rows that a QueueDataset reads."""

import argparse
import os
import random

import paddle
import yaml
from paddle.distributed import fleet

parser = argparse.ArgumentParser()
parser.add_argument("-m", "--config_yaml")
parser.add_argument("-o", "--opt", nargs="*", default=[])
given = parser.parse_args()
with open(given.config_yaml) as file:
    config = yaml.safe_load(file)
for option in given.opt:
    key, _, value = option.partition("=")
    section, _, name = key.partition(".")
    config[section][name] = yaml.safe_load(value)
runner, hyper = config["runner"], config["hyper_parameters"]

paddle.enable_static()
fleet.init()
ids = paddle.static.data("ids", [None, 1], "int64", lod_level=1)
label = paddle.static.data("label", [None, 1], "int64", lod_level=1)
attributes = paddle.ParamAttr(name="table")
found = paddle.static.nn.sparse_embedding(ids, [hyper["rows"], hyper["width"]], param_attr=attributes)
score = paddle.static.nn.fc(found, 1)
target = paddle.cast(label, "float32")
loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(score, target))
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
table = strategy.sparse_table_configs.add()
table.table_name, table.shard_num = "table", 20
fleet.distributed_optimizer(paddle.optimizer.Adam(hyper["learning_rate"], lazy_mode=True), strategy).minimize(
    loss
)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    part = f"part-{fleet.worker_index()}.txt"
    with open(part, "w") as rows:
        rows.writelines(f"{number} {number % 2}\n" for number in random.sample(range(1000), 640))
    dataset = paddle.distributed.QueueDataset()
    dataset.init(use_var=[ids, label], pipe_command=runner["pipe_command"], batch_size=runner["batch_size"])
    dataset.set_filelist([part])
    for epoch in range(runner["epochs"]):
        exe.train_from_dataset(
            paddle.static.default_main_program(),
            dataset,
            fetch_list=[loss],
            fetch_info=["loss"],
            print_period=10,
        )
        if fleet.is_first_worker():
            os.makedirs(f"{runner['model_save_path']}/{epoch}", exist_ok=True)
        fleet.barrier_worker()
        fleet.save_persistables(exe, f"{runner['model_save_path']}/{epoch}")
        print(f"epoch: {epoch} done", flush=True)
    fleet.stop_worker()
