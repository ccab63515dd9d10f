"""Compare a job under launchers with the same processes started by hand in the same environment, on loopback.

Both train `quick_start` on its real data with runtime `fleet`: three pservers and three trainers from the
same specs. By hand, all six are started at once, and the run ends when the last one exits. Under launchers
the time starts with the three launchers and includes staging, rendezvous and writing the final run record.

- `launcher_overhead`: wall time of a job of about 17 seconds. Both runs save a checkpoint after each pass.
  Limit of the ratio: 1.03.
- `launcher_overhead_saving`: wall time of a job of about 30 seconds. The run under launchers saves a
  checkpoint about every ten seconds; the run by hand saves only at the end. (`checkpointEvery` is the number
  of batches that the run by hand trains in ten seconds.) Limit of the ratio: 1.05.

The runs alternate, and the fastest of ROUNDS counts, because other work on the machine only makes a run slower
(by up to 5 % on two cores). A line of CPU seconds of all processes follows each: unlike the wall time they hardly
depend on the load. `python -m benchmarks.launcher_overhead` takes about five minutes.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from benchmarks._example_trainings import ByHand, FleetGang, prepare_example_job
from benchmarks._processes import Clocks, read_clocks, since
from benchmarks._result_lines import print_ratio

EXAMPLE = "quick_start"
ROUNDS, DEADLINE = 3, 400.0
SHORT = {"PADDLE_LAUNCHER_PASSES": "20"}
LONG = {"PADDLE_LAUNCHER_PASSES": "75", "PADDLE_LAUNCHER_SAVING_PERIOD": "1000"}
SAVE_SECONDS = 10.0


def run_with_launchers(folder: Path, job: Path, values: dict[str, str]) -> Clocks:
    """Return the wall and CPU seconds of the job under three launchers."""
    with FleetGang(folder, job, EXAMPLE, PADDLE_LAUNCHER_KEEP_CHECKPOINTS="1000", **values) as gang:
        began = read_clocks()
        codes = gang.start().wait(DEADLINE)
        spent = since(began)
        if codes != [0, 0, 0]:
            sys.exit(
                f"the run under launchers failed: exit codes {codes}; end of the log of rank 0:\n"
                f"{gang.pod_log(0)[-3000:]}"
            )
        print(f"# {len(list(gang.output.glob('pass-*/done')))} checkpoints saved", flush=True)
        return spent


def run_by_hand(folder: Path, job: Path, values: dict[str, str]) -> tuple[Clocks, int]:
    """Run the same processes without launchers; return (wall and CPU seconds, batches that a rank trained)."""
    gang = ByHand(folder, job, EXAMPLE, PADDLE_LAUNCHER_KEEP_CHECKPOINTS="1000", **values)
    began = read_clocks()
    codes = gang.run(DEADLINE)
    spent = since(began)
    each = re.search(r"(\d+) batches per pass", gang.log())
    if set(codes.values()) != {0} or each is None:
        sys.exit(
            f"the run without launchers failed: exit codes {codes}; end of the log of trainer 0:\n{gang.log()[-3000:]}"
        )
    return spent, int(each[1]) * int(values["PADDLE_LAUNCHER_PASSES"])


def compare(folder: Path, job: Path, values: dict[str, str], saving: bool) -> list[float]:
    """Run the prepared job in the folder `job` ROUNDS times by hand and under launchers, alternating.

    If `saving`, the runs under launchers also save a checkpoint about every SAVE_SECONDS.

    Returns:
        The smallest values: wall seconds under launchers and by hand, CPU seconds under launchers and by hand.
    """
    pairs = []
    for n in range(ROUNDS):
        hand, batches = run_by_hand(folder / f"hand-{n}", job, values)
        every = {"PADDLE_LAUNCHER_CHECKPOINT_EVERY_BATCHES": str(round(batches * SAVE_SECONDS / hand[0]))}
        pairs.append(
            (run_with_launchers(folder / f"launched-{n}", job, values | (every if saving else {})), hand)
        )
    return [min(pair[who][what] for pair in pairs) for what in (0, 1) for who in (0, 1)]


def main() -> int:
    """Run the benchmark and print its result lines; return how many limits were exceeded."""
    kept = []
    for line, values, saving, most in (
        ("launcher_overhead", SHORT, False, 1.03),
        ("launcher_overhead_saving", LONG, True, 1.05),
    ):
        with tempfile.TemporaryDirectory(prefix="overhead-") as name:
            job = prepare_example_job(EXAMPLE, Path(name) / "data")
            wall, bare, used, used_bare = compare(Path(name), job, values, saving)
        kept.append(print_ratio(line, wall, bare, most=most))
        shown = f"ours={used:.1f} theirs={used_bare:.1f} ratio={used / used_bare:.3f}"
        print(f"# processor seconds: {shown}", flush=True)
    return kept.count(False)


if __name__ == "__main__":
    sys.exit(main())
