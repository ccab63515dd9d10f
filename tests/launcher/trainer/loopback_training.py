"""Run pservers and trainers on loopback, forked from one fork server that all tests of this process share.

So Paddle is imported only once: five runs take 15 CPU seconds instead of 26. The tables of these processes have
5 shards instead of 60, since Paddle starts seven programs (shells, mkdir, gzip, …) for each file of a checkpoint.
"""

from __future__ import annotations

import atexit
import csv
import io
import json
import random
import shutil
import socket
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from launcher.cli.releases import merge_values
from launcher.paths import Position
from launcher.runtimes.fleet import trainer_command
from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.supervisor.child_processes import ForkServer
from testkit.gang_without_launchers import PROGRAMS, ForkedProcess, Process, TrainerProcesses
from testkit.pod_settings import chart_values
from testkit.waiting import PATIENCE

__all__ = ["PROGRAMS", "SHARDS", "LoopbackTraining", "Process", "prepare_training"]

IMPORT_SECONDS = 120.0
SHARDS = 5
FORK_SERVER = f"""
import os, sys
from launcher.trainer import __main__ as trainer
from launcher.trainer import fork_server
from launcher.trainer import server_tables
server_tables.DEFAULT_SHARDS = {SHARDS}
fork_server.serve(trainer.import_all)
if "FORKED_CODE" in os.environ:
    exec(os.environ["FORKED_CODE"], {{"__name__": "__main__"}})
    code = 0
else:
    code = trainer.main()
sys.stdout.flush()
os._exit(code)
"""


_fork_servers: list[ForkServer] = []
"""At most one. Paddle reads some variables while it is imported; they are the same in all tests."""


def _start_fork_server(spec: ProcessSpec) -> None:
    """Start the fork server with the environment of `spec`, and wait until it has imported Paddle."""
    folder = Path(tempfile.mkdtemp(prefix="fork-server-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    log = folder / "fork-server.log"
    server = ForkServer(replace(spec, argv=(spec.argv[0], "-c", FORK_SERVER), cwd=folder, log=log))
    atexit.register(server.end)  # otherwise Python warns that it still runs
    assert server.ready(IMPORT_SECONDS), log.read_text()
    _fork_servers.append(server)


class LoopbackTraining(TrainerProcesses):
    """One attempt of a training whose pservers and trainers are forked from the shared fork server."""

    patience = PATIENCE

    def start_process(self, spec: ProcessSpec) -> Process:
        """Fork a pserver or trainer; start other programs (of a test) directly."""
        if spec.argv != trainer_command():
            return super().start_process(spec)
        sys.audit("tests.slow_start", "Paddle")  # for `pytest --fast`
        if not _fork_servers:
            _start_fork_server(spec)
        assert _fork_servers[0].alive, "the fork server has exited"
        return ForkedProcess(spec, _fork_servers[0])

    def run_code(self, spec: ProcessSpec, code: str) -> None:
        """Run Python code instead of a pserver or trainer; fail with its log if it raises an exception."""
        process = self.start_process(replace(spec, env={**spec.env, "FORKED_CODE": code}))
        assert process.wait() == 0, spec.log.read_text()[-2000:]

    def read_metrics(self) -> list[dict[str, str]]:
        """Return the rows of metrics.csv."""
        return list(csv.DictReader(io.StringIO(self.output.metrics_csv.read_text())))

    def read_score(self) -> dict[str, float]:
        """Return the exported model's scores."""
        return dict(json.loads((self.output.model / "score.json").read_text()))

    def read_progress(self, rank: int = 0) -> dict[str, Any]:
        """Return a trainer's progress.json."""
        return dict(json.loads((self.root / f"work{rank}" / "progress.json").read_text()))

    def next_attempt(self, resume: Position | None, **values: Any) -> Self:
        """Return the next attempt, which resumes at this position with some changed fields of its settings."""
        changed = merge_values(self.values, chart_values(**values))
        return replace(self, resume=resume, attempt=self.attempt + 1, values=changed)

    def copied(self, root: Path, resume: Position | None, **values: Any) -> Self:
        """Return the next attempt of a copy of this training, with its data and program, in the new folder `root`."""
        shutil.copytree(self.root, root, symlinks=True)
        data, program = [
            [root / path.relative_to(self.root) if path.is_relative_to(self.root) else path for path in paths]
            for paths in (self.data, [self.program])
        ]
        changed = self.next_attempt(resume, port=find_free_ports(), **values)
        return replace(changed, root=root, data=data, program=program[0])


def find_free_ports() -> int:
    """Return the first of ten consecutive free ports."""
    while True:
        first = random.randint(20000, 30000)  # noqa: S311
        if not any(listens("127.0.0.1", first + i) for i in range(10)):
            return first


def listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def prepare_training(
    root: Path,
    data: list[Path],
    program: Path = PROGRAMS / "quick_start",
    config: str = "trainer_config.py",
    **values: Any,
) -> LoopbackTraining:
    """Return a training of one pass with these fields of its settings."""
    few = {"passes": 1, "batch_size": 32, "log_period": 1, "port": find_free_ports()}
    return LoopbackTraining(root, data, program, config, chart_values(**few | values))
