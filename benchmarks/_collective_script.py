"""Trainings of the example `text` with runtime collective on loopback: under launchers, and under Paddle's launcher.

Both run the same script on the same data, with as many processes, in the Python environment of the image of runtime
collective (PaddlePaddle 3.3.1). Every process has one thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks._example_trainings import ExampleGang, read
from launcher.runtimes.collective import training_variables
from launcher.settings import TrainSettings
from local import try_example
from local.external_commands import free_port
from local.launcher_gang import find_processes, first_port
from local.launcher_image import ensure_collective_python
from local.paths import CLONE
from testkit.gang_without_launchers import PROGRAMS

EXAMPLE = "text"
SCRIPT = "timed.py"
MARKS = {"started": "python", "imported": "import", "joined": "join", "loaded": "load", "first_step": "step"}
"""Time mark of `_timed_script.py` → the part of a start that ends at it: the process runs its first line, has imported
Paddle, has joined the others (`init_parallel_env`), has loaded its rows and the checkpoint, has trained a step."""


def prepare_text(folder: Path, trainers: int, training: Mapping[str, Any]) -> dict[str, str]:
    """Write data and script of the example `text` for so many pods to `folder`; return their environment.

    `training` has values of the chart below that key.
    """
    own = {"config": f"{EXAMPLE}/{SCRIPT}", **training}
    env = try_example.prepare_example(EXAMPLE, folder, trainers=trainers, logFormat="json", training=own)
    program = Path(env["OUT_DIR"]) / EXAMPLE
    shutil.copytree(PROGRAMS / EXAMPLE, program)
    shutil.copyfile(CLONE / "benchmarks" / "_timed_script.py", program / SCRIPT)
    return {**env, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MARKS_DIR": str(folder)}


def read_marks(folder: Path, attempt: int, processes: int) -> list[dict[str, float]]:
    """Return the time marks (Unix seconds) of each process that has trained a step in this attempt."""
    found = (read(folder / f"marks-{attempt}-{process}.json") for process in range(processes))
    return [marks for marks in found if marks]


class ScriptGang(ExampleGang):
    """A gang of launchers, each with one process of the script."""

    def __init__(self, folder: Path, trainers: int, **training: Any) -> None:
        env = prepare_text(folder, trainers, training)
        super().__init__(folder, env, ensure_collective_python())
        self.output = Path(env["OUT_DIR"]) / "output"

    def run(self, seconds: float) -> None:
        """Start all launchers and wait until they have exited; exit with a log if one fails."""
        codes = self.start().wait(seconds)
        if any(codes):
            sys.exit(f"the run under launchers failed: exit codes {codes}; {self.pod_log(0)[-3000:]}")


@contextlib.contextmanager
def run_with_paddle(folder: Path, trainers: int, **training: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the script with `python -m paddle.distributed.launch`, once for each pod; kill what runs after the block.

    The script gets the shards and settings that the launchers would give it, and saves checkpoints in
    `folder/output`.
    """
    own = prepare_text(folder, trainers, training)
    job = Path(own["OUT_DIR"])
    own |= training_variables(TrainSettings.from_environ(own))
    processes, port = [], free_port()
    try:
        for rank in range(trainers):
            own |= {
                "PADDLE_LAUNCHER_TRAIN_FILE": str(job / str(rank) / "data" / "train.txt"),
                "PADDLE_LAUNCHER_TEST_FILE": str(job / "test.txt"),
                "PADDLE_LAUNCHER_OUTPUT_DIR": str(folder / "output"),
                "PADDLE_LAUNCHER_WORK_DIR": str(folder),
                "PADDLE_DISTRI_BACKEND": "gloo",
            }
            argv = [str(ensure_collective_python()), "-m", "paddle.distributed.launch"]
            argv += ["--master", f"127.0.0.1:{port}", "--nnodes", str(trainers), "--rank", str(rank)]
            argv += ["--host", "127.0.0.1", "--start_port", str(first_port() + rank)]
            argv += ["--nproc_per_node", "1", "--log_dir", str(folder / f"log-{rank}"), SCRIPT]
            with (folder / f"launch-{rank}.log").open("wb") as log:
                processes.append(subprocess.Popen(argv, cwd=job / EXAMPLE, env=own, stdout=log, stderr=log))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for pid in find_processes(folder):  # the script's processes, which are in sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def paddle_logs(folder: Path) -> str:
    """Return the ends of the logs of a run with Paddle's launcher."""
    logs = sorted([*folder.glob("launch-*.log"), *folder.glob("log-*/workerlog.*")])
    return "\n".join(f"{path}:\n{path.read_text(errors='replace')[-2000:]}" for path in logs)
