"""A job under the launcher against the same processes started by hand with the same environment, on loopback.

Prints `launcher_overhead ratio=… ours=… theirs=…` (wall seconds; at most 1.05 is allowed). Both run three
ranks of the same specs, which the runtime builds: by hand all pservers are started, then, when their ports
accept, all trainers; the end is the last trainer's. The processes are tests/launcher/core's stand-ins of
`PASSES` times `PASS_SECONDS` of work; `python -m benchmarks.launcher_overhead` takes a minute.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from launcher.gang.network import Network, accepts  # noqa: E402
from launcher.runtimes.base import Gang, ProcessSpec  # noqa: E402
from launcher.runtimes.v1 import V1Runtime  # noqa: E402
from launcher.settings import TrainSettings  # noqa: E402
from tests.launcher.core.kit import LoopbackGang  # noqa: E402

PASSES, PASS_SECONDS, ROUNDS = "10", "1.5", 1
LIMIT = 1.05


def launched(folder: Path) -> float:
    """Wall seconds of the job under three launchers."""
    with LoopbackGang(
        folder, FAKE_PASS_SECONDS=PASS_SECONDS, PADDLE_LAUNCHER_PASSES=PASSES, timings={"poll": 0.2}
    ) as gang:
        began = time.monotonic()
        codes = gang.start().wait(120)
        assert codes == [0, 0, 0], gang.pod_log(0)
        return time.monotonic() - began


def by_hand(folder: Path) -> float:
    """Wall seconds of the same processes without any launcher."""
    with LoopbackGang(folder, FAKE_PASS_SECONDS=PASS_SECONDS, PADDLE_LAUNCHER_PASSES=PASSES) as gang:
        specs: list[tuple[str, list[ProcessSpec], ProcessSpec]] = []
        for rank in range(gang.trainers):
            s = TrainSettings.from_environ(gang.config(rank)["environ"])
            for path in (s.work.data, s.work.program, gang.output / f"node_{rank}"):
                path.mkdir(parents=True)
            part = Gang(
                rank=rank,
                trainers=s.trainers,
                hosts=tuple(gang.addresses),
                settings=s,
                data_dir=s.work.data,
                program_dir=s.work.program,
                output_dir=gang.output,
                work_dir=s.work_dir,
                attempt=0,
                resume_pass=None,
            )
            runtime = V1Runtime()
            specs.append((gang.addresses[rank], runtime.pservers(part), runtime.trainer(part)))
        began = time.monotonic()
        servers = [start(spec) for _, group, _ in specs for spec in group]
        for host, group, _ in specs:
            for spec in group:
                while not all(accepts(Network(), host, port) for port in spec.ready_ports):
                    time.sleep(0.02)
        for process in [start(trainer) for _, _, trainer in specs]:
            assert process.wait() == 0
        wall = time.monotonic() - began
        for process in servers:
            process.terminate()
            process.wait()
        return wall


def start(spec: ProcessSpec) -> subprocess.Popen[bytes]:
    binary = next(
        Path(folder) / spec.argv[0]
        for folder in spec.env["PATH"].split(":")
        if (Path(folder) / spec.argv[0]).exists()
    )
    with spec.log.open("ab") as log:
        return subprocess.Popen(
            [str(binary), *spec.argv[1:]],
            env=dict(spec.env),
            cwd=spec.cwd,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def main() -> int:
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(ROUNDS):
            theirs.append(by_hand(Path(folder) / f"hand-{n}"))
            ours.append(launched(Path(folder) / f"launched-{n}"))
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"launcher_overhead ratio={a / b:.3f} ours={a:.2f}s theirs={b:.2f}s")
    return int(a / b > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
