"""Tests of the watchdog, which keeps processes of a lost rank from running next to those of the next attempt."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.supervisor.agent import ProcessWatchdog, StorageProbe
from launcher.supervisor.child_processes import ChildProcess
from launcher.supervisor.timings import Timings
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import train_settings

T = Timings()


@pytest.mark.parametrize("is_helper", [False, True])
def test_the_watchdog_kills_processes_without_orders_although_the_main_thread_runs(
    tmp_path: Path, is_helper: bool
) -> None:
    """The main thread stops them after `orphan` seconds; the watchdog acts when that has not happened."""
    log = tmp_path / "log"
    argv = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
    child = ChildProcess(
        ProcessSpec("trainer", "trainer", argv, dict(os.environ), tmp_path, log),
        lambda: None,
        is_helper=is_helper,
    )
    watchdog = ProcessWatchdog(train_settings(tmp_path), T, StorageProbe(tmp_path))
    watchdog.link = cast(Any, SimpleNamespace(heard=1000.0))
    try:
        watchdog.record_turn()
        watchdog._check_limits(1000.0 + T.orphan + T.stop + 1.9)
        assert not child.done.wait(0.5)
        watchdog._check_limits(1000.0 + T.orphan + T.stop + 2.0)
        if is_helper:
            assert not child.done.wait(0.5), "a helper belongs to no attempt"
        else:
            until(child.done.is_set, "the end of the process")
    finally:
        child.signal(9)
        until(child.done.is_set)
