"""A gang of real launchers on loopback with a shared folder, one address per rank and the fake `paddle`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.runtimes import load_runtime
from launcher.settings import TrainSettings
from launcher.supervisor.coordinator.coordinator import Coordinator
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.timings import Timings
from local.launcher_gang import find_processes, kill_processes
from testkit import written_data
from testkit.pod_settings import pod_environ
from testkit.waiting import PATIENCE, until
from testkit.written_files import write_script

HERE = Path(__file__).parent
REPO = HERE.parents[2]
# Short deadlines that still tolerate a machine that is busy for a second or two.
FAST = {
    "poll": 0.05,
    "training_poll": 0.4,
    "hold": 0.6,
    "silence": 4.0,
    "orphan": 4.0,
    "stuck": 20.0,
    "ready": 5.0,
    "stop": 1.0,
    "pserver_exit": 1.5,
    "early_pserver_exit": 1.0,
    "second_pod_wait": 6.0,
    "late_rank_wait": 4.0,
    "farewell": 5.0,
    "lock_beat": 0.6,
    "lock_lease": 4.0,
    "lock_stale": 5.5,
    "lock_wait": 16.0,
    "lock_settle": 0.4,
    "status": 0.4,
    "reach": 15.0,
    "export": 30.0,
    "export_base": 0.05,
}
WITH_PADDLE: dict[str, Any] = {
    "rendezvous_seconds": 60,
    # Paddle listens at all addresses of this machine, so no other test may use these ports.
    "CONF_PADDLE_PORT": str(20_000 + os.getpid() % 1000 * 10),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "timings": {"silence": 15.0, "orphan": 15.0},
}
"""Arguments of a gang whose scripts use PaddlePaddle."""
needs_fuse = pytest.mark.skipif(
    os.getuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and /dev/fuse"
)
# Tests in other processes run at the same time and need other addresses.
_subnet = [os.getpid() % 200 + 20, os.getpid() // 200]


def train_settings(tmp_path: Path, **env: Any) -> TrainSettings:
    """Return the settings of a training pod with its folders in `tmp_path`."""
    return TrainSettings.from_environ(
        pod_environ(JOB_PATH=tmp_path, PADDLE_LAUNCHER_WORK_DIR=tmp_path / "work", **env)
    )


def build_coordinator(settings: TrainSettings, **changes: Any) -> Coordinator:
    """Return rank 0's coordinator without a launcher; `changes`: other arguments than the usual ones."""
    usual: dict[str, Any] = {
        "runtime": load_runtime("fleet"),
        "network": PodNetwork(),
        "timings": Timings(**FAST),
    }
    usual |= {"address": "127.0.0.1", "pause": time.sleep, "wake": lambda: None}
    return Coordinator(settings, **{**usual, **changes})


def write_data(job: Path, shards: int, digest: str = "d1") -> dict[str, Any]:
    """Write a job's data as the data Job leaves it, with the program `mine`; return the manifest."""
    lines = [[f"line of {digest} shard {shard}"] for shard in range(shards)]
    return written_data.write_data(job, lines, digest=digest, tables={"items.txt": "1 item\n"})


