"""Tests of the storage probe with a storage that hangs, fails and recovers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcher.errors import UnfitError
from launcher.supervisor import agent
from launcher.supervisor.agent import ProcessWatchdog, StorageProbe
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
