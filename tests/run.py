"""`make test`: every tier of tests, one after the other, with its time; stops at the first that fails.

    python tests/run.py                 all tiers
    python tests/run.py lint unit       these only
    python tests/run.py e2e -- -k demo  arguments after `--` go to pytest

The tools (pulumi, helm, kubectl …) must be on PATH: `make test` sees to it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PY = sys.executable
PYTEST = (PY, "-m", "pytest", "-q")

TIERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lint": (
        (PY, "-m", "ruff", "check", "."),
        (PY, "-m", "ruff", "format", "--check", "."),
        (PY, "-m", "mypy"),
    ),
    "unit": ((*PYTEST, "-m", "not e2e", "tests/docs", "tests/launcher", "tests/local", "tests/infra"),),
    "chart": ((*PYTEST, "-m", "not e2e", "tests/chart"),),
    "emulated": (
        (*PYTEST, "-m", "not e2e", "tests/aws_tools", "tests/aws_emulator", "tests/infra_emulated"),
    ),
    "cluster": (
        (PY, "-m", "local", "up"),
        (PY, "-m", "local", "image"),
        (PY, "-m", "local", "sources"),
    ),
    "e2e": ((*PYTEST, "-m", "e2e", "tests"),),
}


def main() -> int:
    """Runs the tiers named on the command line, or all; returns the first failing command's exit code."""
    names, _, extra = " ".join(sys.argv[1:]).partition("--")
    wanted = names.split() or list(TIERS)
    unknown = [name for name in wanted if name not in TIERS]
    if unknown:
        print(f"no tier named {', '.join(unknown)}; there are: {', '.join(TIERS)}", file=sys.stderr)
        return 2
    times = []
    for name in wanted:
        started = time.monotonic()
        for command in TIERS[name]:
            argv = [*command, *extra.split()] if "pytest" in command else list(command)
            argv = [a for a in argv if not a.startswith("tests/") or (ROOT / a).exists()]
            print(f"\n== {name}: {' '.join(argv[1:])}", flush=True)
            code = subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode
            if code:
                print(f"\nfailed: tier {name} (exit code {code})", file=sys.stderr)
                return code
        times.append((name, time.monotonic() - started))
    print("\nall tiers passed: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
