"""Measure the rendezvous of many launchers on loopback: duration, CPU time of rank 0, and API requests.

`python -m benchmarks.rendezvous` prints

- `rendezvous_<N>`: seconds from the first request of a launcher until all N have received rank 0's
  instruction to start their pservers (`serve`), at most 10 for 1,000. `theirs` is the time of N plain TCP
  connections with one exchange of the same size on each.
- `rendezvous_cpu_<N>`: rank 0's CPU seconds per second while all train, compared with one core.
- `rendezvous_api_requests`: requests of one pod at an API server with `rendezvous: api`, while rank 0's pod
  starts late and is replaced; `theirs` is the budget of 3.

Rank 0 is the real launcher with all its work (output lease, plan of attempts, `run.json`, `status.json`) and
its real intervals; its child processes are substitutes. The other launchers are simulated in two processes.
They follow the protocol of the real launcher: they keep their connection, send their state after each answer
of rank 0, and report a new state for each phase.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks._processes import cpu_seconds, peak_megabytes
from benchmarks._result_lines import print_ratio
from launcher.paths import Position
from launcher.schema import TrainerProgress, from_json
from launcher.settings import TrainSettings
from launcher.supervisor.peers.coordinator_link import Rank0PodWatch
from launcher.supervisor.peers.messages import Action, MemberState, Phase, Plan
from launcher.supervisor.shared_storage.output_lease import build_credential
from local.paths import CLONE
from testkit.fake_api_server import FakeApiServer, make_pod
from testkit.stand_in_gang import StandInGang
from testkit.waiting import until

SIZES = (10, 100, 1000)
LIMIT_SECONDS, LIMIT_REQUESTS = 10.0, 3.0
DEADLINE, STEADY = 120.0, 10.0
PROCESSES = 2
PHASES = {
    Action.WAIT: Phase.IDLE,
    Action.SERVE: Phase.READY,
    Action.TRAIN: Phase.TRAINING,
    Action.FINISH: Phase.ENDED,
    Action.STOP: Phase.IDLE,
}
"""Instruction of rank 0 -> the phase that a simulated launcher reports immediately afterwards."""


class Launcher:
    """One simulated rank: the protocol of `CoordinatorLink` (launcher.supervisor.peers) without a thread."""

    def __init__(self, rank: int, address: tuple[str, int], token: str, print_: dict[str, Any]) -> None:
        self.rank, self.address, self.token, self.print = rank, address, token, print_
        self.incarnation = os.urandom(16).hex()
        self.phase, self.attempt, self.seen, self.batch = Phase.STAGING, -1, 0, 0
        self.began = self.serves = 0.0

    def request(self) -> bytes:
        """Return the bytes of an HTTP request POST /state with the rank's complete state."""
        self.batch += 1
        marks = dict.fromkeys(("joined", "loaded"), time.time())
        progress = TrainerProgress(0, self.batch, 1000, 1234.5, 0.5, "training", Position(0), marks=marks)
        state = MemberState(
            self.rank,
            self.incarnation,
            self.phase,
            self.attempt,
            None,
            f"127.1.{self.rank // 250}.{self.rank % 250 + 2}",
            f"job-{self.rank}-x",
            f"node-{self.rank}",
            self.print if self.phase != Phase.STAGING else None,
            progress if self.phase == Phase.TRAINING else TrainerProgress(),
        )
        body = json.dumps({"state": state.to_json(time.monotonic()), "seen": self.seen}).encode()
        head = (
            f"POST /state HTTP/1.1\r\nHost: {self.address[0]}\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def live(self) -> None:
        """Send this rank's state and read rank 0's instruction until it is `end`; raise for a rejected request."""
        self.began = time.monotonic()
        reader, writer = await asyncio.open_connection(*self.address)
        while True:
            writer.write(self.request())
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(
                int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
            )
            answer = json.loads(await reader.readexactly(size))
            if b" 200 " not in head.partition(b"\r\n")[0]:
                status = head.partition(b"\r\n")[0].decode()
                raise RuntimeError(
                    f"rank 0 rejected the request of simulated rank {self.rank} ({status}): {answer}. Fix: adapt "
                    "Launcher in benchmarks/rendezvous.py to launcher/supervisor/peers/coordinator_link.py"
                )
            if answer["version"] == self.seen:
                continue
            self.seen, order = answer["version"], from_json(Plan, answer["order"])
            if order.do == "serve" and not self.serves:
                self.serves = time.monotonic()
            if order.do == "end":
                return
            self.phase = PHASES[order.do]
            self.attempt = order.attempt if order.do != "wait" else self.attempt


async def simulate(launchers: list[Launcher]) -> None:
    """Run these launchers until rank 0 exits.

    Prints two monotonic times: of the first request, and when the last launcher was instructed to serve.
    """
    tasks = [asyncio.create_task(launcher.live()) for launcher in launchers]
    while not all(launcher.serves for launcher in launchers):
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.02)
    print(min(one.began for one in launchers), max(one.serves for one in launchers), flush=True)
    await asyncio.gather(*tasks, return_exceptions=True)  # it just goes away, which is no failure here


