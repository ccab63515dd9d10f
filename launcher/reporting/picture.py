"""curve.png and report.html, from a process of its own: neither its memory nor its faults are the run's.

`python -m launcher.reporting.picture OUTPUT_DIR` is that process: it draws the curve at once, and makes the
report when its stdin ends with the word for it, since only then run.json tells how the run ended. A run that
fails gets the report alone: it has the curves too, and takes no second.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from launcher.layout import Output
from launcher.reporting.log import log
from launcher.settings import TrainSettings

OVER = b"over"


class Picture:
    """Drawn beside the end of the run, once the last pass is in metrics.csv."""

    def __init__(self, output: Output, settings: TrainSettings) -> None:
        self._output, self._settings = output, settings
        self._process: subprocess.Popen[bytes] | None = None
        self._began = False

    def begin(self) -> None:
        """Starts to draw the curve, unless it was done already."""
        if self._began:
            return
        self._began = True
        try:
            self._process = self._start("launcher.reporting.picture", stdin=subprocess.PIPE)
        except OSError as error:
            log.warning("the picture of the run was not drawn: %s", error)

    def _start(self, module: str, stdin: int) -> subprocess.Popen[bytes]:
        style = {"MPLCONFIGDIR": str(self._settings.work_dir / "matplotlib"), "MPLBACKEND": "Agg"}
        return subprocess.Popen(
            [sys.executable, "-m", module, str(self._output.root)],
            env={**self._settings.environ, **style},
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def failed(self, seconds: float) -> None:
        """run.json tells that the run failed: has the report made, for at most so long.

        A fault is only logged.
        """
        try:
            made = self._start("launcher.reporting.report", stdin=subprocess.DEVNULL)
        except OSError as error:
            log.warning("the report of the run was not made: %s", error)
            return
        try:
            _, said = made.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            made.kill()  # not waited for: a process that a hung volume holds ends with the volume
            said = b"it took too long"
        if made.returncode != 0:
            log.warning("the report of the run was not made: %s", said.decode(errors="replace")[-500:])

    def end(self, seconds: float, pause: Callable[[float], None]) -> None:
        """run.json tells the end now: has the report made, and waits for both, for at most so long.

        A fault is only logged.
        """
        self.begin()
        if self._process is None:
            return
        with self._process as drawing:
            deadline = time.monotonic() + seconds
            try:
                if drawing.stdin is not None:
                    with contextlib.suppress(OSError):  # it has died, and its stderr says why
                        drawing.stdin.write(OVER)
                        drawing.stdin.close()
                while drawing.poll() is None and time.monotonic() < deadline:
                    pause(0.05)
            finally:
                drawing.kill()
            said = drawing.stderr.read() if drawing.stderr is not None else b""
        if drawing.returncode:
            log.warning("the picture of the run was not drawn: %s", said.decode(errors="replace")[-500:])


def main(root: Path) -> None:
    """Both, each when it can be made; a launcher that is gone has no report made."""
    from launcher.reporting import curve, report

    curve.draw_curve(root)
    if sys.stdin.buffer.read() == OVER:
        report.make(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
