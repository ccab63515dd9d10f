"""Test the helper process for plots and report that a failed attempt leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.paths import OutputPaths
from launcher.settings import TrainSettings
from launcher.supervisor.helpers.report_process import ReportProcess
from launcher.supervisor.timings import Timings
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import pod_environ

pytestmark = pytest.mark.slow


def test_the_process_of_a_failed_attempt_exits(tmp_path: Path) -> None:
    work = {"PADDLE_LAUNCHER_WORK_DIR": str(tmp_path / "work")}
    settings = TrainSettings.from_environ(pod_environ(JOB_PATH=str(tmp_path), **work))
    settings.work_dir.mkdir()
    report = ReportProcess(OutputPaths(tmp_path / "output"), settings, Timings())
    report.draw_curve()
    assert report._process is not None
    child = report._process._child
    report.discard()
    until(child.done.is_set, "the end of the process", 60)
