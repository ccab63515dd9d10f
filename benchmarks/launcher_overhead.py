"""A job under the launcher against the same processes started by hand with the same environment, on loopback.

Both train `quick_start` on its real data with runtime `fleet`: three pservers and three trainers, from the
same specs. By hand, all six are started at once and the end is that of the last one. Under the launchers the
time begins when the three launchers are started, with staging, rendezvous and the closing of the books in it.

- `launcher_overhead`: wall time of a job of half a minute that saves after each pass, in both. At most 1.03.
- `launcher_overhead_saving`: of a job of a minute, in which ours saves about every ten seconds (`saveEvery`
  as many batches as theirs makes in that time) and theirs only at its end. At most 1.05.

The runs alternate. A line of processor seconds follows each, all processes together: unlike the wall time it
says the same on a busy machine. `python -m benchmarks.launcher_overhead` takes eight minutes.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from benchmarks._fleet import ByHand, FleetGang, job_of  # noqa: E402
from benchmarks._lines import say  # noqa: E402

EXAMPLE = "quick_start"
ROUNDS, DEADLINE = 3, 400.0
SHORT = {"PADDLE_LAUNCHER_PASSES": "40"}
LONG = {"PADDLE_LAUNCHER_PASSES": "160", "PADDLE_LAUNCHER_SAVING_PERIOD": "1000"}
SAVE_SECONDS = 10.0
Cost = tuple[float, float]
"""Wall and processor seconds."""


def clock() -> Cost:
    """Now; processor seconds are of all children that have ended, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), used.ru_utime + used.ru_stime


def launched(folder: Path, job: Path, values: dict[str, str]) -> Cost:
    """What the job costs under three launchers."""
    with FleetGang(folder, job, EXAMPLE, PADDLE_LAUNCHER_KEEP_SAVES="1000", **values) as gang:
        began = clock()
        codes = gang.start().wait(DEADLINE)
        ended = clock()
        if codes != [0, 0, 0]:
            sys.exit(f"under the launcher it failed: {codes}\n{gang.pod_log(0)[-3000:]}")
        print(f"# {len(list(gang.output.glob('pass-*/done')))} saves", flush=True)
        return ended[0] - began[0], ended[1] - began[1]


def by_hand(folder: Path, job: Path, values: dict[str, str]) -> tuple[Cost, int]:
    """What the same processes cost without any launcher, and how many batches a rank made."""
    gang = ByHand(folder, job, EXAMPLE, PADDLE_LAUNCHER_KEEP_SAVES="1000", **values)
    began = clock()
    codes = gang.run(DEADLINE)
    ended = clock()
    each = re.search(r"(\d+) batches a pass", gang.log())
    if set(codes.values()) != {0} or each is None:
        sys.exit(f"by hand it failed: {codes}\n{gang.log()[-3000:]}")
    return (ended[0] - began[0], ended[1] - began[1]), int(each[1]) * int(values["PADDLE_LAUNCHER_PASSES"])


def compare(folder: Path, job: Path, values: dict[str, str], saving: bool) -> list[float]:
    """Medians: our wall seconds, theirs, our processor seconds, theirs."""
    pairs = []
    for n in range(ROUNDS):
        hand, batches = by_hand(folder / f"hand-{n}", job, values)
        every = {"PADDLE_LAUNCHER_SAVE_EVERY_BATCHES": str(round(batches * SAVE_SECONDS / hand[0]))}
        pairs.append((launched(folder / f"launched-{n}", job, values | (every if saving else {})), hand))
    return [statistics.median(pair[who][what] for pair in pairs) for what in (0, 1) for who in (0, 1)]


def main() -> int:
    kept = []
    for line, values, saving, most in (
        ("launcher_overhead", SHORT, False, 1.03),
        ("launcher_overhead_saving", LONG, True, 1.05),
    ):
        with tempfile.TemporaryDirectory(prefix="overhead-") as name:
            job = job_of(EXAMPLE, Path(name) / "data")
            wall, bare, used, used_bare = compare(Path(name), job, values, saving)
        kept.append(say(line, wall, bare, most=most))
        shown = f"ours={used:.1f} theirs={used_bare:.1f} ratio={used / used_bare:.3f}"
        print(f"# processor seconds: {shown}; load {os.getloadavg()[0]:.1f}", flush=True)
    return kept.count(False)


if __name__ == "__main__":
    sys.exit(main())
