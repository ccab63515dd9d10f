"""Measure the time from a kill to the next attempt's first batch, and from the start to the first batch.

`python -m benchmarks.recovery` prints for each example program (`quick_start`, `recommendation`)

- `recovery_<example>_<victim>`: median seconds from the SIGKILL of one rank's trainer or pserver until the
  last of three ranks has completed its first batch of the next attempt. Limit 8.
- `recovery_<example>_longest`: the longest of all these restarts. It may take LONGEST times as long as `theirs`. A line
  with median, 90th percentile and maximum follows.
- `first_batch_<example>`: median seconds from the start of three launchers to the last rank's first batch.
  Limit 6.

`theirs` of all is the time until the first batch without launchers: the same six processes, started at once. The kills
are at different moments between two checkpoints and while one is written.
Names with `_cluster` are the same for `quick_start` in pods of the local cluster, if that is running with
this launcher's image (`make cluster image`); there the time of `first_batch` starts when the last pod's
container has started. A line with the median seconds of each consecutive part follows each result: those of
`launcher_ends`, then those of MARKS (both in _example_trainings.py).

The benchmark takes about six minutes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._cluster_gang import PodGang, prepare_cluster
from benchmarks._example_trainings import (
    MARKS,
    RANKS,
    ROLES,
    ByHand,
    FleetGang,
    launcher_ends,
    prepare_example_job,
    process_ends,
    split_parts,
)
from benchmarks._result_lines import Parts, median_of_part, print_median_parts, print_parts, print_ratio
from benchmarks.learning import EXAMPLES
from testkit.waiting import until

ROUNDS, KILLS = 2, 6
"""Starts of each gang, and kills of each role after each start: 24 restarts of each example."""
SOONEST, SPREAD = 0.5, 1.6
"""Each kill is this many seconds, or up to SPREAD more, after the first batch of the attempt. A pass of `quick_start`
takes 0.3 to 0.6 s, and its checkpoint 0.3 s."""
LIMIT_RECOVERY, LIMIT_FIRST, LONGEST = 8.0, 6.0, 0.6
DEADLINE = 60.0
ENDLESS = {"passes": 100_000, "restarts": 100}
GOLDEN = 0.618034
"""The fractions of its multiples are spread evenly, however many there are."""
RunningGang = FleetGang | PodGang
"""Three launchers, on loopback or in pods. All times are Unix seconds, and can be compared because all processes run
on one machine."""


def measure_parts(run: RunningGang, began: float, killed: float | None = None) -> Parts:
    """Wait until every rank has trained a batch after the time `began` (of the start, or of a kill).

    Returns:
        Seconds of each part, and as `total` their sum: from `began` to the last rank's first batch.
    """

    def last_lines() -> str:
        return "\n".join(text for _, text in run.events(0)[-20:])

    until(
        lambda: run.trains(began), "a batch of every rank after the start or kill", DEADLINE, 0.1, last_lines
    )
    ends = launcher_ends([run.events(rank) for rank in RANKS], killed)
    return split_parts(began, ends | process_ends([run.marks(rank) for rank in RANKS], MARKS))


def measure_start_and_kills(run: RunningGang, first: list[Parts], lost: dict[str, list[Parts]]) -> None:
    """Measure the first start of `run`, then kill KILLS trainers and KILLS pservers, and measure each restart.

    Appends the result of the start to `first`, and that of each restart to the list of its role in `lost`.
    """
    first.append(measure_parts(run, run.began()))
    for number in range(KILLS * len(ROLES)):
        role, victim = ROLES[number % len(ROLES)], number // len(ROLES) % len(RANKS)
        time.sleep(SOONEST + number * GOLDEN % 1 * SPREAD)
        killed = run.kill(victim, role)
        lost[role].append(measure_parts(run, killed, killed))


def report(name: str, where: str, first: list[Parts], lost: dict[str, list[Parts]], bare: float) -> int:
    """Print the result lines of one example; return how many limits were exceeded.

    Args:
        name: the example.
        where: suffix of the lines' names: `_cluster`, or empty for loopback.
        first: results of the first starts.
        lost: results of the restarts, by role of the killed process.
        bare: seconds to the first batch without launchers; `theirs` of all lines.
    """
    kept = [
        print_parts(f"recovery_{name}_{role}{where}", found, bare, LIMIT_RECOVERY)
        for role, found in lost.items()
    ]
    totals = sorted(parts["total"] for found in lost.values() for parts in found)
    kept.append(print_ratio(f"recovery_{name}_longest{where}", totals[-1], bare, most=LONGEST))
    *_, late = statistics.quantiles(totals, n=10)
    shown = f"median={statistics.median(totals):.2f} p90={late:.2f} maximum={totals[-1]:.2f}"
    print(f"# {len(totals)} restarts, seconds: {shown}", flush=True)
    kept.append(print_parts(f"first_batch_{name}{where}", first, bare, LIMIT_FIRST))
    return kept.count(False)


def main() -> int:
    """Run the benchmark and print its result lines; return how many limits were exceeded."""
    missed = 0
    clustered = prepare_cluster()
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
        if clustered and name == "quick_start":  # the pods add the same to every program
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
    return missed


if __name__ == "__main__":
    sys.exit(main())
