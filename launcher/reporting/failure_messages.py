"""Texts about failures: exit codes, last lines of logs, and the termination message of a pod."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path

from launcher.errors import LauncherError

TERMINATION_BYTES = 4096
"""Size in bytes of the longest termination message of a container that the kubelet keeps."""


def clip(text: str, limit: int) -> str:
    """Shorten `text` to at most `limit` UTF-8 bytes by leaving out its middle.

    The start of the text has the cause of a failure, and the end has the last lines of a log.
    """
    data = text.encode(errors="backslashreplace")  # a file name in it need not be valid UTF-8
    if len(data) <= limit:
        return data.decode()
    gap = b"\n[...]\n"
    head = (limit - len(gap)) // 2
    tail = limit - len(gap) - head
    return (
        data[:head].decode(errors="ignore") + gap.decode() + data[len(data) - tail :].decode(errors="ignore")
    )


def write_termination_message(path: Path, text: str) -> None:
    """Write `text` to the container's termination message, the file `path`; errors are ignored."""
    with contextlib.suppress(OSError):
        path.write_text(clip(text.rstrip() + "\n", TERMINATION_BYTES))


def report_failure(error: LauncherError, command: str, termination_log: Path) -> None:
    """Write the error of a launcher's `command`, such as `train`, to the pod's log and to the termination message."""
    print(f"launcher {command}: {error}", file=sys.stderr, flush=True)  # noqa: T201
    write_termination_message(termination_log, str(error))


def describe_exit(returncode: int) -> str:
    """Return a process's exit code as text: `exit code 3`, or `signal SIGKILL (exit code 137)`.

    If a signal terminated the process, `returncode` may be the negative signal number, as subprocess.Popen returns it
    (-9). It may also be 128 plus the signal number, as a shell returns it (137).
    """
    number = -returncode if returncode < 0 else returncode - 128
    if number > 0 and (returncode < 0 or returncode > 128):
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(number).name} (exit code {128 + number})"
    return f"exit code {returncode}"


def describe_early_exit(who: str, failure: str) -> str:
    """Return the message about a failure after the trainers `who` had exited with exit code 0.

    `failure` is the text of the failure, which may be a consequence of their exit.
    """
    return f"{who} exited with code 0 before the other trainers had finished. Then: {failure}"


def last_lines(path: Path, lines: int = 20, limit: int = 2500) -> str:
    """Return the last lines of a file: at most `lines` and at most `limit` bytes; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(0, size - limit))
            data = file.read()
    except OSError:
        return ""
    text = data.decode(errors="replace")
    if size > limit:
        text = text.partition("\n")[2] or text
    return "\n".join(text.splitlines()[-lines:])


def quote_last_lines(log: Path) -> str:
    """Return the last lines of a log file, to append to a message such as `trainer exited with exit code 1`."""
    text = last_lines(log)
    return f"; the last lines of {log.name}:\n{text}" if text else f"; {log.name} is empty"


def quote_log(log: Path) -> str:
    """Return the cause of a process's exit, to append to a message such as `trainer exited with exit code 1`.

    The cause is the end of the log from its last line that starts with `error: `; a trainer writes such a line. Only
    the last lines of the log are searched (`last_lines`). If none of them starts so, they are returned.
    """
    _, found, cause = f"\n{last_lines(log)}".rpartition("\nerror: ")
    return f": {cause}" if found else quote_last_lines(log)
