"""One run that is broken on purpose: waits for the moment, notes what is there, looks at how it ends."""

from __future__ import annotations

import csv
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e import processes
from tests.e2e.kube import POLL, Cluster, Training
from tests.e2e.processes import Process
from tests.waiting import Seen, until

SCORE_WITHIN = 0.02
"""Of the undisturbed run's: asynchronous training is never twice the same."""
LONG = {"passes": 8}
"""Of `training`, where a fault is silence, which counts after ten seconds: twice as long."""
LATE = 30
"""Seconds in which all processes of an ended Job are gone."""


@dataclass
class Run:
    """A training and what is expected of it."""

    training: Training
    undisturbed: Callable[[], float]
    """The undisturbed run's score."""
    note: Callable[[dict[str, Any]], None]
    """Keeps this test's row of docs/reliability.json."""
    at: float | None = field(default=None, init=False)
    """When it was last broken, in unix seconds."""
    rows: list[str] = field(default_factory=list, init=False)
    """metrics.csv as it was then."""
    saves: dict[str, bytes] = field(default_factory=dict, init=False)
    """What was saved by then: name → contents.json, in which is the attempt that wrote it."""
    seconds: float | None = field(default=None, init=False)

    @property
    def cluster(self) -> Cluster:
        return self.training.cluster

    @property
    def name(self) -> str:
        return str(self.training.values["jobName"])

    @property
    def output(self) -> Path:
        return self.training.output

    def processes(self, role: str | None = None, rank: int | None = None) -> list[Process]:
        return processes.of(self.name, role, rank)

    def progress(self, rank: int = 0) -> dict[str, Any]:
        """What this rank's trainer said last; {} while it has none."""
        trainers = self.processes("trainer", rank)
        return trainers[0].progress() if trainers else {}

    def json(self, name: str) -> dict[str, Any]:
        """run.json or status.json; {} before the first."""
        try:
            return dict(json.loads((self.output / name).read_text()))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}

    def address(self, rank: int) -> str:
        """The IP address of a rank's pod."""
        name = self.training.pod(rank)
        return str(next(p["status"]["podIP"] for p in self.training.pods() if p["metadata"]["name"] == name))

    def reach(self, number: int, batch: int = 1, rank: int = 0, seconds: float = 150) -> None:
        """Waits until this rank trains, in this pass (from 0) and batch or behind it."""

        def there() -> bool:
            told = self.progress(rank)
            return told.get("state") == "training" and (told["pass"], told["batch"]) >= (number, batch)

        self.until(there, f"rank {rank} in pass {number}, batch {batch}", seconds)

    def until(self, seen: Callable[[], Seen | None], what: str, seconds: float) -> Seen:
        """Waits for something of this run; in vain with the pods' words."""
        return until(seen, what, seconds, POLL, self.training.words)

    def broken(self) -> None:
        """Now something breaks: what is finished by now must not be lost."""
        self.rows = self._metrics()
        self.saves = {path.parent.name: self._contents(path.parent) for path in self._finished()}
        self.at = time.time()

    def kill(self, role: str, rank: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Signals the processes of this role and rank, and notes the time."""
        self.broken()
        processes.signal_all(self.processes(role, rank), number)

    def recovered(self, seconds: float = 120) -> float:
        """Waits until all trainers train in an attempt that began after the fault: seconds to its start."""
        broken_at = self.at
        assert broken_at is not None

        def first() -> float | None:
            told = [one.progress().get("marks", {}).get("first_batch") for one in self.processes("trainer")]
            marks = [mark for mark in told if mark is not None and mark > broken_at]
            return min(marks) if len(marks) == self.training.values["trainers"] else None

        self.seconds = self.until(first, "the first batches after the fault", seconds) - broken_at
        return self.seconds

    def ends(self, seconds: float = 240) -> list[str]:
        """Waits for the Job to complete; for what it restarted up to then, a line each."""
        self.training.complete(seconds)
        told = self.json("run.json")
        assert told["state"] == "complete"
        return [restart["cause"].partition("\n")[0] for restart in told["restarts"]]

    def ends_whole(self, *causes: str, seconds: float = 240, what: str = "") -> None:
        """The Job completes, nothing finished was lost, and it restarted for these reasons alone."""
        lines = self.ends(seconds)
        assert len(lines) == len(causes) and all(
            cause in line for cause, line in zip(causes, lines, strict=True)
        ), lines
        self._whole()
        score = float(self.json("run.json")["score"]["error"])
        assert abs(score - self.undisturbed()) <= SCORE_WITHIN, (score, self.undisturbed())
        self.until(lambda: not self.processes(), f"no process of {self.name}", LATE)
        self.keep(
            len(lines),
            f"{what}complete, all passes, error {score:.3f} (undisturbed {self.undisturbed():.3f})",
        )

    def keep(self, restarts: int, outcome: str) -> None:
        """Notes the row of this test."""
        seconds = None if self.seconds is None else round(self.seconds, 1)
        self.note({"seconds": seconds, "restarts": restarts, "outcome": outcome})

    def _whole(self) -> None:
        """Every pass is finished, and what was finished before the fault is still what it was."""
        passes, trainers = self.training.values["training"]["passes"], self.training.values["trainers"]
        for number in range(passes):
            assert (self.output / f"pass-{number:05d}" / "done").exists(), f"pass {number} is not whole"
        for name, content in self.saves.items():
            assert self._contents(self.output / name) == content, f"{name} was saved anew"
        now = self._metrics()
        assert set(self.rows) <= set(now), "a row of a finished pass was written anew"
        found = {(int(row["pass"]), int(row["rank"])) for row in csv.DictReader(now)}
        assert found == {(number, rank) for number in range(passes) for rank in range(trainers)}

    def _finished(self) -> list[Path]:
        return sorted(self.output.glob("pass-*/done"))

    @staticmethod
    def _contents(folder: Path) -> bytes:
        return (folder / "contents.json").read_bytes()

    def _metrics(self) -> list[str]:
        path = self.output / "metrics.csv"
        return path.read_text().splitlines() if path.exists() else []
