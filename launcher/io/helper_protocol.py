"""Protocol between the launcher and its helper processes: one JSON request, one JSON answer, one exit code.

The launcher starts `python -m MODULE ANSWER_FILE`
(launcher/supervisor/helper_processes.py) for work that needs large libraries or must not harm the
launcher: upload of the model, parsing of the shard, plots and report.

    launcher ── request: one line of JSON ──▶ stdin, which stays open while the launcher lives
    helper   ── answer: {"result": …} or {"error": "…"} ──▶ ANSWER_FILE, and an exit code of launcher.errors
    helper   ── its log ──▶ stdout and stderr, a file on the pod's own disk

A helper whose launcher dies is killed with all processes that it started.

Other child processes do not use this protocol. Parameter servers (pservers) and trainers have no request, and the fork
server (launcher/trainer/fork_server.py) takes any number of requests, one for each process that it creates.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from launcher.errors import EXIT_GANG, EXIT_OK, EXIT_STOPPED, LauncherError, StoppedError, StorageError
from launcher.io import files
from launcher.io.stop_signals import raise_on_stop_signal

PACKAGES = Path(__file__).parents[2]
"""The folder that contains the package `launcher`."""


@dataclass(frozen=True)
class HelperSpec:
    """Describes a helper process and the request that it receives."""

    name: str
    """Name of the helper in messages, and of its log and answer file."""
    module: str
    """Python module that the helper runs (`python -m MODULE`)."""
    request: Mapping[str, Any]
    """The request, which must be convertible to JSON."""
    environ: Mapping[str, str]
    """The helper's complete environment."""


PACKAGES_PATH = Path(__file__).with_name("packages_path")
"""The folder whose sitecustomize.py appends the program's packages to Python's search path."""


def python_environ(environ: Mapping[str, str], packages: Path | None = None) -> dict[str, str]:
    """Return a copy of `environ` with which a Python process can import `launcher` and writes its log unbuffered.

    With a folder `packages`, the process can also import the packages in this folder. If the image has the same
    package, that of the image is imported, unless the variable PADDLE_LAUNCHER_PACKAGES_FIRST is set.
    """
    search = [str(PACKAGES), *filter(None, environ.get("PYTHONPATH", "").split(":"))]
    found = {**environ, "PYTHONUNBUFFERED": "1"}
    if packages is not None:
        search.insert(0, str(PACKAGES_PATH))  # its sitecustomize.py also runs the one that it hides
        found["PADDLE_LAUNCHER_PACKAGES"] = str(packages)
    return found | {"PYTHONPATH": ":".join(dict.fromkeys(search))}


Work = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""A helper's work: a function that takes the request and returns the result."""


def main(work: Work) -> NoReturn:
    """Read one request from stdin, call `work` with it, write the answer to ANSWER_FILE, and exit.

    If `work` raises an exception, the answer has its message. The exit code is that of a `LauncherError`, 75 after an
    OSError, and 70 after any other exception. After SIGTERM or SIGINT, or if the launcher died before it sent the
    request, the exit code is 143 and no answer is written. The process exits at once, without the slow clean-up of
    large libraries.
    """
    code = _serve_request(work)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve_request(work: Work) -> int:
    answer = Path(sys.argv[1])
    try:
        with raise_on_stop_signal():
            line = sys.stdin.buffer.readline()
            if not line.endswith(b"\n"):  # the launcher has died
                return EXIT_STOPPED
            threading.Thread(target=_kill_group_at_end_of_stdin, daemon=True).start()
            result = work(json.loads(line))
            files.write_json(answer, {"result": dict(result)})
    except StoppedError as error:
        return error.exit_code
    except Exception as error:
        text, code = str(error), StorageError.exit_code
        if isinstance(error, LauncherError):
            code = error.exit_code
        else:
            traceback.print_exc()
            if not isinstance(error, OSError):
                text, code = f"{type(error).__name__}: {error}", EXIT_GANG
        try:
            files.write_json(answer, {"error": text})
        except (
            LauncherError,
            OSError,
        ):  # the disk may be full: write the error to the log, which the launcher quotes
            print(f"error: {text}", file=sys.stderr)  # noqa: T201
        return code
    return EXIT_OK


def _kill_group_at_end_of_stdin() -> None:
    while os.read(0, 1 << 16):
        pass
    os.killpg(0, signal.SIGKILL)  # this process leads its group: the launcher started it in a new session
