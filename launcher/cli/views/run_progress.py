"""How far a run is, by its `status.json` and `run.json`."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.paths import Position
from launcher.schema import RunFile, StatusFile


def first_line(cause: str) -> str:
    """Return the first line of a failure's cause, without the words that announce log lines after it."""
    line = cause.strip().partition("\n")[0].partition("; the last lines of ")[0]
    return line or "cause unknown"


@dataclass(frozen=True)
class RunProgress(StatusFile):
    """How far a run is, by its status.json: `number` is the current pass, None while no rank trains."""

    resume: Position | None = None
    """The checkpoint from which the newest planned attempt resumes; see `resumes_from`."""

    @property
    def resumes_from(self) -> Position | None:
        """The checkpoint from which the next attempt resumes; None if that is not decided yet."""
        restarted = bool(self.restarts) and self.restarts[-1].attempt == self.attempt - 1
        known = self.state == "starting" or (self.state == "rendezvous" and restarted)
        return self.resume if known else None

    @property
    def fraction(self) -> float:
        """How much of all batches of all passes is done, from 0 to 1."""
        if self.state in ("exporting", "complete"):
            return 1.0
        if not self.passes:
            return 0.0
        if self.number is None:
            return min(1.0, self.resume.passes / self.passes) if self.resume else 0.0
        within = self.batch / self.batches if self.batches else 0.0
        return min(1.0, max(0.0, (self.number + min(within, 1.0)) / self.passes))


def build_progress(status: StatusFile | None, run: RunFile | None, run_id: str | None) -> RunProgress | None:
    """Return the progress of a run (None: of any run); None without a status.json of that run."""
    if status is None or (run_id is not None and status.run_id != run_id):
        return None
    resume = run.resume if run and run.run_id == status.run_id else None
    return RunProgress(**vars(status), resume=Position(*resume) if resume else None)
