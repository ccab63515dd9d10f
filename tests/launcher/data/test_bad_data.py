"""What is wrong with a source or the settings, and how it is told."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from launcher.data import prepare, text
from launcher.data.progress import Progress
from launcher.errors import DataError, DeadlineError, LauncherError, SettingsError, StorageError
from tests.launcher.data.conftest import LINES, Pod, tarred, zipped

BAD = [
    (b"a\nb\r\nc\n", {}, "file://in.txt, row 2, column 2: the line ends with CRLF"),
    (b"a\nb\nc\r", {}, "row 3, column 2: the line ends with CRLF"),
    (b"a\nb\nx\0c\n", {}, "row 3, column 2: a NUL byte"),
    (b"a\nb\nc\xff\nd\n", {}, "row 3, column 2: the byte 0xff is not UTF-8"),
    (b"a\nb\xe2\x82", {}, "row 2, column 2: the byte 0xe2 is not UTF-8"),
    (b"a\nb\n", {}, "has 2 train lines .* fewer than the 3 shards"),
    (b"", {}, "has 0 train lines"),
    (b"a\nb\nc\n", {"TEST_FRACTION": 0.01}, "holds out none of them"),
    (b"a\nb\nc\n", {"SHA256": "0" * 64}, "but data.sha256 says 0000.*nothing was published"),
    (b"a,b\n1,2\n3\n", {"FORMAT": "csv"}, r"row 2 \(line 3\), column 2: 1 fields, but 2 are expected"),
    (b"a,b\n1,2,3\n", {"FORMAT": "csv"}, r"row 1 \(line 2\), column 3: 3 fields, but 2"),
    (b'a,b\n1,"2\n3', {"FORMAT": "csv"}, "line 3: this is no csv"),
    (b"a,b\n1,2\n", {"FORMAT": "csv", "COLUMNS": ["c"]}, "'c' of data.columns is not there; names: 'a', 'b'"),
    (b"a,a\n1,2\n", {"FORMAT": "csv", "COLUMNS": ["a"]}, "'a' of data.columns is twice"),
    (b"a,b\n1,2\n", {"FORMAT": "csv", "COLUMNS": [2]}, "column 2, but there are 2, counted from 0 to 1"),
    (b"a\n\xff\n", {"FORMAT": "csv"}, "line 2, column 1: the byte 0xff is not UTF-8"),
    (b"\x81\x81", {"ENCODING": "cp1252"}, "about line 1: the text is not cp1252"),
    (zipped({"in": LINES}), {}, "is a zip file: set data.member"),
    (tarred({"in": LINES}, "w"), {}, "is a tar file: set data.member"),
    (tarred({"in": LINES}), {}, "is a tar file: set data.member"),
    (zipped({"d/train.txt": LINES}), {"MEMBER": "train.txt"}, "no member 'train.txt'; it has 'd/train.txt'"),
    (tarred({"d/trian.txt": LINES}), {"MEMBER": "d/train.txt"}, "'d/train.txt'; it has 'd/trian.txt'"),
    (LINES, {"MEMBER": "in"}, "is damaged or cut short"),
    (zipped({"in": LINES})[:-30], {"MEMBER": "in"}, "is damaged or cut short"),
    (tarred({"in": LINES})[:-300], {"MEMBER": "in"}, "is damaged or cut short"),
    (gzip.compress(LINES)[:-20], {}, "is damaged or cut short"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "values", "message"), BAD)
@pytest.mark.parametrize("chunk", [5, 1 << 19])
def test_bad_data_is_named_and_nothing_is_published(
    pod: Pod, content: bytes, values: dict[str, object], message: str, chunk: int
) -> None:
    pod.source(content)
    with pytest.raises(DataError, match=f"(?s){message}") as error:
        pod.prepare(chunk, **values)
    assert error.value.exit_code == 65
    assert pod.failure()["reason"] == str(error.value)
    assert pod.failure()["dataDigest"] == "0123456789abcdef"
    assert sorted(path.name for path in pod.job.iterdir()) == [
        ".prepare.0123456789abcdef.lock",
        "data-failed.json",
    ]


SETTINGS = [
    ({"SOURCE": "ftp://host/x"}, "data.source is 'ftp://host/x', but must be https"),
    ({"SOURCE": "http://host/x"}, "data.sha256 is '', but must be given for an http:// source"),
    ({"SOURCE": "file:///etc/passwd"}, "not absolute and without"),
    ({"SOURCE": "file://../other/x"}, "not absolute and without"),
    ({"SOURCE": "https://"}, "an address with a host"),
    ({"MEMBER": "../x"}, "data.member is '../x', but must be a path inside the archive"),
    ({"MEMBER": "/x"}, "data.member is '/x'"),
    ({"MEMBER": "x", "TABLES": ["a/t", "b/t"]}, "data.tables"),
    ({"TABLES": ["t"]}, "data.tables is .* but must be empty without data.member"),
    ({"SOURCE": "s3://bucket/x/", "MEMBER": "x"}, "s3://BUCKET/KEY of one archive"),
    ({"COLUMNS": ["a"]}, "data.columns"),
    ({"FORMAT": "csv", "HEADER": "false", "COLUMNS": ["a"]}, "indexes from 0"),
]


@pytest.mark.parametrize(("values", "message"), SETTINGS)
def test_settings_that_do_not_go_together_are_refused(
    pod: Pod, values: dict[str, object], message: str
) -> None:
    pod.source(LINES)
    with pytest.raises(SettingsError, match=message) as error:
        pod.prepare(**values)
    assert pod.failure()["reason"] == str(error.value)


def test_an_absent_source_says_what_is_there(pod: Pod) -> None:
    pod.source(LINES, "other.txt")
    with pytest.raises(DataError, match=r"there is no file .*sources/in\.txt; .* has other\.txt"):
        pod.prepare(SOURCE="file://in.txt")


def test_a_link_out_of_the_sources_is_refused(pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(LINES)
    (pod.storage / "sources").mkdir()
    (pod.storage / "sources" / "in.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match="leads out of"):
        pod.prepare(SOURCE="file://in.txt")


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "LINE_MAX", 1 << 20)
    pod.source(b"a\nb\nc\n" + b"x" * (3 << 20) + b"\n")
    with pytest.raises(DataError, match="row 4: the line has more than 1 MiB"):
        pod.prepare()
    pod.source(b'h\na\nb\nc\n"' + b"x\n" * (1 << 20) + b'"\n')
    with pytest.raises(DataError, match="field larger than field limit"):
        pod.prepare(FORMAT="csv")


def test_a_volume_that_is_not_mounted_is_not_taken_for_an_empty_one(pod: Pod) -> None:
    pod.environ["JOB_PATH"] = str(pod.storage / "absent")
    with pytest.raises(StorageError, match="the shared storage is not mounted"):
        prepare.main(pod.settings(SOURCE="file://in.txt"))


def test_too_little_room_is_seen_before_anything_is_written(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.source(LINES)
    monkeypatch.setattr("launcher.data.space.free_bytes", lambda _: len(LINES) - 1)
    with pytest.raises(StorageError, match="MB free, but the shards and the test set needs"):
        pod.prepare()
    assert pod.leftovers() == []
    monkeypatch.setattr("launcher.data.space.free_bytes", lambda _: len(LINES))
    assert pod.prepare()["lines"] == 1000


def test_a_disk_that_fills_in_the_middle_is_named_and_left_clean(pod: Pod) -> None:
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


def test_a_deadline_ends_it_and_says_how_far_it_was(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod.source(LINES)
    ticks = iter(range(0, 10_000, 40))
    monkeypatch.setattr(prepare, "Progress", lambda seconds: Progress(seconds, lambda: float(next(ticks))))
    with pytest.raises(DeadlineError, match=r"not ready after 60 s \(data.deadlineSeconds\)"):
        pod.prepare(DEADLINE_SECONDS="60")


def test_a_fault_of_our_own_is_left_as_a_reason_too(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr("launcher.data.deal.Split.pieces", fault)
    pod.source(LINES)
    with pytest.raises(LauncherError, match="ZeroDivisionError: by design"):
        pod.prepare()
    assert "by design" in pod.failure()["reason"]
