"""Measure the time from the kill of a script's process to the first new step of all processes.

Three launchers train the example `text` (runtime `collective`) on loopback. Result lines:

- `collective_recovery`: median seconds from the SIGKILL of the process of rank 1 until all three processes have
  trained a step of the next attempt, with the import of Paddle. Limit 8.
- `collective_first_step`: median seconds from the start of the launchers to the first step of all processes.

`theirs` of both is the time to the first step without launchers: three times `python -m paddle.distributed.launch`,
which starts the same processes but does not restart them. A line with the median seconds of each consecutive part
follows each result: those of `launcher_ends` (_example_trainings.py), then those of MARKS (_collective_script.py).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks._collective_script import MARKS, SCRIPT, ScriptGang, paddle_logs, read_marks, run_with_paddle
from benchmarks._example_trainings import launcher_ends, process_ends, split_parts
from benchmarks._result_lines import Parts, median_of_part, print_median_parts, print_parts
from testkit.waiting import until

PROCESSES, ROUNDS, KILLS = 3, 2, 2
LIMIT = 8.0
DEADLINE = 60.0
VALUES = {"passes": 1000, "restarts": 100}


def await_steps(folder: Path, attempt: int, gang: ScriptGang) -> Parts:
    """Wait until all processes have trained a step of an attempt; return when (Unix seconds) the parts ended."""

    def trained() -> bool:
        return len(read_marks(folder, attempt, PROCESSES)) == PROCESSES

    until(trained, f"steps of attempt {attempt}", DEADLINE, 0.05, lambda: gang.pod_log(0)[-3000:])
    return process_ends(read_marks(folder, attempt, PROCESSES), MARKS)


def measure_gang(folder: Path) -> tuple[Parts, list[Parts]]:
    """Return the parts of the first start of three launchers, and those of the restart after each kill."""
    with ScriptGang(folder, PROCESSES, **VALUES) as gang:
        began = time.time()
        ends = await_steps(folder, 0, gang.start())
        first = split_parts(began, launcher_ends(gang.all_events()) | ends)
        lost = []
        for attempt in range(1, KILLS + 1):
            time.sleep(4)  # some steps
            killed = gang.kill(1, SCRIPT)
            ends = await_steps(folder, attempt, gang)
            lost.append(split_parts(killed, launcher_ends(gang.all_events(), killed) | ends))
    return first, lost


def measure_by_hand(folder: Path) -> Parts:
    """Return the parts of the start of the same processes with Paddle's launcher."""
    with run_with_paddle(folder, PROCESSES, **VALUES) as processes:
        began = time.time()

        def trained() -> bool:
            if any(process.poll() for process in processes):
                sys.exit(f"the script did not train under Paddle's launcher: {paddle_logs(folder)}")
            return len(read_marks(folder, 0, PROCESSES)) == PROCESSES

        until(trained, "steps under Paddle's launcher", DEADLINE, 0.05, lambda: paddle_logs(folder))
        return split_parts(began, process_ends(read_marks(folder, 0, PROCESSES), MARKS))


def main() -> int:
    """Run the benchmark and print its result lines; return 1 if the limit is exceeded."""
    hand: list[Parts] = []
    first: list[Parts] = []
    lost: list[Parts] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="recovery-") as name:
            hand.append(measure_by_hand(Path(name) / "hand"))
            started, restarts = measure_gang(Path(name) / "gang")
        first.append(started)
        lost += restarts
    bare = median_of_part(hand, "total")
    print("# with Paddle's launcher", flush=True)
    print_median_parts(hand)
    kept = print_parts("collective_recovery", lost, bare, LIMIT)
    print_parts("collective_first_step", first, bare)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
