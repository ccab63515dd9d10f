"""Tests of the messages for invalid data in a source."""

from __future__ import annotations

import errno
import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from launcher.dataprep import data_job, prepared_data, split_part, text_lines
from launcher.dataprep.progress_log import DataProgress
from launcher.errors import DataError, DeadlineError, LauncherError, StorageError
from launcher.settings import DataSettings
from tests.launcher.dataprep.conftest import LINES, Pod, tarred, zipped
from tests.launcher.supervisor.failing_calls import fail_calls

BAD = [
    (b"a\nb\r\nc\n", {}, "file://in.txt, row 2, column 2: the line ends with CRLF"),
    (b"a\nb\nc\r", {}, "row 3, column 2: the line ends with CRLF"),
    (b"a\nb\nx\0c\n", {}, "row 3, column 2: a NUL byte"),
    (b"a\nb\nc\xff\nd\n", {}, "row 3, column 2: the byte 0xff is not UTF-8"),
    (b"a\nb\xe2\x82", {}, "row 2, column 2: the byte 0xe2 is not UTF-8"),
    (b"a\nb\n", {}, "has 2 train lines .* fewer than the 3 shards"),
    (b"", {}, "has 0 train lines .* Fix: set data.source to a source with more rows"),
    (b"a\nb\nc\n", {"TEST_FRACTION": 0.01}, "holds out none of the 3 lines"),
    (b"a\nb\nc\n", {"SHA256": "0" * 64}, "data.sha256 is 0000.*Nothing was published"),
    (b"a,b\n1,2\n3\n", {"FORMAT": "csv"}, r"row 2 \(line 3\), column 2: 1 fields, but the header has 2"),
    (b"a,b\n1,2,3\n", {"FORMAT": "csv"}, r"row 1 \(line 2\), column 3: 3 fields, but the header has 2"),
    (b'a,b\n1,"2\n3', {"FORMAT": "csv"}, "line 3: invalid csv with data.delimiter"),
    (b'a\tb\n1\t"2\n3\t4\n', {"FORMAT": "csv", "DELIMITER": "\\t"}, "invalid csv.* set data.quoting to none"),
    (b'a,b\n1,"2,3"\n', {"FORMAT": "csv", "QUOTING": "none"}, r"row 1 \(line 2\), column 3: 3 fields"),
    (b"a,b\n1,2\n", {"FORMAT": "csv", "COLUMNS": ["c"]}, "data.columns has 'c', but the header has 'a', 'b'"),
    (b"a,a\n1,2\n", {"FORMAT": "csv", "COLUMNS": ["a"]}, "'a', which is 2 times in the header.* the first one is 0"),
    (b"a,b\n1,2\n", {"FORMAT": "csv", "COLUMNS": [2]}, "data.columns has the index 2, but the records have 2 fields"),
    (b"a\n\xff\n", {"FORMAT": "csv"}, "line 2, column 1: the byte 0xff is not UTF-8"),
    (b"\x81\x81", {"ENCODING": "cp1252"}, "about line 1: data.encoding is cp1252, but the text has another"),
    (zipped({"in": LINES}), {}, "is a zip file, but data.member is empty"),
    (tarred({"in": LINES}, "w"), {}, "is a tar file, but data.member is empty"),
    (tarred({"in": LINES}), {}, "is a tar file, but data.member is empty"),
    (zipped({"d/train.txt": LINES}), {"MEMBER": "train.txt"}, "no member 'train.txt'; it has 'd/train.txt'"),
    (tarred({"d/trian.txt": LINES}), {"MEMBER": "d/train.txt"}, "'d/train.txt'; it has 'd/trian.txt'"),
    (LINES, {"MEMBER": "in"}, "is damaged or incomplete"),
    (zipped({"in": LINES})[:-30], {"MEMBER": "in"}, "is damaged or incomplete"),
    (tarred({"in": LINES})[:-300], {"MEMBER": "in"}, "is damaged or incomplete"),
    (gzip.compress(LINES)[:-20], {}, "is damaged or incomplete"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "values", "message"), BAD)
@pytest.mark.parametrize("chunk", [5, 1 << 19])
def test_bad_data_is_reported_with_its_place_and_nothing_is_published(
    pod: Pod, content: bytes, values: dict[str, object], message: str, chunk: int
) -> None:
    pod.source(content)
    with pytest.raises(DataError, match=f"(?s){message}") as error:
        pod.prepare(chunk, **values)
    assert error.value.exit_code == 65
    assert pod.failure()["reason"] == str(error.value)
    assert pod.failure()["dataDigest"] == "0123456789abcdef"
    assert [path.name for path in pod.job.iterdir()] == ["data-failed.json"]
    assert {path.name for path in pod.data.iterdir()} <= {".lock"}


def test_a_missing_source_is_reported_with_the_files_that_exist(pod: Pod) -> None:
    pod.source(LINES, "other.txt")
    with pytest.raises(DataError, match=r"sources/in\.txt does not exist; .* contains other\.txt"):
        pod.prepare(SOURCE="file://in.txt")
    with pytest.raises(
        DataError, match=r"^data\.testSource file://t.* does not exist.* correct data\.testSource\.$"
    ):
        pod.prepare(TEST_SOURCE="file://t")


