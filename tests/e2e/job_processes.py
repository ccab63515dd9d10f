"""Find and signal a job's processes on this machine, whose kernel runs the pods of all nodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.paths import POD_WORK_DIR, WorkPaths

PROC = Path("/proc")
WORKERS = ("trainer", "pserver")
"""Process names (`comm`) by which the launcher's child processes are recognized."""
COMMANDS = {"train": "launcher", "prepare": "data", "await-data": "waiting"}
"""`python -m launcher <command>` → the role that tests call it by."""


@dataclass(frozen=True)
class JobProcess:
    """One process of a job. `rank` is -1 without the variable JOB_COMPLETION_INDEX."""

    pid: int
    role: str
    """launcher, trainer, pserver, data, waiting (the init container), or other."""
    rank: int
    progress_file: Path
    """Its progress.json, an absolute path in the pod's file system."""

    def progress(self) -> dict[str, Any]:
        """Return progress.json of this trainer process, or {} if there is none."""
        try:
            root = PROC / str(self.pid) / "root"
            return dict(json.loads((root / self.progress_file.relative_to("/")).read_text()))
        except (OSError, ValueError):
            return {}


def find_job_processes(job_name: str, role: str | None = None, rank: int | None = None) -> list[JobProcess]:
    """Return the processes of this job in order of their pids; all, or those of a role or rank."""
    found = [one for path in PROC.glob("[0-9]*") if (one := _identified(path, job_name)) is not None]
    return sorted(
        (one for one in found if role in (None, one.role) and rank in (None, one.rank)),
        key=lambda one: one.pid,
    )


def _identified(path: Path, job_name: str) -> JobProcess | None:
    try:
        pairs = (word.partition("=") for word in (path / "environ").read_text(errors="replace").split("\0"))
        words = (path / "cmdline").read_text(errors="replace").split("\0")
        shown = (
            (path / "comm").read_text().partition(" ")[0].strip()
        )  # a pserver's name has its number at the end
    except OSError:  # the process has exited meanwhile
        return None
    environ = {name: value for name, _, value in pairs}
    rank = environ.get("JOB_COMPLETION_INDEX", "-1")
    if environ.get("JOB_NAME") != job_name or not rank:  # empty: the environment was read while it changed
        return None
    known = (COMMANDS[word] for word in words if word in COMMANDS)
    role = shown if shown in WORKERS else next(known, "other")
    script = environ.get("PADDLE_LAUNCHER_PROGRESS_FILE")  # only processes of a script have it
    progress = script or WorkPaths(Path(environ.get("PADDLE_LAUNCHER_WORK_DIR", POD_WORK_DIR))).progress
    return JobProcess(int(path.name), "trainer" if script else role, int(rank), Path(progress))


def signal_all(whom: Iterable[JobProcess], number: signal.Signals) -> None:
    """Send a signal to these processes; fail if there are none."""
    listed = list(whom)
    assert listed, "there is no such process"
    for one in listed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, number)


def open_files(process: JobProcess) -> list[str]:
    """Return the paths of the files that a process has open, as the process sees them."""
    paths = []
    with contextlib.suppress(OSError):  # the process has exited meanwhile
        for link in (PROC / str(process.pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                paths.append(str(link.readlink()))
    return paths
