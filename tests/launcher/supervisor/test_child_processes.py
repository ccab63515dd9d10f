"""Tests of child processes: copies of their logs, the fork server, orphans, and what a lost lease kills."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path, PosixPath
from typing import Any

import pytest

from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.supervisor import child_processes
from launcher.supervisor.child_processes import ChildProcess, ForkServer, LogFollower
from testkit.waiting import until

SLEEP = "import time; time.sleep(600)"


def test_a_log_is_copied_completely_once_the_volume_works_again(
    tmp_path: Path,
) -> None:
    log, copy = tmp_path / "train.log", tmp_path / "volume" / "train.log"
    copy.parent.write_text("a file in place of the folder: every write to the copy fails")
    log.touch()
    follow = LogFollower(log, copy=copy, shown=False, period=0.02)
    with log.open("a") as child:
        for number in range(100):
            child.write(f"line {number}\n")
            child.flush()
    time.sleep(0.5)
    copy.parent.unlink()
    follow.end()
    follow.join(10)
    assert copy.read_text() == log.read_text()


def test_a_log_copy_that_is_renamed_is_continued_under_its_new_name(tmp_path: Path) -> None:
    log, copy = tmp_path / "train.log", tmp_path / "node_0" / "train.log"
    log.write_text("first\n")
    follow = LogFollower(log, copy=copy, shown=False, period=30)
    until(copy.exists, "the copy, which is opened at once: an attempt may be shorter than the period")
    aside = copy.rename(copy.with_name("earlier.log"))
    with log.open("a") as child:
        child.write("second\n")
    follow.end()
    follow.join(10)
    assert aside.read_text() == "first\nsecond\n"
    assert not copy.exists()


def test_an_incomplete_last_line_is_completed_in_the_pods_log(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Else the launcher's next line continues it, and is no JSON any more for a log collector."""
    log = tmp_path / "train.log"
    log.write_text("Pass=0\n....")
    follow = LogFollower(log, copy=tmp_path / "copy.log", shown=True, period=0.02)
    follow.end()
    follow.join(10)
    assert capfdbinary.readouterr().out == b"Pass=0\n....\n"
    assert (tmp_path / "copy.log").read_text() == "Pass=0\n....", "the copy is not changed"


