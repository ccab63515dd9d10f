"""Start child processes, watch them with threads, follow their logs, and kill them with all their descendants."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from launcher.errors import ProcessError
from launcher.io import files
from launcher.runtimes.runtime_protocol import ProcessSpec

FORK_SECONDS = 10.0  # a fork takes milliseconds, but longer on an overloaded machine
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

_running: dict[int, bool] = {}
"""Process id of the leader of each running process group → whether the group is that of a helper process, which
survives the end of an attempt."""
_adopting = False
"""Whether orphaned descendants of this process become its children."""


class ChildProcess:
    """One running or exited child process of the launcher, in a session and process group of its own.

    Attributes:
        returncode: the process's exit code; if a signal terminated the process, the negative signal number; None while
            it runs.
        ended_at: monotonic time at which the process exited.
        done: a threading.Event that is set once the process has exited.
        stopped: whether the launcher called `signal`. If so, the exit code of the process is no failure.
        stdin: the pipe to the process's stdin; None if the process was started without subprocess.PIPE.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        ended: Callable[[], None],
        forks: ForkServer | None = None,
        *,
        is_helper: bool = False,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Start the process.

        Args:
            spec: the process to start.
            ended: called from a thread when the process has exited.
            forks: the fork server that creates the process. If there is none (None), or it cannot fork, the process is
                started with subprocess.Popen.
            is_helper: whether the process is a helper, which belongs to no attempt.
            stdin: subprocess.DEVNULL or subprocess.PIPE.

        Raises:
            ProcessError: the process cannot be started.
            StorageError, StorageFailedError: the process's log file cannot be created.
        """
        self.spec, self._ended = spec, ended
        self.returncode: int | None = None
        self.ended_at = 0.0
        self.stopped = False
        with files.storage_errors(spec.log):
            spec.log.parent.mkdir(parents=True, exist_ok=True)
            spec.log.unlink(missing_ok=True)  # a LogFollower may still read an earlier child's log
            spec.log.touch()
        forked = None if forks is None else forks.fork(spec)
        self._popen = _popen(spec, stdin) if forked is None else None
        self.pid = self._popen.pid if self._popen is not None else forked or 0
        self.stdin = None if self._popen is None else self._popen.stdin
        _running[self.pid] = is_helper
        self.done = threading.Event()
        threading.Thread(target=self._watch, name=f"watch {spec.name}", daemon=True).start()

    def _watch(self) -> None:
        # WNOWAIT leaves the zombie in the process table, so that no other group can get its id while the rest
        # of its group is killed.
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # noqa: S101 - only WNOHANG gives none
        self.ended_at = time.monotonic()
        _kill(self.pid, signal.SIGKILL)
        _running.pop(self.pid, None)
        self.returncode = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with contextlib.suppress(ChildProcessError):  # `reap_orphans` may be first from here on
            os.waitpid(self.pid, 0)
        if self._popen is not None:
            self._popen.returncode = self.returncode  # or Popen would wait for it again
        self.done.set()
        self._ended()

    def signal(self, signum: int) -> None:
        """Send the signal `signum` to the process's group, unless the process has exited; set `stopped` in any case.

        The group has the process and its descendants, without those that have moved to a group of their own.
        """
        self.stopped = True
        if not self.done.is_set():
            _kill(self.pid, signum)


def _popen(spec: ProcessSpec, stdin: int, stdout: int | None = None) -> subprocess.Popen[bytes]:
    try:
        with spec.log.open("ab") as log:
            return subprocess.Popen(
                spec.argv,
                env=dict(spec.env),
                cwd=spec.cwd,
                stdin=stdin,
                stdout=log if stdout is None else stdout,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        raise ProcessError(
            f"cannot start {spec.name} ({spec.argv[0]} in {spec.cwd}): {error.strerror or error}. Fix: check "
            "that the image contains this program and that the pod's memory limit allows another process"
        ) from error


class ForkServer:
    """A process that loads large libraries once per pod and then forks this launcher's children.

    The fork server writes the line `ready` to stdout once it has loaded the libraries. After that, each line of its
    stdin requests a child, as JSON {"env", "cwd", "log"}. The fork server answers with the child's process id, or with
    0 if it could not fork. The process that forks the child exits at once, so the child is an orphan, and this launcher
    adopts it (`_adopt`). The fork server exits when its stdin is closed, which also happens when the launcher exits.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        """Start the fork server process that `spec` describes.

        Raises:
            ProcessError: the process cannot be started, or this system does not let the launcher adopt its children.
            OSError: the folder of the log cannot be created.
        """
        _adopt()
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        self._popen = _popen(spec, subprocess.PIPE, subprocess.PIPE)
        self._output = b""
        self._ready = False

    @property
    def alive(self) -> bool:
        """Return whether the fork server process still runs."""
        return self._popen.poll() is None

    def ready(self, seconds: float = 0.0) -> bool:
        """Return whether the fork server has loaded its libraries; wait up to `seconds` until it has."""
        self._ready = self._ready or (self.alive and self._line(seconds) == b"ready")
        return self._ready

    def fork(self, spec: ProcessSpec) -> int | None:
        """Fork a child process with the environment, working folder and log of `spec`; return its process id.

        The child runs the program that the fork server has loaded, and `spec.argv` is not used. The result is None if
        the fork server is not ready or cannot fork. A fork server that does not answer within FORK_SECONDS is killed.
        """
        if not (self.alive and self.ready()):
            return None
        request = {"env": dict(spec.env), "cwd": str(spec.cwd), "log": str(spec.log)}
        assert self._popen.stdin is not None  # noqa: S101 - opened as a pipe
        try:
            self._popen.stdin.write(json.dumps(request).encode() + b"\n")
            self._popen.stdin.flush()
        except OSError:
            return None
        answer = self._line(FORK_SECONDS)
        if not answer:
            # The answer may still come before the kill. If not, a child that was forked just now exits by itself.
            self._popen.kill()
            answer = self._line(FORK_SECONDS)
            self.end()
        return int(answer or 0) or None

    def _line(self, seconds: float) -> bytes:
        """Return the fork server's next line of output without the newline; empty if none comes in time."""
        stdout = self._popen.stdout
        assert stdout is not None  # noqa: S101 - opened as a pipe
        deadline = time.monotonic() + seconds
        while b"\n" not in self._output:
            if not select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return b""
            block = os.read(stdout.fileno(), 1 << 12)
            if not block:
                return b""
            self._output += block
        line, _, self._output = self._output.partition(b"\n")
        return line

    def end(self) -> None:
        """Kill the fork server; the processes that it forked continue to run."""
        self._ready = False
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _adopt() -> None:
    """Make this process the parent of its orphaned descendants, unless it is process 1, which is their parent anyway.

    Raises:
        ProcessError: the system does not support this.
    """
    global _adopting  # noqa: PLW0603 - a state of the process
    if os.getpid() != 1 and not _adopting:
        import ctypes  # not needed in a pod, where the launcher is process 1

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise ProcessError(
                "this system does not let the launcher adopt the processes that its fork server creates "
                f"(prctl: {os.strerror(ctypes.get_errno())}). Fix: run the launcher on Linux 3.4 or later"
            )
    _adopting = True


