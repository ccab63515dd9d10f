"""Compare what a run loses when a node is reclaimed: with the notice of SIGTERM, and without it (SIGKILL).

`python -m benchmarks.reclaimed_node` trains `quick_start` on loopback with three launchers and the default grace
period. One checkpoint is requested at the start; no other one is due. INTERVAL seconds of training after it, rank 1
is lost and started again at once, as the pod on another node would be. It prints

- `reclaimed_node_rows`: rows that were trained again. `ours`: rank 1 receives SIGTERM, and all ranks save a
  checkpoint before it exits. `theirs`: all processes of rank 1 are killed. Limit of the ratio: 0.5.
- `reclaimed_node_seconds`: seconds from the signal until the last rank has completed its first batch of the next
  attempt; `ours` contains the wait for the checkpoint, in which all ranks train.

Without notice the loss grows with the time since the newest checkpoint (by default up to ten minutes), with notice
it does not. The benchmark takes about two minutes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks._example_trainings import RANKS, FleetGang, prepare_example_job, read
from benchmarks._result_lines import print_ratio
from launcher.paths import OutputPaths
from local.launcher_gang import find_processes
from local.try_example import example_values
from testkit.waiting import until

EXAMPLE, INTERVAL, DEADLINE = "quick_start", 30.0, 60.0
VALUES = {
    "passes": 100_000,
    "savingPeriod": 100_000,
    "terminationGracePeriodSeconds": 110,
}


def wait_until(seen: Callable[[], object], what: str, gang: FleetGang) -> None:
    """Wait until `seen()` is true; the error message has the end of rank 0's log."""
    until(seen, what, DEADLINE, 0.05, lambda: gang.pod_log(0)[-3000:])


def count_batches(gang: FleetGang) -> int:
    """Return how many batches rank 0 has trained since the start of the run; 0 if it does not train."""
    found = read(gang.work_dir(0) / "progress.json")
    return int(found.get("pass", 0)) * int(found.get("batches", 0)) + int(found.get("batch", 0))


def kill_rank(gang: FleetGang, rank: int) -> None:
    """Kill the launcher of a rank and all its processes, as the loss of its node does."""
    for pid in find_processes(gang.work_dir(rank)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def measure_loss(folder: Path, job: Path, *, notice: bool) -> tuple[int, float]:
    """Lose rank 1 of a run, with or without notice.

    Returns:
        (batches of each rank that were trained again, seconds from the signal to the first batches of the next
        attempt).
    """
    with FleetGang(folder, job, EXAMPLE, **VALUES) as gang:
        wait_until(lambda: gang.trains(gang.began()), "the first batches", gang.start())
        OutputPaths(gang.output).checkpoint_request.write_text("benchmark")
        wait_until(lambda: list(gang.output.glob("pass-*/done")), "the first checkpoint", gang)
        time.sleep(INTERVAL)
        signalled, reached = time.time(), count_batches(gang)
        if notice:
            gang.processes[1].send_signal(signal.SIGTERM)
        else:
            kill_rank(gang, 1)

        def is_lost() -> bool:
            nonlocal reached
            reached = max(reached, count_batches(gang))
            return gang.processes[1].poll() is not None

        wait_until(is_lost, "the exit of rank 1", gang)
        gang.start(1)
        wait_until(lambda: gang.trains(signalled), "the first batches of the next attempt", gang)
        seconds = max(gang.marks(rank)["first_batch"] for rank in RANKS) - signalled
        passes, batches = read(gang.output / "run.json")["resume"].values()
        each = int(read(gang.work_dir(0) / "progress.json")["batches"])
        return max(0, reached - passes * each - batches), seconds


def main() -> int:
    """Run the benchmark and print its result lines; return how many limits were exceeded."""
    rows = int(example_values(EXAMPLE)["training"]["batchSize"]) * len(RANKS)
    with tempfile.TemporaryDirectory(prefix="reclaimed-") as temp:
        job = prepare_example_job(EXAMPLE, Path(temp) / "data")
        noticed, noticed_seconds = measure_loss(Path(temp) / "notice", job, notice=True)
        lost, lost_seconds = measure_loss(Path(temp) / "killed", job, notice=False)
    kept = print_ratio("reclaimed_node_rows", noticed * rows, lost * rows, "", most=0.5)
    print_ratio("reclaimed_node_seconds", noticed_seconds, lost_seconds)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
