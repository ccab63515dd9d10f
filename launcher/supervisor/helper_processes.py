"""Run helper processes: send a request to each of them, and wait for the answer (launcher/io/helper_protocol.py).

`convert_shard` runs the helper process that parses the staged shard before the rendezvous. `write_report` runs the
helper process that draws the plots and writes the report. In a process of its own, this work cannot harm the run by its
use of memory or by its errors. This module is also the main module of that process.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.errors import (
    EXIT_UNFIT,
    RUN_ENDS,
    LauncherError,
    ProcessError,
    StorageError,
    StorageFailedError,
    UnfitError,
)
from launcher.io import files
from launcher.io.helper_protocol import HelperSpec, main, python_environ
from launcher.log import log
from launcher.paths import WorkPaths
from launcher.reporting.failure_messages import describe_exit, quote_last_lines
from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.settings import TrainSettings
from launcher.supervisor.child_processes import ChildProcess, GroupTermination, LogFollower, measure_log
from launcher.supervisor.timings import Timings


class HelperError(LauncherError):
    """A helper process failed or missed its deadline.

    Attributes:
        returncode: the process's exit code; if a signal terminated the process, the negative signal number; None if the
            process missed its deadline.
    """

    def __init__(self, message: str, returncode: int | None) -> None:
        super().__init__(message)
        self.returncode = returncode


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
    """Start a helper process, send its request, wait for its answer, and return the result in the answer.

    The process belongs to no attempt: it continues to run when an attempt ends or when the connection to rank 0 is
    lost. The process has exited when this function returns or raises, unless it cannot be killed. It misses its
    deadline if it runs for `seconds`, or if it logs nothing for `quiet_seconds`. With `show_log`, the log of the
    process is also written to the pod's log.

    Raises:
        HelperError: the process failed or missed its deadline. The message contains the error in the answer of the
            process, or else the last lines of its log.
        ProcessError: the process cannot be started.
        StorageError, StorageFailedError: its log cannot be created.
        UnreadableError: the file with the answer is damaged.
        LauncherError: `pause` has raised this error, because this launcher must exit.
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
    assert child.stdin is not None  # noqa: S101 - opened as a pipe
    follower = LogFollower(log_path, copy=None, shown=show_log)
    began = time.monotonic()
    grown, size = began, 0
    try:
        with contextlib.suppress(OSError):  # the process has exited already; its exit code says why
            child.stdin.write(json.dumps(spec.request).encode() + b"\n")
            child.stdin.flush()
        while not child.done.is_set():
            now = time.monotonic()
            if now - began >= seconds:
                raise HelperError(f"it did not finish within {seconds:.0f} s", None)
            if (logged := measure_log(log_path)) != size:
                grown, size = now, logged
            if now - grown >= quiet_seconds:
                text = f"it has logged nothing for {quiet_seconds:.0f} s{quote_last_lines(log_path)}"
                raise HelperError(text, None)
            pause(timings.poll)
    finally:
        GroupTermination([child], timings.stop, time.monotonic()).wait(2 * timings.stop)
        with contextlib.suppress(OSError):
            child.stdin.close()
        follower.end()
        follower.join(timings.copies)
    code = child.returncode or 0
    answer = files.read_json(answer_path) or {}
    if code == 0 and isinstance(answer.get("result"), dict):
        return dict(answer["result"])
    if "error" in answer:
        raise HelperError(str(answer["error"]), code)
    raise HelperError(f"its process exited with {describe_exit(code)}{quote_last_lines(log_path)}", code)


def convert_shard(
    spec: HelperSpec | None, work: WorkPaths, timings: Timings, pause: Callable[[float], None]
) -> None:
    """Run `spec`, the helper process that parses this rank's shard into binary records; do nothing if it is None.

    Raises:
        ProcessError: the data or the program is wrong, or the pod's disk is full, and the error has the message and the
            exit code of the process; or the process has logged nothing for `Timings.parser_quiet` seconds, or cannot be
            started.
        UnfitError: the process was killed, or the pod's disk is faulty: another pod may succeed.
        LauncherError: another error of `run_helper`.
    """
    if spec is None:
        return
    log.info("parsing the shard")
    try:
        run_helper(spec, work, timings, pause, quiet_seconds=timings.parser_quiet)
    except HelperError as error:
        text = f"the {spec.name} failed: {error}"
        if error.returncode is None:
            text += "\nFix: see what parse() or prepare() of the program waits for."
            raise ProcessError(text, None, spec.name) from error
        if error.returncode in RUN_ENDS:
            raise ProcessError(text, error.returncode, spec.name) from error
        if error.returncode != EXIT_UNFIT:
            text += "\nFix: if it was killed for lack of memory, raise resources.limits.memory."
        raise UnfitError(text) from error


def write_report(
    settings: TrainSettings, timings: Timings, seconds: float, pause: Callable[[float], None]
) -> None:
    """Write report.html and curve.png of this run, for at most `seconds`.

    A failure is only logged, because the run does not need these files. An error that `pause` raises is raised here,
    too.
    """
    style = {"MPLCONFIGDIR": str(settings.work_dir / "matplotlib"), "MPLBACKEND": "Agg"}
    spec = HelperSpec(
        name="report",
        module="launcher.supervisor.helper_processes",
        request={"output": str(settings.layout.output)},
        environ=python_environ(settings.environ) | style,
    )
    try:
        run_helper(spec, settings.work, timings, pause, seconds=seconds, show_log=False)
    # The errors of `pause` are not caught, because this launcher must exit then.
    except (HelperError, ProcessError, StorageError, StorageFailedError) as error:
        log.warning(
            "the run is not affected, but its plots and report were not made, because their process failed: %s\n"
            "Fix: if you need them, run `python -m launcher results --to DIR`, then `python -m "
            "launcher.reporting.html_report DIR`",
            error,
        )


def _draw(request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the report and the plots; return {}. The helper process calls this.

    The key `output` of `request` is the path of the output folder.
    """
    from launcher.reporting import html_report

    html_report.write_report(Path(request["output"]))
    return {}


if __name__ == "__main__":
    main(_draw)