def _kill(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def kill_all_children(*, helpers: bool = False) -> None:
    """Kill this pod's pservers and trainers with all their descendants (SIGKILL).

    With `helpers`, kill the helper processes, too. Any thread may call this.
    """
    for group, is_helper in _running.copy().items():
        if helpers or not is_helper:
            _kill(group, signal.SIGKILL)


class ProcessGuard:
    """A process that kills this pod's pservers and trainers if no thread of the launcher runs any more.

    In an elastic run the other ranks continue without a lost rank, and the processes of the lost rank must not connect
    to the processes of the others. The launcher regularly sends the guard its process groups and a deadline. If the
    deadline passes without a new message, the guard kills the process groups of the newest message.
    """

    def __init__(self) -> None:
        """Fork the guard process. Because of the fork, no thread may have been started in this process before."""
        read, self._write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write, False)
        if os.fork() == 0:
            os.close(self._write)
            try:
                _guard(read)
            finally:
                os._exit(0)
        os.close(read)

    def send(self, seconds: float) -> None:
        """Tell the guard to kill the current process groups `seconds` seconds from now.

        If `send` is called again before that, only the new deadline counts.
        """
        # CLOCK_BOOTTIME also counts while the machine is suspended.
        numbers = [time.clock_gettime(time.CLOCK_BOOTTIME) + seconds]
        numbers += [group for group, is_helper in _running.copy().items() if not is_helper]
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._write, f"{' '.join(map(str, numbers))}\n".encode())


