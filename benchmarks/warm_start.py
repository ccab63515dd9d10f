"""Does it pay to keep a process that has Paddle imported already? Time and memory, side by side.

`python -m benchmarks.warm_start` starts quick_start's three pservers and three trainers in three ways, and
prints for the last two `warm_start_<way> ratio=… ours=… theirs=…`: seconds from the order to start until the
last rank's first batch, against a fresh start.

- fresh: as the launcher does it: six new interpreters, and each imports Paddle.
- spare: six processes wait on stdin, with Paddle imported, and take their environment and log from there.
- fork: one process a pod waits so, and forks a pserver and a trainer. The one thread that Paddle 2.6.2 has
  after its import is bvar's sampler, which starts itself anew in a forked child.

`warm_start_<way>_mb` is what one pod pays for it while nothing starts: the memory (PSS) of the processes that
wait, beside that of a pod's pserver and trainer at work. The product
keeps spares only while nothing trains (`Agent._arm`), not beside a training.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from benchmarks._fleet import RANKS, ByHand, job_of  # noqa: E402
from benchmarks._lines import median, say, say_parts  # noqa: E402
from launcher.runtimes.base import ProcessSpec  # noqa: E402

ROUNDS = 3
PASSES = {"PADDLE_LAUNCHER_PASSES": "100000"}
WAIT = """
import json, os, sys
from launcher.worker import loop, program, session, trainer
from launcher.worker.__main__ import main
print("ready", flush=True)
for line in sys.stdin:
    if sys.argv[1] == "fork" and os.fork():
        continue
    given = json.loads(line)
    os.environ.clear()
    os.environ.update(given["env"])
    os.chdir(given["cwd"])
    log = os.open(given["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os._exit(main())
"""
Started = list[tuple[ProcessSpec, "subprocess.Popen[bytes]"]]


class Warm(ByHand):
    """Processes that were started before, `spare` or `fork`."""

    way = "spare"

    def prepare(self) -> None:
        """Starts what waits; returns once all of it has imported Paddle."""
        self.waiting = {}
        for rank in RANKS:
            for role in ("trainer", "pserver 0") if self.way == "spare" else ("any",):
                self.waiting[rank, role] = subprocess.Popen(
                    [sys.executable, "-c", WAIT, self.way],
                    env={**self.settings(rank).environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
                    | {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOG_minloglevel": "1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
        for process in self.waiting.values():
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n", "it did not get as far as to wait"

    def start(self, specs: list[ProcessSpec]) -> Started:
        started = []
        rank = int(specs[0].env["JOB_COMPLETION_INDEX"])
        for spec in specs:
            process = self.waiting[rank, spec.name if self.way == "spare" else "any"]
            spec.log.parent.mkdir(exist_ok=True)
            given = {"env": dict(spec.env), "cwd": str(spec.cwd), "log": str(spec.log)}
            assert process.stdin is not None
            process.stdin.write(json.dumps(given).encode() + b"\n")
            process.stdin.flush()
            started.append((spec, process))
        return started

    def memory(self) -> float:
        """MB (PSS) of what waits in one pod."""
        return sum(pss(process.pid) for process in self.waiting.values()) / len(RANKS)


class Forked(Warm):
    """One process a pod."""

    way = "fork"


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
    found: dict[str, list[dict[str, float]]] = {"fresh": [], "spare": [], "fork": []}
    waiting: dict[str, list[dict[str, float]]] = {"fresh": [], "spare": [], "fork": []}
    with tempfile.TemporaryDirectory(prefix="warm-") as name:
        folder = Path(name)
        job = job_of("quick_start", folder / "data")
        for n in range(ROUNDS):
            for way, kind in {"fresh": ByHand, "spare": Warm, "fork": Forked}.items():
                gang: Any = kind(folder / f"{way}-{n}", job, "quick_start", **PASSES)
                idle = 0.0
                if isinstance(gang, Warm):
                    gang.prepare()
                    idle = gang.memory()
                work: list[float] = []
                found[way].append(gang.first_batch(120, lambda: work.append(at_work(gang))))  # noqa: B023
                waiting[way].append({"idle": idle, "work": work[0]})
    fresh = median(found["fresh"], "total")
    print("# fresh", flush=True)
    say_parts(found["fresh"])
    for way in ("spare", "fork"):
        say(f"warm_start_{way}", median(found[way], "total"), fresh)
        say_parts(found[way])
        say(f"warm_start_{way}_mb", median(waiting[way], "idle"), median(waiting["fresh"], "work"), "MB")
        print(f"# at work: {median(waiting[way], 'work'):.0f} MB a pod", flush=True)
    print(f"# load {os.getloadavg()[0]:.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