class LoopbackGang:
    """The launchers of one run. As a context manager it kills all processes that still run at its end.

    `fake` selects faults of the processes (fake_paddle.py, fake_script.py), and `options` those of runtime v1
    (loopback_launcher.FakeV1). `env` are further settings and variables of the pods. Only with `report` the launchers
    write report.html and curve.png, which takes as much CPU time as three launchers.
    """

    def __init__(
        self,
        root: Path,
        *,
        trainers: int = 3,
        run: str = "quick-start-0a1b2c3d",
        fake: dict[str, Any] | None = None,
        timings: dict[str, float] | None = None,
        options: Sequence[str] = (),
        report: bool = False,
        python: str | Path = sys.executable,
        **env: Any,
    ) -> None:
        self.root, self.trainers, self.run = root, trainers, run
        self.job = root / "shared" / env.get("JOB_NAME", "quick-start")
        self.output = self.job / "output"
        self.timings = {**FAST, **(timings or {})}
        self.fake, self.env = fake or {}, env
        self.options, self.report, self.python = options, report, str(python)
        _subnet[1] += 1
        self.addresses = [f"127.{_subnet[0]}.{_subnet[1] % 250}.{i + 2}" for i in range(trainers)]
        self.names = [f"{run}-{i}.paddle-training" for i in range(trainers)]
        self.hosts = dict(zip(self.names, self.addresses, strict=True))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.folder = root / f"gang-{uuid.uuid4().hex[:8]}"
        program = f"#!{sys.executable} -S\n{(HERE / 'fake_paddle.py').read_text()}"
        write_script(self.folder / "bin" / "paddle", program)
        if not (self.job / "manifest.json").exists():
            write_data(self.job, trainers)

    def __enter__(self) -> LoopbackGang:
        return self

    def __exit__(self, *_: object) -> None:
        kill_processes(self.running_pids, self.processes.values())

    def start(self, *ranks: int, prefix: tuple[str, ...] = (), **env: Any) -> LoopbackGang:
        """Start the launchers of `ranks`, by default of all ranks; `env` overrides that of the gang."""
        config = {
            "hosts": self.hosts,
            "timings": self.timings,
            "options": self.options,
            "report": self.report,
        }
        own = {
            "JOB_PATH": str(self.root / "shared"),
            "PADDLE_LAUNCHER_K8S_JOB": self.run,
            "trainers": self.trainers,
            "runtime": "v1",
            "passes": 3,
            "rendezvous_seconds": 8,
            "rank_wait_hours": 0,
            "restarts": 0,
            "data_wait_seconds": 5,
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(REPO),
            "FAKE": json.dumps(self.fake),
            "FAKE_HOSTS": json.dumps(self.hosts),
            "FAKE_STOP": str(self.folder / "stop"),
            **self.env,
            **env,
        }
        for rank in ranks or range(self.trainers):
            pod = {
                "JOB_COMPLETION_INDEX": str(rank),
                "PADDLE_LAUNCHER_POD_NAME": f"{self.run}-{rank}-x",
                "PADDLE_LAUNCHER_POD_IP": self.addresses[rank],
                "PADDLE_LAUNCHER_NODE_NAME": f"node-{rank}",
                "PADDLE_LAUNCHER_WORK_DIR": str(self.folder / f"work-{rank}"),
                "PADDLE_LAUNCHER_TERMINATION_LOG": str(self.folder / f"termination-{rank}"),
                "FAKE_OWN": self.names[rank],
            }
            argv = (
                *prefix,
                self.python,
                "-m",
                "tests.launcher.supervisor.loopback_launcher",
                json.dumps(config),
            )
            with (self.folder / f"pod-{rank}.log").open("ab") as log:
                self.processes[rank] = subprocess.Popen(
                    argv, cwd=REPO, env=pod_environ(**{**pod, **own}), stdout=log, stderr=log
                )
        return self

    def wait_for_exit(self, seconds: float = 80) -> list[int]:
        """Return all exit codes in rank order; fail if a launcher still runs after `seconds`."""
        deadline = time.monotonic() + seconds * PATIENCE
        codes = []
        for rank, process in sorted(self.processes.items()):
            try:
                codes.append(process.wait(timeout=max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank} still runs:\n{self.pod_log(rank)}") from None
        return codes

    def wait_until(self, condition: Callable[[], object], seconds: float = 45) -> None:
        """Wait until `condition()` is true; fail with the logs of all pods after `seconds`."""
        until(condition, seconds=seconds, words=lambda: "\n".join(map(self.pod_log, self.processes)))

    def read_log(self, rank: int, name: str = "train.log") -> str:
        """Return the log of a rank's process on its pod's own disk, or an empty text before its start."""
        path = self.folder / f"work-{rank}" / "logs" / name
        return path.read_text(errors="replace") if path.exists() else ""

    def all_trainers_started(self) -> bool:
        """Return whether all trainers have started their first pass."""
        return all("Pass=" in self.read_log(rank) for rank in range(self.trainers))

    def reports_training(self) -> bool:
        """Return whether all trainers have started and rank 0 reports the state `training`.

        Rank 0 may still report `starting` for a moment after all trainers have started.
        """
        files = ("run.json", "status.json")
        return self.all_trainers_started() and all(
            self.read_json(name)["state"] == "training" for name in files
        )

    def running_pids(self) -> list[int]:
        """Return the process ids of this gang: launchers and all their descendants."""
        return find_processes(self.folder)

    def find_pids(self, rank: int, command: str) -> list[int]:
        """Return the ids of a rank's processes with the word `command`, or with such a variable (`NAME=value`)."""
        found = []
        for pid in find_processes(self.folder / f"work-{rank}"):
            with contextlib.suppress(OSError):
                words = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
                if command.encode() in b"\0".join(words).split(b"\0"):
                    found.append(pid)
        return found

    def pod_log(self, rank: int) -> str:
        """Return everything that the launchers of a rank have printed."""
        return (self.folder / f"pod-{rank}.log").read_text(errors="replace")

    def termination_message(self, rank: int) -> str:
        """Return the termination message of a rank's pod, or an empty text."""
        path = self.folder / f"termination-{rank}"
        return path.read_text() if path.exists() else ""

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file of the output folder."""
        value: dict[str, Any] = json.loads((self.output / name).read_text())
        return value
