"""Run benchmarks one after the other: `make bench`, or one with `make bench PART=ctr`.

Every result is a line `name ratio=… ours=… theirs=…`: `ours` is the value of this project, `theirs` the value
that it is compared with (another program, the same work without this project, or a budget), `ratio` is ours /
theirs. Each benchmark is a module that can also be run alone, with its own options: `python -m
benchmarks.data_prepare --runs 1`. If one fails, the others still run, and the exit code is not 0. Benchmarks
of ON_REQUEST run only if they are specified.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ON_REQUEST = {"collective_learning", "ctr", "embedding_tables", "script_conversion", "sweeps"}
"""Benchmarks that take three minutes or more, and whose figures change only with the code that they measure, or that
need a checkout of another project."""


def main() -> int:
    """Run the benchmarks of the command line, or all except ON_REQUEST; return how many failed."""
    known = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    wanted = sys.argv[1:] or [name for name in known if name not in ON_REQUEST]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"unknown benchmark: {', '.join(unknown)}. Fix: use one of {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted:
        print(f"# {name}", flush=True)
        started = time.monotonic()
        argv = [sys.executable, "-m", f"benchmarks.{name}"]
        with subprocess.Popen(argv, cwd=HERE.parent) as process:
            try:
                code = process.wait()
            except SystemExit:  # SIGTERM
                process.terminate()
                raise
        if code:
            failed.append(name)
        seconds, load = time.monotonic() - started, os.getloadavg()[0]
        print(f"# {name} took {seconds:.0f} s, load {load:.1f}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
