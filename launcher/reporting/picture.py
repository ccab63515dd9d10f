"""curve.png, from a process of its own: neither its memory nor its faults are the run's."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from launcher.layout import Output
from launcher.reporting.log import log
from launcher.settings import TrainSettings


class Picture:
    """Drawn beside the end of the run, once the last pass is in metrics.csv."""

    def __init__(self, output: Output, settings: TrainSettings) -> None:
        self._output, self._settings = output, settings
        self._process: subprocess.Popen[bytes] | None = None
        self._began = False

    def begin(self) -> None:
        """Starts to draw, unless it was done already or there is nothing to draw."""
        if self._began or not self._output.metrics_csv.exists():
            return
        self._began = True
        style = {"MPLCONFIGDIR": str(self._settings.work_dir / "matplotlib"), "MPLBACKEND": "Agg"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "launcher.reporting.curve", str(self._output.root)],
                env={**self._settings.environ, **style},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            log.warning("the picture of the run was not drawn: %s", error)

    def end(self, seconds: float, pause: Callable[[float], None]) -> None:
        """Waits for it, for at most so long; a fault is only logged."""
        self.begin()
        if self._process is None:
            return
        with self._process as drawing:
            deadline = time.monotonic() + seconds
            try:
                while drawing.poll() is None and time.monotonic() < deadline:
                    pause(0.05)
            finally:
                drawing.kill()
            said = drawing.stderr.read() if drawing.stderr is not None else b""
        if drawing.returncode:
            log.warning("the picture of the run was not drawn: %s", said.decode(errors="replace")[-500:])
