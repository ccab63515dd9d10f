"""A gang (all launchers of one training) on this machine. Each rank has one process and its own loopback address.

`make try` and the benchmarks start launchers with this module. The module is also the program of each launcher process:
`python -m local.launcher_gang ADDRESS`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import runtimes
from launcher.errors import LauncherError
from launcher.io import files
from launcher.settings import TrainSettings, read_document, seed_variables, settings_document
from launcher.supervisor.agent import Agent
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.timings import Timings
from local.paths import CLONE

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

NO_GRACE = {"training": {"terminationGracePeriodSeconds": 0}}
"""Chart values for a gang that is not resumed after a stop: its launchers need not save a checkpoint when they stop."""
STOP_SECONDS = 90
"""Seconds that launchers have to exit after they were asked to stop. A compiler on this machine may make them slow."""


def first_port() -> int:
    """Return the first of ten ports on which the trainings of this process may listen.

    The ports depend on the last three digits of the process id, because PaddlePaddle's store (runtime collective)
    listens on all addresses of the machine: two trainings at the same time need different ports.
    """
    return 20_000 + os.getpid() % 1000 * 10


def find_processes(folder: Path) -> list[int]:
    """Return the ids of the launchers with their child processes whose work folder is `folder` or below `folder`."""
    mark = re.compile(rb"PADDLE_LAUNCHER_WORK_DIR=%b[/\0]" % re.escape(os.fsencode(folder)))
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.search((entry / "environ").read_bytes()):
                found.append(int(entry.name))
    return found


def kill_processes(find: Callable[[], list[int]], started: Iterable[subprocess.Popen[bytes]]) -> None:
    """Kill the processes whose ids `find` returns. Repeat this until `find` returns none, because processes may fork.

    `started` are the processes that this process has started. This function waits until they have exited.
    """
    while pids := find():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in started:
            process.wait()
        time.sleep(0.02)


def job_environment(
    job_path: Path, *changes: Mapping[str, Any], data_digest: str = "loopback"
) -> dict[str, str]:
    """Write the settings of a job on loopback to `job_path`, and return the environment variables for all launchers.

    Args:
        job_path: the folder that is used as the shared storage; the job's folder is `<job_path>/<jobName>`.
        changes: values of the chart that replace its defaults; a later mapping overrides an earlier one.
        data_digest: the data digest in the manifest on the storage; `none` for a script that reads its own data.
    """
    # A launcher, which may have a bare Python, imports this module, too.
    from launcher.cli.releases import merge_values, read_defaults  # noqa: PLC0415

    own = {"jobPath": str(job_path), "nic": "lo"}
    values = functools.reduce(merge_values, (read_defaults(), NO_GRACE, *changes, own))
    document = json.dumps(settings_document(values, data_digest=data_digest))
    # Gangs with other settings may use the same storage.
    file = job_path / f"settings-{hashlib.sha256(document.encode()).hexdigest()[:8]}.json"
    job_path.mkdir(parents=True, exist_ok=True)
    files.write_atomically(file, document)  # launchers that already run may read it now
    return {
        **seed_variables(values),
        "JOB_NAMESPACE": "loopback",
        "JOB_COMPLETION_INDEX": "0",
        "PADDLE_LAUNCHER_K8S_JOB": f"{values['jobName']}-loopback",
        "PADDLE_LAUNCHER_SETTINGS": str(file),
        **{each["name"]: each["value"] for each in values["extraEnv"]},
    }


class LoopbackNetwork(PodNetwork):
    """The network of one rank: its own loopback address, and no host names.

    Because host names do not resolve, the launchers find rank 0 by the address in `run.lock`, as in a cluster whose DNS
    fails.
    """

    def __init__(self, address: str) -> None:
        self.bind_host = address

    def resolve(self, name: str) -> list[str]:
        """Return a list with `name` if it is an address; an empty list for a host name."""
        return [name] if name[0].isdecimal() else []

    def interfaces(self) -> dict[str, str]:
        """Return the network interfaces of this rank: only `lo`, with the rank's address."""
        return {"lo": self.bind_host}