def _guard(messages: int) -> None:
    """Run the guard process: kill the process groups of the newest message when its deadline has passed.

    `messages` is the file descriptor of a pipe. Each line in it is a message: the deadline (seconds of CLOCK_BOOTTIME),
    then the process groups. The function returns when the launcher has exited.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    deadline, groups = float("inf"), list[bytes]()
    while True:
        if select.select([messages], [], [], 0.5)[0]:
            if not (text := os.read(messages, 1 << 16)):
                return  # the launcher has exited
            first, *groups = text.splitlines()[-1].split()
            deadline = float(first)
        elif time.clock_gettime(time.CLOCK_BOOTTIME) >= deadline:
            for group in groups:
                _kill(int(group), signal.SIGKILL)


class GroupTermination:
    """Terminates processes and their descendants: SIGTERM at once, SIGKILL after a deadline.

    Creating the object sends the first signal. Call `poll` repeatedly until it returns True.
    """

    def __init__(self, children: Sequence[ChildProcess], seconds: float, now: float) -> None:
        """Send SIGTERM to all `children` that still run; `poll` sends SIGKILL `seconds` later.

        If `seconds` is 0, send only SIGKILL, at once. `now` is the monotonic time.
        """
        self._running = [child for child in children if not child.done.is_set()]
        self.deadline = now + seconds
        """Monotonic time at which `poll` sends SIGKILL; callers may set an earlier time."""
        self._is_killed = False
        for child in self._running:
            child.signal(signal.SIGTERM if seconds else signal.SIGKILL)

    def poll(self, now: float) -> bool:
        """Return whether all processes have exited; send SIGKILL once the deadline has passed."""
        self._running = [child for child in self._running if not child.done.is_set()]
        if self._running and not self._is_killed and now >= self.deadline:
            self._is_killed = True
            for child in self._running:
                child.signal(signal.SIGKILL)
        return not self._running

    def wait(self, seconds: float) -> None:
        """Wait until all processes have exited, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.poll(time.monotonic()) and time.monotonic() < deadline:
            time.sleep(0.05)


def reap_orphans() -> None:
    """Remove the entries of exited orphans, which this process has adopted, from the process table."""
    if os.getpid() != 1 and not _adopting:
        return
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid in _running:
                return  # its watching thread reaps it
            os.waitpid(found.si_pid, os.WNOHANG)


LATE_SECONDS = 60.0  # how long the copy of a log is retried after the child has exited