def test_a_line_that_is_written_in_parts_is_shown_completely(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    log, judged = tmp_path / "train.log", list[str]()
    log.write_text("Pass=0\nBatch")
    follow = LogFollower(log, copy=None, shown=True, judge=judged.append, period=0.001)
    until(lambda: judged, "the first line")
    time.sleep(0.1)  # the part of the second one is read many times
    with log.open("a") as file:
        file.write("=20 AvgCost=0.3\n..")
    until(lambda: len(judged) > 1, "the second line")
    follow.end()
    follow.join(10)
    assert capfdbinary.readouterr().out == b"Pass=0\nBatch=20 AvgCost=0.3\n..\n"
    assert "".join(judged) == "Pass=0\nBatch=20 AvgCost=0.3\n.."


@pytest.mark.parametrize("opened", [True, False], ids=["a write failed", "it was never created"])
def test_a_late_copy_does_not_overwrite_the_log_of_the_next_attempt(tmp_path: Path, opened: bool) -> None:
    log, copy, newer = tmp_path / "train.log", tmp_path / "copy.log", tmp_path / "newer.log"
    log.write_text("of this attempt\n")
    newer.write_text("of the next attempt\n")
    copy.symlink_to("/dev/full" if opened else copy)  # a link to itself cannot be opened
    follow = LogFollower(log, copy=copy, shown=False, period=0.02)
    time.sleep(0.3)  # writes fail
    follow.end()
    newer.replace(copy)
    follow.join(0.5)  # it retries for a minute
    assert copy.read_text() == "of the next attempt\n"


class FullVolume(PosixPath):
    """A file on a volume that is full as long as the file `full` is next to it."""

    def open(self, mode: str, buffering: int) -> FileIO:  # type: ignore[override]
        class File(FileIO):
            def write(self, data: Any) -> int:
                if full.exists():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return super().write(data)

        full = Path(self).with_name("full")
        return File(self, mode)


def test_a_copy_that_is_renamed_while_the_volume_is_full_is_completed_under_its_new_name(
    tmp_path: Path,
) -> None:
    log, copy, full = tmp_path / "train.log", tmp_path / "node_0" / "train.log", tmp_path / "node_0" / "full"
    log.write_text("first\n")
    follow = LogFollower(log, copy=FullVolume(copy), shown=False, period=0.02)
    until(lambda: copy.exists() and copy.read_text() == "first\n", "the first line in the copy")
    full.touch()
    with log.open("a") as child:
        child.write("second\n")
    time.sleep(0.5)  # writes fail
    follow.end()
    aside = copy.rename(copy.with_name("earlier.log"))
    copy.write_text("of the next attempt\n")
    full.unlink()
    follow.join(10)
    assert aside.read_text() == "first\nsecond\n"
    assert copy.read_text() == "of the next attempt\n"


FORKS = f"""
import os, sys
sys.path.insert(0, {str(Path(child_processes.__file__).parents[2])!r})
from launcher.trainer import fork_server as forks
forks.serve(lambda: print("loading"))
print(os.environ["WHO"], "in", os.getcwd(), "of", os.getppid(), flush=True)
exec(os.environ["THEN"])
"""


def build_spec(tmp_path: Path, code: str = "print('not forked')", **env: str) -> ProcessSpec:
    """Return the specification of a process that runs `code`."""
    argv = (sys.executable, "-c", code)
    return ProcessSpec("trainer", "trainer", argv, env, tmp_path, tmp_path / "work" / "logs" / "x.log")


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[ForkServer]:
    """Return a fork server whose processes run the code in their environment variable THEN."""
    (tmp_path / "work").mkdir(exist_ok=True)
    server = ForkServer(replace(build_spec(tmp_path, FORKS), log=tmp_path / "work" / "logs" / "forks.log"))
    yield server
    server.end()


def test_a_forked_process_has_its_own_environment_folder_log_and_exit_code(
    tmp_path: Path, forks: ForkServer
) -> None:
    assert forks.ready(20)
    for number in (9, 0):
        then = f"print(os.getsid(0) == os.getpid()); sys.exit({number})"
        child = ChildProcess(build_spec(tmp_path, WHO=f"rank {number}", THEN=then), lambda: None, forks)
        until(child.done.is_set)
        assert child.returncode == number
        expected = f"rank {number} in {tmp_path} of {os.getpid()}\nTrue\n"
        assert child.spec.log.read_text() == expected
    assert (tmp_path / "work" / "logs" / "forks.log").read_text() == "loading\n"


def test_a_forked_process_outlives_the_fork_server_and_is_killed_with_its_descendants(
    tmp_path: Path, forks: ForkServer
) -> None:
    assert forks.ready(20)
    then = "import subprocess; below = subprocess.Popen(['sleep', '600']); print(below.pid, flush=True)"
    child = ChildProcess(build_spec(tmp_path, WHO="x", THEN=f"{then}; below.wait()"), lambda: None, forks)
    until(lambda: child.spec.log.read_text().count("\n") == 2)
    forks.end()
    descendant = int(child.spec.log.read_text().split()[-1])
    assert not child.done.wait(0.3)
    child.signal(signal.SIGTERM)
    until(child.done.is_set)
    assert child.returncode == -signal.SIGTERM
    until(lambda: child_processes.reap_orphans() or not Path(f"/proc/{descendant}").exists())


@pytest.mark.parametrize("forked", [True, False])
def test_a_process_reaped_as_an_orphan_keeps_its_exit_code(
    tmp_path: Path, forks: ForkServer, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert forks.ready(20)
    monkeypatch.setattr(child_processes, "_kill", lambda pid, _: os.waitpid(pid, 0))
    spec = build_spec(tmp_path, "raise SystemExit(9)", WHO="x", THEN="sys.exit(9)")
    child = ChildProcess(spec, lambda: None, forks if forked else None)
    until(child.done.is_set)
    assert child.returncode == 9


@pytest.mark.parametrize("how", ["not loaded", "dead", "stopped"])
def test_a_process_is_started_without_a_fork_server_that_cannot_fork(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(child_processes, "FORK_SECONDS", 0.5)
    server = ForkServer(build_spec(tmp_path, SLEEP if how == "not loaded" else FORKS))
    if how != "not loaded":
        assert server.ready(20)
        os.kill(server._popen.pid, signal.SIGKILL if how == "dead" else signal.SIGSTOP)
        until(lambda: how == "stopped" or not server.alive)
    child = ChildProcess(build_spec(tmp_path), lambda: None, server)
    until(child.done.is_set)
    assert (child.returncode, child.spec.log.read_text()) == (0, "not forked\n")
    assert server.alive == (how == "not loaded")
    server.end()
    assert not server.alive


FROZEN_LAUNCHER = """
import os, signal, subprocess, sys, time
from launcher.supervisor import child_processes
guard = child_processes.ProcessGuard()
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
child_processes._running[child.pid] = False
guard.send(600 if sys.argv[1] == "runs" else 1)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.slow
def test_the_guard_kills_the_processes_of_a_frozen_launcher() -> None:
    def start(kind: str) -> tuple[subprocess.Popen[str], int]:
        argv = [sys.executable, "-c", FROZEN_LAUNCHER, kind]
        launcher = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert launcher.stdout is not None
        return launcher, int(launcher.stdout.readline())

    def is_alive(pid: int) -> bool:
        stat = Path(f"/proc/{pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"

    frozen, running = start("frozen"), start("runs")
    try:
        until(lambda: not is_alive(frozen[1]), seconds=20)
        assert is_alive(running[1]), "its deadline has not passed"
    finally:
        for launcher, child in (frozen, running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            launcher.kill()
            launcher.communicate()
