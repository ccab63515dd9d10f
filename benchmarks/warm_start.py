"""What the fork server of a pod saves: time and memory, side by side.

`python -m benchmarks.warm_start` starts three pservers and three trainers of quick_start in two ways. Lines:

- `warm_start`: seconds from the order to start until the last rank's first batch, forked off three waiting
  fork servers (launcher/children.py) as the launcher does it, against six new interpreters that each import
  Paddle.
- `warm_start_mb`: the memory (PSS) of all processes of a pod at work, the fork server included, against that
  of a pod whose processes have each loaded Paddle.
- `warm_start_idle_mb`: that of the fork server alone, before anything starts, against the same.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from benchmarks._fleet import RANKS, ByHand, job_of  # noqa: E402
from benchmarks._lines import median, say, say_parts  # noqa: E402
from launcher.children import ForkServer  # noqa: E402
from launcher.runtimes.base import ProcessSpec  # noqa: E402
from launcher.runtimes.fleet import FleetRuntime  # noqa: E402
from tests.launcher.worker.forked import LOAD_SECONDS, Forked  # noqa: E402

ROUNDS = 3
PASSES = {"PADDLE_LAUNCHER_PASSES": "100000"}


class Warm(ByHand):
    """A fork server a pod, as launchers keep it."""

    def prepare(self) -> None:
        """Starts them; returns once all have imported Paddle."""
        self.waiting = {}
        for rank in RANKS:
            spec = FleetRuntime().fork_server(self.settings(rank))
            spec.cwd.mkdir(parents=True, exist_ok=True)
            self.waiting[rank] = ForkServer(spec)
        assert all(server.ready(LOAD_SECONDS) for server in self.waiting.values())

    def start(self, specs: list[ProcessSpec]) -> list[tuple[ProcessSpec, Any]]:
        rank = int(specs[0].env["JOB_COMPLETION_INDEX"])
        return [(spec, Forked(spec, self.waiting[rank])) for spec in specs]

    def end(self) -> None:
        for server in self.waiting.values():
            server.end()


def pss(pid: int) -> float:
    """Proportional memory of a process in MB; shared pages count in part."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


def at_work(gang: ByHand) -> float:
    """MB of all processes of this gang, in one pod's mean."""
    total = 0.0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(gang.root).encode() in (entry / "environ").read_bytes():
                total += pss(int(entry.name))
    return total / len(RANKS)


def main() -> int:
    found: dict[str, list[dict[str, float]]] = {"anew": [], "forked": []}
    memory: dict[str, list[dict[str, float]]] = {"anew": [], "forked": []}
    with tempfile.TemporaryDirectory(prefix="warm-") as name:
        folder = Path(name)
        job = job_of("quick_start", folder / "data")
        for n in range(ROUNDS):
            for way, kind in {"anew": ByHand, "forked": Warm}.items():
                gang: Any = kind(folder / f"{way}-{n}", job, "quick_start", **PASSES)
                idle = 0.0
                if isinstance(gang, Warm):
                    gang.prepare()
                    idle = at_work(gang)
                work: list[float] = []
                found[way].append(gang.first_batch(120, lambda: work.append(at_work(gang))))  # noqa: B023
                memory[way].append({"idle": idle, "work": work[0]})
                if isinstance(gang, Warm):
                    gang.end()
    say("warm_start", median(found["forked"], "total"), median(found["anew"], "total"))
    for way, each in found.items():
        print(f"# {way}", flush=True)
        say_parts(each)
    anew = median(memory["anew"], "work")
    say("warm_start_mb", median(memory["forked"], "work"), anew, "MB")
    say("warm_start_idle_mb", median(memory["forked"], "idle"), anew, "MB")
    print(f"# load {os.getloadavg()[0]:.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
