"""Child processes: each in a session of its own, watched by a thread, stopped all together."""

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
from typing import BinaryIO

from launcher import files
from launcher.errors import ProcessError
from launcher.runtimes.base import ProcessSpec
from launcher.timings import Timings

FORK_SECONDS = 10.0  # a fork takes milliseconds; so long on a machine that hardly moves
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LATE_SECONDS = 60.0  # a volume that is full or hung just now gets a child's last lines for so long

_alive: set[int] = set()
"""Leaders of the process groups that live, for `kill_all`."""
_apart: set[int] = set()
"""Those that belong to no attempt, and live on without contact to rank 0."""
_adopting = False
"""Whether orphans come to this process."""


class Child:
    """One started process. `ended` is called from a thread when it has ended.

    `forks`: where it is forked off; when that cannot be, it is started anew.
    `apart`: it is none of an attempt, and not killed with those.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        ended: Callable[[], None],
        forks: ForkServer | None = None,
        *,
        apart: bool = False,
    ) -> None:
        self.spec, self._ended = spec, ended
        self.returncode: int | None = None
        self.ended_at = 0.0
        self.stopped = False
        """Whether the launcher told it to end: its exit code is then no news."""
        with files.storage(spec.log):
            spec.log.parent.mkdir(parents=True, exist_ok=True)
            spec.log.unlink(missing_ok=True)  # an earlier child's log may still be read
            spec.log.touch()
        forked = None if forks is None else forks.fork(spec)
        self._popen = _popen(spec, subprocess.DEVNULL) if forked is None else None
        self.pid = self._popen.pid if self._popen is not None else forked or 0
        (_apart if apart else _alive).add(self.pid)
        self.done = threading.Event()
        threading.Thread(target=self._watch, name=f"watch {spec.name}", daemon=True).start()

    def _watch(self) -> None:
        # WNOWAIT leaves the dead leader in the process table: its id still names the group, and
        # nobody else's, while what it left behind there is killed.
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # noqa: S101 - only WNOHANG gives none
        self.ended_at = time.monotonic()
        _kill(self.pid, signal.SIGKILL)
        for leaders in (_alive, _apart):
            leaders.discard(self.pid)
        self.returncode = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with contextlib.suppress(ChildProcessError):  # `reap_orphans` may be first from here on
            os.waitpid(self.pid, 0)
        if self._popen is not None:
            self._popen.returncode = self.returncode  # or it would ask again
        self.done.set()
        self._ended()

    def signal(self, signum: int) -> None:
        """To the whole group, unless the leader has ended."""
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
            f"cannot start {spec.name} ({spec.argv[0]} in {spec.cwd}): {error.strerror or error}"
        ) from error


class ForkServer:
    """A process that loads what takes long, once a pod, and from then on forks this launcher's children off.

    Each line of its stdin is what one is to be: {"env", "cwd", "log"}. It answers with a line each:
    `ready` once, then the child's process id, or 0 when it could not fork. A child belongs to this launcher,
    as if it had been started here: what forked it off ends, and orphans come here (`_adopt`). It ends with
    its stdin, and so with the launcher. Raises `ProcessError` when it cannot be started.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        _adopt()
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        self._popen = _popen(spec, subprocess.PIPE, subprocess.PIPE)
        self._said = b""
        self._ready = False

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def ready(self, seconds: float = 0.0) -> bool:
        """Whether it has loaded all; waits for that for at most so long."""
        self._ready = self._ready or (self.alive and self._line(seconds) == b"ready")
        return self._ready

    def fork(self, spec: ProcessSpec) -> int | None:
        """The id of a process that is `spec`'s; None when it is not ready, or cannot."""
        if not (self.alive and self.ready()):
            return None
        told = {"env": dict(spec.env), "cwd": str(spec.cwd), "log": str(spec.log)}
        assert self._popen.stdin is not None  # noqa: S101 - it was asked for
        try:
            self._popen.stdin.write(json.dumps(told).encode() + b"\n")
            self._popen.stdin.flush()
        except OSError:
            return None
        answer = self._line(FORK_SECONDS)
        if not answer:  # killed, it either said the id just now, or what it forked ends by itself
            self._popen.kill()
            answer = self._line(FORK_SECONDS)
            self.end()
        return int(answer or 0) or None

    def _line(self, seconds: float) -> bytes:
        """The next line it says, without its end; empty when none comes in time."""
        stdout = self._popen.stdout
        assert stdout is not None  # noqa: S101 - it was asked for
        deadline = time.monotonic() + seconds
        while b"\n" not in self._said:
            if not select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return b""
            block = os.read(stdout.fileno(), 1 << 12)
            if not block:
                return b""
            self._said += block
        line, _, self._said = self._said.partition(b"\n")
        return line

    def end(self) -> None:
        """It is not needed any more."""
        self._ready = False
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _adopt() -> None:
    """Descendants whose parent has ended become this process' children, as they are process 1's anyway.

    Raises `ProcessError` where the system cannot do that.
    """
    global _adopting  # noqa: PLW0603 - it is the process' own state, and stays
    if os.getpid() != 1 and not _adopting:
        import ctypes  # in a pod it is not needed

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise ProcessError(f"cannot adopt processes: {os.strerror(ctypes.get_errno())}")
    _adopting = True


