"""What is left behind for whoever asks why a pod ended."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path

from launcher.errors import LauncherError

TERMINATION_BYTES = 4096  # the kubelet keeps so many of a container's termination message


def clip(text: str, limit: int) -> str:
    """`text` in at most `limit` UTF-8 bytes; the begin (the cause) and the end (newest lines) stay."""
    data = text.encode()
    if len(data) <= limit:
        return text
    gap = b"\n[...]\n"
    head = (limit - len(gap)) // 2
    tail = limit - len(gap) - head
    return (
        data[:head].decode(errors="ignore") + gap.decode() + data[len(data) - tail :].decode(errors="ignore")
    )


def write_termination_message(path: Path, text: str) -> None:
    """Leaves `text` where the kubelet looks; a place that cannot be written is no further fault."""
    with contextlib.suppress(OSError):
        path.write_text(clip(text.rstrip() + "\n", TERMINATION_BYTES))


def report_failure(error: LauncherError, command: str, termination_log: Path) -> None:
    """The cause to the pod's log and to the termination message."""
    print(f"launcher {command}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the pod's log
    write_termination_message(termination_log, str(error))


def describe_exit(returncode: int) -> str:
    """`exit code 3`, or `signal SIGKILL (exit code 137)` for Popen's negative codes and 128+n alike."""
    number = -returncode if returncode < 0 else returncode - 128
    if number > 0 and (returncode < 0 or returncode > 128):
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(number).name} (exit code {128 + number})"
    return f"exit code {returncode}"


def last_lines(path: Path, lines: int = 20, limit: int = 2500) -> str:
    """The last lines of a log, at most `limit` bytes of it; empty when there is none."""
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


def quote_log(log: Path) -> str:
    """Return why a process ended, to follow `ended with …`: the text after `error: ` at the start of a line
    of its log, or the log's last lines."""
    said = last_lines(log)
    _, found, cause = f"\n{said}".rpartition("\nerror: ")
    if found:
        return f": {cause}"
    return f"; the last lines of {log.name}:\n{said}" if said else f"; {log.name} is empty"
