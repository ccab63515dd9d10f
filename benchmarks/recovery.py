"""Measure the time from a kill to the next attempt's first batch, and from the start to the first batch.

`python -m benchmarks.recovery` prints for each example program (`quick_start`, `recommendation`)

- `recovery_<example>_<victim>`: median seconds from the SIGKILL of one rank's trainer or pserver until the
  last of three ranks has completed its first batch of the next attempt. Limit 8.
- `first_batch_<example>`: median seconds from the start of three launchers to the last rank's first batch.
  Limit 6.

`theirs` of both is the way of bare Paddle to the first batch: the same six processes started by hand at once.
Names with `_cluster` are the same for `quick_start` in pods of the local cluster, if that is running with
this launcher's image (`make cluster image`); there the time of `first_batch` starts when the last pod's
container has started. A line with the median seconds of each part follows: detect (until rank 0 knows of the
failure), stop (until no process is left), rendezvous (until rank 0 instructs all ranks to start; in
a first start including output lease and staging), start (of the processes), import (of Paddle and the
program's data), join (of servers and trainers), load (of the checkpoint), batch (the first one). The
benchmark takes about six minutes.

"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Protocol

from benchmarks._example_trainings import (
    RANKS,
    ROLES,
    ByHand,
    FleetGang,
    job_of,
    last,
    paddle_ends,
    parts,
)
from benchmarks._pod_gang import PodGang, is_cluster_ready
from benchmarks._result_lines import median_of_part, print_median_parts, print_ratio
from benchmarks.learning import EXAMPLES

ROUNDS = 3
LIMIT_RECOVERY, LIMIT_FIRST = 8.0, 6.0
DEADLINE = 120.0
ENDLESS = {"PADDLE_LAUNCHER_PASSES": "100000", "PADDLE_LAUNCHER_RESTARTS": "100"}
Parts = dict[str, float]


class RunningGang(Protocol):
    """Three launchers, on loopback or in pods. Times are Unix seconds: there is one machine and one clock."""

    def began(self) -> float: ...

    def trains(self, after: float) -> bool: ...

    def marks(self, rank: int) -> dict[str, float]: ...

    def events(self, rank: int) -> list[tuple[float, str]]: ...

    def kill(self, rank: int, role: str) -> float: ...


def await_training(run: RunningGang, after: float) -> None:
    """Wait until every rank has completed its first batch after the time `after`."""
    deadline = time.monotonic() + DEADLINE
    while not run.trains(after):
        if time.monotonic() > deadline:
            log = "\n".join(text for _, text in run.events(0)[-20:])
            sys.exit(f"no training {DEADLINE:.0f} s after the kill or the start:\n{log}")
        time.sleep(0.1)


def measure_first_batch(run: RunningGang) -> Parts:
    """Return the parts of a first start, in seconds."""
    began = run.began()
    await_training(run, began)
    logs = [run.events(rank) for rank in RANKS]
    ends = {
        "stage": last(logs, "staged shard"),
        "rendezvous": last(logs[:1], "attempt 0 "),
        "start": last(logs, "started trainer"),
    }
    return parts(began, ends | paddle_ends([run.marks(rank) for rank in RANKS]))


def measure_recovery(run: RunningGang, rank: int, role: str) -> Parts:
    """Kill a rank's process and return the parts of the restart, in seconds."""
    killed = run.kill(rank, role)
    await_training(run, killed)
    logs = [run.events(rank) for rank in RANKS]
    ends = {
        "detect": last(logs[:1], " failed: ", killed),
        "stop": last(logs[:1], "restarting as attempt", killed),
        "rendezvous": last(logs[:1], "the rendezvous took", killed),
        "start": last(logs, "started trainer", killed),
    }
    return parts(killed, ends | paddle_ends([run.marks(rank) for rank in RANKS]))


def measure_start_and_kills(run: RunningGang, first: list[Parts], lost: dict[str, list[Parts]]) -> None:
    """Measure one start and one kill of each role; append the parts to `first` and `lost`."""
    first.append(measure_first_batch(run))
    for rank, role in enumerate(ROLES, 1):
        time.sleep(3)  # some passes and saves
        lost[role].append(measure_recovery(run, rank, role))


def report(name: str, where: str, first: list[Parts], lost: dict[str, list[Parts]], bare: float) -> int:
    """Run the benchmark and print its result lines; return how many limits were exceeded."""
    kept = []
    for role, found in lost.items():
        line = f"recovery_{name}_{role}{where}"
        kept.append(print_ratio(line, median_of_part(found, "total"), bare, limit=LIMIT_RECOVERY))
        print_median_parts(found)
    kept.append(
        print_ratio(f"first_batch_{name}{where}", median_of_part(first, "total"), bare, limit=LIMIT_FIRST)
    )
    print_median_parts(first)
    return kept.count(False)


def main() -> int:
    """Run the benchmark and print its result lines; return how many limits were exceeded."""
    missed = 0
    clustered = is_cluster_ready()
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
                    measure_start_and_kills(gang.start(), first, lost)
        bare = median_of_part(hand, "total")
        print(f"# {name} by hand", flush=True)
        print_median_parts(hand)
        missed += report(name, "", first, lost, bare)
        if clustered and name == EXAMPLES[0]:  # the pods add the same to every program
            first, lost = [], {role: [] for role in ROLES}
            for n in range(ROUNDS):
                with PodGang(name, n) as pods:
                    measure_start_and_kills(pods, first, lost)
            missed += report(name, "_cluster", first, lost, bare)
    if not clustered:
        print("# no local cluster with this launcher's image: `make cluster image`", flush=True)
    print(f"# load {os.getloadavg()[0]:.1f}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
