"""The probe of a storage that hangs, that fails, and that answers again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcher.errors import UnfitError
from launcher.gang.pages import pages
from launcher.storage import probe
from launcher.storage.probe import Probe
from launcher.timings import Timings
from tests import frozen
from tests.waiting import until

needs_fuse = pytest.mark.skipif(
    os.getuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and /dev/fuse"
)


@needs_fuse
def test_a_storage_that_hangs_is_silent_until_it_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PERIOD", 0.02)
    asked = Probe(tmp_path)
    until(lambda: asked.silence() == 0)
    with frozen.over(tmp_path):
        until(lambda: asked.silence() > 0.5)
    until(lambda: asked.silence() == 0)
    until(lambda: asked.silence() < 0.1)


@needs_fuse
def test_a_storage_that_fails_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PERIOD", 0.02)
    answers = []
    real = os.statvfs

    def noted(path: Path) -> None:
        try:
            real(path)
        except OSError as error:
            answers.append(error.errno)
            raise

    monkeypatch.setattr(os, "statvfs", noted)
    with frozen.over(tmp_path, errno.ESTALE):
        asked = Probe(tmp_path)
        until(lambda: answers[2:])
        assert asked.silence() < 5
    assert set(answers) == {errno.ESTALE}


@needs_fuse
def test_the_liveness_probe_fails_while_the_storage_is_silent_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PERIOD", 0.02)
    asked = Probe(tmp_path)
    healthz = pages(lambda: 0.0, asked, Timings(storage=0.5), lambda: None)["/healthz"]
    assert healthz()[0] == 200
    with frozen.over(tmp_path):
        until(lambda: healthz()[0] == 503)
        with pytest.raises(UnfitError, match="Fix: see whether the volume is mounted"):
            asked.check(0.5)
    until(lambda: healthz()[0] == 200)
