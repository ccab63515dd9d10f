"""Run a helper process: send its request, and wait for its answer (launcher/io/helper_protocol.py).

`convert_shard` runs the one that parses the staged shard before the rendezvous.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from launcher.errors import EXIT_UNFIT, RUN_ENDS, LauncherError, ProcessError, UnfitError
from launcher.io import files
from launcher.io.helper_protocol import HelperSpec
from launcher.log import log
from launcher.paths import WorkPaths
from launcher.reporting.failure_messages import describe_exit, quote_last_lines
from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.supervisor.child_processes import ChildProcess, GroupTermination
from launcher.supervisor.log_follower import LogFollower, measure_log
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


def run_helper(
    spec: HelperSpec,
    work: WorkPaths,
    timings: Timings,
    pause: Callable[[float], None],
    *,
    seconds: float = float("inf"),
    quiet_seconds: float = float("inf"),
    show_log: bool = True,
) -> dict[str, Any]:
    """Start a helper process, send its request, wait for its answer, and return the result in it.

    The process belongs to no attempt: it runs on when an attempt ends or the connection to rank 0 is lost. It has
    exited when this function returns or raises, unless it cannot be killed. It may run for at most `seconds`, and
    log nothing for at most `quiet_seconds`. With `show_log` its log is also written to the pod's log.

    Raises:
        HelperError: the process failed or missed its deadline.
        ProcessError: the process cannot be started.
        StorageError, StorageFailedError: its log cannot be created.
    """
    answer_path, log_path = work.helper_answer(spec.name), work.log(f"{spec.name}.log")
    with files.storage_errors(answer_path):
        answer_path.unlink(missing_ok=True)
    process = ProcessSpec(
        name=spec.name,
        role="helper",
        argv=(sys.executable, "-m", spec.module, str(answer_path)),
        env=spec.environ,
        cwd=work.root,
        log=log_path,
    )
    child = ChildProcess(process, lambda: None, is_helper=True, stdin=subprocess.PIPE)
    follower = LogFollower(log_path, copy=None, shown=show_log)
    began = time.monotonic()
    grown, size = began, 0
    try:
        with contextlib.suppress(OSError):  # the process has exited already; its exit code says why
            child.write_stdin(json.dumps(spec.request).encode() + b"\n")
        while not child.done.is_set():
            now = time.monotonic()
            if now - began >= seconds:
                raise HelperError(f"it did not finish within {seconds:.0f} s", None)
            if (logged := measure_log(log_path)) != size:
                grown, size = now, logged
            if now - grown >= quiet_seconds:
                raise HelperError(
                    f"it has logged nothing for {quiet_seconds:.0f} s", None, quote_last_lines(log_path)
                )
            pause(timings.poll)
    finally:
        GroupTermination([child], timings.stop, time.monotonic()).wait(2 * timings.stop)
        child.close_stdin()
        follower.end()
        follower.join(timings.copies)
    code = child.returncode or 0
    answer = files.read_json(answer_path) or {}
    if code == 0 and isinstance(answer.get("result"), dict):
        return dict(answer["result"])
    if "error" in answer:
        raise HelperError(str(answer["error"]), code)
    raise HelperError(f"its process exited with {describe_exit(code)}", code, quote_last_lines(log_path))


def convert_shard(
    spec: HelperSpec | None, work: WorkPaths, timings: Timings, pause: Callable[[float], None]
) -> None:
    """Run the helper process that parses this rank's shard into binary records; do nothing if `spec` is None.

    Raises:
        ProcessError: the data or the program are wrong; message and exit code are those of the process. Or the process
            has logged nothing for `Timings.parser_quiet` seconds.
        UnfitError: the process was killed, or the pod's disk is faulty: another pod may succeed.
    """
    if spec is None:
        return
    log.info("parsing the shard")
    try:
        run_helper(spec, work, timings, pause, quiet_seconds=timings.parser_quiet)
    except HelperError as error:
        text = f"the {spec.name} failed: {error}{error.log_lines}"
        if error.returncode is None:
            text += "\nFix: see what parse() or prepare() of the program waits for."
            raise ProcessError(text, None, spec.name) from error
        if error.returncode in RUN_ENDS:
            raise ProcessError(text, error.returncode, spec.name) from error
        if error.returncode != EXIT_UNFIT:
            text += "\nFix: if it was killed for lack of memory, raise resources.limits.memory."
        raise UnfitError(text) from error
