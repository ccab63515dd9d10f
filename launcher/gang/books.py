"""What rank 0 writes about the run: status.json every 2 s, run.json at both ends, the picture at the last."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from launcher import files
from launcher.errors import LauncherError
from launcher.gang.log import log
from launcher.gang.members import Member, number, status
from launcher.gang.output import write_run
from launcher.gang.timings import Timings
from launcher.layout import Output
from launcher.settings import TrainSettings

_DRAW = "import pathlib, sys; from launcher.report import draw_curve; draw_curve(pathlib.Path(sys.argv[1]))"


class Books:
    """One run's books."""

    def __init__(
        self,
        output: Output,
        settings: TrainSettings,
        *,
        fingerprint: dict[str, Any],
        attempt: int,
        earlier: dict[str, Any],
        members: list[Member],
        progress: Callable[[], dict[str, Any]],
        timings: Timings,
    ) -> None:
        self.output, self._settings, self._fingerprint = output, settings, fingerprint
        self._attempt, self._members, self._progress = attempt, members, progress
        self._timings = timings
        self._earlier = earlier
        self.output_id = str(earlier.get("outputId") or os.urandom(8).hex())
        """The output's own, as long as runs go on with it: two trainings may have the same names."""
        self.exported: dict[str, Any] | None = (
            earlier.get("exported") if earlier.get("runId") == settings.run_id else None
        )
        """What run.json says of the export."""
        self._started = time.time()
        self._trained: float | None = None
        """When the last pass was whole; None before that."""
        self.state = "rendezvous"
        self._end = threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    def open(self, complete: bool) -> None:
        """run.json with the fingerprint, before anything else is written; then status.json from a thread.

        `complete`: nothing is left to train, and run.json never says otherwise again.
        """
        if complete:
            self._started = number(self._earlier.get("started")) or self._started
            self._trained = number(self._earlier.get("finished")) or time.time()
        self._write_run("training")
        self._write_status(None)
        self._thread = threading.Thread(target=self._run, name="status.json", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(self._timings.status):
            try:
                self._write_status(None)
            except (LauncherError, OSError) as error:  # the next one may do better; the lock's beat decides
                log.warning("cannot write status.json: %s", error)

    def _write_run(self, state: str, finished: float | None = None) -> None:
        write_run(
            self.output,
            self._settings,
            self._fingerprint,
            state=state if self._trained is None else "complete",
            started=self._started,
            finished=finished if self._trained is None else self._trained,
            output_id=self.output_id,
            exported=self.exported,
        )

    def trained(self) -> None:
        """All passes are whole: run.json says `complete` from now on, whatever happens to the export."""
        self._trained = self._trained or time.time()
        self._write_run("complete")

    def _write_status(self, cause: str | None) -> None:
        with self._writing:
            self._members[0].progress = self._progress() or self._members[0].progress
            value = status(
                self._settings,
                self._members,
                self.state,
                attempt=self._attempt,
                cause=cause,
                updated=round(time.time(), 3),
            )
            files.write_json(self.output.status_json, value)

    def abandon(self) -> None:
        """The output is another run's now: writes no more."""
        self._end.set()

    def close(self, state: str, cause: str | None) -> None:
        """The last status.json and run.json."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        self.state = state
        self._write_run(state, time.time())
        self._write_status(cause)

    def draw(self, seconds: float) -> None:
        """curve.png, from a process of its own: neither its memory nor its faults are the run's."""
        if importlib.util.find_spec("launcher.report") is None or not self.output.metrics_csv.exists():
            return
        work = self._settings.work_dir
        environ = {**self._settings.environ, "MPLCONFIGDIR": str(work / "matplotlib"), "MPLBACKEND": "Agg"}
        try:
            done = subprocess.run(
                [sys.executable, "-c", _DRAW, str(self.output.root)],
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("the picture of the run was not drawn: %s", error)
            return
        if done.returncode:
            log.warning(
                "the picture of the run was not drawn: %s", done.stderr.decode(errors="replace")[-500:]
            )
