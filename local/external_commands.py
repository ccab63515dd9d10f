"""Run external commands, and turn their failures into LocalError with the last lines of their output."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil


class LocalError(Exception):
    """A failure that the user can fix; the message says what failed, why, and how to fix it."""


def run_command(
    argv: Sequence[str | Path],
    *,
    why: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    given: str | None = None,
    seconds: float = 600,
) -> str:
    """Run the command `argv` and return its standard output.

    Args:
        argv: The program and its arguments.
        why: What the command is run for; error messages begin with this text.
        env: Environment variables to set in addition to this process's own.
        cwd: Working directory.
        given: Text for the command's standard input; None: standard input is empty.
        seconds: Timeout.

    Raises:
        LocalError: The program is missing, timed out, or exited with a code other than 0. After such an exit, the
            message ends with the last lines of the program's stderr, or of its stdout if stderr is empty.
    """
    words = [str(word) for word in argv]
    try:
        ended = subprocess.run(
            words,
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise LocalError(f"{why}: the program {words[0]} is not on PATH. Fix: make tools") from None
    except subprocess.TimeoutExpired:
        raise LocalError(
            f"{why}: `{' '.join(words[:4])} …` timed out after {seconds:.0f} s. Fix: repeat the command "
            "that you typed when the machine is less busy"
        ) from None
    if ended.returncode:
        raise LocalError(
            f"{why}: `{' '.join(words[:6])}` exited with {ended.returncode}. Fix: correct the cause, then repeat the "
            f"command that you typed. The end of its output:\n{indent_last_lines(ended.stderr or ended.stdout)}"
        )
    return ended.stdout


def command_succeeds(argv: Sequence[str | Path], seconds: float = 60) -> bool:
    """Return whether the command exits with 0 within `seconds`; its output is discarded."""
    try:
        ended = subprocess.run(
            [str(w) for w in argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


def download_packages(lock: Path, folder: Path, why: str, *options: str) -> None:
    """Download the wheels of the requirements file `lock` into `folder` with pip, which checks their hashes.

    Args:
        lock: The requirements file.
        folder: Where the wheels are written.
        why: What the wheels are for; error messages begin with this text.
        options: Further options of `pip download`.
    """
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pip += ["--require-hashes", "--only-binary=:all:", *options]
    run_command([*pip, "--requirement", lock, "--dest", folder], why=why, seconds=1200)


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no program listens at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def exit_on_sigterm() -> None:
    """Make SIGTERM stop this process and the commands that it runs, as Ctrl-C does.

    On SIGTERM, this process sends SIGTERM to its descendants in its process group, and then raises SystemExit. Without
    this, other threads would wait until their commands have finished, and processes that these commands started would
    continue to run. Ctrl-C has no such problem, because it reaches the whole process group.
    """

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
        for child in psutil.Process().children(recursive=True):
            # Other groups are left out, as by a terminal: the daemons of the local cluster, and processes that their
            # parents stop themselves, such as Pulumi's plugins.
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(child.pid) == os.getpgrp():
                    child.terminate()
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)


def indent_last_lines(text: str, lines: int = 15) -> str:
    """Return the last `lines` lines of `text`, indented by four spaces for use in a message."""
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-lines:])
