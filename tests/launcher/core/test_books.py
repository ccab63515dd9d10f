"""Rank 0's books tell only what was planned."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from launcher.gang.books import Books
from launcher.gang.machine import Member, Plan
from launcher.layout import Output
from launcher.settings import TrainSettings
from launcher.storage.lock import RunLock
from launcher.timings import Timings
from tests.launcher.core.kit import environ
from tests.waiting import until


def test_nothing_is_told_of_a_run_before_its_first_plan_is_made(tmp_path: Path) -> None:
    """A run that waited for its output was shown as attempt -1."""
    output = Output(tmp_path)
    plan = Plan(-1)
    books = Books(
        output,
        TrainSettings.from_environ(environ(JOB_PATH=str(tmp_path))),
        fingerprint={},
        earlier={},
        lock=cast(RunLock, SimpleNamespace(token="t", check=lambda: None)),
        look=lambda: (plan, [Member(0)]),
        timings=replace(Timings(), status=0.01),
    )
    books.open(Plan(4), complete=False)
    time.sleep(0.2)
    assert not output.status_json.exists()
    plan = Plan(4)
    books.begin()
    until(output.status_json.exists, "status.json")
    books.abandon()
    told: dict[str, Any] = json.loads(output.status_json.read_text())
    assert told["attempt"] == json.loads(output.run_json.read_text())["attempt"] == 4
