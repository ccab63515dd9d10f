"""Commands that must succeed, and what they said when they did not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from local.errors import LocalError


def run(
    argv: Sequence[str | Path],
    *,
    why: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    given: str | None = None,
    seconds: float = 600,
) -> str:
    """Run `argv` to its end and return its standard output.

    Raises:
        LocalError: it could not start, failed, or took longer than `seconds`; with the last lines it wrote.
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
        raise LocalError(f"{why}: the program {words[0]} is not there; `make tools` installs it.") from None
    except subprocess.TimeoutExpired:
        raise LocalError(f"{why}: `{' '.join(words[:4])} …` did not end within {seconds:.0f} s.") from None
    if ended.returncode:
        raise LocalError(
            f"{why}: `{' '.join(words[:6])}` ended with "
            f"{ended.returncode}:\n{tail(ended.stderr or ended.stdout)}"
        )
    return ended.stdout


def ok(argv: Sequence[str | Path], seconds: float = 60) -> bool:
    """Whether the command ends with 0; what it writes is dropped."""
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


def tail(text: str, lines: int = 15) -> str:
    """The last lines of a log, indented under the message that quotes them."""
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-lines:])
