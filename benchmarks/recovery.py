"""Measure the time from a kill to the next attempt's first batch, and from the start to the first batch.

`python -m benchmarks.recovery` prints for each example program (`quick_start`, `recommendation`)

- `recovery_<example>_<victim>`: median seconds from the SIGKILL of one rank's trainer or pserver until the
  last of three ranks has completed its first batch of the next attempt. Limit 8.
- `first_batch_<example>`: median seconds from the start of three launchers to the last rank's first batch.
  Limit 6.

`theirs` of both is the time until the first batch without launchers: the same six processes, started at once.
Names with `_cluster` are the same for `quick_start` in pods of the local cluster, if that is running with
this launcher's image (`make cluster image`); there the time of `first_batch` starts when the last pod's
container has started. A line with the median seconds of each part follows each result. The parts are
consecutive, and each lasts until

- detect: rank 0 knows of the failure (restarts only);
- stop: no process of the old attempt is left (restarts only);
- stage: every rank has copied its shard to its own disk (first start only);
- rendezvous: all ranks have joined and rank 0 instructs them to start;
- start: every launcher has started its trainer;
- import, join, load, batch: the last trainer has imported Paddle, has joined the servers and the other
  trainers, has loaded the checkpoint (if there is one), has trained its first batch.

The benchmark takes about six minutes.
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
    last,
    paddle_ends,
    parts,
    prepare_example_job,
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
    """Three launchers, on loopback (FleetGang) or in pods (PodGang).

    All times are Unix seconds, and can be compared because all processes run on one machine.
    """

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
            sys.exit(
                f"not every rank had trained a batch {DEADLINE:.0f} s after the kill or the start; logs:\n{log}"
            )
        time.sleep(0.1)


def measure_first_batch(run: RunningGang) -> Parts:
    """Wait until every rank has trained its first batch after the start of `run`; return how long it took.

    Returns:
        Seconds of the parts `stage`, `rendezvous`, `start`, `import`, `join`, `load` and `batch` (see the
        module), and as `total` their sum: from the start of the launchers to the last rank's first batch.
    """
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
    """Kill the trainer or pserver (`role`) of a rank; wait until all ranks train again; return how long it took.

    Returns:
        Seconds of the parts `detect`, `stop`, `rendezvous`, `start`, `import`, `join`, `load` and `batch` (see
        the module), and as `total` their sum: from the kill to the last rank's first batch.
    """
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
    """Measure the first start of `run`, then kill rank 1's trainer and rank 2's pserver and measure each restart.

    Appends the result of the start to `first`, and that of each restart to the list of its role in `lost`.
    """
    first.append(measure_first_batch(run))
    for rank, role in enumerate(ROLES, 1):
        time.sleep(3)  # some passes and saves
        lost[role].append(measure_recovery(run, rank, role))


def report(name: str, where: str, first: list[Parts], lost: dict[str, list[Parts]], bare: float) -> int:
    """Print the result lines of one example; return how many limits were exceeded.

    Args:
        name: the example.
        where: suffix of the lines' names: `_cluster`, or empty for loopback.
        first: results of `measure_first_batch`.
        lost: results of `measure_recovery` by role.
        bare: seconds to the first batch without launchers; `theirs` of all lines.
    """
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
            job = prepare_example_job(name, folder / "data")
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
        print(
            "# pods were not measured: no local cluster runs with this launcher's image. Fix: make cluster image",
            flush=True,
        )
    print(f"# load {os.getloadavg()[0]:.1f}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
