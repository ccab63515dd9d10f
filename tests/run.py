"""Run the tests in tiers: `make check` and `make test`.

    python -m tests.run                 all tiers of `make test`, in three streams at the same time
    python -m tests.run cluster e2e     these tiers only, one after the other
    python -m tests.run e2e -- -k demo  arguments after `--` are passed to pytest
    python -m tests.run --parallel lint fast fast-launcher    these tiers at the same time (`make check`)

Tests that need the cluster mostly wait and the others mostly compute, so running them at the same time uses
both cores. Every output line starts with its tier. A tier that fails ends its own stream; the other streams
continue.

If up to FEW tests of a tier fail, they are run again, alone: under the load of the other tiers a wait may be
too short. A test that passes the second time is listed as flaky at the end; one that fails again, or is
skipped then, fails the tier. Plugins such as pytest-rerunfailures repeat a test at once and next to the
others, which proves nothing about load.

The tools (pulumi, helm, kubectl …) must be on PATH, as `make test` ensures; the tiers of `make check` need
none of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from local.paths import cache

ROOT = Path(__file__).resolve().parent.parent
PY = sys.executable


def _pytest(workers: int, marks: str, *paths: str, verbosity: str = "-q") -> tuple[str, ...]:
    """Return the pytest command for the tests in `paths` (below tests/) that match the marker expression.

    `workers` is the number of processes, and 0 runs the tests in the command's own process.
    """
    spread = ("-n", str(workers), "--dist", "worksteal")  # tests take from milliseconds to half a minute
    return (PY, "-m", "pytest", verbosity, *spread, "-m", marks, *(f"tests/{path}" for path in paths))


def _files_with(mark: str, *folders: str) -> tuple[str, ...]:
    """Return the files below these folders that use the marker: each worker would import all others for nothing."""
    files = sorted(path for folder in folders for path in (ROOT / "tests" / folder).rglob("test_*.py"))
    return tuple(
        path.relative_to(ROOT / "tests").as_posix()
        for path in files
        if f"pytest.mark.{mark}" in path.read_text("utf-8")
    )


UNIT = ("test_layering.py", "docs", "launcher", "local")
"""Tests that need neither the cluster nor the AWS SDK."""

LONG_FIRST = ("--dist=load", "--maxschedchunk=1")
"""Each process takes one test after the other, in the order of tests/conftest.py: tests with marker `seconds` first."""

E2E = _files_with("e2e", "e2e", "infra_emulated", "launcher/cli", "chart")
"""Tests on the local cluster."""

# A few more processes than the two cores, because most slow tests wait for processes of their own.
TIERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lint": (
        (PY, "-m", "ruff", "check", "--quiet", "."),
        (PY, "-m", "ruff", "format", "--quiet", "--check", "."),
        (PY, "-m", "mypy"),
    ),
    # One process, because in each xdist worker the import of the Pulumi SDK would take seconds of CPU.
    "fast": (
        (
            *_pytest(0, "not e2e", "test_layering.py", "docs", "local", "infra", "aws_tools", "aws_emulator"),
            "--fast",
        ),
    ),
    # Two processes, because half of the time these tests wait for processes, servers and deadlines of their own.
    "fast-launcher": ((*_pytest(2, "not e2e", "launcher"), "--fast"),),
    # With two processes it takes 800 s, most of them waits of gangs. Each further one imports Paddle: 10 s of CPU.
    "unit": (_pytest(4, "not e2e and not long", *UNIT),),
    "chart": (_pytest(0, "not e2e", "chart"),),
    "aws": (
        (
            *_pytest(2, "not e2e and not long", "infra_emulated", "infra", "aws_tools", "aws_emulator"),
            *LONG_FIRST,
        ),
    ),
    "cluster": (
        (PY, "-m", "local", "up"),
        (PY, "-m", "local", "image"),
        (PY, "-m", "local", "image", "--runtime", "collective"),
        (PY, "-m", "local", "sources"),
    ),
    "e2e": ((*_pytest(3, "e2e and not restarts", *E2E, verbosity="-v"), *LONG_FIRST),),
    "long": (_pytest(3, "long", "infra_emulated", "launcher/supervisor", "launcher/trainer"),),
    "faults": (_pytest(0, "e2e", "faults", verbosity="-v"),),
    "restarts": (_pytest(0, "restarts", "local", verbosity="-v"),),
}
STREAMS = (("cluster", "e2e"), ("unit",), ("lint", "aws", "chart"))

# Without PYTHONDONTWRITEBYTECODE every process would compile every module again.
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRON |= {"PYTHONUNBUFFERED": "1", "MYPY_CACHE_DIR": str(cache() / "mypy")}  # one mypy cache for all clones

RAM_DISK = Path("/dev/shm")  # noqa: S108 - not a file of a known name
RAM_DISK_BYTES = 2 << 30
"""Fast tests have their temporary files on RAM_DISK if so much is free: their 8,000 fsync calls then take no time."""

LAST_LINES = 100  # lines of a failed tier that are printed again at the end
FEW = 6  # more failed tests than this are not run again
_print_lock = threading.Lock()


def print_line(tier: str, text: str) -> None:
    """Print one line with the name of its tier."""
    with _print_lock:
        print(f"{tier:>8} | {text}", flush=True)


@dataclass
class TierResult:
    """Result of a tier: exit code of the first failed command (or 0), duration, CPU time, and last lines."""

    tier: str
    code: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of the commands and of the processes that they waited for; daemons and pods are not included."""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    failed: list[str] = field(default_factory=list)
    """Node ids of the tests and files that failed in the last command."""
    flaky: list[str] = field(default_factory=list)
    """Node ids of the tests that failed and passed when run again."""


