"""How far a run is, as `output/status.json` and `output/run.json` tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.layout import Position


@dataclass(frozen=True)
class Restart:
    """The end of an attempt that was not the run's: `at` in unix seconds."""

    attempt: int
    cause: str
    at: float | None

    @property
    def brief(self) -> str:
        """The first line of the cause, without the announcement of the log lines that follow it."""
        first = self.cause.strip().partition("\n")[0].partition("; the last lines of ")[0]
        return first or "no cause was told"


@dataclass(frozen=True)
class Progress:
    """The run as its files tell it.

    Passes and attempts count from 0, `eta` is in seconds, loss has no unit. `number` is None, and batches are
    0, while no rank trains.
    """

    state: str
    attempt: int
    number: int | None
    passes: int
    batch: int
    batches: int
    samples_per_second: float | None
    loss: float | None
    eta: float | None
    updated: float | None
    export_to: str | None = None
    """Where the model goes at the end."""
    restarts: tuple[Restart, ...] = ()
    waiting_for: str | None = None
    """What keeps the run from training."""
    resume: Position | None = None
    """The save from which the newest attempt that was planned goes on; see `goes_on`."""

    @property
    def goes_on(self) -> Position | None:
        """The save from which the attempt that is about to train goes on, as far as it is known already."""
        restarted = bool(self.restarts) and self.restarts[-1].attempt == self.attempt - 1
        known = self.state == "starting" or (self.state == "rendezvous" and restarted)
        return self.resume if known else None

    @property
    def fraction(self) -> float:
        """0 to 1 of all batches of all passes."""
        if self.state in ("exporting", "complete"):
            return 1.0
        if not self.passes:
            return 0.0
        if self.number is None:
            return min(1.0, self.resume.passes / self.passes) if self.resume else 0.0
        within = self.batch / self.batches if self.batches else 0.0
        return min(1.0, max(0.0, (self.number + min(within, 1.0)) / self.passes))


def progress_of(
    status: Mapping[str, Any] | None, run: Mapping[str, Any] | None, run_id: str | None
) -> Progress | None:
    """The progress by status.json, and run.json of the same run; None when the former is absent or another
    run's."""
    if not status or (run_id is not None and status.get("runId") != run_id):
        return None
    at = run.get("resume") if run and run.get("runId") == status.get("runId") else None
    number = status.get("pass")
    return Progress(
        state=str(status.get("state", "unknown")),
        attempt=int(status.get("attempt") or 0),
        number=None if number is None else int(number),
        passes=int(status.get("passes") or 0),
        batch=int(status.get("batch") or 0),
        batches=int(status.get("batches") or 0),
        samples_per_second=figure(status.get("samplesPerSecond")),
        loss=figure(status.get("loss")),
        eta=figure(status.get("etaSeconds")),
        updated=figure(status.get("updated")),
        export_to=status.get("exportTo"),
        restarts=tuple(
            Restart(int(entry["attempt"]), str(entry.get("cause") or ""), figure(entry.get("at")))
            for entry in status.get("restarts") or ()
        ),
        waiting_for=status.get("waitingFor"),
        resume=Position(*at) if at else None,
    )


def figure(value: object) -> float | None:
    """A number of a status file, or None for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