def _kill(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def kill_all() -> None:
    """Kills every child's group now, from any thread: for a launcher that cannot do it in order."""
    for group in tuple(_alive):
        _kill(group, signal.SIGKILL)


def watched() -> set[int]:
    """Process ids that have watchers."""
    return _alive | _apart


class Stop:
    """The one way down: TERM to all groups, one shared deadline, KILL. `poll` until it is true."""

    def __init__(self, children: Sequence[Child], seconds: float, now: float) -> None:
        self._running = [child for child in children if not child.done.is_set()]
        self._deadline: float | None = now + seconds
        for child in self._running:
            child.signal(signal.SIGTERM)

    def poll(self, now: float) -> bool:
        """Whether all have ended. A process in an uninterruptible wait is left to the kernel."""
        self._running = [child for child in self._running if not child.done.is_set()]
        if self._running and self._deadline is not None and now >= self._deadline:
            self._deadline = None
            for child in self._running:
                child.signal(signal.SIGKILL)
        return not self._running


def attend(
    spec: ProcessSpec,
    *,
    wake: Callable[[], None],
    pause: Callable[[float], None],
    timings: Timings,
    seconds: float = float("inf"),
    apart: bool = False,
) -> int | None:
    """Runs one process to its end, its log shown: the exit code, or None when it took more than `seconds`.

    `pause(seconds)` may raise. Whatever happens, the process is stopped behind it.
    """
    child = Child(spec, wake, apart=apart)
    follow = Follow(spec.log, copy=None, shown=True)
    deadline = time.monotonic() + seconds
    late = False
    try:
        while not child.done.is_set() and not late:
            pause(timings.poll)
            late = not child.done.is_set() and time.monotonic() >= deadline
    finally:
        stop, given_up = Stop([child], timings.stop, time.monotonic()), time.monotonic() + 2 * timings.stop
        while not stop.poll(time.monotonic()) and time.monotonic() < given_up:
            time.sleep(0.05)
        follow.end()
        follow.join(timings.copies)
    return None if late else child.returncode or 0


def reap_orphans(known: set[int]) -> None:
    """Collects dead processes that were nobody's children any more, where those come to this process."""
    if os.getpid() != 1 and not _adopting:
        return
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid in known:
                return  # its own watcher takes it
            os.waitpid(found.si_pid, os.WNOHANG)


class Follow:
    """Gives what is appended to a log file to the pod's log, to a copy and to a judge, each from a thread.

    The child writes its file itself, on the pod's own disk: neither a slow launcher nor a full or hung volume
    ever blocks it. A copy that cannot be written now is written later. The log must be there: this file is
    read to its end, also when a later child of that name has got another.
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
                while block := file.read(1 << 16):
                    cut = (
                        len(block)
                        if last
                        else block.rfind(b"\n") + 1 or (len(block) if len(block) == 1 << 16 else 0)
                    )
                    if not cut:
                        break
                    if shown:
                        sys.stdout.buffer.write(block[:cut])
                    if self._judge is not None:
                        self._judge(block[:cut].decode(errors="replace"))
                    position += cut
                    file.seek(position)
                if shown:
                    sys.stdout.buffer.flush()
            if last:
                return

    def _copied(self, file: BinaryIO) -> None:
        """The copy stays open, so that it can be renamed meanwhile: an earlier attempt's is."""
        copy: BinaryIO | None = None
        position, give_up = 0, float("inf")
        while time.monotonic() < give_up:
            last = self._end.wait(8 * self._period)
            if last and give_up == float("inf"):
                give_up = time.monotonic() + LATE_SECONDS
            try:
                file.seek(position)
                while block := file.read(1 << 20):
                    if copy is None:
                        assert self._copy is not None  # noqa: S101 - __init__ looked
                        self._copy.parent.mkdir(parents=True, exist_ok=True)
                        copy = self._copy.open("r+b" if position else "wb", buffering=0)
                    copy.seek(position)  # after a write that failed half way the place is this one
                    position += copy.write(block) or 0
                    file.seek(position)
            except OSError:
                with contextlib.suppress(OSError):
                    if copy is not None:
                        copy.close()
                copy = None
                time.sleep(self._period)
                continue
            if last:
                break
        if copy is not None:
            with contextlib.suppress(OSError):
                copy.close()

    def end(self) -> None:
        """The child has ended: gives the rest and ends, from the threads."""
        self._end.set()

    def join(self, seconds: float) -> None:
        """Waits for that, for at most so long."""
        for thread in self._threads:
            thread.join(seconds)
