"""Writes run.json whenever the plan changes and status.json every two seconds, on rank 0."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from launcher.errors import LauncherError
from launcher.io import files, run_record
from launcher.log import log
from launcher.paths import OutputPaths, position
from launcher.schema import RunFile, StatusFile, to_json
from launcher.settings import TrainSettings
from launcher.supervisor.coordinator.decisions import AttemptPlan
from launcher.supervisor.coordinator.member_states import Member
from launcher.supervisor.coordinator.status import build_status
from launcher.supervisor.peers.messages import Failure
from launcher.supervisor.progress import finite_number
from launcher.supervisor.shared_storage.output_folder import read_if_intact
from launcher.supervisor.shared_storage.output_lease import OutputLease
from launcher.supervisor.timings import Timings


class RunFilesWriter:
    """Writes run.json and status.json of one run, as long as this pod holds the output lease."""

    def __init__(
        self,
        output: OutputPaths,
        settings: TrainSettings,
        timings: Timings,
        lock: OutputLease,
        *,
        fingerprint: dict[str, Any],
        earlier: RunFile,
        read_plan: Callable[[], tuple[AttemptPlan, Sequence[Member]]],
    ) -> None:
        """Create the writer; it writes nothing before `open`.

        Args:
            lock: the output lease; nothing is written after it was lost.
            earlier: run.json as it was in the output folder before this start; empty if there was none.
            read_plan: returns the coordinator's present plan and members; called from any thread.
        """
        self.output, self._settings, self._fingerprint = output, settings, fingerprint
        self._earlier, self._lock, self._read_plan, self._timings = earlier, lock, read_plan, timings
        self.output_id = earlier.output_id or os.urandom(8).hex()
        """Random identifier of this output, shared by all runs that resume it; job and run names may repeat."""
        self.exported: dict[str, Any] | None = earlier.exported if earlier.run_id == settings.run_id else None
        """Result of the export to a bucket, for the key `exported` of run.json; None before it."""
        self.score = earlier.score
        """The model's test scores from model/score.json; while that does not exist, those of an earlier run.json."""
        self.warning: str | None = None
        """What is doubtful about the complete run, for `status`; None: nothing."""
        self._started = time.time()
        self._trained: float | None = None
        """Unix time at which training was complete; None before that."""
        self.state: str | None = None
        """If not None: the state to show in status.json instead of the one that follows from the plan."""
        self._end = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(
            target=self._write_status_periodically, name="status.json", daemon=True
        )

    def open(self, plan: AttemptPlan, *, is_complete: bool) -> None:
        """Write the first run.json; if training was complete before this start, it keeps its times and its warning."""
        if is_complete:
            self.warning = self._earlier.warning
            self._started = self._earlier.started or self._started
            self._trained = self._earlier.finished or time.time()
        self.write_plan(plan)

    def start_status(self) -> None:
        """Start the thread that writes status.json every `Timings.status` seconds."""
        self._thread.start()

    def stop_status(self) -> None:
        """Stop writing status.json, because the run is over or another pod writes to the output."""
        self._end.set()

    def write_plan(self, plan: AttemptPlan) -> None:
        """Write run.json with a new plan; the coordinator does so before any rank receives the plan's order."""
        self._write_run(plan, "training")

    def write_trained(self) -> None:
        """Write the state `complete` to run.json: training is done, whether or not the export succeeds."""
        self._trained = self._trained or time.time()
        self._write_run(self._read_plan()[0], "complete")

    def close(self, state: str, cause: Failure | None) -> None:
        """Write the last run.json and status.json; `state` is `complete`, `failed` or `stopped`."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.state = state
        self._write_run(self._read_plan()[0], state, time.time(), cause)
        self._write_status(cause.text if cause is not None else None)

    def build_status(self, cause: str | None = None) -> StatusFile:
        """Return the content of status.json now. `cause` says why the run failed, if it did."""
        plan, members = self._read_plan()
        return build_status(
            self._settings,
            members,
            plan,
            now=time.monotonic(),
            silence=self._timings.silence,
            wall=time.time(),
            state=self.state,
            cause=cause,
            warning=self.warning,
        )

    def _write_status_periodically(self) -> None:
        while not self._end.is_set():
            try:
                self._write_status(None)
            except (LauncherError, OSError) as error:  # the lease ends this run if the storage stays away
                log.warning("cannot write status.json, trying again in %g s: %s", self._timings.status, error)
            self._end.wait(self._timings.status)

    def _write_status(self, cause: str | None) -> None:
        with self._writing:
            files.write_json(self.output.status_json, to_json(self.build_status(cause)), self._lock.check)

    def _write_run(
        self, plan: AttemptPlan, state: str, finished: float | None = None, cause: Failure | None = None
    ) -> None:
        s = self._settings
        self.score = self._read_score()
        record = RunFile(
            run_id=s.run_id,
            output_id=self.output_id,
            namespace=s.namespace,
            release=s.release,
            fingerprint=self._fingerprint,
            config=f"{s.config_dir}/{s.config_file}",
            passes=s.passes,
            keep_best=s.keep_best,
            patience=s.patience if s.keep_best else None,
            model_pass=self._read_model_pass() if s.keep_best else None,
            started=self._started,
            finished=finished if self._trained is None else self._trained,
            state=state if self._trained is None else "complete",
            attempt=plan.attempt,
            restarts=list(plan.restarts),
            holder=self._lock.token,
            counted_restarts=plan.counted_restarts,
            incarnations=list(plan.incarnations),
            resume=plan.resume,
            init_model=plan.init_model,
            cause=cause.text if cause is not None else None,
            exit_code=cause.code if cause is not None else None,
            warning=self.warning,
            score=self.score,
            exported=self.exported,
        )
        run_record.write(self.output, record, self._lock.check)

    def _read_score(self) -> dict[str, Any]:
        """Return the numbers of model/score.json, which may be a script's; those of earlier without such a file."""
        found = read_if_intact(lambda: files.read_json(self.output.model / "score.json"), self.score)
        numbers = {name: value for name, value in found.items() if finite_number(value) is not None}
        if found != numbers:
            names = ", ".join(sorted(found.keys() - numbers))
            log.warning("model/score.json: left out %s: a score must be a finite number", names)
        return numbers

    def _read_model_pass(self) -> int | None:
        """Return the pass, from 0, of the checkpoint from which output/model was exported; None without one."""
        model = read_if_intact(lambda: files.read_json(self.output.model / "model.json"), dict[str, Any]())
        at = position(str(model.get("checkpoint")))
        return at.passes - 1 if at else None
