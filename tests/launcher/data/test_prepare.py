"""The whole preparation, from files of the shared volume to shards and manifest."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.data import fields, prepare, publish, text, writers
from launcher.data.progress import Progress
from launcher.errors import DataError, DeadlineError, LauncherError, SettingsError, StorageError
from tests.launcher.data.conftest import Pod

ROOT = Path(__file__).resolve().parents[3]
LINES = b"".join(b"%d\tthe text of line %d\n" % (number % 2, number) for number in range(1000))


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tarred(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def test_a_file_becomes_even_shards_one_test_set_and_a_manifest(pod: Pod) -> None:
    pod.source(LINES)
    manifest = pod.prepare(TEST_FRACTION=0.1, SEED="7")
    shards = pod.shards()
    test = pod.lines(0, "test.txt")
    assert [len(shard) for shard in shards] == [300, 300, 300]
    assert len(test) == 100
    assert sorted([*pod.train(), *test]) == sorted(LINES.split(b"\n")[:-1])
    assert pod.lines(1, "test.txt") == pod.lines(2, "test.txt") == test
    for index in range(3):
        folder = pod.job / str(index) / "data"
        assert sorted(path.name for path in folder.iterdir()) == [
            "test.list",
            "test.txt",
            "train.list",
            "train.txt",
        ]
        assert (folder / "train.list").read_text() == "data/train.txt\n"
        assert (folder / "test.list").read_text() == "data/test.txt\n"
        content = (folder / "train.txt").read_bytes()
        assert manifest["shards"][index] == {
            "index": index,
            "lines": 300,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    content = (pod.job / "0" / "data" / "test.txt").read_bytes()
    assert manifest["test"] == {
        "lines": 100,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert {k: v for k, v in manifest.items() if k not in ("shards", "test")} == {
        "version": 1,
        "dataDigest": "0123456789abcdef",
        "source": "file://in.txt",
        "sha256": hashlib.sha256(LINES).hexdigest(),
        "member": "",
        "format": "lines",
        "seed": 7,
        "testFraction": 0.1,
        "splitCount": 3,
        "lines": 900,
        "tables": [],
    }
    assert pod.leftovers() == []
    assert not (pod.job / "data-failed.json").exists()


@pytest.mark.parametrize("chunk", [1, 7, 100, 4096, 1 << 20])
def test_the_result_does_not_depend_on_how_much_is_read_at_once(
    new_pod: Callable[[], Pod], chunk: int
) -> None:
    content = "\n".join(f"zeile {n} äöü€" for n in range(400)).encode()
    one, other = new_pod(), new_pod()
    for pod in (one, other):
        pod.source(content)
    assert one.prepare(TEST_FRACTION=0.2) == other.prepare(chunk, TEST_FRACTION=0.2)
    assert one.shards() == other.shards()


def test_more_than_one_batch_for_the_writers_changes_nothing(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.source(LINES)
    before = pod.prepare(chunk=512)
    monkeypatch.setattr(prepare, "_BATCH", 1)
    monkeypatch.setattr(writers, "FLUSH", 1)
    assert pod.prepare(chunk=512, SHA256=before["sha256"]) == before
    (pod.job / "manifest.json").unlink()
    assert pod.prepare(chunk=512) == before


def test_a_last_line_without_newline_gets_one(pod: Pod) -> None:
    pod.source(b"a\nb\nc")
    assert pod.prepare()["lines"] == 3
    assert sorted(pod.train()) == [b"a", b"b", b"c"]


def test_other_bytes_of_a_line_come_through_as_they_are(pod: Pod) -> None:
    odd = [b"", b" a ", b"\x0b\x0c\x1c", "\u2028\u0085".encode(), b"c\rd", b"a\\tb"]
    pod.source(b"\n".join(odd) + b"\n")
    pod.prepare()
    assert sorted(pod.train()) == sorted(odd)


@pytest.mark.parametrize("chunk", [1, 2, 4096])
def test_a_byte_order_mark_is_no_part_of_the_first_line(pod: Pod, chunk: int) -> None:
    pod.source(b"\xef\xbb\xbfa\nb\nc\n")
    pod.prepare(chunk)
    assert sorted(pod.train()) == [b"a", b"b", b"c"]


def test_another_encoding_becomes_utf_8(pod: Pod) -> None:
    pod.source("ä\nö\nü\n".encode("utf-16"))
    pod.prepare(3, ENCODING="utf-16")
    assert sorted(pod.train()) == ["ä".encode(), "ö".encode(), "ü".encode()]


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_a_member_of_an_archive_is_dealt_and_tables_are_copied(pod: Pod, kind: str) -> None:
    members = {"d/users.tab": b"u" * 3000, "d/train.txt": LINES, "d/films.tab": b"\0binary", "x": b""}
    mode = "w" if kind == "tar" else f"w:{kind.removeprefix('tar.')}"
    archive = zipped(members) if kind == "zip" else tarred(members, mode)
    pod.source(archive, "archive")
    manifest = pod.prepare(MEMBER="d/train.txt", TABLES=["d/films.tab", "d/users.tab"])
    assert sorted(pod.train()) == sorted(LINES.split(b"\n")[:-1])
    assert manifest["sha256"] == hashlib.sha256(archive).hexdigest()
    assert manifest["tables"] == [
        {"name": "films.tab", "bytes": 7, "sha256": hashlib.sha256(b"\0binary").hexdigest()},
        {"name": "users.tab", "bytes": 3000, "sha256": hashlib.sha256(b"u" * 3000).hexdigest()},
    ]
    assert (pod.job / "tables" / "films.tab").read_bytes() == b"\0binary"
    assert pod.leftovers() == []


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_file_is_unpacked(pod: Pod, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(LINES[:9000]) + pack(LINES[9000:])
    pod.source(packed, "in")
    assert pod.prepare(chunk=1000)["sha256"] == hashlib.sha256(packed).hexdigest()
    assert sorted(pod.train()) == sorted(LINES.split(b"\n")[:-1])


def test_csv_records_become_escaped_lines_of_the_chosen_columns(pod: Pod) -> None:
    pod.source(b'label;text;more\r\n1;"a ""quoted"";\r\nfield\t\\";x\r\n\r\n0;b;y\n2;c;z')
    manifest = pod.prepare(FORMAT="csv", DELIMITER=";", COLUMNS=["text", 0])
    records = [fields(line.decode()) for line in pod.train()]
    assert sorted(records) == [['a "quoted";\r\nfield\t\\', "1"], ["b", "0"], ["c", "2"]]
    assert manifest["lines"] == 3


def test_csv_without_header_and_in_latin_1(pod: Pod) -> None:
    pod.source("é\t1\nè\t2\nê\t3\n".encode("latin-1"))
    pod.prepare(FORMAT="csv", DELIMITER="\\t", HEADER="false", ENCODING="latin-1", COLUMNS=[1, 0])
    assert sorted(pod.train()) == ["1\té".encode(), "2\tè".encode(), "3\tê".encode()]


def test_a_second_start_finds_the_data_and_does_nothing(pod: Pod) -> None:
    pod.source(LINES)
    pod.prepare()
    before = {path: path.stat().st_mtime_ns for path in pod.job.rglob("*.txt")}
    (pod.storage / "sources" / "in.txt").unlink()
    pod.prepare()
    assert {path: path.stat().st_mtime_ns for path in pod.job.rglob("*.txt")} == before


@pytest.mark.parametrize("damage", ["0/data/train.txt", "2/data/test.txt", "tables/t", "1/data"])
def test_data_that_is_not_whole_is_made_again(pod: Pod, damage: str) -> None:
    pod.source(zipped({"in": LINES, "t": b"table"}), "z")
    first = pod.prepare(MEMBER="in", TABLES=["t"], TEST_FRACTION=0.1)
    path = pod.job / damage
    if path.is_dir():
        path.rename(pod.job / "elsewhere")
    else:
        path.write_bytes(b"")
    assert pod.prepare(MEMBER="in", TABLES=["t"], TEST_FRACTION=0.1) == first
    assert path.is_dir() or path.stat().st_size


def test_other_data_replaces_the_old_and_removes_shards_beyond_the_last(pod: Pod) -> None:
    pod.source(zipped({"in": LINES, "t": b"table"}), "z")
    pod.prepare(MEMBER="in", TABLES=["t"], SPLIT_COUNT="5")
    (pod.job / "quick_start").mkdir()
    (pod.job / "7").mkdir()
    (pod.job / "output").mkdir()
    pod.environ["PADDLE_LAUNCHER_DATA_DIGEST"] = "fedcba"
    pod.source(b"1\n2\n3\n")
    assert pod.prepare(SPLIT_COUNT="2")["dataDigest"] == "fedcba"
    names = sorted(path.name for path in pod.job.iterdir())
    assert names == [".prepare.lock", "0", "1", "7", "manifest.json", "output", "quick_start"]


def test_the_manifest_goes_first_and_comes_last(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod.source(LINES)
    pod.prepare()
    pod.environ["PADDLE_LAUNCHER_DATA_DIGEST"] = "fedcba"

    def broken(*_: object) -> None:
        assert not (pod.job / "manifest.json").exists()
        raise StorageError("in the middle of renaming")

    monkeypatch.setattr(publish, "_swap", broken)
    with pytest.raises(StorageError):
        pod.prepare()
    assert not (pod.job / "manifest.json").exists()
    assert pod.failure()["reason"] == "in the middle of renaming"
    monkeypatch.undo()
    assert pod.prepare()["dataDigest"] == "fedcba"
    assert not (pod.job / "data-failed.json").exists()


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
    (b"a,b\n1,2\n3\n", {"FORMAT": "csv"}, "row 3, column 2: 1 fields, but 2 are expected, as in the header"),
    (b"a,b\n1,2,3\n", {"FORMAT": "csv"}, "row 2, column 3: 3 fields, but 2"),
    (b'a,b\n1,"2\n3', {"FORMAT": "csv"}, "row 3: this is no csv"),
    (b"a,b\n1,2\n", {"FORMAT": "csv", "COLUMNS": ["c"]}, "'c' of data.columns is not there; names: 'a', 'b'"),
    (b"a,a\n1,2\n", {"FORMAT": "csv", "COLUMNS": ["a"]}, "'a' of data.columns is twice"),
    (b"a,b\n1,2\n", {"FORMAT": "csv", "COLUMNS": [2]}, "column 2, but there are 2, counted from 0 to 1"),
    (b"a\n\xff\n", {"FORMAT": "csv"}, "row 2, column 1: the byte 0xff is not UTF-8"),
    (b"\x81\x81", {"ENCODING": "cp1252"}, "about row 1: the text is not cp1252"),
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
    assert sorted(path.name for path in pod.job.iterdir()) == [".prepare.lock", "data-failed.json"]


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
    ({"SOURCE": "s3://bucket/x", "MEMBER": "x"}, "empty for an s3"),
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
    monkeypatch.setattr("launcher.data.space.free_bytes", lambda _: len(LINES) * 2)
    with pytest.raises(
        StorageError, match="MB free, but the shards and a copy of the test set in each needs"
    ):
        pod.prepare(SPLIT_COUNT="100", TEST_FRACTION=0.1)
    assert pod.prepare(SPLIT_COUNT="2", TEST_FRACTION=0.1)["lines"] == 900


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


# --- as a process -----------------------------------------------------------------------------------------


def start(pod: Pod, **values: str) -> subprocess.Popen[str]:
    environ = {**pod.env(**values), "PATH": os.environ["PATH"]}
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", "prepare"],
        cwd=ROOT,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the wait was in vain"
        time.sleep(0.02)


BIG = b"".join(b"%d %s\n" % (n, b"x" * 80) for n in range(800_000))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_preparation_that_is_stopped_in_the_middle_publishes_nothing_and_can_be_started_again(
    pod: Pod, number: signal.Signals
) -> None:
    pod.source(BIG)
    process = start(pod)
    shards = pod.job / ".0123456789abcdef.tmp" / "shards" / "0" / "train.txt"
    until(lambda: shards.exists() and shards.stat().st_size > 0)
    process.send_signal(number)
    _, log = process.communicate(timeout=30)
    assert not (pod.job / "manifest.json").exists()
    assert not (pod.job / "data-failed.json").exists()
    if number == signal.SIGTERM:
        assert process.returncode == 143
        assert "told to stop (SIGTERM)" in log
        assert pod.leftovers() == []
    else:
        assert pod.leftovers() == [".0123456789abcdef.tmp"]
    again = start(pod)
    _, log = again.communicate(timeout=60)
    assert again.returncode == 0, log
    manifest = json.loads((pod.job / "manifest.json").read_text())
    assert manifest["lines"] == 800_000
    assert manifest["sha256"] == hashlib.sha256(BIG).hexdigest()
    assert pod.leftovers() == []


def test_the_exit_code_and_the_termination_message_tell_the_cause(pod: Pod) -> None:
    pod.source(b"a\nb\n")
    process = start(pod)
    _, log = process.communicate(timeout=30)
    assert process.returncode == 65
    assert "fewer than the 3 shards" in log
    assert "fewer than the 3 shards" in (pod.storage / "termination-log").read_text()


def test_a_second_data_job_waits_for_the_first(pod: Pod) -> None:
    pod.source(LINES)
    pod.job.mkdir()
    held = pod.job / ".prepare.lock"
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(held)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    second = start(pod)
    assert second.stderr is not None
    assert "waiting for another data Job" in second.stderr.readline()
    assert not (pod.job / "manifest.json").exists()
    holder.communicate("")
    second.communicate(timeout=30)
    assert second.returncode == 0
    assert (pod.job / "manifest.json").exists()


def test_a_folder_of_somebody_else_is_named_with_its_owner_and_the_mend(pod: Pod) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    pod.source(LINES)
    pod.job.mkdir(mode=0o755)
    for path in (pod.storage, *pod.storage.parents):
        if path.stat().st_mode & 0o5 != 0o5 and path.stat().st_uid == 0:
            path.chmod(0o755)
    script = (
        "import os, sys; os.setgid(10001); os.setuid(10001)\n"
        "from launcher.data import prepare; from launcher.settings import DataSettings\n"
        "from launcher.errors import LauncherError\n"
        "try: prepare.main(DataSettings.from_environ())\n"
        "except LauncherError as e: print(e); sys.exit(e.exit_code)\n"
    )
    import_first = "import numpy, launcher.data.prepare, launcher.settings\n" + script
    done = subprocess.run(
        [sys.executable, "-c", import_first],
        cwd=ROOT,
        env=pod.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    assert "runs as 10001:10001" in done.stdout
    assert "belongs to 0:0 with mode 0755" in done.stdout
    assert "chown" in done.stdout