class LauncherGang:
    """All launchers of one run, as a context manager. After its block, all processes of the gang have exited."""

    def __init__(self, folder: Path, environ: Mapping[str, str], python: str | Path = sys.executable) -> None:
        """Prepare a gang with as many launchers as the chart value `trainers`. No process is started yet.

        Args:
            folder: the folder for the ranks' work folders, their logs `rank-<i>.log` and their termination messages
                `rank-<i>.end`.
            environ: the environment variables that all launchers share (`job_environment`).
            python: interpreter of the launchers. A script of runtime collective runs with the same interpreter.
        """
        self.folder, self.environ, self.python = folder, environ, str(python)
        self.trainers = int(read_document(environ)["trainers"])
        net = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}"  # two gangs may run at once
        self.addresses = [f"{net}.{rank + 1}" for rank in range(self.trainers)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *ranks: int) -> Self:
        """Start the launchers of these ranks; without arguments, start the launchers of all ranks."""
        for rank in ranks or range(self.trainers):
            address = self.addresses[rank]
            rank_environment = {
                "JOB_COMPLETION_INDEX": str(rank),
                "PADDLE_LAUNCHER_POD_NAME": f"rank-{rank}",
                "PADDLE_LAUNCHER_POD_IP": address,
                "PADDLE_LAUNCHER_NODE_NAME": "this machine",
                "PADDLE_LAUNCHER_WORK_DIR": str(self.work_dir(rank)),
                "PADDLE_LAUNCHER_TERMINATION_LOG": str(self.folder / f"rank-{rank}.end"),
                "PYTHONPATH": str(CLONE),
            }
            self.work_dir(rank).mkdir(parents=True, exist_ok=True)
            with (self.folder / f"rank-{rank}.log").open("wb") as log:
                argv = [self.python, "-m", "local.launcher_gang", address]
                self.processes[rank] = subprocess.Popen(
                    argv, env={**self.environ, **rank_environment}, stdout=log, stderr=log
                )
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is not None:
                for process in self.processes.values():
                    process.send_signal(signal.SIGTERM)
                self.wait(STOP_SECONDS)
        finally:  # also after a second Ctrl-C
            kill_processes(self.alive, self.processes.values())

    def wait(self, seconds: float) -> list[int]:
        """Wait until all launchers have exited. Kill launchers that still run after `seconds`.

        Returns:
            The exit code of each launcher; -9 if the launcher was killed.
        """
        deadline = time.monotonic() + seconds
        codes = []
        for process in self.processes.values():
            try:
                codes.append(process.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        return codes

    def failed(self) -> list[int]:
        """Return the ranks whose launcher has exited with a code other than 0."""
        return [rank for rank, process in self.processes.items() if process.poll()]

    def work_dir(self, rank: int) -> Path:
        """Return the work folder of a rank. The folder is used in place of a pod's own disk."""
        return self.folder / f"work-{rank}"

    def pod_log(self, rank: int) -> str:
        """Return what the launcher of a rank has written to stdout and stderr."""
        return (self.folder / f"rank-{rank}.log").read_text(errors="replace")

    def termination(self, rank: int) -> str:
        """Return the termination message of a rank's launcher; an empty text before the launcher has exited."""
        path = self.folder / f"rank-{rank}.end"
        return path.read_text() if path.exists() else ""

    def alive(self) -> list[int]:
        """Return the ids of all running processes of this gang: launchers and processes that they have started."""
        return find_processes(self.folder)


def main() -> int:
    """Run the launcher of one rank and return its exit code. The rank's address is the only argument."""
    try:
        settings = TrainSettings.from_environ(dict(os.environ))
        network = LoopbackNetwork(sys.argv[1])
        return Agent(settings, runtimes.load_runtime(settings.runtime), network, Timings()).run()
    except LauncherError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the rank's log
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
