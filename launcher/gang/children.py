"""Child processes: each in a session of its own, watched by a thread, stopped all together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from launcher import files
from launcher.errors import ProcessError
from launcher.gang.events import Event, Events
from launcher.runtimes.base import ProcessSpec


class Child:
    """One started process."""

    def __init__(self, spec: ProcessSpec, events: Events) -> None:
        self.spec = spec
        self._events = events
        self.returncode: int | None = None
        self.ended_at = 0.0
        self.stopped = False
        """Whether the launcher told it to end: its exit code is then no news."""
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with files.storage(spec.log), spec.log.open("ab") as log:
                self._popen = subprocess.Popen(
                    spec.argv,
                    env=dict(spec.env),
                    cwd=spec.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise ProcessError(f"cannot start {spec.name} ({spec.argv[0]} in {spec.cwd}): {error}") from error
        self.pid = self._popen.pid
        self.done = threading.Event()
        threading.Thread(target=self._watch, name=f"watch {spec.name}", daemon=True).start()

    def _watch(self) -> None:
        # WNOWAIT leaves the dead leader in the process table: its id still names the group, and
        # nobody else's, while what it left behind there is killed.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.ended_at = time.monotonic()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.returncode = self._popen.wait()
        self.done.set()
        self._events.put(Event("exit", body={"child": self}, at=self.ended_at))

    def signal(self, signum: int) -> None:
        """To the whole group, unless the leader has ended."""
        self.stopped = True
        if not self.done.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)


def stop(children: list[Child], seconds: float) -> None:
    """TERM to all groups, one shared deadline, KILL, wait. Children that have ended are left alone."""
    running = [child for child in children if not child.done.is_set()]
    for child in running:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for child in running:
        child.done.wait(max(0.0, deadline - time.monotonic()))
    for child in running:
        if not child.done.is_set():
            child.signal(signal.SIGKILL)
    for child in running:
        child.done.wait(
            5.0
        )  # a process in an uninterruptible wait on the storage can only be left to the kernel


def reap_orphans(known: set[int]) -> None:
    """As process 1, collects dead processes that were nobody's children any more."""
    if os.getpid() != 1:
        return
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid in known:
                return  # its own watcher takes it
            os.waitpid(found.si_pid, os.WNOHANG)


class Echo:
    """Copies what is appended to a log file to stdout, from a thread.

    The child writes its file itself: a slow or dead launcher never blocks it.
    """

    def __init__(self, path: Path, period: float = 0.25) -> None:
        self._path, self._period = path, period
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        position = 0
        while True:
            last = self._end.wait(self._period)
            with contextlib.suppress(OSError), self._path.open("rb") as file:
                file.seek(position)
                while block := file.read(1 << 16):
                    cut = (
                        len(block)
                        if last
                        else block.rfind(b"\n") + 1 or (len(block) if len(block) == 1 << 16 else 0)
                    )
                    if not cut:
                        break
                    sys.stdout.buffer.write(block[:cut])
                    position += cut
                    file.seek(position)
                sys.stdout.buffer.flush()
            if last:
                return

    def close(self) -> None:
        """Copies the rest and ends."""
        self._end.set()
        self._thread.join(timeout=5)
