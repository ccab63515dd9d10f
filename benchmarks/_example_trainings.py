"""The benchmarks' example trainings on loopback, with real Paddle: under launchers, and without them."""

from __future__ import annotations

import calendar
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.learning import prepare_example
from local.launcher_gang import LauncherGang, job_environment
from local.trainer_processes import PROGRAMS, Process, TrainerProcesses

RANKS = range(3)
ROLES = ("trainer", "pserver")
PORTS = {"CONF_PADDLE_PORTS_NUM": "1", "CONF_PADDLE_PORTS_NUM_SPARSE": "1"}
JOB = "job"


def prepare_example_job(example: str, folder: Path) -> Path:
    """Prepare the example's real data in `folder` as its data Job does; return the job's folder."""
    return prepare_example(example, folder)[0].parents[1]


class FleetGang(LauncherGang):
    """A gang (all launchers of one job) of three ranks that trains an example on loopback."""

    def __init__(self, folder: Path, job: Path, example: str, **env: str) -> None:
        shared = folder / "shared"
        shutil.copytree(job, shared / JOB, symlinks=True)
        example_env = {"TRAIN_CONFIG_DIR": example, "PADDLE_LAUNCHER_LOG_FORMAT": "json"}
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        super().__init__(
            folder, {**inherited, **job_environment(shared, JOB, len(RANKS)), **PORTS, **example_env, **env}
        )
        self.output = shared / JOB / "output"
        self._started = 0.0

    def start(self, *ranks: int) -> Self:
        """Start the launchers of these ranks, by default of all."""
        self._started = time.time()
        return super().start(*ranks)

    def marks(self, rank: int) -> dict[str, float]:
        """Return when (Unix seconds) a rank's trainer reached each point of its start (the keys of MARKS)."""
        return dict(read(self.work_dir(rank) / "progress.json").get("marks", {}))

    def events(self, rank: int) -> list[tuple[float, str]]:
        """Return (unix seconds, message) of each line of a rank's launcher."""
        return events(self.pod_log(rank))

    def began(self) -> float:
        """Return when the launchers were started (unix seconds)."""
        return self._started

    def trains(self, after: float) -> bool:
        """Return whether every rank's trainer has completed its first batch after the time `after` (Unix seconds)."""
        return all(self.marks(rank).get("first_batch", 0.0) > after for rank in RANKS)

    def kill(self, rank: int, role: str) -> float:
        """Kill a rank's trainer or pserver, and return when (unix seconds)."""
        for pid in self.alive():
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            name = Path(f"/proc/{pid}/comm").read_text().split()
            if f"JOB_COMPLETION_INDEX={rank}".encode() in environ and name[:1] == [role]:
                os.kill(pid, signal.SIGKILL)
                return time.time()
        raise AssertionError(f"rank {rank} has no running process {role}; its log:\n{self.pod_log(rank)}")


class ByHand(TrainerProcesses):
    """The same pservers and trainers as under the launchers of FleetGang, started without launchers."""

    def __init__(self, folder: Path, job: Path, example: str, **env: str) -> None:
        folder.mkdir()
        data = [job / str(rank) / "data" for rank in RANKS]
        super().__init__(folder, data, PROGRAMS / example, values={**PORTS, **env})

    def first_batch(self, seconds: float, measure: Callable[[], object] = lambda: None) -> dict[str, float]:
        """Start all processes, and kill them after each rank's first batch.

        Args:
            seconds: deadline.
            measure: called while all trainers train.

        Returns:
            Seconds from the start to the last rank's first batch, as `total`, and their parts.
        """
        started = time.time()
        found: list[dict[str, float]] = []

        def watch(running: dict[str, Process]) -> None:
            marks = [read(self.settings(rank).work.progress).get("marks", {}) for rank in RANKS]
            if not found and all("first_batch" in m for m in marks):
                found.append(parts(started, paddle_ends(marks)))
                measure()
                for process in running.values():
                    process.kill()

        codes = self.run(seconds, watch)
        if not found:
            sys.exit(
                f"without launchers, a rank trained no batch in {seconds:.0f} s: exit codes {codes}; "
                f"log of trainer 0:\n{self.log()[-3000:]}"
            )
        return found[0]


def read(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty when the file is missing or half-written."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def events(log: str) -> list[tuple[float, str]]:
    """Return (unix seconds, message) of the launcher's own lines in a pod's log."""
    found = []
    for line in log.splitlines():
        if line.startswith('{"time"'):
            value = json.loads(line)
            moment, milliseconds = value["time"].rstrip("Z").split(".")
            seconds = calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%S"))
            found.append((seconds + int(milliseconds) / 1000, value["message"]))
    return found


def last(found: Sequence[Sequence[tuple[float, str]]], text: str, after: float = 0.0) -> float:
    """Return the latest of the times (Unix seconds) at which each launcher first logged `text` after `after`.

    Args:
        found: for each launcher its log lines, as (Unix seconds, message).
        text: a part of the message.
        after: earlier lines are ignored.
    """
    times = [[at for at, message in one if at >= after and text in message] for one in found]
    assert all(times), f"a launcher logged nothing with {text!r} after {after}"
    return max(each[0] for each in times)


# Time mark in a trainer's progress.json -> the part of the start that ends at it.
MARKS = {"imported": "import", "joined": "join", "loaded": "load", "first_batch": "batch"}


def paddle_ends(marks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return when (Unix seconds) the last rank reached the end of `import`, `join`, `load` and `batch`.

    Args:
        marks: for each rank the time marks of its trainer, with the keys of MARKS.
    """
    return {part: max(m[mark] for m in marks) for mark, part in MARKS.items()}


def parts(began: float, ends: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each part of a start or restart, and their sum as `total`.

    Args:
        began: when the first part began (Unix seconds).
        ends: when each part ended (Unix seconds), in their order; each part begins where the one before it ended.
    """
    result, before = {}, began
    for part, moment in ends.items():
        result[part], before = moment - before, moment
    return {**result, "total": before - began}
