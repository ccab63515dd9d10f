"""Trainer process of benchmarks/ctr.py: the launcher's loop or Paddle's `train_from_dataset`.

It trains in three ways, with the same program, servers and connection, but different input. `ours` reads
batches from memory-mapped records that were parsed before; `alone` does so with one thread. `theirs` is
`train_from_dataset` over text files in Paddle's MultiSlot format with as many threads. The ways alternate,
pass by pass, in one process, so that a busy machine slows all of them. The environment variable BENCH_CTR
contains JSON: {"hows": list of these ways, "repeats": measured passes of each way, "files": names of the text
files of one pass, "pids": path of a JSON file with the process ids of the servers}. Every
pass but the first, which creates the tables' rows, prints a line of JSON: {"how", "samples", "seconds",
"cpu": seconds of this process, "servers": CPU seconds of all servers}.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paddle

from benchmarks._processes import cpu_seconds
from launcher.trainer import conversion
from launcher.trainer import program_loader as programs
from launcher.trainer.fleet_trainer import FleetTrainer
from launcher.trainer.process_settings import ProcessSettings

BEFORE = 8
"""Batches before a pass of ours, by which new executors are prepared."""


def ours(trainer: FleetTrainer, batches: Iterator[Any], steps: int) -> None:
    """Train the next `steps` batches with the launcher's training loop."""
    trainer.train(batches, steps, lambda *_: None)


def renew(trainer: FleetTrainer, threads: int) -> None:
    """Give `trainer` new executors with `threads` threads.

    A pass of Paddle's `train_from_dataset` deletes the variables that its executors had prepared.
    """
    trainer.exe = paddle.static.Executor(paddle.CPUPlace())
    trainer.start_threads(threads)


def theirs(trainer: FleetTrainer, files: list[str]) -> None:
    """Train a pass with Paddle's QueueDataset, which reads and parses the text while it trains."""
    block = trainer.network.main.global_block()
    dataset = paddle.distributed.QueueDataset()
    dataset.init(
        batch_size=trainer.settings.batch_size,
        thread_num=trainer.settings.trainer_count,
        use_var=[block.var(name) for name in trainer.feeds],
        pipe_command="cat",
    )
    dataset.set_filelist(files)
    trainer.exe.train_from_dataset(trainer.network.main, dataset, print_period=1 << 30)


def main() -> None:
    """Train a pass that is not measured, then one pass of each way in turn."""
    settings, given = ProcessSettings.from_environ(), json.loads(os.environ["BENCH_CTR"])
    program = programs.load_program(settings.program_file, settings.work.tables, settings.args)
    rows, _ = conversion.convert_staged(program, settings.work.data, settings.work.records, settings.rank)
    trainer = FleetTrainer(settings, program)
    trainer.join()
    files = [str(settings.work.data / name) for name in given["files"]]
    steps = -(-rows.rows // settings.batch_size)
    ours(trainer, rows.batches(steps, (1, 0, settings.rank)), steps)
    for number, how in enumerate(given["repeats"] * given["hows"], 1):
        if how != "theirs":
            renew(trainer, 1 if how == "alone" else settings.trainer_count)
            batches = rows.batches(steps + BEFORE, (1, number, settings.rank))
            ours(trainer, batches, BEFORE)
        trainer.settle()
        trainer.trainers.barrier()
        servers = json.loads(Path(given["pids"]).read_text())
        before = [cpu_seconds(os.getpid()), sum(map(cpu_seconds, servers)), time.monotonic()]
        if how == "theirs":
            theirs(trainer, files)
        else:
            ours(trainer, batches, steps)
        seconds = time.monotonic() - before[2]
        trainer.settle()  # what was pushed has arrived, and the servers' work for it is done
        trainer.trainers.barrier()
        cpu, served = cpu_seconds(os.getpid()) - before[0], sum(map(cpu_seconds, servers)) - before[1]
        found = {"how": how, "samples": rows.rows, "seconds": seconds, "cpu": cpu, "servers": served}
        print(json.dumps(found), flush=True)
    trainer.leave()


if __name__ == "__main__":
    main()
    os._exit(0)  # Paddle's threads do not end by themselves