def run_tier(name: str, extra: list[str]) -> TierResult:
    """Run the commands of a tier up to the first that fails; pass `extra` to pytest."""
    started = time.monotonic()
    result = TierResult(name)
    for command in TIERS[name]:
        _run([*command, *extra] if "pytest" in command else list(command), result)
        if result.code == 1 and 0 < len(result.failed) <= FEW:
            first = result.failed
            print_line(name, f"{len(first)} failed; running again, alone: {', '.join(first)}")
            result.lines.clear()
            fast = [option for option in command if option == "--fast"]  # else its failures would pass alone
            # Without the time limit of the fault tests, which would skip the test that is repeated.
            _run([PY, "-m", "pytest", "-v", "-rp", *fast, *first], result, {"FAULTS_UNTIL": "inf"})
            passed = [test for test in first if f"PASSED {test}" in result.lines]
            result.flaky += passed
            result.failed += [test for test in first if test not in {*passed, *result.failed}]  # skipped
            result.code = result.code or (1 if result.failed else 0)
        if result.code:
            break
    result.seconds = time.monotonic() - started
    cpu = f"{result.cpu_seconds:.0f} s of CPU time"
    print_line(name, f"{'FAILED' if result.code else 'passed'} after {result.seconds:.0f} s, with {cpu}")
    return result


def _run(argv: list[str], result: TierResult, variables: Mapping[str, str] | None = None) -> None:
    """Run one command, with more variables; store its last lines, exit code and failed tests in `result`."""
    print_line(result.tier, "$ " + " ".join(["python", *argv[1:]]))
    with tempfile.TemporaryDirectory() as folder:
        if "pytest" in argv:
            # pytest's own list of failed tests; its summary has another format if CI is in the environment
            argv = [*argv, "-o", f"cache_dir={folder}"]
        on_ram_disk = (
            "--fast" in argv and RAM_DISK.is_dir() and shutil.disk_usage(RAM_DISK).free > RAM_DISK_BYTES
        )
        with subprocess.Popen(
            argv,
            cwd=ROOT,
            env=ENVIRON | ({"TMPDIR": str(RAM_DISK)} if on_ram_disk else {}) | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print_line(result.tier, line.rstrip())
                result.lines.append(line.rstrip())
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            result.cpu_seconds += used.ru_utime + used.ru_stime
        last_failed = Path(folder) / "v" / "cache" / "lastfailed"
        result.failed = list(json.loads(last_failed.read_text())) if last_failed.is_file() else []
    result.code = process.returncode


def run_stream(names: tuple[str, ...], extra: list[str]) -> list[TierResult]:
    """Run tiers one after the other up to the first that fails."""
    results: list[TierResult] = []
    for name in names:
        results.append(run_tier(name, extra))
        if results[-1].code:
            break
    return results


def main() -> int:
    """Run the tiers of the command line, or all streams; return the exit code of the first failed tier."""
    words = [word for word in sys.argv[1:] if word != "--parallel"]
    cut = words.index("--") if "--" in words else len(words)
    wanted, extra = words[:cut], words[cut + 1 :]
    unknown = [name for name in wanted if name not in TIERS]
    if unknown:
        print(f"unknown tier: {', '.join(unknown)}. Fix: use one of {', '.join(TIERS)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    if not wanted:
        streams = STREAMS
    else:
        streams = tuple((name,) for name in wanted) if "--parallel" in sys.argv else (tuple(wanted),)
    with ThreadPoolExecutor(len(streams)) as pool:
        results = [one for some in pool.map(lambda names: run_stream(names, extra), streams) for one in some]
    times = ", ".join(f"{one.tier} {one.seconds:.0f} s" for one in results)
    failed = [one for one in results if one.code]
    for one in failed:  # printed again, because lines of other tiers follow them above
        print(f"\nlast lines of the failed tier {one.tier}:\n" + "\n".join(one.lines), file=sys.stderr)
    if flaky := [test for one in results for test in one.flaky]:
        print("\nflaky (failed once, passed alone): " + ", ".join(flaky), file=sys.stderr)
    if failed:
        names = ", ".join(" ".join([one.tier, *one.failed]) for one in failed)
        print(f"\n({times})\nfailed: {names}", file=sys.stderr)
        return failed[0].code
    print(f"\nall tiers passed in {time.monotonic() - started:.0f} s: {times}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
