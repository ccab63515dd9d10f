"""Test of the helper process that writes the report and draws plots."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launcher.io import run_record
from launcher.paths import OutputPaths
from launcher.schema import RunFile
from launcher.supervisor.helper_processes import write_report
from launcher.supervisor.timings import Timings
from tests.launcher.supervisor.loopback_gang import train_settings

pytestmark = pytest.mark.slow


def test_the_report_of_a_failed_run_is_written_on_a_slow_machine(tmp_path: Path) -> None:
    """On a busy machine the start of Python and the import of matplotlib took longer than 5 s."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text("import time; time.sleep(6)")
    (tmp_path / "slow" / "matplotlib.py").write_text(
        "raise SystemExit('no pass is finished: nothing to draw')"
    )
    settings = train_settings(tmp_path, PYTHONPATH=str(tmp_path / "slow"))
    settings.work_dir.mkdir()
    output = OutputPaths(settings.layout.output)
    output.root.mkdir(parents=True)
    run_record.write(output, RunFile(run_id="r", state="failed", cause="a death"))
    write_report(settings, Timings(), Timings().report, time.sleep)
    assert output.report_html.is_file()
