"""Tests of atomic writes, reads with retries, storage errors and copies."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import LauncherError, StorageError, StorageFailedError
from launcher.io import files
from tests.launcher.supervisor.failing_calls import fail_calls

FINAL = [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS]
TEMPORARY = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO]


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    files.write_atomically(path, "old")
    with (
        fail_calls("fsync", "*", errno.ENOSPC),
        pytest.raises(StorageError, match="no space left while writing"),
    ):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_json_changes_nothing_if_the_check_fails_after_a_slow_fsync(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    files.write_json(path, {"holder": "another"})
    lost = False

    def lose() -> None:
        nonlocal lost
        lost = True

    def check() -> None:
        if lost:
            raise LauncherError("lost")

    with fail_calls("fsync", "*.tmp", then=lose), pytest.raises(LauncherError, match="lost"):
        files.write_json(path, {"holder": "us"}, check)
    assert files.read_json(path) == {"holder": "another"}
    assert list(tmp_path.iterdir()) == [path]


def test_permission_error_contains_the_owner_and_a_fix(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "x"))
    with (
        pytest.raises(StorageError, match=r"belongs to \d+:\d+ with mode .*chown that folder to"),
        files.storage_errors(tmp_path / "x"),
    ):
        raise error


@pytest.mark.parametrize(("code", "kind"), [(c, 75) for c in FINAL] + [(c, 71) for c in TEMPORARY])
def test_errno_decides_between_a_final_and_a_temporary_storage_error(
    tmp_path: Path, code: int, kind: int
) -> None:
    with pytest.raises(LauncherError) as caught, files.storage_errors(tmp_path):
        raise OSError(code, "error text")
    assert caught.value.exit_code == kind
    assert str(tmp_path) in str(caught.value)


def test_other_os_errors_are_not_converted(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too many"), files.storage_errors(tmp_path):
        raise OSError(errno.EMFILE, "too many")


def test_read_json_returns_none_only_for_absent_files(tmp_path: Path) -> None:
    assert files.read_json(tmp_path / "absent.json") is None
    files.write_json(tmp_path / "complete.json", {"a": 1})
    assert files.read_json(tmp_path / "complete.json") == {"a": 1}
    assert files.read_json(tmp_path / "complete.json" / "below-a-file.json") is None
    assert files.list_names(tmp_path / "absent") == []
    assert files.list_names(tmp_path) == ["complete.json"]
    with pytest.raises(
        StorageError, match=r"Is a directory, but it must be a file. Fix: remove or rename it"
    ):
        files.read_json(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", '{"a": ', "[1]", "\0\0\0", "1", '{"a": NaN}', '{"a": -Infinity}', "[" * 200_000],
    ids=lambda content: repr(content[:20]),
)
def test_content_that_is_not_a_json_object_raises_an_error_with_the_file(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "cut.json").write_text(content)
    with pytest.raises(files.UnreadableError, match=r"cut\.json exists.* (is not|contains no) JSON"):
        files.read_json(tmp_path / "cut.json")


Read = Callable[[Path, Callable[[float], None]], object]
READERS: list[tuple[str, str, Read]] = [
    ("open", "x.json", lambda folder, sleep: files.read_json(folder / "x.json", sleep)),
    ("list", "", files.list_names),
]


@pytest.mark.parametrize("reader", READERS, ids=["read_json", "names"])
@given(times=st.integers(0, 12), code=st.sampled_from(TEMPORARY))
def test_read_is_retried_until_the_storage_recovers_and_fails_after_20_s(
    tmp_path_factory: pytest.TempPathFactory, reader: tuple[str, str, Read], times: int, code: int
) -> None:
    call, name, read = reader
    folder = tmp_path_factory.mktemp("storage")
    files.write_json(folder / "x.json", {"a": 1})
    wanted = read(folder, lambda _: None)
    slept: list[float] = []
    with fail_calls(call, f"{folder}*{name}", code, times) as fault:
        if times <= len(files.RETRY_WAITS):
            assert read(folder, slept.append) == wanted
            assert len(slept) == fault.hits == times
        else:
            with pytest.raises(StorageFailedError, match=r"the storage failed at .*: "):
                read(folder, slept.append)
            assert 15 < sum(slept) < 25


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_read_with_denied_access_is_not_retried(tmp_path: Path, code: int) -> None:
    files.write_json(tmp_path / "x.json", {})
    slept: list[float] = []
    with fail_calls("open", "*/x.json", code), pytest.raises(StorageError, match="cannot read or write"):
        files.read_json(tmp_path / "x.json", slept.append)
    assert slept == []


def test_retries_stop_when_sleep_raises(tmp_path: Path) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    files.write_json(tmp_path / "x.json", {})
    with fail_calls("open", "*/x.json", errno.ESTALE) as fault, pytest.raises(KeyboardInterrupt):
        files.read_json(tmp_path / "x.json", stop)
    assert fault.hits == 1


def test_free_bytes_of_a_failing_volume_raises_instead_of_returning_zero(tmp_path: Path) -> None:
    with fail_calls("statvfs", "*", errno.ESTALE), pytest.raises(StorageFailedError):
        files.free_bytes(tmp_path)
    assert files.free_bytes(tmp_path / "not" / "yet") > 0


def test_folder_sha256_depends_on_names_and_contents_but_not_on_pycache(tmp_path: Path) -> None:
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


def test_copy_file_stops_when_check_raises(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * (3 * files.BLOCK))
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.copy_file(tmp_path / "big", tmp_path / "copy", check)
    assert len(calls) == 2


@pytest.mark.parametrize("failing", ["from", "to"])
def test_copy_error_contains_the_file_that_failed(tmp_path: Path, failing: str) -> None:
    (tmp_path / "from").write_text("x")
    with (
        fail_calls("open", f"*/{failing}", errno.EIO),
        pytest.raises(StorageFailedError, match=f"/{failing}: "),
    ):
        files.copy_file(tmp_path / "from", tmp_path / "to")


def test_copy_error_in_the_middle_of_a_read_contains_the_source_file(tmp_path: Path) -> None:
    with pytest.raises(StorageFailedError, match="failed at /proc/self/mem: Input/output error"):
        files.copy_file(Path("/proc/self/mem"), tmp_path / "to")  # opens, but its first page gives EIO
