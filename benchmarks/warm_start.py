"""Measure what the fork server of a pod saves in time and memory.

`python -m benchmarks.warm_start` starts three pservers and three trainers of quick_start in two ways. Lines:

- `warm_start`: seconds from the instruction to start to the last rank's first batch, with processes forked
  from three waiting fork servers (launcher/supervisor/child_processes.py) as the launcher does, compared with
  six new interpreters that each import Paddle.
- `warm_start_mb`: memory (PSS) of all processes of a training pod including the fork server, compared with a
  pod whose processes have each imported Paddle.
- `warm_start_idle_mb`: memory of a pod's fork server alone, before it forks any process, compared with the
  same pod as `warm_start_mb`.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._example_trainings import RANKS, ByHand, prepare_example_job
from benchmarks._result_lines import median_of_part, print_median_parts, print_parts, print_ratio
from launcher.runtimes.fleet import FleetRuntime
from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.supervisor.child_processes import ForkServer
from local.launcher_gang import find_processes
from testkit.gang_without_launchers import ForkedProcess, Process

ROUNDS = 3
LOAD_SECONDS = 120.0
PASSES = {"passes": 100_000}


class ForkedByHand(ByHand):
    """`ByHand` with a fork server in each pod, as launchers have."""

    def prepare(self) -> None:
        """Start the fork servers and wait until all have imported Paddle."""
        self.waiting = {}
        for rank in RANKS:
            spec = FleetRuntime().fork_server(self.settings(rank))
            spec.cwd.mkdir(parents=True, exist_ok=True)
            self.waiting[rank] = ForkServer(spec)
        assert all(server.ready(LOAD_SECONDS) for server in self.waiting.values())

    def start_process(self, spec: ProcessSpec) -> Process:
        """Fork a process from its pod's fork server."""
        return ForkedProcess(spec, self.waiting[int(spec.env["JOB_COMPLETION_INDEX"])])

    def end(self) -> None:
        for server in self.waiting.values():
            server.end()


def proportional_memory(pid: int) -> float:
    """Return the proportional set size of a process in MB, in which shared pages count in part."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


def memory_per_pod(gang: ByHand) -> float:
    """Return the MB of all processes of this gang, divided by the number of pods."""
    total = 0.0
    for pid in find_processes(gang.root):
        with contextlib.suppress(OSError):
            total += proportional_memory(pid)
    return total / len(RANKS)


def main() -> int:
    """Run the benchmark and print its result lines."""
    found: dict[str, list[dict[str, float]]] = {"separate": [], "forked": []}
    memory: dict[str, list[dict[str, float]]] = {"separate": [], "forked": []}
    with tempfile.TemporaryDirectory(prefix="warm-") as name:
        folder = Path(name)
        job = prepare_example_job("quick_start", folder / "data")
        for n in range(ROUNDS):
            for way, kind in {"separate": ByHand, "forked": ForkedByHand}.items():
                gang: Any = kind(folder / f"{way}-{n}", job, "quick_start", **PASSES)
                idle = 0.0
                if isinstance(gang, ForkedByHand):
                    gang.prepare()
                    idle = memory_per_pod(gang)
                work: list[float] = []
                found[way].append(gang.first_batch(120, lambda: work.append(memory_per_pod(gang))))  # noqa: B023
                memory[way].append({"idle": idle, "work": work[0]})
                if isinstance(gang, ForkedByHand):
                    gang.end()
    print_parts("warm_start", found["forked"], median_of_part(found["separate"], "total"))
    print("# six new interpreters", flush=True)
    print_median_parts(found["separate"])
    separate = median_of_part(memory["separate"], "work")
    print_ratio("warm_start_mb", median_of_part(memory["forked"], "work"), separate, "MB")
    print_ratio("warm_start_idle_mb", median_of_part(memory["forked"], "idle"), separate, "MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
