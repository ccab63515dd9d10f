"""`make bench`: every side-by-side measurement, one after the other, each line
`name ratio=… ours=… theirs=…`.

Each measurement is a program of its own, so that a person can run one alone:
`python -m benchmarks data_prepare`. One that fails makes
this command fail, after the others have run.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Runs the measurements named on the command line, or all of them; returns the number that failed."""
    known = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))
    wanted = sys.argv[1:] or known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"no measurement named {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted:
        print(f"# {name}", flush=True)
        if subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}"], cwd=HERE.parent, check=False
        ).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
