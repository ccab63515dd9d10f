"""What rank 0 writes about the run: status.json every 2 s, run.json whenever the plan changes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from launcher import files
from launcher.errors import LauncherError
from launcher.gang.machine import Member, Plan
from launcher.gang.messages import Failure
from launcher.gang.status import number, status
from launcher.layout import Output
from launcher.reporting.log import log
from launcher.settings import TrainSettings
from launcher.storage.lock import RunLock
from launcher.storage.output import write_run
from launcher.timings import Timings


class Books:
    """One run's books. `look()` gives the plan and the ranks as they are now, from any thread."""

    def __init__(
        self,
        output: Output,
        settings: TrainSettings,
        *,
        fingerprint: dict[str, Any],
        earlier: dict[str, Any],
        lock: RunLock,
        look: Callable[[], tuple[Plan, Sequence[Member]]],
        timings: Timings,
    ) -> None:
        self.output, self._settings, self._fingerprint = output, settings, fingerprint
        self._earlier, self._lock, self._look, self._timings = earlier, lock, look, timings
        self.output_id = str(earlier.get("outputId") or os.urandom(8).hex())
        """The output's own, as long as runs go on with it: two trainings may have the same names."""
        self.exported: dict[str, Any] | None = (
            earlier.get("exported") if earlier.get("runId") == settings.run_id else None
        )
        """What run.json says of the export."""
        self._started = time.time()
        self._trained: float | None = None
        """When the last pass was whole; None before that."""
        self.state: str | None = None
        """What status.json says instead of the plan's own state."""
        self._end = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="status.json", daemon=True)

    def open(self, plan: Plan, complete: bool) -> None:
        """run.json with the fingerprint, before anything else is written.

        `complete`: nothing is left to train, and run.json never says otherwise again.
        """
        if complete:
            self._started = number(self._earlier.get("started")) or self._started
            self._trained = number(self._earlier.get("finished")) or time.time()
        self.planned(plan)

    def begin(self) -> None:
        """status.json of what `look` tells, from a thread and from now on."""
        self._thread.start()

    def planned(self, plan: Plan) -> None:
        """run.json says what is planned before any rank, or `look`, does."""
        self._write_run(plan, "training")

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                self._write_status(None)
            except (LauncherError, OSError) as error:  # the next one may do better; the lock's beat decides
                log.warning("cannot write status.json: %s", error)
            self._end.wait(self._timings.status)

    def _write_run(
        self, plan: Plan, state: str, finished: float | None = None, cause: Failure | None = None
    ) -> None:
        offset = time.time() - time.monotonic()
        write_run(
            self.output,
            self._settings,
            self._fingerprint,
            state=state if self._trained is None else "complete",
            started=self._started,
            finished=finished if self._trained is None else self._trained,
            output_id=self.output_id,
            exported=self.exported,
            attempt=plan.attempt,
            restarts=[
                {"attempt": r.attempt, "cause": r.cause, "at": r.at + offset, "signature": r.signature}
                for r in plan.restarts
            ],
            holder=self._lock.token,
            plan={
                "fruitless": plan.fruitless,
                "crew": plan.crew,
                "resume": (plan.resume.passes, plan.resume.batches) if plan.resume is not None else None,
            },
            cause=cause.text if cause is not None else None,
            exit_code=cause.code if cause is not None else None,
            check=self._lock.check,
        )

    def trained(self) -> None:
        """All passes are whole: run.json says `complete` from now on, whatever happens to the export."""
        self._trained = self._trained or time.time()
        self._write_run(self._look()[0], "complete")

    def _write_status(self, cause: str | None) -> None:
        with self._writing:
            files.write_json(self.output.status_json, self.status(cause), self._lock.check)

    def status(self, cause: str | None = None) -> dict[str, Any]:
        """status.json as it is now."""
        plan, members = self._look()
        return status(
            self._settings,
            members,
            plan,
            now=time.monotonic(),
            wall=time.time(),
            state=self.state,
            cause=cause,
        )

    def score(self) -> dict[str, Any] | None:
        """The model's score, as trainer 0 left it."""
        try:
            return files.read_json(self.output.model / "score.json")
        except LauncherError:  # only shown
            return None

    def abandon(self) -> None:
        """Writes no more: the output is another run's now, or all is said."""
        self._end.set()

    def close(self, state: str, cause: Failure | None) -> None:
        """The last status.json and run.json."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.state = state
        self._write_run(self._look()[0], state, time.time(), cause)
        self._write_status(cause.text if cause is not None else None)
