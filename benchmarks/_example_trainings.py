"""The benchmarks' example trainings on loopback, with real Paddle: under launchers, and without them."""

from __future__ import annotations

import calendar
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks._result_lines import Parts
from benchmarks.learning import prepare_example
from local.launcher_gang import LauncherGang, find_processes, job_environment
from testkit.gang_without_launchers import PROGRAMS, Process, TrainerProcesses

RANKS = range(3)
ROLES = ("trainer", "pserver")
MARKS = {"imported": "import", "joined": "join", "loaded": "load", "first_batch": "batch"}
"""Time mark in a trainer's progress.json → the part of the start that ends at it: the trainer has imported Paddle, has
joined the servers and the other trainers, has loaded the checkpoint (if there is one), has trained its first batch."""
PORTS = {"portsNum": 1, "portsNumSparse": 1}
JOB = "job"


def prepare_example_job(example: str, folder: Path) -> Path:
    """Prepare the example's real data in `folder` as its data Job does; return the job's folder."""
    return prepare_example(example, folder)[0].parents[1]


class ExampleGang(LauncherGang):
    """A gang (all launchers of one job) that trains an example on loopback."""

    def events(self, rank: int) -> list[tuple[float, str]]:
        """Return (Unix seconds, message) of each line of a rank's launcher."""
        return events(self.pod_log(rank))

    def all_events(self) -> list[list[tuple[float, str]]]:
        """Return the `events` of each rank."""
        return [self.events(rank) for rank in range(self.trainers)]

    def kill(self, rank: int, name: str) -> float:
        """Kill the process of a rank that has this name or argument, and return when (Unix seconds)."""
        for pid in find_processes(self.work_dir(rank)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if name in (*process.name().split()[:1], *process.cmdline()):
                    killed = (
                        time.time()
                    )  # before the kill: the launcher may log it before this process goes on
                    process.kill()
                    return killed
        sys.exit(f"rank {rank} has no process {name}; the end of its log:\n{self.pod_log(rank)[-3000:]}")


class FleetGang(ExampleGang):
    """A gang of three ranks that trains an example with runtime fleet."""

    def __init__(self, folder: Path, job: Path, example: str, **training: Any) -> None:
        """Copy the prepared `job` to `folder`; `training` has values of the chart below that key."""
        shared = folder / "shared"
        for source, target in ((job, JOB), (job.parent / ".data", ".data")):
            shutil.copytree(source, shared / target, symlinks=True)
        own = {"jobName": JOB, "trainers": len(RANKS), "logFormat": "json", **PORTS}
        program = {"config": f"{example}/trainer_config.py"}
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environ = job_environment(shared, own, {"training": program | training})
        super().__init__(folder, inherited | environ)
        self.output = shared / JOB / "output"
        self._started = 0.0

    def start(self, *ranks: int) -> Self:
        """Start the launchers of these ranks, by default of all."""
        self._started = time.time()
        return super().start(*ranks)

    def marks(self, rank: int) -> dict[str, float]:
        """Return when (Unix seconds) a rank's trainer reached each point of its start (the keys of MARKS)."""
        return dict(read(self.work_dir(rank) / "progress.json").get("marks", {}))

    def began(self) -> float:
        """Return when the launchers were started (unix seconds)."""
        return self._started

    def trains(self, after: float) -> bool:
        """Return whether every rank's trainer has completed its first batch after the time `after` (Unix seconds)."""
        return all(self.marks(rank).get("first_batch", 0.0) > after for rank in RANKS)


class ByHand(TrainerProcesses):
    """The same pservers and trainers as under the launchers of FleetGang, started without launchers."""

    def __init__(self, folder: Path, job: Path, example: str, **training: Any) -> None:
        folder.mkdir()
        data = [job / str(rank) / "data" for rank in RANKS]
        super().__init__(folder, data, PROGRAMS / example, values={**PORTS, "training": training})

    def first_batch(self, seconds: float) -> dict[str, float]:
        """Start all processes, and kill them after each rank's first batch; exit after `seconds` without one.

        Returns:
            Seconds from the start to the last rank's first batch, as `total`, and their parts.
        """
        started = time.time()
        found: list[dict[str, float]] = []

        def watch(running: dict[str, Process]) -> None:
            marks = [read(self.settings(rank).work.progress).get("marks", {}) for rank in RANKS]
            if not found and all("first_batch" in m for m in marks):
                found.append(split_parts(started, process_ends(marks, MARKS)))
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

    `found` has the lines of each launcher, as (Unix seconds, message).
    """
    times = [[at for at, message in one if at >= after and text in message] for one in found]
    assert all(times), f"a launcher logged nothing with {text!r} after {after}"
    return max(each[0] for each in times)


def launcher_ends(logs: Sequence[Sequence[tuple[float, str]]], killed: float | None = None) -> Parts:
    """Return when (Unix seconds) each part of a start ended, or of the restart after a kill, by the launchers' logs.

    - detect: rank 0 knows of the failure (restart only);
    - stop: no process of the old attempt is left (restart only);
    - stage: every rank has copied its shard to its own disk (first start only);
    - rendezvous: all ranks have joined, and rank 0 instructs them to start;
    - start: every launcher has started its trainer.
    """
    if killed is None:
        return {
            "stage": last(logs, "staged shard"),
            "rendezvous": last(logs[:1], "attempt 0 "),
            "start": last(logs, "started trainer"),
        }
    return {
        "detect": last(logs[:1], " failed: ", killed),
        "stop": last(logs[:1], "restarting as attempt", killed),
        "rendezvous": last(logs[:1], "the rendezvous took", killed),
        "start": last(logs, "started trainer", killed),
    }


def process_ends(marks: Sequence[Mapping[str, float]], parts: Mapping[str, str]) -> Parts:
    """Return when (Unix seconds) the last process reached the end of each part of its start.

    Args:
        marks: the time marks of each process, in Unix seconds.
        parts: time mark → the part that ends at it.
    """
    return {part: max(each[mark] for each in marks) for mark, part in parts.items()}


def split_parts(began: float, ends: Mapping[str, float]) -> Parts:
    """Return the seconds of each part of a start or restart, and their sum as `total`.

    Args:
        began: when the first part began (Unix seconds).
        ends: when each part ended, in their order; each part begins where the one before it ended.
    """
    result, before = {}, began
    for part, moment in ends.items():
        result[part], before = moment - before, moment
    return {**result, "total": before - began}
