"""From a kill to the next attempt's first batch, and from the pods' start to the first one, with real Paddle.

`python -m benchmarks.recovery` prints for each example program (`quick_start`, `recommendation`)

- `recovery_<example>_<victim>`: median seconds from the SIGKILL of one rank's trainer or pserver until the
  last of three ranks has done its first batch of the next attempt. At most 12, and 8 is the goal.
- `first_batch_<example>`: median seconds from the start of three launchers to the last rank's first batch. At
  most 12, and 6 is the goal.

`theirs` of both is bare Paddle's own way to the first batch: the same six processes started by hand at once.
The names with `_cluster` are the same in pods of the local cluster, if it runs and has this launcher's image
(`make cluster image`); there the time of `first_batch` begins when the last pod's container has started.
A line of parts follows each: detect (until rank 0 knows), stop (until no process is left), meet (until the
order to start; at a first start with the lock and the staging in it), start (of the processes), import (of
Paddle and the program's data), join (servers and trainers), load, batch. It takes some ten minutes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Protocol

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from benchmarks._cluster import PodGang, reachable  # noqa: E402
from benchmarks._fleet import (  # noqa: E402
    RANKS,
    ROLES,
    ByHand,
    FleetGang,
    job_of,
    last,
    paddle_ends,
    parts,
)
from benchmarks._lines import median, say, say_parts  # noqa: E402
from benchmarks.learning import EXAMPLES  # noqa: E402

ROUNDS = 3
LIMIT_RECOVERY, LIMIT_FIRST = 8.0, 6.0
DEADLINE = 120.0
ENDLESS = {"PADDLE_LAUNCHER_PASSES": "100000", "PADDLE_LAUNCHER_RESTARTS": "100"}
Parts = dict[str, float]


class Run(Protocol):
    """Three launchers, wherever they run. Times are unix seconds: one machine, one clock."""

    def began(self) -> float: ...

    def trains(self, after: float) -> bool: ...

    def marks(self, rank: int) -> dict[str, float]: ...

    def events(self, rank: int) -> list[tuple[float, str]]: ...

    def kill(self, rank: int, role: str) -> float: ...


def await_training(run: Run, after: float) -> None:
    """Returns when every rank has done a first batch after that moment."""
    deadline = time.monotonic() + DEADLINE
    while not run.trains(after):
        if time.monotonic() > deadline:
            said = "\n".join(text for _, text in run.events(0)[-20:])
            sys.exit(f"no training {DEADLINE:.0f} s after the kill or the start:\n{said}")
        time.sleep(0.1)


def first_batch(run: Run) -> Parts:
    """The parts of a first start."""
    began = run.began()
    await_training(run, began)
    told = [run.events(rank) for rank in RANKS]
    ends = {
        "stage": last(told, "staged shard"),
        "meet": last(told[:1], "attempt 0 "),
        "start": last(told, "started trainer"),
    }
    return parts(began, ends | paddle_ends([run.marks(rank) for rank in RANKS]))


def recovery(run: Run, rank: int, role: str) -> Parts:
    """The parts of a restart."""
    killed = run.kill(rank, role)
    await_training(run, killed)
    told = [run.events(rank) for rank in RANKS]
    ends = {
        "detect": last(told[:1], " failed: ", killed),
        "stop": last(told[:1], "restarting as attempt", killed),
        "meet": last(told[:1], "after its plan", killed),
        "start": last(told, "started trainer", killed),
    }
    return parts(killed, ends | paddle_ends([run.marks(rank) for rank in RANKS]))


def both(run: Run, first: list[Parts], lost: dict[str, list[Parts]]) -> None:
    """One start and a kill of each kind."""
    first.append(first_batch(run))
    for rank, role in enumerate(ROLES, 1):
        time.sleep(3)  # some passes and saves
        lost[role].append(recovery(run, rank, role))


def report(name: str, where: str, first: list[Parts], lost: dict[str, list[Parts]], bare: float) -> int:
    """Prints what was found; returns how many limits were missed."""
    kept = []
    for role, found in lost.items():
        line = f"recovery_{name}_{role}{where}"
        kept.append(say(line, median(found, "total"), bare, limit=LIMIT_RECOVERY))
        say_parts(found)
    kept.append(say(f"first_batch_{name}{where}", median(first, "total"), bare, limit=LIMIT_FIRST))
    say_parts(first)
    return kept.count(False)


def main() -> int:
    """Prints the lines; returns how many limits were missed."""
    missed = 0
    clustered = reachable()
    for name in EXAMPLES:
        hand: list[Parts] = []
        first: list[Parts] = []
        lost: dict[str, list[Parts]] = {role: [] for role in ROLES}
        with tempfile.TemporaryDirectory(prefix="recovery-") as temp:
            folder = Path(temp)
            job = job_of(name, folder / "data")
            for n in range(ROUNDS):
                hand.append(ByHand(folder / f"hand-{n}", job, name, **ENDLESS).first_batch(DEADLINE))
                gang = FleetGang(folder / f"gang-{n}", job, name, **ENDLESS)
                with gang:
                    both(gang.start(), first, lost)
        bare = median(hand, "total")
        print(f"# {name} by hand", flush=True)
        say_parts(hand)
        missed += report(name, "", first, lost, bare)
        if clustered:
            first, lost = [], {role: [] for role in ROLES}
            for n in range(ROUNDS):
                with PodGang(name, n) as pods:
                    both(pods, first, lost)
            missed += report(name, "_cluster", first, lost, bare)
    if not clustered:
        print("# no local cluster with this launcher's image: `make cluster image`", flush=True)
    print(f"# load {os.getloadavg()[0]:.1f}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
