"""Start the launchers of a small job on loopback; a script replaces Paddle's pservers and trainers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from launcher.paths import OutputPaths
from local.launcher_gang import LauncherGang, job_environment
from testkit.written_data import write_data
from testkit.written_files import write_script

JOB = "job"
STAND_IN = """
import os, socket, sys, time
options = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[2:])
if "help" in options:
    print("-nics -port -ports_num -ports_num_for_sparse")
    sys.exit(1)
if sys.argv[1] == "pserver":
    last = int(options["ports_num"]) + int(options["ports_num_for_sparse"])
    ports = range(int(options["port"]), int(options["port"]) + last)
    kept = [socket.create_server((os.environ["PADDLE_LAUNCHER_POD_IP"], port)) for port in ports]
else:
    print("Pass=0", flush=True)
time.sleep(3600)
"""
"""Source of a program `paddle` for runtime v1: as pserver it listens on its ports, as trainer it prints its first
pass; both then sleep."""


class StandInGang(LauncherGang):
    """A gang of launchers with runtime v1 that start the program `STAND_IN`; its trainers never finish."""

    def __init__(self, folder: Path, trainers: int, **values: Any) -> None:
        """Write the job and the stand-in to `folder`; `values` of the chart override those of this gang."""
        program = {"config": "mine/trainer_config.py"}
        own = {"jobName": JOB, "trainers": trainers, "runtime": "v1", "training": program}
        environ = job_environment(folder / "shared", own, values)
        lines = [[f"line {rank}"] for rank in range(trainers)]
        write_data(folder / "shared" / JOB, lines, digest="loopback")
        paddle = write_script(folder / "bin" / "paddle", f"#!{sys.executable} -S\n{STAND_IN}")
        path = f"{paddle.parent}{os.pathsep}{os.environ['PATH']}"
        super().__init__(folder, {**environ, "PATH": path})
        self.output = OutputPaths(folder / "shared" / JOB / "output")

    def trainer_log(self, rank: int) -> str:
        """Return the log of a rank's trainer; empty before it has started."""
        path = self.work_dir(rank) / "logs" / "train.log"
        return path.read_text(errors="replace") if path.exists() else ""
