"""`make test`: every tier of tests, in two streams side by side, each line under its tier's name.

    python tests/run.py                 all tiers
    python tests/run.py lint unit       these only, one after the other
    python tests/run.py e2e -- -k demo  arguments after `--` go to pytest

The tiers of the cluster mostly wait, the others mostly compute: side by side they take little longer than the
longer of them. A tier that fails ends its own stream; the other one goes on, so that one run shows what else
is wrong. The tools (pulumi, helm, kubectl …) must be on PATH: `make test` sees to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PY = sys.executable


def _pytest(marks: str, workers: int, *folders: str, said: str = "-q") -> tuple[str, ...]:
    """A run of the tests with these marks below tests/, in so many processes; `-v` says a line for each."""
    paths = [f"tests/{folder}" for folder in folders]
    return (PY, "-m", "pytest", said, "-m", marks, "-n", str(workers), *paths)


# Processes: on two cores a few more keep both busy, since most tests wait for processes of their own.
TIERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lint": (
        (PY, "-m", "ruff", "check", "."),
        (PY, "-m", "ruff", "format", "--check", "."),
        (PY, "-m", "mypy"),
    ),
    "unit": (_pytest("not e2e", 2, "docs", "launcher", "local", "infra"),),
    "chart": (_pytest("not e2e", 0, "chart"),),
    "emulated": (_pytest("not e2e", 2, "aws_tools", "aws_emulator", "infra_emulated"),),
    "cluster": (
        (PY, "-m", "local", "up"),
        (PY, "-m", "local", "image"),
        (PY, "-m", "local", "sources"),
    ),
    "e2e": (
        _pytest(
            "e2e and not restarts", 3, "e2e", "infra_emulated", "launcher/cli", "chart", "infra", said="-v"
        ),
    ),
    "restarts": (_pytest("restarts", 0, "local", said="-v"),),
}
STREAMS = (("cluster", "e2e"), ("lint", "unit", "chart", "emulated"))
LAST = "restarts"  # stops the cluster on which the others run

_print_lock = threading.Lock()


def say(tier: str, text: str) -> None:
    """One whole line under its tier's name."""
    with _print_lock:
        print(f"{tier:>8} | {text}", flush=True)


def run_tier(name: str, extra: list[str]) -> tuple[int, float]:
    """Runs a tier's commands; returns the first failing exit code (or 0) and seconds."""
    started = time.monotonic()
    for command in TIERS[name]:
        argv = [*command, *extra] if "pytest" in command else list(command)
        say(name, "$ " + " ".join(["python", *argv[1:]]))
        with subprocess.Popen(
            argv,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                say(name, line.rstrip())
        if process.returncode:
            return process.returncode, time.monotonic() - started
    return 0, time.monotonic() - started


def run_stream(names: tuple[str, ...], extra: list[str]) -> list[tuple[str, int, float]]:
    """(tier, exit code, seconds) of each tier up to the first that fails."""
    ended = []
    for name in names:
        code, seconds = run_tier(name, extra)
        say(name, f"{'FAILED' if code else 'passed'} after {seconds:.0f} s")
        ended.append((name, code, seconds))
        if code:
            break
    return ended


def main() -> int:
    """Runs the tiers named on the command line, or all; returns the first failing command's exit code."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    wanted, extra = words[:cut], words[cut + 1 :]
    unknown = [name for name in wanted if name not in TIERS]
    if unknown:
        print(f"no tier named {', '.join(unknown)}; there are: {', '.join(TIERS)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    streams = (tuple(wanted),) if wanted else STREAMS
    with ThreadPoolExecutor(len(streams)) as pool:
        ended = [
            one for stream in pool.map(lambda names: run_stream(names, extra), streams) for one in stream
        ]
    if not wanted and not any(code for _, code, _ in ended):
        ended += run_stream((LAST,), extra)
    failed = [(name, code) for name, code, _ in ended if code]
    times = ", ".join(f"{name} {seconds:.0f} s" for name, _, seconds in ended)
    if failed:
        print(f"\nfailed: {', '.join(name for name, _ in failed)} ({times})", file=sys.stderr)
        return failed[0][1]
    print(f"\nall tiers passed in {time.monotonic() - started:.0f} s: {times}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
