"""A gang on loopback, without the launcher's supervision: rank i on 127.0.0.(i+1), real Paddle processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from launcher.layout import Output
from launcher.runtimes.base import Gang, ProcessSpec
from launcher.runtimes.fleet import FleetRuntime
from launcher.settings import TrainSettings

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ROOT / "launcher" / "programs"


@dataclass
class Loopback:
    """What one run needs. `data`: one staged folder a rank."""

    root: Path
    data: list[Path]
    program: Path
    config: str = "trainer_config.py"
    values: dict[str, str] = field(default_factory=dict)
    """Environment variables over the defaults."""
    resume_pass: int | None = None
    attempt: int = 0
    python: str = sys.executable

    @property
    def output(self) -> Output:
        return Output(self.root / "output")

    def settings(self, rank: int) -> TrainSettings:
        env = {
            "JOB_NAME": "job",
            "JOB_PATH": str(self.root),
            "JOB_NAMESPACE": "paddle",
            "PADDLE_LAUNCHER_RELEASE": "loopback",
            "PADDLE_LAUNCHER_K8S_JOB": "job-0",
            "PADDLE_LAUNCHER_DATA_DIGEST": "0",
            "PADDLE_LAUNCHER_SERVICE": "job",
            "PADDLE_LAUNCHER_TRAINERS": str(len(self.data)),
            "JOB_COMPLETION_INDEX": str(rank),
            "TRAIN_CONFIG_DIR": self.program.name,
            "PADDLE_LAUNCHER_CONFIG_FILE": self.config,
            "CONF_PADDLE_NIC": "lo",
            "CONF_PADDLE_PORT": "21640",
            "CONF_PADDLE_PORTS_NUM": "1",
            "CONF_PADDLE_PORTS_NUM_SPARSE": "1",
            "PADDLE_LAUNCHER_WORK_DIR": str(self.root / f"work{rank}"),
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            **self.values,
        }
        return TrainSettings.from_environ(env)

    def gang(self, rank: int) -> Gang:
        work = self.root / f"work{rank}"
        work.mkdir(parents=True, exist_ok=True)
        self.output.node(rank).mkdir(parents=True, exist_ok=True)
        return Gang(
            rank=rank,
            trainers=len(self.data),
            hosts=tuple(f"127.0.0.{i + 1}" for i in range(len(self.data))),
            settings=self.settings(rank),
            data_dir=self.data[rank],
            program_dir=self.program,
            output_dir=self.output.root,
            work_dir=work,
            attempt=self.attempt,
            resume_pass=self.resume_pass,
        )

    def start(self, specs: list[ProcessSpec]) -> list[tuple[ProcessSpec, subprocess.Popen[bytes]]]:
        started = []
        for spec in specs:
            argv = [self.python, *spec.argv[1:]]
            with spec.log.open("wb") as log:
                process = subprocess.Popen(
                    argv, env=dict(spec.env), cwd=spec.cwd, stdout=log, stderr=log, start_new_session=True
                )
            started.append((spec, process))
        return started

    def run(
        self,
        seconds: float = 120,
        watch: Callable[[dict[str, subprocess.Popen[bytes]]], object] = lambda _: None,
    ) -> dict[str, int]:
        """Runs all to their end; returns exit codes by `rank/name`. A first bad end stops the others."""
        runtime = FleetRuntime()
        running = {}
        for rank in range(len(self.data)):
            gang = self.gang(rank)
            runtime.check(gang.settings)
            for spec, process in self.start([*runtime.pservers(gang), runtime.trainer(gang)]):
                running[f"{rank}/{spec.name}"] = process
        deadline = time.monotonic() + seconds
        try:
            while any(p.poll() is None for p in running.values()):
                watch(running)
                if any(p.poll() for p in running.values()):
                    self._linger(running)
                    break
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            return {name: -999 if p.poll() is None else p.returncode for name, p in running.items()}
        finally:
            for process in running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @staticmethod
    def _linger(running: dict[str, subprocess.Popen[bytes]]) -> None:
        """Lets others that fail for the same reason end by themselves, so that their codes are seen."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and any(p.poll() is None for p in running.values()):
            time.sleep(0.05)

    def log(self, rank: int = 0) -> str:
        return self.output.train_log(rank).read_text(errors="replace")

    def server_log(self, rank: int = 0, server: int = 0) -> str:
        return self.output.server_log(rank, server).read_text(errors="replace")


def clean(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
