"""Whole files, storage faults, copies."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcher import files
from launcher.errors import StorageError


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    files.write_whole(path, "old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="no space left while writing"):
        files.write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_told_with_its_owner_and_the_mend(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "x"))
    with (
        pytest.raises(StorageError, match=r"belongs to \d+:\d+ with mode .*chown that folder to"),
        files.storage(tmp_path / "x"),
    ):
        raise error


def test_json_that_is_cut_or_absent_reads_as_none(tmp_path: Path) -> None:
    assert files.read_json(tmp_path / "absent.json") is None
    (tmp_path / "cut.json").write_text('{"a": ')
    assert files.read_json(tmp_path / "cut.json") is None
    files.write_json(tmp_path / "whole.json", {"a": 1})
    assert files.read_json(tmp_path / "whole.json") == {"a": 1}


def test_a_folders_digest_follows_names_and_contents_and_ignores_caches(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1")
    first = files.folder_sha256(tmp_path / "a")
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "x.pyc").write_text("c")
    assert files.folder_sha256(tmp_path / "a") == first
    files.copy_folder(tmp_path / "a", tmp_path / "b")
    assert files.folder_sha256(tmp_path / "b") == first
    assert not (tmp_path / "b" / "__pycache__").exists()
    (tmp_path / "a" / "x.py").rename(tmp_path / "a" / "y.py")
    assert files.folder_sha256(tmp_path / "a") != first


def test_a_long_copy_can_be_ended_from_its_check(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * (3 * files.BLOCK))
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.copy_file(tmp_path / "big", tmp_path / "copy", check)
    assert len(calls) == 2
