"""Draw curve.png and write report.html in a helper process, so that neither its memory nor its errors harm
the run.

`ReportProcess` runs in rank 0's launcher and starts the process, which runs this module as its main module. The
process first draws curve.png. Once run.json has the final state, the launcher sends the request, and the process
writes report.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError
from launcher.io.helper_protocol import HelperSpec, main, python_environ
from launcher.log import log
from launcher.paths import OutputPaths
from launcher.settings import TrainSettings
from launcher.supervisor.helpers.helper_process import HelperError, HelperProcess
from launcher.supervisor.timings import Timings

_NOT_MADE = (
    "the run is not affected, but its plots and report were not made, because their process failed: %s%s\nFix: if you "
    "need them, run `python -m launcher results --to DIR`, then `python -m launcher.reporting.html_report DIR`"
)
STOP_SECONDS = 0.5
"""From SIGTERM to SIGKILL: the process has nothing to clean up, and the exit of rank 0's pod waits for it."""


class ReportProcess:
    """Makes curve.png and report.html of one run. A failure is only logged: the run does not depend on
    them.
    """

    def __init__(self, output: OutputPaths, settings: TrainSettings, timings: Timings) -> None:
        self._output, self._settings, self._timings = output, settings, timings
        self._process: HelperProcess | None = None
        self._is_started = False

    def draw_curve(self) -> None:
        """Start drawing curve.png, in the background; do nothing when called again.

        Call this once the last pass is in metrics.csv.
        """
        if not self._is_started:
            self._is_started = True
            self._process = self._start({"output": str(self._output.root)})

    def discard(self) -> None:
        """Let the process exit that `draw_curve` started, because its attempt failed."""
        if self._process is not None:
            self._process.discard()
            self._process = None

    def write_report(self, seconds: float, pause: Callable[[float], None]) -> None:
        """Write the report, draw curve.png if that was not started, and wait for both.

        Args:
            seconds: how long to wait for both at most.
            pause: waits that many seconds in the agent's main loop.
        """
        self.draw_curve()
        self._finish(self._process, seconds, pause)

    def write_failure_report(self, seconds: float, pause: Callable[[float], None]) -> None:
        """Write report.html of a run that failed, without curve.png: the report contains the plots.

        Args:
            seconds: how long to wait at most.
            pause: waits that many seconds.
        """
        self.discard()
        self._finish(self._start(None), seconds, pause)

    def _start(self, preparation: Mapping[str, Any] | None) -> HelperProcess | None:
        style = {"MPLCONFIGDIR": str(self._settings.work_dir / "matplotlib"), "MPLBACKEND": "Agg"}
        spec = HelperSpec(
            name="report",
            module="launcher.supervisor.helpers.report_process",
            request={"output": str(self._output.root)},
            environ=python_environ(self._settings.environ) | style,
        )
        try:
            return HelperProcess(
                spec, self._settings.work, self._timings,
                preparation=preparation, show_log=False, stop_seconds=STOP_SECONDS,
            )  # fmt: skip
        except LauncherError as error:
            log.warning(_NOT_MADE, error, "")
            return None

    def _finish(self, process: HelperProcess | None, seconds: float, pause: Callable[[float], None]) -> None:
        if process is None:
            return
        process.send_request()
        try:
            process.wait(pause, seconds)
        except HelperError as error:
            log.warning(_NOT_MADE, error, error.log_lines)


def draw_curve(preparation: Mapping[str, Any]) -> None:
    """Draw curve.png (in the helper process). `preparation` has the key `output`, the output folder's
    path.
    """
    from launcher.reporting import plots

    plots.draw_png(Path(preparation["output"]))


def write_report(request: Mapping[str, Any]) -> dict[str, Any]:
    """Write report.html (in the helper process), and return {}. `request` has `output`, the folder's path."""
    from launcher.reporting import html_report

    html_report.write_report(Path(request["output"]))
    return {}


if __name__ == "__main__":
    main(write_report, draw_curve)
