"""`make test`: every tier of tests, in three streams side by side, each line under its tier's name.

    python -m tests.run                 all tiers
    python -m tests.run lint unit       these only, one after the other
    python -m tests.run e2e -- -k demo  arguments after `--` go to pytest

The tiers of the cluster often wait, the others mostly compute: side by side they keep two cores busy. A tier
that fails ends its own stream; the others go on, so that one run shows what else is wrong. `long`, `faults`
and `restarts` are `make test-faults`: other stacks on AWS, a large message, and what breaks runs and the
cluster itself. Up to FEW tests that failed are run once more, alone: beside so many others on two cores a
wait may be too short. What passes then is named at the end as unsteady; what fails again fails the tier, and
is named in the last line. The tools (pulumi, helm, kubectl …) must be on PATH: `make test` sees to it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from local.paths import cache

ROOT = Path(__file__).resolve().parent.parent
PY = sys.executable


def _pytest(marks: str, workers: int, *folders: str, said: str = "-q") -> tuple[str, ...]:
    """A run of the tests with these marks below tests/, in so many processes; `-v` says a line for each."""
    paths = [f"tests/{folder}" for folder in folders]
    spread = ("-n", str(workers), "--dist", "worksteal")  # tests take from a tenth of a second to minutes
    return (PY, "-m", "pytest", said, "-m", marks, *spread, *paths)


# Processes: on two cores a few more keep both busy, since most tests wait for processes of their own.
TIERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lint": (
        (PY, "-m", "ruff", "check", "."),
        (PY, "-m", "ruff", "format", "--check", "."),
        (PY, "-m", "mypy"),
    ),
    "unit": (_pytest("not e2e and not long", 3, "docs", "launcher", "local", "infra"),),
    "chart": (_pytest("not e2e", 0, "chart"),),
    "aws": (_pytest("not e2e and not long", 2, "infra_emulated", "aws_tools", "aws_emulator"),),
    "cluster": (
        (PY, "-m", "local", "up"),
        (PY, "-m", "local", "image"),
        (PY, "-m", "local", "sources"),
    ),
    "e2e": (
        _pytest(
            "e2e and not restarts",
            3,
            *("e2e", "infra_emulated", "launcher/cli", "chart", "infra"),
            said="-v",
        ),
    ),
    "long": (_pytest("long", 3, "aws_emulator", "infra_emulated", "launcher/worker"),),
    "faults": (_pytest("e2e", 0, "faults", said="-v"),),
    "restarts": (_pytest("restarts", 0, "local", said="-v"),),
}
# What needs the cluster; beside it what does not, in equal shares.
STREAMS = (("cluster", "e2e", "lint"), ("unit",), ("aws", "chart"))

# Each module is compiled once, and not by every process anew: some machines forbid Python to keep the result.
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRON |= {"PYTHONUNBUFFERED": "1", "MYPY_CACHE_DIR": str(cache() / "mypy")}  # 1 s in the next clone, not 22

LAST_LINES = 100  # of a tier that failed
FEW = 6  # more failures than that are no accident
_print_lock = threading.Lock()


def say(tier: str, text: str) -> None:
    """One whole line under its tier's name."""
    with _print_lock:
        print(f"{tier:>8} | {text}", flush=True)


@dataclass
class Ended:
    """How a tier ended: the first failing exit code (or 0), seconds, and its last lines."""

    tier: str
    code: int = 0
    seconds: float = 0.0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    failed: list[str] = field(default_factory=list)
    """Tests of the last command, and files that could not be read."""
    unsteady: list[str] = field(default_factory=list)
    """Tests that failed once and passed alone."""


def run_tier(name: str, extra: list[str]) -> Ended:
    """Runs a tier's commands up to the first that fails."""
    started = time.monotonic()
    ended = Ended(name)
    for command in TIERS[name]:
        _run([*command, *extra] if "pytest" in command else list(command), ended)
        if ended.code == 1 and 0 < len(ended.failed) <= FEW:
            first = ended.failed
            say(name, f"{len(first)} failed; once more, alone: {', '.join(first)}")
            ended.lines.clear()
            _run([PY, "-m", "pytest", "-v", *first], ended)
            ended.unsteady += [test for test in first if test not in ended.failed]
        if ended.code:
            break
    ended.seconds = time.monotonic() - started
    say(name, f"{'FAILED' if ended.code else 'passed'} after {ended.seconds:.0f} s")
    return ended


def _run(argv: list[str], ended: Ended) -> None:
    """Runs one command; its lines, exit code and failed tests go to `ended`."""
    name = ended.tier
    say(name, "$ " + " ".join(["python", *argv[1:]]))
    with tempfile.TemporaryDirectory() as notes:
        if "pytest" in argv:
            # Its own note of what failed: how much its summary shows is another with CI in the environment.
            argv = [*argv, "-o", f"cache_dir={notes}"]
        with subprocess.Popen(
            argv,
            cwd=ROOT,
            env=ENVIRON,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                say(name, line.rstrip())
                ended.lines.append(line.rstrip())
        noted = Path(notes) / "v" / "cache" / "lastfailed"
        ended.failed = list(json.loads(noted.read_text())) if noted.is_file() else []
    ended.code = process.returncode


def run_stream(names: tuple[str, ...], extra: list[str]) -> list[Ended]:
    """The tiers up to the first that fails."""
    ended: list[Ended] = []
    for name in names:
        ended.append(run_tier(name, extra))
        if ended[-1].code:
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
    times = ", ".join(f"{one.tier} {one.seconds:.0f} s" for one in ended)
    failed = [one for one in ended if one.code]
    for one in failed:  # again, since the lines of other tiers came after them
        print(f"\nthe last lines of tier {one.tier}, which failed:\n" + "\n".join(one.lines), file=sys.stderr)
    if unsteady := [test for one in ended for test in one.unsteady]:
        print("\nunsteady (failed once, passed alone): " + ", ".join(unsteady), file=sys.stderr)
    if failed:
        named = ", ".join(" ".join([one.tier, *one.failed]) for one in failed)
        print(f"\n({times})\nfailed: {named}", file=sys.stderr)
        return failed[0].code
    print(f"\nall tiers passed in {time.monotonic() - started:.0f} s: {times}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
