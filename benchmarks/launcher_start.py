"""Time and memory of one launcher until its children start (rendezvous already possible).

Prints `launcher_start ratio=… ours=… theirs=…`: seconds of the launcher's own from its process's start until
its first child runs, against the budget of 0.5 s; and `launcher_rss …` in MB against 60 MB. The children are
tests/launcher/core's stand-ins, whose own start is not counted.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from tests.launcher.core.kit import LoopbackGang  # noqa: E402

BUDGET_SECONDS = 0.5
BUDGET_MB = 60
ROUNDS = 5


def started(pid: int) -> float:
    """Seconds since boot at which a process began (field 22 of /proc/<pid>/stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def one_round(folder: Path) -> tuple[float, float]:
    """(seconds until the pserver began, resident MB while training)."""
    with LoopbackGang(folder, trainers=1, FAKE_PASS_SECONDS="1") as gang:
        gang.start()
        deadline = time.monotonic() + 30
        child = None
        while child is None and time.monotonic() < deadline:
            try:
                child = gang.child(0, "pserver")
                time.sleep(0.01)
            except AssertionError:
                time.sleep(0.01)
        gang.until(gang.training)
        launcher = gang.processes[0].pid
        # Two starts of the stand-in (the check of the old binary) are counted too.
        seconds = started(gang.child(0, "pserver")) - started(launcher)
        status = Path(f"/proc/{launcher}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        gang.wait()
        return seconds, peak / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rounds = [one_round(Path(folder) / str(n)) for n in range(ROUNDS)]
    seconds = statistics.median(r[0] for r in rounds)
    mb = max(r[1] for r in rounds)
    ratio = seconds / BUDGET_SECONDS
    print(f"launcher_start ratio={ratio:.2f} ours={seconds:.2f}s theirs={BUDGET_SECONDS:.2f}s")
    print(f"launcher_rss ratio={mb / BUDGET_MB:.2f} ours={mb:.0f}MB theirs={BUDGET_MB}MB")


if __name__ == "__main__":
    main()
