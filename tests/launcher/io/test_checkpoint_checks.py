"""Tests of looking for checkpoints on a storage that fails temporarily."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from launcher.errors import StorageFailedError
from launcher.io import checkpoints, files
from launcher.paths import Position
from tests.launcher.io.test_script_run import build_run, save
from tests.launcher.supervisor.failing_calls import fail_calls


@pytest.mark.parametrize(
    ("call", "path"),
    [("list", "*/output"), ("stat", "*/done"), ("stat", "*/a.txt"), ("open", "*/contents.json")],
)
def test_a_temporary_error_while_checkpoints_are_looked_for_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, path: str
) -> None:
    save(build_run(tmp_path), 1, 0)
    monkeypatch.setattr(files, "RETRY_WAITS", (0.0,))
    with fail_calls(call, path, errno.ESTALE, 1) as fault:
        assert checkpoints.newest_checkpoint(tmp_path / "output") == Position(1)
        assert fault.hits == 1
    with fail_calls(call, path, errno.ESTALE), pytest.raises(StorageFailedError):
        checkpoints.newest_checkpoint(tmp_path / "output")
