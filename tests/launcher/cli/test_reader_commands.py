"""Archives and reader commands: what is received is complete and verified, or nothing is written."""

import errno
import io
import json
import subprocess
import sys
import tarfile
import threading
import time

import pytest

from launcher.cli import reader_commands
from launcher.io import open_below, tar_stream
from launcher.io.files import write_atomically
from launcher.io.open_below import ReaderError
from testkit.waiting import until
from testkit.written_files import write_files


def archive_of(root, *patterns):
    out = io.BytesIO()
    tar_stream.write_tar(out, tar_stream.select(root, patterns))
    return out.getvalue()


@pytest.fixture
def root(tmp_path):
    content = bytes(range(256)) * 1000 + b"\r\n\0"
    files = {"a.bin": content, "sub/empty": "", "sub/deep/ünïcode name": "x\n", "sub/.half.tmp": "incomplete"}
    folder = write_files(tmp_path / "root", files)
    (folder / "sub" / "link").symlink_to("/etc/passwd")
    return folder


def test_every_byte_is_copied_and_temporary_files_and_links_are_skipped(root, tmp_path):
    saved = tar_stream.save_tar(io.BytesIO(archive_of(root, "a.bin", "sub")), tmp_path / "to")
    assert set(saved) == {"a.bin", "sub/empty", "sub/deep/ünïcode name"}
    for name in saved:
        assert (tmp_path / "to" / name).read_bytes() == (root / name).read_bytes()


@pytest.mark.parametrize("kept", [0, 100, 5000, 200_000, -10240])
def test_a_truncated_stream_is_rejected(root, tmp_path, kept):
    with pytest.raises(ReaderError):
        tar_stream.save_tar(io.BytesIO(archive_of(root, "a.bin")[: kept or 1]), tmp_path / "to")


def test_a_changed_byte_is_rejected_by_its_checksum(root, tmp_path):
    archive = bytearray(archive_of(root, "a.bin"))
    archive[archive.index(bytes(range(256))) + 3] ^= 1
    with pytest.raises(ReaderError, match=r"a\.bin was corrupted on the way"):
        tar_stream.save_tar(io.BytesIO(bytes(archive)), tmp_path / "to")


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("../out", "", "is not a path below"),
        ("/etc/out", "", "is not a path below"),
        ("a/../../out", "", "is not a path below"),
        ("model", "/etc/passwd", "is not a regular file"),
    ],
)
def test_names_outside_the_folder_and_links_in_an_archive_are_rejected(tmp_path, name, target, message):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = (tarfile.SYMTYPE if target else tarfile.REGTYPE), target
        archive.addfile(info, io.BytesIO())
    with pytest.raises(ReaderError, match=message):
        tar_stream.save_tar(io.BytesIO(out.getvalue()), tmp_path / "to")


def test_an_absent_path_is_an_error_unless_it_is_optional(root):
    with pytest.raises(ReaderError, match="nothing-here: there is no such file"):
        tar_stream.select(root, ["nothing-here"])
    assert tar_stream.select(root, ["nothing-here", "no*"], optional=True) == []


