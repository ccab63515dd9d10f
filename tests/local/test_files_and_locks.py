"""Tests of atomic writes of files and folders, and of file locks."""

from __future__ import annotations

import pytest

from local import files_and_locks
from local.external_commands import LocalError


def test_create_folder_atomically_creates_the_complete_folder_or_none(tmp_path):
    final = tmp_path / "f"
    with pytest.raises(RuntimeError), files_and_locks.create_folder_atomically(final) as draft:
        (draft / "half").write_text("")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with files_and_locks.create_folder_atomically(final) as draft:
        (draft / "all").write_text("")
    assert [p.name for p in final.iterdir()] == ["all"]


def test_hold_file_lock_times_out_with_the_lock_holders_pid(tmp_path, capsys):
    with (
        files_and_locks.hold_file_lock(tmp_path / "lock", "the tools"),
        pytest.raises(LocalError, match=r"the tools is still locked by process \d+"),
        files_and_locks.hold_file_lock(tmp_path / "lock", "the tools", seconds=0.3),
    ):
        pass
    with files_and_locks.hold_file_lock(tmp_path / "lock", "the tools", seconds=0.3):
        pass


def test_write_file_atomically_replaces_the_file_with_the_given_mode(tmp_path):
    for text in ("old", b"new"):
        files_and_locks.write_file_atomically(tmp_path / "f", text, 0o600)
    assert (tmp_path / "f").read_text() == "new"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        files_and_locks.write_file_atomically(tmp_path / "folder", "text")
    assert {path.name for path in tmp_path.iterdir()} == {"f", "folder"}, "a failed write leaves nothing"
