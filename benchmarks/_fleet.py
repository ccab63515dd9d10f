"""Real Paddle in three pods' stead on loopback: under three launchers, and started by hand."""

from __future__ import annotations

import calendar
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.learning import prepare
from launcher.timings import Timings
from tests.launcher.core.kit import LoopbackGang
from tests.launcher.worker.loopback import PROGRAMS, Loopback, Process

RANKS = range(3)
ROLES = ("trainer", "pserver")
VALUES = {
    "PADDLE_LAUNCHER_DATA_DIGEST": "try",
    "CONF_PADDLE_PORTS_NUM": "1",
    "CONF_PADDLE_PORTS_NUM_SPARSE": "1",
}


def job_of(example: str, folder: Path) -> Path:
    """A job's folder as the data Job leaves it, with the example's real data."""
    return prepare(example, folder)[0].parents[1]


class FleetGang(LoopbackGang):
    """Launchers with the product's runtime and times, whose processes meet on 127.0.0.1 to 127.0.0.3."""

    def __init__(self, folder: Path, job: Path, example: str, **env: str) -> None:
        shutil.copytree(job, folder / "shared" / "job", symlinks=True)
        own = {
            "JOB_NAME": "job",
            "TRAIN_CONFIG_DIR": example,
            "CONF_PADDLE_NIC": "lo",
            "PADDLE_LAUNCHER_RUNTIME": "fleet",
            "PADDLE_LAUNCHER_LOG_FORMAT": "json",
        }
        settings: dict[str, Any] = own | VALUES | env
        super().__init__(folder, timings=asdict(Timings()), **settings)
        self._began = 0.0

    def start(self, *ranks: int, prefix: tuple[str, ...] = (), **env: str) -> FleetGang:
        self._began = time.time()
        super().start(*ranks, prefix=prefix, **env)
        return self

    def config(self, rank: int) -> dict[str, Any]:
        config = super().config(rank)
        config["nics"] = {"lo": [f"127.0.0.{rank + 1}"]}
        return config

    def marks(self, rank: int) -> dict[str, float]:
        """The marks of a rank's trainer."""
        return dict(read(self.folder / f"work-{rank}" / "progress.json").get("marks", {}))

    def events(self, rank: int) -> list[tuple[float, str]]:
        """(unix seconds, message) of each line of a rank's launcher."""
        return events(self.pod_log(rank))

    def began(self) -> float:
        """When the launchers were started (unix seconds)."""
        return self._began

    def trains(self, after: float) -> bool:
        """Whether every rank has done a first batch after that moment."""
        return all(self.marks(rank).get("first_batch", 0.0) > after for rank in RANKS)

    def kill(self, rank: int, role: str) -> float:
        """Kills a rank's process, and returns when (unix seconds)."""
        for pid in self.alive():
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            name = Path(f"/proc/{pid}/comm").read_text().split()
            if f"JOB_COMPLETION_INDEX={rank}".encode() in environ and name[:1] == [role]:
                os.kill(pid, signal.SIGKILL)
                return time.time()
        raise AssertionError(f"rank {rank} has no {role}:\n{self.pod_log(rank)}")


class ByHand(Loopback):
    """The same processes, with the same environment, and no launcher."""

    def __init__(self, folder: Path, job: Path, example: str, **env: str) -> None:
        folder.mkdir()
        data = [job / str(rank) / "data" for rank in RANKS]
        super().__init__(folder, data, PROGRAMS / example, values={**VALUES, **env}, forked=False)

    def first_batch(self, seconds: float, look: Callable[[], object] = lambda: None) -> dict[str, float]:
        """Seconds from the start of all six processes to the last rank's first batch, and their parts.

        `look` is called while all train; then they are killed.
        """
        began = time.time()
        found: list[dict[str, float]] = []

        def watch(running: dict[str, Process]) -> None:
            marks = [read(self.settings(rank).work.progress).get("marks", {}) for rank in RANKS]
            if not found and all("first_batch" in m for m in marks):
                found.append(parts(began, paddle_ends(marks)))
                look()
                for process in running.values():
                    process.kill()

        codes = self.run(seconds, watch)
        if not found:
            sys.exit(f"by hand it did not train: {codes}\n{self.log()[-3000:]}")
        return found[0]


def read(path: Path) -> dict[str, Any]:
    """A JSON file that may not be there yet."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def events(log: str) -> list[tuple[float, str]]:
    """(unix seconds, message) of the launcher's own lines of a pod's log."""
    found = []
    for line in log.splitlines():
        if line.startswith('{"time"'):
            value = json.loads(line)
            moment, milliseconds = value["time"].rstrip("Z").split(".")
            seconds = calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%S"))
            found.append((seconds + int(milliseconds) / 1000, value["message"]))
    return found


def last(found: Sequence[Sequence[tuple[float, str]]], what: str, after: float = 0.0) -> float:
    """When the last of these launchers said so, for the first time after that moment."""
    times = [[at for at, text in one if at >= after and what in text] for one in found]
    assert all(times), f"a launcher said nothing of {what!r} after {after}"
    return max(each[0] for each in times)


MARKS = {"imported": "import", "met": "join", "loaded": "load", "first_batch": "batch"}


def paddle_ends(marks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """When the last rank's trainer had imported Paddle, joined the others, loaded, done its first batch."""
    return {part: max(m[mark] for m in marks) for mark, part in MARKS.items()}


def parts(began: float, ends: Mapping[str, float]) -> dict[str, float]:
    """Moments in order → the seconds that each part took, and `total`."""
    result, before = {}, began
    for part, moment in ends.items():
        result[part], before = moment - before, moment
    return {**result, "total": before - began}