def test_a_pattern_whose_files_another_pattern_has_selected_already_is_no_error(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    assert tar_stream.select(tmp_path, ["a.txt", "*.txt"]) == [("a.txt", tmp_path / "a.txt")]


def test_a_truncated_push_leaves_no_files(root, tmp_path):
    target = tmp_path / "job"
    with pytest.raises(ReaderError):
        reader_commands.untar(io.BytesIO(archive_of(root, "a.bin")[:9000]), target, "mine", 0, replace=False)
    assert list(target.iterdir()) == []


def test_a_push_without_free_space_is_rejected_before_writing(root, tmp_path):
    with pytest.raises(ReaderError, match="bytes free, but 1,000,000,000,000,000 are needed"):
        reader_commands.untar(io.BytesIO(b""), tmp_path, "mine", 10**15, replace=False)
    assert not (tmp_path / "mine").exists()


def run_reader(*argv, **more):
    command = [sys.executable, "-m", "launcher", "reader", *map(str, argv)]
    return subprocess.run(command, capture_output=True, check=False, timeout=60, **more)


def test_reader_commands_use_stdin_and_stdout(root):
    assert run_reader("cat", "--root", root, "a.bin").stdout == (root / "a.bin").read_bytes()
    names = [(row["name"], row["type"]) for row in json.loads(run_reader("ls", "--root", root).stdout)]
    assert names == [("a.bin", "file"), ("sub", "folder")]
    archive = run_reader("tar", "--root", root, "sub").stdout
    arrived = run_reader("untar", "--root", root, "copy", input=archive)
    assert json.loads(arrived.stdout) == {"sub/deep/ünïcode name": 2, "sub/empty": 0}


@pytest.mark.parametrize("argv", [("cat", "gone"), ("tar", "gone"), ("ls", "gone"), ("cat", "../root/a.bin")])
def test_a_failing_reader_command_prints_one_sentence(root, argv):
    done = run_reader(argv[0], "--root", root, argv[1])
    assert done.returncode == 1
    assert len(done.stderr.decode().splitlines()) == 1
    assert b"Traceback" not in done.stderr


def test_following_a_file_prints_new_lines_and_the_file_of_a_new_attempt(tmp_path):
    log, status, out = tmp_path / "train.log", tmp_path / "status.json", io.BytesIO()
    log.write_text("one\n")

    def write():
        def wait_for(text):
            while text not in out.getvalue():
                time.sleep(0.01)

        wait_for(b"one\n")
        with log.open("a") as file:
            file.write("two\n")
        wait_for(b"two\n")
        log.rename(tmp_path / "old")
        log.write_text("three\n")
        wait_for(b"three\n")
        write_atomically(status, '{"state": "complete"}')  # as rank 0 does

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    reader_commands.follow_file(tmp_path, log.name, status.name, out, seconds=30, pause=0.01)
    writer.join(30)
    assert out.getvalue() == b"one\ntwo\nthree\n"


def test_a_storage_that_fails_for_a_moment_does_not_end_a_followed_log(tmp_path, monkeypatch):
    (tmp_path / "train.log").write_text("one\n")
    (tmp_path / "status.json").write_text('{"state": "complete"}')
    errors = [OSError(errno.ESTALE, "Stale file handle")]

    def open_file(root, name):
        if name == "status.json" and errors:
            raise errors.pop()
        return open_below.open_file(root, name)

    monkeypatch.setattr(reader_commands, "open_file", open_file)
    out = io.BytesIO()
    reader_commands.follow_file(tmp_path, "train.log", "status.json", out, seconds=30, pause=0.01)
    assert (out.getvalue(), errors) == (b"one\n", [])


def test_a_slow_command_sends_spaces_before_its_answer(tmp_path, monkeypatch):
    def measure_slowly(*_):
        until(lambda: len(out.getvalue()) >= 3)
        return {"a": 1}

    out = io.BytesIO()
    monkeypatch.setattr(reader_commands, "SPACE_SECONDS", 0.01)
    monkeypatch.setattr(reader_commands, "measure_sizes", measure_slowly)
    assert reader_commands.run(["sizes", "--root", str(tmp_path), "a"], io.BytesIO(), out) == ""
    assert out.getvalue().startswith(b"   ")
    assert json.loads(out.getvalue()) == {"a": 1}


def test_a_command_that_fails_early_lets_its_sender_finish(tmp_path):
    (tmp_path / "x").write_bytes(b"x" * 4_000_000)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as out:
        out.add(tmp_path / "x", "a\\\\b")
    command = [sys.executable, "-m", "launcher", "reader", "untar", "--root", str(tmp_path), "made"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        reader.stdin.write(archive.getvalue())  # a reader that exits before breaks the pipe
        reader.stdin.flush()
        assert reader.wait(30) == 1  # although stdin is still open
        assert b"is not a path below the shared folder" in reader.stderr.read()
