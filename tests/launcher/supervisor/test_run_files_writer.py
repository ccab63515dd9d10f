"""Tests of rank 0's writer of run.json and status.json."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from launcher.paths import OutputPaths
from launcher.settings import TrainSettings
from launcher.supervisor.coordinator.decisions import AttemptPlan, Member
from launcher.supervisor.coordinator.run_files_writer import RunFilesWriter
from launcher.supervisor.shared_storage.output_lease import OutputLease
from launcher.supervisor.timings import Timings
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import pod_environ


def test_status_json_is_not_written_before_the_first_plan(tmp_path: Path) -> None:
    """Regression: a run that waited for its output was shown as attempt -1."""
    output = OutputPaths(tmp_path)
    plan = AttemptPlan(-1)
    writer = RunFilesWriter(
        output,
        TrainSettings.from_environ(pod_environ(JOB_PATH=str(tmp_path))),
        fingerprint={},
        earlier={},
        lock=cast(OutputLease, SimpleNamespace(token="t", check=lambda: None)),
        read_plan=lambda: (plan, [Member(0)]),
        timings=replace(Timings(), status=0.01),
    )
    writer.open(AttemptPlan(4), is_complete=False)
    time.sleep(0.2)
    assert not output.status_json.exists()
    plan = AttemptPlan(4)
    writer.start_status()
    until(output.status_json.exists, "status.json")
    writer.stop_status()
    status: dict[str, Any] = json.loads(output.status_json.read_text())
    assert status["attempt"] == json.loads(output.run_json.read_text())["attempt"] == 4