def clients(given: str) -> None:
    """Run the simulated launchers that the JSON text `given` describes, in this process."""
    parameters = json.loads(given)
    rest = tuple(parameters["address"]), parameters["credential"], parameters["fingerprint"]
    asyncio.run(simulate([Launcher(rank, *rest) for rank in range(*parameters["ranks"])]))


def measure(size: int, folder: Path) -> tuple[float, float, float]:
    """Return (seconds until all ranks have joined, rank 0's CPU seconds per second, its memory in MB)."""
    waits = {"rendezvousSeconds": int(DEADLINE)}
    with StandInGang(folder, size, **waits) as gang:
        pid = gang.start(0).processes[0].pid
        until(gang.output.run_json.exists, "run.json", 30)
        settings = TrainSettings.from_environ({**gang.environ, "JOB_COMPLETION_INDEX": "1"})
        parameters = {
            "address": (gang.addresses[0], settings.peer_port),
            "credential": build_credential(settings, settings.layout.run_secret.read_text()),
            "fingerprint": json.loads(gang.output.run_json.read_text())["fingerprint"],
        }
        edges = [1 + (size - 1) * n // PROCESSES for n in range(PROCESSES + 1)]
        command = [sys.executable, "-m", "benchmarks.rendezvous"]
        crowd = [
            subprocess.Popen(
                [*command, json.dumps({**parameters, "ranks": ranks})],
                cwd=CLONE,
                # by which the gang's end stops them too
                env={**os.environ, "PADDLE_LAUNCHER_WORK_DIR": str(gang.work_dir(size))},
                stdout=subprocess.PIPE,
                text=True,
            )
            for ranks in itertools.pairwise(edges)
        ]
        times = []
        for process in crowd:
            assert process.stdout is not None
            times.append([float(word) for word in process.stdout.readline().split()])
        met = max(t[1] for t in times) - min(t[0] for t in times)
        until(lambda: "Pass=" in gang.trainer_log(0), "rank 0's first pass", 60)
        time.sleep(3)
        before = cpu_seconds(pid), time.monotonic()
        time.sleep(STEADY)
        used = (cpu_seconds(pid) - before[0]) / (time.monotonic() - before[1])
        found = met, used, peak_megabytes(pid)
    for process in crowd:
        process.communicate(timeout=30)
    return found


def time_plain_connections(size: int) -> float:
    """Return the seconds for `size` connections, each opened and answered once, with a thread for each."""
    body = b"x" * 1000

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(1 << 16)
            connection.sendall(body)

    def serve(listener: socket.socket) -> None:
        for _ in range(size):
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    async def ask(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(body)
        await reader.read()
        writer.close()

    async def ask_all(port: int) -> None:
        await asyncio.gather(*(ask(port) for _ in range(size)))

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        began = time.monotonic()
        asyncio.run(ask_all(listener.getsockname()[1]))
        return time.monotonic() - began


def count_api_requests(folder: Path, pods: int = 20) -> float:
    """Return the requests per pod to an API server, if rank 0's pod starts late and is replaced."""
    server = FakeApiServer(folder)
    server.pods = [make_pod("first", None, phase="Pending", made="1")]
    server.changes = [
        {"type": "MODIFIED", "object": make_pod("first", "10.0.0.2", made="1")},
        {"type": "MODIFIED", "object": make_pod("first", "10.0.0.2", deleting=True, made="1")},
        {"type": "ADDED", "object": make_pod("second", "10.0.0.3", made="2")},
    ]
    server.hangs.set()
    gang = StandInGang(folder, pods, rendezvous="api")
    settings = TrainSettings.from_environ({**gang.environ, "JOB_COMPLETION_INDEX": "1"})
    finders = [Rank0PodWatch(settings, server.api()) for _ in range(pods)]
    deadline = time.monotonic() + 30

    def found(finder: Rank0PodWatch) -> bool:
        try:
            return finder.find_address() == "10.0.0.3"
        except OSError:
            return False

    while not all(map(found, finders)):
        if time.monotonic() > deadline:
            sys.exit("rendezvous: api: not all pods found the second pod of rank 0 within 30 s")
        time.sleep(0.05)
    count = len(server.queries) / pods
    for finder in finders:
        finder.close()
    server.close()
    return count


def main() -> int:
    """Run the benchmark and print its result lines; return how many limits were exceeded."""
    kept = []
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="rendezvous-") as name:
            met, used, mb = measure(size, Path(name))
        kept.append(
            print_ratio(
                f"rendezvous_{size}",
                met,
                time_plain_connections(size),
                limit=LIMIT_SECONDS if size == 1000 else None,
            )
        )
        print_ratio(f"rendezvous_cpu_{size}", used, 1.0)
        print(f"# rank 0 had at most {mb:.0f} MB", flush=True)
    with tempfile.TemporaryDirectory(prefix="rendezvous-") as name:
        kept.append(
            print_ratio(
                "rendezvous_api_requests", count_api_requests(Path(name)), 3.0, "", limit=LIMIT_REQUESTS
            )
        )
    return kept.count(False)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        clients(sys.argv[1])
    else:
        sys.exit(main())