def measure_log(log: Path) -> int:
    """Return the size of a log in bytes; 0 if it cannot be read, for example because the process removed the file."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


class LogFollower:
    """Writes new lines of a child's growing log file to the pod's log and to a copy, and searches them for errors.

    The child itself writes its log to the pod's own disk, so a slow launcher or a full or hung volume does not block
    the child. A failed write of the copy is retried. The log file must exist before the follower starts. It is read to
    its end even if a later child replaces it.
    """

    def __init__(
        self,
        path: Path,
        *,
        copy: Path | None,
        shown: bool,
        judge: Callable[[str], None] | None = None,
        period: float = 0.25,
    ) -> None:
        """Start the threads that read the log `path` again and again until `end` is called.

        The thread for new lines reads the log every `period` seconds; the thread for the copy reads it every 8 times
        `period` seconds.

        Args:
            path: the log file of the child.
            copy: the file to which the log is copied; None: it is not copied.
            shown: whether the new lines of the log are written to the pod's log.
            judge: a function that searches new lines for errors; a thread calls it with each block of new lines.
        """
        self._copy, self._judge, self._period = copy, judge, period
        self._end = threading.Event()
        self._threads = []
        if shown or judge is not None:
            self._threads.append(self._thread(self._lines, path.open("rb"), shown))
        if copy is not None:
            self._threads.append(self._thread(self._copied, path.open("rb")))

    def _thread(self, target: Callable[..., None], file: BinaryIO, *args: object) -> threading.Thread:
        def run() -> None:
            with file:
                target(file, *args)

        thread = threading.Thread(target=run, name=f"follow {file.name}", daemon=True)
        thread.start()
        return thread

    def _lines(self, file: BinaryIO, shown: bool) -> None:
        position = 0
        while True:
            last = self._end.wait(self._period)
            with contextlib.suppress(OSError):
                file.seek(position)  # an incomplete line was read, but not used
                while block := file.read(1 << 16):
                    is_full = len(block) == 1 << 16
                    takes_all = last or (is_full and b"\n" not in block)
                    cut = len(block) if takes_all else block.rfind(b"\n") + 1
                    if not cut:
                        break
                    if shown:  # the launcher's next line must not continue an incomplete line of dots
                        ending = b"" if block[:cut].endswith(b"\n") or is_full else b"\n"
                        sys.stdout.buffer.write(block[:cut] + ending)
                    if self._judge is not None:
                        self._judge(block[:cut].decode(errors="replace"))
                    position += cut
                    file.seek(position)
                    if shown:
                        sys.stdout.buffer.flush()
            if last:
                return

    def _copied(self, file: BinaryIO) -> None:
        """Append the new bytes of the log `file` to the copy, again and again until `end` is called.

        The copy is opened at once and then stays open. The next attempt renames the copy and creates a file of its own
        at the same path, but this thread still writes to the renamed file. After a failed write, the copy is opened
        again if the file at the path is still the same file. If it is another file, or none, the next write uses the
        copy that is already open. After `end`, failed writes are retried for at most LATE_SECONDS.
        """
        copy: BinaryIO | None = None
        inode: int | None = None
        with contextlib.suppress(OSError):  # opened again below
            copy, inode = self._open_copy(inode)
        position, give_up = 0, float("inf")
        while time.monotonic() < give_up:
            last = self._end.wait(8 * self._period)
            if last and give_up == float("inf"):
                give_up = time.monotonic() + LATE_SECONDS
            try:
                file.seek(position)
                while block := file.read(1 << 20):
                    if copy is None:
                        copy, inode = self._open_copy(inode)
                    copy.seek(position)  # an earlier write may have failed half way
                    position += copy.write(block) or 0
                    file.seek(position)
            except OSError:
                with contextlib.suppress(OSError):
                    failed = copy
                    # Raises while the storage fails; then `copy` is tried again.
                    copy, inode = self._open_copy(inode)
                    if failed is not None:
                        failed.close()
                time.sleep(self._period)
                continue
            if last:
                break
        if copy is not None:
            with contextlib.suppress(OSError):
                copy.close()

    def _open_copy(self, inode: int | None) -> tuple[BinaryIO, int]:
        """Open the copy of the log; return the file and its inode number.

        If `inode` is None, create the copy. Otherwise the copy exists already, and the file at its path must have this
        inode.

        Raises:
            OSError: the storage fails, or the file at the path is the copy of the next attempt.
        """
        assert self._copy is not None  # noqa: S101 - __init__ has checked it
        self._copy.parent.mkdir(parents=True, exist_ok=True)
        mode: Literal["r+b", "xb", "wb"] = "r+b" if inode else "xb" if self._end.is_set() else "wb"
        copy = self._copy.open(mode, buffering=0)
        found = os.fstat(copy.fileno()).st_ino
        if inode not in (None, found):
            copy.close()
            raise FileExistsError(f"{self._copy} is the log of another attempt")
        return copy, found

    def end(self) -> None:
        """Tell the threads to process the rest of the log and then exit; call this after the child has exited.

        `join` waits until they have exited.
        """
        self._end.set()

    def join(self, seconds: float) -> None:
        """Wait until the threads have exited, at most `seconds` for each of them."""
        for thread in self._threads:
            thread.join(seconds)
