"""Start the launchers of a small job on loopback; a script replaces Paddle's pservers and trainers."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from launcher.paths import OutputPaths
from local.launcher_gang import LauncherGang, job_environment

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


def write_small_job(job: Path, shards: int, digest: str) -> None:
    """Write the job folder `job` as the data Job leaves it, with one line per shard and a program `mine`.

    `digest` is the data digest in its manifest.json.
    """

    def write(path: Path, text: str) -> dict[str, Any]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return {"bytes": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest()}

    entries = []
    for index in range(shards):
        folder = job / str(index) / "data"
        entries.append({"index": index, "lines": 1, **write(folder / "train.txt", f"line {index}\n")})
        write(folder / "train.list", "./data/train.txt\n")
        write(folder / "test.list", "./data/test.txt\n")
    manifest = {
        **{"version": 2, "dataDigest": digest, "source": "file://x", "sha256": "", "member": ""},
        **{"format": "lines", "seed": 0, "testFraction": 0.1, "splitCount": shards, "lines": shards},
        "shards": entries,
        "test": {"lines": 1, **write(job / "test.txt", "test line\n")},
        "tables": [],
    }
    write(job / "mine" / "trainer_config.py", "settings()\n")
    write(job / "manifest.json", json.dumps(manifest))


class StandInGang(LauncherGang):
    """A gang of launchers with runtime v1 that start the program `STAND_IN`; its trainers never finish."""

    def __init__(self, folder: Path, trainers: int, **environ: str) -> None:
        """Write the job and the stand-in to `folder`; `environ` is added to all launchers' environment."""
        base = job_environment(folder / "shared", JOB, trainers)
        write_small_job(folder / "shared" / JOB, trainers, base["PADDLE_LAUNCHER_DATA_DIGEST"])
        program = folder / "bin" / "paddle"
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable} -S\n{STAND_IN}")
        program.chmod(0o755)
        own = {
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "TRAIN_CONFIG_DIR": "mine",
            "PADDLE_LAUNCHER_RUNTIME": "v1",
        }
        super().__init__(folder, {**base, **own, **environ})
        self.output = OutputPaths(folder / "shared" / JOB / "output")

    def trainer_log(self, rank: int) -> str:
        """Return the log of a rank's trainer; empty before it has started."""
        path = self.work_dir(rank) / "logs" / "train.log"
        return path.read_text(errors="replace") if path.exists() else ""
