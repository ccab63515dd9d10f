"""Measure the time from the kill of a script's process to the first new step of all processes.

Three launchers train the example `text` (runtime `collective`) on loopback. Result lines:

- `collective_recovery`: median seconds from the SIGKILL of the process of rank 1 until all three processes have
  trained a step of the next attempt, with the import of Paddle. Limit 8.
- `collective_first_step`: median seconds from the start of the launchers to the first step of all processes.

`theirs` of both is the time to the first step without launchers: three times `python -m paddle.distributed.launch`,
which starts the same processes but does not restart them. A line with the median seconds of each part follows each
result. The parts are consecutive, and each lasts until

- detect: rank 0 knows of the failure (restart only);
- stop: no process of the old attempt is left (restart only);
- stage: every rank has copied its shard to its own disk (first start only);
- rendezvous: all ranks have joined, and rank 0 instructs them to start;
- start: every launcher has started its process;
- python, import, join, load, step: the last process runs its first line, has imported Paddle, has joined the others
  (`init_parallel_env`), has loaded its rows and the checkpoint, has trained its first step.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._collective_script import (
    MARKS,
    ScriptGang,
    paddle_logs,
    read_marks,
    run_with_paddle,
)
from benchmarks._example_trainings import last, parts
from benchmarks._result_lines import median_of_part, print_median_parts, print_ratio

PROCESSES, ROUNDS, KILLS = 3, 3, 2
LIMIT = 8.0
DEADLINE = 180.0
VALUES = {"PADDLE_LAUNCHER_PASSES": "1000", "PADDLE_LAUNCHER_RESTARTS": "100"}
Parts = dict[str, float]


def await_steps(folder: Path, attempt: int, began: float, ends: Parts, log: str = "") -> Parts:
    """Wait until all processes have trained a step of an attempt; return how long the parts since `began` took."""
    deadline = time.monotonic() + DEADLINE
    while len(marks := read_marks(folder, attempt, PROCESSES)) < PROCESSES:
        if time.monotonic() > deadline:
            sys.exit(f"not every process had trained a step of attempt {attempt} in {DEADLINE:.0f} s; {log}")
        time.sleep(0.05)
    return parts(began, ends | {part: max(each[mark] for each in marks) for mark, part in MARKS.items()})


def measure_gang(folder: Path) -> tuple[Parts, list[Parts]]:
    """Return the parts of the first start of three launchers, and those of the restart after each kill."""
    with ScriptGang(folder, PROCESSES, **VALUES) as gang:
        began = time.time()
        gang.start()
        await_steps(folder, 0, began, {})
        logs = [gang.events(rank) for rank in range(PROCESSES)]
        ends = {
            "stage": last(logs, "staged shard"),
            "rendezvous": last(logs[:1], "attempt 0 "),
            "start": last(logs, "started trainer"),
        }
        first, lost = await_steps(folder, 0, began, ends), []
        for attempt in range(1, KILLS + 1):
            time.sleep(4)  # some steps
            killed = gang.kill_script(1)
            await_steps(folder, attempt, killed, {}, gang.pod_log(0)[-3000:])
            logs = [gang.events(rank) for rank in range(PROCESSES)]
            ends = {
                "detect": last(logs[:1], " failed: ", killed),
                "stop": last(logs[:1], "restarting as attempt", killed),
                "rendezvous": last(logs[:1], "the rendezvous took", killed),
                "start": last(logs, "started trainer", killed),
            }
            lost.append(await_steps(folder, attempt, killed, ends))
    return first, lost


def measure_by_hand(folder: Path) -> Parts:
    """Return the parts of the start of the same processes with Paddle's launcher."""
    with run_with_paddle(folder, PROCESSES, **VALUES) as processes:
        deadline, began = time.monotonic() + DEADLINE, time.time()
        while not read_marks(folder, 0, 1):
            if time.monotonic() > deadline or any(process.poll() for process in processes):
                sys.exit(f"the script did not train under Paddle's launcher: {paddle_logs(folder)}")
            time.sleep(0.05)
        return await_steps(folder, 0, began, {})


def main() -> int:
    """Run the benchmark and print its result lines; return how many limits were exceeded."""
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
    kept = print_ratio("collective_recovery", median_of_part(lost, "total"), bare, limit=LIMIT)
    print_median_parts(lost)
    print_ratio("collective_first_step", median_of_part(first, "total"), bare)
    print_median_parts(first)
    print(f"# load {os.getloadavg()[0]:.1f}", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
