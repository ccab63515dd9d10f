"""A run with injected faults: wait for the right moment, record what exists, check how the run ends."""

from __future__ import annotations

import csv
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit.local_cluster import POLL, Cluster, Training
from testkit.waiting import Seen, until
from tests.e2e import job_processes
from tests.e2e.job_processes import JobProcess
from tests.faults.paced_programs import Result

SCORE_WITHIN = 0.02
"""Allowed difference from the error of the undisturbed run, where training is not repeatable: with asynchronous
updates (runtime fleet), and with another number of processes."""
LATE = 30
"""Seconds after the end of a Job within which all its processes have exited."""


@dataclass
class FaultyRun:
    """A training and what is expected of it after a fault."""

    training: Training
    undisturbed: Callable[[], Result]
    """Returns the result of the run without faults."""
    note: Callable[[dict[str, Any]], None]
    """Saves the row of docs/reliability.json for this test."""
    at: float | None = field(default=None, init=False)
    """When the last fault was injected, in unix seconds."""
    rows: list[str] = field(default_factory=list, init=False)
    """The content of metrics.csv at that time."""
    saves: dict[str, bytes] = field(default_factory=dict, init=False)
    """The checkpoints at that time: name → contents.json, which has the attempt that wrote the checkpoint."""
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

    def processes(self, role: str | None = None, rank: int | None = None) -> list[JobProcess]:
        return job_processes.find_job_processes(self.name, role, rank)

    def count_trainers(self) -> int:
        """Return the number of trainers, or processes of the script, in all pods."""
        values = self.training.values
        return int(values["trainers"]) * int(values["training"].get("processesPerPod") or 1)

    def progress(self, rank: int = 0) -> dict[str, Any]:
        """Return the latest progress of this rank's trainer, or {} if there is none."""
        trainers = self.processes("trainer", rank)
        return trainers[0].progress() if trainers else {}

    def json(self, name: str) -> dict[str, Any]:
        """Return run.json or status.json, or {} if it does not exist."""
        try:
            return dict(json.loads((self.output / name).read_text()))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}

    def address(self, rank: int) -> str:
        """Return the IP address of a rank's pod."""
        name = self.training.pod(rank)
        return str(next(p["status"]["podIP"] for p in self.training.pods() if p["metadata"]["name"] == name))

    def reach(self, number: int, batch: int = 1, rank: int = 0, seconds: float = 150) -> None:
        """Wait until this rank trains and has reached this pass (from 0) and batch."""

        def there() -> bool:
            progress = self.progress(rank)
            return progress.get("state") == "training" and (progress["pass"], progress["batch"]) >= (
                number,
                batch,
            )

        self.until(there, f"rank {rank} in pass {number}, batch {batch}", seconds)

    def until(self, seen: Callable[[], Seen | None], what: str, seconds: float) -> Seen:
        """Wait for a condition of this run; a timeout fails the test with the pods' logs."""
        return until(seen, what, seconds, POLL, self.training.last_log_lines)

    def broken(self) -> None:
        """Record the time of the fault and what is finished by now, which must not be lost."""
        self.rows = self._metrics()
        self.saves = {path.parent.name: self._contents(path.parent) for path in self._finished()}
        self.at = time.time()

    def kill(self, role: str, rank: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal the processes of this role and rank, and record the time."""
        self.broken()
        job_processes.signal_all(self.processes(role, rank), number)

    def recovered(self, seconds: float = 120) -> float:
        """Wait until all trainers train in an attempt that started after the fault; return the seconds until then."""
        broken_at = self.at
        assert broken_at is not None

        def first() -> float | None:
            batches = [
                one.progress().get("marks", {}).get("first_batch") for one in self.processes("trainer")
            ]
            marks = [mark for mark in batches if mark is not None and mark > broken_at]
            return min(marks) if len(marks) == self.count_trainers() else None

        self.seconds = self.until(first, "the first batches after the fault", seconds) - broken_at
        return self.seconds

    def ends(self, seconds: float = 240) -> list[str]:
        """Wait until the Job completes; return the first line of the cause of each restart."""
        self.training.complete(seconds)
        record = self.json("run.json")
        assert record["state"] == "complete"
        return [restart["cause"].partition("\n")[0] for restart in record["restarts"]]

    def ends_complete(self, *causes: str, seconds: float = 240, what: str = "") -> None:
        """Check that the Job completes, lost nothing that was finished, and restarted only for these causes."""
        lines = self.ends(seconds)
        assert len(lines) == len(causes) and all(
            cause in line for cause, line in zip(causes, lines, strict=True)
        ), lines
        self._check_nothing_lost()
        result = self.check_result()
        self.until(lambda: not self.processes(), f"no process of {self.name}", LATE)
        self.keep(len(lines), f"{what}complete, all passes, {result}")

    def check_result(self) -> str:
        """Check that the run learned what the undisturbed one did; return a text about it for the table.

        With runtime collective and the same number of processes all parameters must be exactly equal.
        """
        found, wanted = Result.of(self.output), self.undisturbed()
        if wanted.parameters:
            assert len(found.parameters) == self.count_trainers()
            assert len(set(found.parameters)) == 1, "all processes must have the same parameters"
        if wanted.parameters and len(found.parameters) == len(wanted.parameters):
            assert found == wanted
            return "parameters equal to undisturbed"
        assert abs(found.error - wanted.error) <= SCORE_WITHIN, (found, wanted)
        return f"error {found.error:.3f} (undisturbed {wanted.error:.3f})"

    def keep(self, restarts: int, outcome: str) -> None:
        """Record the row of this test."""
        seconds = None if self.seconds is None else round(self.seconds, 1)
        self.note({"seconds": seconds, "restarts": restarts, "outcome": outcome})

    def _check_nothing_lost(self) -> None:
        """Check that every pass is complete and that what was finished before the fault is unchanged."""
        passes = self.training.values["training"]["passes"]
        for number in range(passes):
            assert (self.output / f"pass-{number:05d}" / "done").exists(), f"pass {number} is incomplete"
        for name, content in self.saves.items():
            assert self._contents(self.output / name) == content, f"{name} was saved again after the fault"
        now = self._metrics()
        assert set(self.rows) <= set(now), "a row of a finished pass was changed after the fault"
        found = {(int(row["pass"]), int(row["rank"])) for row in csv.DictReader(now)}
        is_script = self.training.values.get("runtime") == "collective"  # process 0 writes the rows
        ranks = 1 if is_script else self.training.values["trainers"]
        assert found == {(number, rank) for number in range(passes) for rank in range(ranks)}

    def _finished(self) -> list[Path]:
        return sorted(self.output.glob("pass-*/done"))

    @staticmethod
    def _contents(folder: Path) -> bytes:
        return (folder / "contents.json").read_bytes()

    def _metrics(self) -> list[str]:
        path = self.output / "metrics.csv"
        return path.read_text().splitlines() if path.exists() else []
