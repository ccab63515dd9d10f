"""Write report.html and curve.png in a helper process, so that neither its memory nor its errors harm the run.

`write_report` runs in rank 0's launcher and starts the process, which runs this module as its main module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.errors import ProcessError, StorageError, StorageFailedError
from launcher.io.helper_protocol import HelperSpec, main, python_environ
from launcher.log import log
from launcher.settings import TrainSettings
from launcher.supervisor.helpers.helper_process import HelperError, run_helper
from launcher.supervisor.timings import Timings


def write_report(
    settings: TrainSettings, timings: Timings, seconds: float, pause: Callable[[float], None]
) -> None:
    """Write report.html and curve.png of this run within `seconds`; a failure is only logged: the run needs neither."""
    style = {"MPLCONFIGDIR": str(settings.work_dir / "matplotlib"), "MPLBACKEND": "Agg"}
    spec = HelperSpec(
        name="report",
        module="launcher.supervisor.helpers.report_process",
        request={"output": str(settings.layout.output)},
        environ=python_environ(settings.environ) | style,
    )
    try:
        run_helper(spec, settings.work, timings, pause, seconds=seconds, show_log=False)
    # `pause` raises other ones.
    except (HelperError, ProcessError, StorageError, StorageFailedError) as error:
        log.warning(
            "the run is not affected, but its plots and report were not made, because their process failed: %s%s\n"
            "Fix: if you need them, run `python -m launcher results --to DIR`, then `python -m "
            "launcher.reporting.html_report DIR`",
            error,
            error.log_lines if isinstance(error, HelperError) else "",
        )


def _draw(request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files (in the helper process), and return {}. `request` has `output`, the output folder's path."""
    from launcher.reporting import html_report, plots

    html_report.write_report(Path(request["output"]))
    plots.draw_png(Path(request["output"]))
    return {}


if __name__ == "__main__":
    main(_draw)
