"""What rank 0 writes about the run: status.json every 2 s, run.json at both ends, the picture at the last."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from launcher import files
from launcher.errors import LauncherError
from launcher.gang.log import log
from launcher.gang.members import Member, status
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
        members: list[Member],
        progress: Callable[[], dict[str, Any]],
        timings: Timings,
    ) -> None:
        self.output, self._settings, self._fingerprint = output, settings, fingerprint
        self._attempt, self._members, self._progress = attempt, members, progress
        self._timings = timings
        self._started = time.time()
        self.state = "rendezvous"
        self._end = threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """run.json with the fingerprint, before anything else is written; then status.json from a thread."""
        self._write_run("training", None)
        self._write_status(None)
        self._thread = threading.Thread(target=self._run, name="status.json", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(self._timings.status):
            try:
                self._write_status(None)
            except (LauncherError, OSError) as error:  # the next one may do better; the lock's beat decides
                log.warning("cannot write status.json: %s", error)

    def _write_run(self, state: str, finished: float | None) -> None:
        write_run(
            self.output,
            self._settings,
            self._fingerprint,
            state=state,
            started=self._started,
            finished=finished,
        )

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
