"""Pservers and trainers of one training on this machine, without launchers: rank i on 127.0.0.(i+1).

The processes get the environment that a launcher gives them. This process serves the key-value store through
which the trainers rendezvous, as rank 0's launcher does. Benchmarks start the processes in this way to compare them
with a run under launchers, tests because they need no restarts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from launcher.paths import OutputPaths, Position
from launcher.runtimes.fleet import FleetRuntime
from launcher.runtimes.runtime_protocol import ProcessSpec, RankAttempt
from launcher.settings import TrainSettings
from launcher.supervisor.child_processes import ChildProcess, ForkServer
from launcher.supervisor.peers.peer_server import PeerServer, TrainerStore, build_store_prefix
from local.launcher_gang import LoopbackNetwork, first_port, job_environment
from local.paths import CLONE

PROGRAMS = CLONE / "launcher" / "programs"
FAILURE_SECONDS = 5  # after a first failure the others get so long to fail by themselves


class ForkedProcess:
    """A process that a fork server has forked, as the launcher starts pservers and trainers."""

    def __init__(self, spec: ProcessSpec, fork_server: ForkServer) -> None:
        self._child = ChildProcess(spec, lambda: None, fork_server)
        self.pid = self._child.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while the process runs."""
        return self._child.returncode

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self._child.returncode

    def wait(self) -> int:
        """Wait until the process has exited, and return its exit code."""
        self._child.done.wait()
        return self._child.returncode or 0

    def kill(self) -> None:
        """Kill the process and its process group."""
        self._child.signal(signal.SIGKILL)


Process = subprocess.Popen[bytes] | ForkedProcess


@dataclass
class TrainerProcesses:
    """One training: its folder, settings, and the pservers and trainers that run on this machine."""

    root: Path
    """Stands for the shared storage; the job's folder is `root/job`."""
    data: list[Path]
    """A staged shard for each pod, by its completion index."""
    program: Path
    """Folder of the training program."""
    config: str = "trainer_config.py"
    values: dict[str, Any] = field(default_factory=dict)
    """Values of the chart that differ from the defaults."""
    environ: dict[str, str] = field(default_factory=dict)
    """Further environment variables."""
    resume: Position | None = None
    attempt: int = 0
    world: tuple[int, ...] = ()
    """The completion index of each rank's pod; empty: all pods."""
    patience: ClassVar[float] = 1.0
    """Deadlines are multiplied by this number."""

    @property
    def output(self) -> OutputPaths:
        """Return the paths of the files in the output folder."""
        return OutputPaths(self.settings(0).layout.output)

    def settings(self, rank: int) -> TrainSettings:
        """Return the settings that a launcher of this rank would have."""
        index = self.world[rank] if self.world else rank
        own = {
            "jobName": "job",
            "trainers": len(self.data),
            "training": {"config": f"{self.program.name}/{self.config}"},
            "port": first_port(),
            "portsNum": 1,
            "portsNumSparse": 1,
        }
        return TrainSettings.from_environ(
            {
                **job_environment(self.root, own, self.values),
                "JOB_COMPLETION_INDEX": str(index),
                "PADDLE_LAUNCHER_WORK_DIR": str(self.root / f"work{index}"),
                "PATH": os.environ["PATH"],
                "HOME": os.environ.get("HOME", "/"),
                **self.environ,
            }
        )

    def gang(self, rank: int) -> RankAttempt:
        """Create a rank's folders; return what its launcher would pass to the runtime to start an attempt."""
        settings, places = self.settings(rank), self.world or range(len(self.data))
        settings.work_dir.mkdir(parents=True, exist_ok=True)
        for link, folder in (
            (settings.work.data, self.data[places[rank]]),
            (settings.work.program, self.program),
        ):
            link.unlink(missing_ok=True)
            link.symlink_to(folder, target_is_directory=True)
        self.output.node(places[rank]).mkdir(parents=True, exist_ok=True)
        return RankAttempt(
            rank=rank,
            hosts=tuple(f"127.0.0.{i + 1}" for i in range(len(places))),
            settings=settings,
            attempt=self.attempt,
            resume=self.resume,
            store=build_store_prefix("loopback", self.attempt),
            world=self.world,
        )

    def start_process(self, spec: ProcessSpec) -> Process:
        """Start one pserver or trainer in its own session."""
        spec.log.parent.mkdir(exist_ok=True)
        with spec.log.open("wb") as log:
            return subprocess.Popen(
                spec.argv, env=dict(spec.env), cwd=spec.cwd, stdout=log, stderr=log, start_new_session=True
            )

    def run(
        self,
        seconds: float = 120,
        watch: Callable[[dict[str, Process]], object] = lambda _: None,
        without: tuple[str, ...] = (),
    ) -> dict[str, int]:
        """Start all processes, and wait until they have exited; then kill the rest.

        After a first failure, the wait ends after at most FAILURE_SECONDS.

        Args:
            seconds: deadline.
            watch: called every 50 ms, until a process has failed, with all processes by `rank/name`, such as
                `0/pserver 0`.
            without: names of processes that are not started.

        Returns:
            Exit codes by name; -999 of a process that still ran at the end.
        """
        runtime = FleetRuntime()
        running = {}
        rank0 = self.gang(0)
        runtime.check(rank0.settings)
        server = PeerServer(LoopbackNetwork(rank0.host), rank0.settings.peer_port, {})
        server.trainer_store = TrainerStore(self.output.checkpoint_request)
        server.trainer_store.open(rank0.store)
        for rank in range(len(self.world or self.data)):
            gang = self.gang(rank)
            for spec in (*runtime.pservers(gang), *runtime.trainers(gang)):
                if f"{rank}/{spec.name}" not in without:
                    running[f"{rank}/{spec.name}"] = self.start_process(spec)
        deadline = time.monotonic() + seconds * self.patience
        try:
            while any(p.poll() is None for p in running.values()) and time.monotonic() < deadline:
                watch(running)
                if any(p.poll() for p in running.values()):
                    deadline = min(deadline, time.monotonic() + FAILURE_SECONDS)
                    watch = _ignore
                time.sleep(0.05)
            return {name: -999 if p.poll() is None else p.returncode or 0 for name, p in running.items()}
        finally:
            for process in running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            server.close()

    def finish(self, **options: Any) -> Self:
        """Run all processes with the options of `run`, and return self.

        Raises:
            RuntimeError: a process exited with another code than 0, or still ran at the deadline.
        """
        codes = self.run(**options)
        if set(codes.values()) != {0}:
            logs = f"{self.log()[-3000:]}\n{self.server_log()[-2000:]}"
            raise RuntimeError(f"the training in {self.root} failed: exit codes {codes}\n{logs}")
        return self

    def log(self, rank: int = 0) -> str:
        """Return a trainer's log."""
        return self.settings(rank).work.log("train.log").read_text(errors="replace")

    def server_log(self, rank: int = 0, server: int = 0) -> str:
        """Return a pserver's log."""
        name = self.output.server_log(rank, server).name
        return self.settings(rank).work.log(name).read_text(errors="replace")


def _ignore(_: dict[str, Process]) -> None:
    """Do nothing: replaces the callback `watch` of TrainerProcesses.run once a process has failed."""
