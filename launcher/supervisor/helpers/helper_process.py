"""Start a helper process, send its request, and wait for its answer (launcher/io/helper_protocol.py)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from launcher.errors import LauncherError
from launcher.io import files
from launcher.io.helper_protocol import HelperSpec
from launcher.paths import WorkPaths
from launcher.reporting.failure_messages import describe_exit, quote_last_lines
from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.supervisor.child_processes import ChildProcess, GroupTermination
from launcher.supervisor.log_follower import LogFollower
from launcher.supervisor.timings import Timings


class HelperError(LauncherError):
    """A helper process failed or missed its deadline.

    Attributes:
        returncode: the process's exit code, negative for a signal; None if it missed its deadline.
        log_lines: the last lines of the process's log, to append to the message; empty if the process
            answered with the cause.
    """

    def __init__(self, message: str, returncode: int | None, log_lines: str = "") -> None:
        super().__init__(message)
        self.returncode, self.log_lines = returncode, log_lines


class HelperProcess:
    """One helper process, from its start to its answer.

    The process is not stopped when an attempt ends, nor when the connection to rank 0 is lost.
    """

    def __init__(
        self,
        spec: HelperSpec,
        work: WorkPaths,
        timings: Timings,
        *,
        wake: Callable[[], None] = lambda: None,
        preparation: Mapping[str, Any] | None = None,
        show_log: bool = True,
        stop_seconds: float | None = None,
    ) -> None:
        """Start the process.

        Args:
            spec: the process and its request, which `send_request` sends.
            work: the pod's own disk, for log and answer.
            timings: deadlines.
            wake: called from a thread when the process has exited.
            preparation: object with which the process prepares its work before it reads the request; None: no
                preparation.
            show_log: whether its log is also written to the pod's log.
            stop_seconds: from SIGTERM to SIGKILL when it is stopped; None: `timings.stop`.

        Raises:
            ProcessError: the process cannot be started.
            StorageError, StorageFailedError: its log cannot be created.
        """
        self._spec, self._timings = spec, timings
        self._stop_seconds = timings.stop if stop_seconds is None else stop_seconds
        self._answer, self._log = work.helper_answer(spec.name), work.log(f"{spec.name}.log")
        with files.storage_errors(self._answer):
            self._answer.unlink(missing_ok=True)
        prepare = () if preparation is None else (json.dumps(preparation),)
        process = ProcessSpec(
            name=spec.name,
            role="helper",
            argv=(sys.executable, "-m", spec.module, str(self._answer), *prepare),
            env=spec.environ,
            cwd=work.root,
            log=self._log,
        )
        self._child = ChildProcess(process, wake, apart=True, stdin=subprocess.PIPE)
        self._follower = LogFollower(self._log, copy=None, shown=show_log)

    def send_request(self) -> None:
        """Send the request to the process's stdin, which stays open until `stop`."""
        with contextlib.suppress(OSError):  # the process has exited; `wait` reports why
            self._child.write_stdin(json.dumps(self._spec.request).encode() + b"\n")

    def wait(self, pause: Callable[[float], None], seconds: float = float("inf")) -> dict[str, Any]:
        """Wait for the process's answer and return the result in it; the process is stopped in any case.

        Args:
            pause: waits that many seconds in the agent's main loop; it may raise to stop the helper.
            seconds: how long to wait at most.

        Raises:
            HelperError: the process failed or missed its deadline.
        """
        deadline = time.monotonic() + seconds
        try:
            while not self._child.done.is_set():
                if time.monotonic() >= deadline:
                    raise HelperError(f"it did not finish within {seconds:.0f} s", None)
                pause(self._timings.poll)
        finally:
            self.stop()
        code = self._child.returncode or 0
        answer = files.read_json(self._answer) or {}
        if code == 0 and isinstance(answer.get("result"), dict):
            return dict(answer["result"])
        if "error" in answer:
            raise HelperError(str(answer["error"]), code)
        raise HelperError(f"its process exited with {describe_exit(code)}", code, quote_last_lines(self._log))

    def discard(self) -> None:
        """Let a process that got no request exit by itself, without waiting for it."""
        self._child.close_stdin()
        self._follower.end()

    def stop(self) -> None:
        """Terminate the process and wait until it has exited, except when it cannot be killed."""
        termination = GroupTermination([self._child], self._stop_seconds, time.monotonic())
        given_up = time.monotonic() + 2 * self._stop_seconds
        while not termination.poll(time.monotonic()) and time.monotonic() < given_up:
            time.sleep(0.05)
        self._child.close_stdin()
        self._follower.end()
        self._follower.join(self._timings.copies)
