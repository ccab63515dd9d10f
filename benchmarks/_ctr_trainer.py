"""One trainer of benchmarks/ctr.py, in place of `python -m launcher.worker`: by our loop, or by Paddle's own.

Both have the same program, servers and connection, and differ in what feeds them. `ours` takes batches from
mapped records, which were parsed once, before; so does `alone`, by one thread. `theirs` is
`train_from_dataset` over text files in Paddle's MultiSlot form, as many as threads. They take turns, pass by
pass, in one process: a machine that others slow down does so to all. BENCH_CTR is {"hows", "repeats",
"files": of one pass, "pids": a file with those of the servers}. Prints a line of JSON for each pass but the
first, which makes the tables' rows: {"how", "samples", "seconds", "cpu": seconds of this process, "servers":
of all servers}.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paddle
import psutil

from launcher.worker import convert
from launcher.worker import program as programs
from launcher.worker.crew import Crew
from launcher.worker.settings import WorkerSettings
from launcher.worker.trainer import Trainer

BEFORE = 8
"""Batches before a pass of ours, by which new executors are prepared."""


def ours(trainer: Trainer, batches: Iterator[Any], steps: int) -> None:
    """A pass of the product's loop, or the next part of one."""
    trainer.train(batches, steps, lambda *_: None)


def renew(trainer: Trainer, threads: int) -> None:
    """New executors: Paddle's own pass drops the scopes that the others had prepared."""
    trainer.exe = paddle.static.Executor(paddle.CPUPlace())
    trainer.crew = Crew(threads, trainer.scope, trainer._step, trainer.pull_dense)


def theirs(trainer: Trainer, files: list[str]) -> None:
    """A pass of Paddle's. The queue reads and parses the text while it trains."""
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
    """A pass that is not measured, and then a pass of each way in turn."""
    settings, told = WorkerSettings.from_environ(), json.loads(os.environ["BENCH_CTR"])
    path = settings.program_dir / settings.config_file
    program = programs.load(path, settings.data_dir / "tables", settings.options)
    [rows] = convert.staged(
        program, settings.data_dir, settings.work_dir / "records", settings.rank, test=False
    )
    trainer = Trainer(settings, program)
    trainer.join()
    files = [str(Path(settings.data_dir) / name) for name in told["files"]]
    steps = -(-rows.rows // settings.batch_size)
    ours(trainer, rows.batches(steps, (1, 0, settings.rank)), steps)
    for number, how in enumerate(told["repeats"] * told["hows"], 1):
        if how != "theirs":
            renew(trainer, 1 if how == "alone" else settings.trainer_count)
            batches = rows.batches(steps + BEFORE, (1, number, settings.rank))
            ours(trainer, batches, BEFORE)
        trainer.settle(last=False)
        trainer.barrier()
        servers = [psutil.Process(pid) for pid in json.loads(Path(told["pids"]).read_text())]
        before = [_cpu(psutil.Process()), sum(map(_cpu, servers)), time.monotonic()]
        if how == "theirs":
            theirs(trainer, files)
        else:
            ours(trainer, batches, steps)
        seconds = time.monotonic() - before[2]
        trainer.settle(last=False)  # what was pushed has arrived, and the servers' work for it is done
        trainer.barrier()
        cpu, served = _cpu(psutil.Process()) - before[0], sum(map(_cpu, servers)) - before[1]
        found = {"how": how, "samples": rows.rows, "seconds": seconds, "cpu": cpu, "servers": served}
        print(json.dumps(found), flush=True)
    trainer.leave()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
    os._exit(0)  # Paddle's threads do not end by themselves