@pytest.mark.parametrize(
    ("call", "denied", "values"),
    [
        ("open", "in.zip", {"SOURCE": "file://in.zip", "MEMBER": "in"}),
        ("open", "days/1.txt", {"SOURCE": "file://days"}),
        ("list", "days/more", {"SOURCE": "file://days"}),
        ("stat", "days", {"SOURCE": "file://days"}),
    ],
)
def test_a_source_that_may_not_be_read_is_reported_with_its_path(
    pod: Pod, call: str, denied: str, values: dict[str, str]
) -> None:
    pod.source(zipped({"in": LINES}), "in.zip")
    pod.folder({"1.txt": LINES, "more/2.txt": LINES})
    message = f"data.source {values['SOURCE']}: this pod's user cannot read .*sources/{denied} .*chmod -R a"
    with fail_calls(call, f"*/sources/{denied}", errno.EACCES), pytest.raises(DataError, match=message):
        pod.prepare(**values)


@pytest.mark.parametrize("source", ["file://in.txt", "file://../../secret", "file:///etc/passwd"])
def test_a_file_outside_of_sources_is_rejected(pod: Pod, tmp_path: Path, source: str) -> None:
    (tmp_path / "secret").write_bytes(LINES)
    (pod.storage / "sources").mkdir()
    (pod.storage / "sources" / "in.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match="leads out of"):
        pod.prepare(SOURCE=source)


def test_a_very_long_line_is_rejected_before_it_fills_the_memory(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_lines, "LINE_MAX", 1 << 20)
    pod.source(b"a\nb\nc\n" + b"x" * (3 << 20) + b"\n")
    with pytest.raises(DataError, match="row 4: the line has more than 1 MiB"):
        pod.prepare()
    pod.source(b'h\na\nb\nc\n"' + b"x\n" * (1 << 20) + b'"\n')
    with pytest.raises(DataError, match="field larger than field limit"):
        pod.prepare(FORMAT="csv")


def test_a_job_folder_that_may_not_be_written_is_reported_with_its_owner_and_a_fix(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_data.os, "access", lambda *_: False)
    pod.source(LINES)
    with pytest.raises(StorageError, match=r"/job belongs to .*chown"):
        pod.prepare()


def test_an_unmounted_volume_is_an_error_and_not_an_empty_one(pod: Pod) -> None:
    pod.environ["JOB_PATH"] = str(pod.storage / "absent")
    with pytest.raises(StorageError, match="the shared storage is not mounted"):
        data_job.main(pod.settings(SOURCE="file://in.txt"))


def test_too_little_free_space_is_reported_before_anything_is_written(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.source(LINES)
    monkeypatch.setattr("launcher.io.files.free_bytes", lambda _: len(LINES) - 1)
    with pytest.raises(StorageError, match="no space left for the shards and the test set"):
        pod.prepare()
    assert pod.leftovers() == []
    monkeypatch.setattr("launcher.io.files.free_bytes", lambda _: len(LINES))
    assert pod.prepare()["lines"] == 1000


def test_a_disk_that_fills_up_is_reported_and_temporary_files_are_removed(pod: Pod) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this kernel has no /dev/full")
    pod.source(LINES)
    original = Path.open

    def full(path: Path, mode: str = "r", *rest: int, **more: int) -> object:
        if path.name == "train.txt" and path.parent.name == "1":
            path = Path("/dev/full")
        return original(path, mode, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(StorageError, match=r"no space left while writing .*1/train\.txt") as error:
            pod.prepare()
    assert error.value.exit_code == 75
    assert pod.leftovers() == []


def test_an_expired_deadline_reports_the_progress(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod.source(LINES)
    ticks = iter(range(0, 10_000, 40))
    monkeypatch.setattr(
        data_job, "DataProgress", lambda seconds: DataProgress(seconds, lambda: float(next(ticks)))
    )
    with pytest.raises(DeadlineError, match=r"data\.deadlineSeconds: the data was not ready after 60 s"):
        pod.prepare(DEADLINE_SECONDS=60)


def test_an_unexpected_error_is_written_as_the_reason(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr("launcher.dataprep.split_part.LineSplitter.split", fault)
    pod.source(LINES)
    with pytest.raises(LauncherError, match="ZeroDivisionError: by design"):
        pod.prepare()
    assert "by design" in pod.failure()["reason"]


def test_a_shard_that_no_part_fills_is_an_error_with_the_usable_number_of_trainers() -> None:
    settings = cast(DataSettings, SimpleNamespace(source="file://in", source_secret="", split_count=4))
    message = (
        r"6 train lines in 3 parts, but shard 2 of 4 got none: .* to at most 2, the lines of the largest part"
    )
    with pytest.raises(DataError, match=message):
        split_part._check_lines(settings, [2, 2, 0, 2], 0, [2, 2, 2])
