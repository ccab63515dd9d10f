"""Tests of the agent's threads: the storage probe, and the watchdog that kills processes without orders."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.errors import UnfitError
from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.supervisor import agent
from launcher.supervisor.agent import ProcessWatchdog, StorageProbe
from launcher.supervisor.child_processes import ChildProcess
from launcher.supervisor.timings import Timings
from testkit import failing_filesystem
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import train_settings

needs_fuse = pytest.mark.skipif(
    os.getuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and /dev/fuse"
)


@needs_fuse
def test_silence_grows_while_the_storage_hangs_and_is_0_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "PROBE_SECONDS", 0.02)
    probe = StorageProbe(tmp_path)
    until(lambda: probe.silence() == 0)
    with failing_filesystem.mount_over(tmp_path):
        until(lambda: probe.silence() > 0.5)
    until(lambda: probe.silence() == 0)
    until(lambda: probe.silence() < 0.1)


@needs_fuse
def test_a_storage_error_counts_as_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "PROBE_SECONDS", 0.02)
    answers = []
    real = os.statvfs

    def record_error(path: Path) -> None:
        try:
            real(path)
        except OSError as error:
            answers.append(error.errno)
            raise

    monkeypatch.setattr(os, "statvfs", record_error)
    with failing_filesystem.mount_over(tmp_path, errno.ESTALE):
        probe = StorageProbe(tmp_path)
        until(lambda: answers[2:])
        assert probe.silence() < 5
        # Inside the block: a request during the unmount may fail with ECONNABORTED.
        assert set(answers) == {errno.ESTALE}


@needs_fuse
def test_the_liveness_probe_fails_while_the_storage_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "PROBE_SECONDS", 0.02)
    probe = StorageProbe(tmp_path)
    healthz = ProcessWatchdog(train_settings(tmp_path), Timings(storage=0.5), probe).serve_healthz
    assert healthz()[0] == 200
    with failing_filesystem.mount_over(tmp_path):
        until(lambda: healthz()[0] == 503)
        with pytest.raises(UnfitError, match="Fix: see whether the volume is mounted"):
            probe.check(0.5)
    until(lambda: healthz()[0] == 200)


@pytest.mark.parametrize("is_helper", [False, True])
def test_the_watchdog_kills_processes_without_orders_although_the_main_thread_runs(
    tmp_path: Path, is_helper: bool
) -> None:
    """The main thread stops them after `orphan` seconds; the watchdog acts when that has not happened."""
    t, log = Timings(), tmp_path / "log"
    argv = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
    child = ChildProcess(
        ProcessSpec("trainer", "trainer", argv, dict(os.environ), tmp_path, log),
        lambda: None,
        is_helper=is_helper,
    )
    watchdog = ProcessWatchdog(train_settings(tmp_path), t, StorageProbe(tmp_path))
    watchdog.link = cast(Any, SimpleNamespace(heard=1000.0))
    try:
        watchdog.record_turn()
        watchdog._check_limits(1000.0 + t.orphan + t.stop + 1.9)
        assert not child.done.wait(0.5)
        watchdog._check_limits(1000.0 + t.orphan + t.stop + 2.0)
        if is_helper:
            assert not child.done.wait(0.5), "a helper belongs to no attempt"
        else:
            until(child.done.is_set, "the end of the process")
    finally:
        child.signal(9)
        until(child.done.is_set)
