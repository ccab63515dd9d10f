"""The meeting of many launchers on loopback, and what it costs rank 0.

`python -m benchmarks.rendezvous` prints

- `rendezvous_<N>`: seconds from the first call of a launcher until each of the N holds the order to serve, at
  most 10 for 1,000. `theirs` is how long N bare TCP connections take, one exchange of the same size on each.
- `rendezvous_cpu_<N>`: rank 0's processor seconds a second while all train; `theirs` of one core.
- `rendezvous_api_requests`: requests of one pod at an API server with `rendezvous: api`, while rank 0's pod
  starts late and is replaced; `theirs` is the budget of 3.

Rank 0 is the product's launcher with all that it does (the lease, the plan, the books, `status.json`) and the
product's times; its own children are stand-ins. The other launchers are simulated, as many as fit in two
processes, but speak as the product's link does: a state when the last answer came, kept connections, and a
new state of its own for each phase.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from benchmarks._lines import say  # noqa: E402
from launcher.gang.finding import credential  # noqa: E402
from launcher.gang.messages import Order, State  # noqa: E402
from launcher.gang.rank0 import Rank0  # noqa: E402
from launcher.layout import Output  # noqa: E402
from launcher.settings import TrainSettings  # noqa: E402
from launcher.storage.lock import holder_at  # noqa: E402
from launcher.timings import Timings  # noqa: E402
from tests.launcher.core.kit import LoopbackGang, environ  # noqa: E402
from tests.launcher.core.test_kubernetes import Server, pod  # noqa: E402

SIZES = (10, 100, 1000)
LIMIT_SECONDS, LIMIT_REQUESTS = 10.0, 3.0
DEADLINE, STEADY = 120.0, 10.0
PROCESSES = 2
TICK = os.sysconf("SC_CLK_TCK")
PHASES = {"wait": "idle", "serve": "ready", "train": "training", "finish": "ended", "stop": "idle"}
"""What a simulated launcher does of each order, at once."""
STAND_IN = """
import os, socket, sys, time
options = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[2:])
if "help" in options:
    print("-nics -port -ports_num -ports_num_for_sparse")
    sys.exit(1)
if sys.argv[1] == "pserver":
    last = int(options["ports_num"]) + int(options["ports_num_for_sparse"])
    ports = range(int(options["port"]), int(options["port"]) + last)
    kept = [socket.create_server((os.environ["PADDLE_LAUNCHER_POD_IP"], port)) for port in ports]
else:
    print("Pass=0", flush=True)
time.sleep(3600)
"""
"""Rank 0's own children: they serve and train nothing."""


class Launcher:
    """One simulated rank: the protocol of `launcher.gang.control.Link`, without a thread of its own."""

    def __init__(self, rank: int, address: tuple[str, int], token: str, print_: dict[str, Any]) -> None:
        self.rank, self.address, self.token, self.print = rank, address, token, print_
        self.incarnation = os.urandom(16).hex()
        self.phase, self.attempt, self.seen, self.batch = "staging", -1, 0, 0
        self.began = self.serves = 0.0

    def request(self) -> bytes:
        """Its whole state, as it is sent."""
        self.batch += 1
        progress = {
            **{"pass": 0, "batch": self.batch, "batches": 1000, "samples_per_second": 1234.5, "loss": 0.5},
            **{"state": "training", "saved": None, "marks": dict.fromkeys(("met", "loaded"), time.time())},
        }
        state = State(
            self.rank,
            self.incarnation,
            self.phase,
            self.attempt,
            None,
            f"127.1.{self.rank // 250}.{self.rank % 250 + 2}",
            f"job-{self.rank}-x",
            f"node-{self.rank}",
            self.print if self.phase != "staging" else None,
            progress if self.phase == "training" else {},
        )
        body = json.dumps({"state": state.to_json(time.monotonic()), "seen": self.seen}).encode()
        head = (
            f"POST /state HTTP/1.1\r\nHost: {self.address[0]}\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def live(self) -> None:
        """Asks for ever; raises what goes wrong."""
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
                raise RuntimeError(f"rank {self.rank}: {answer}")
            if answer["version"] == self.seen:
                continue
            self.seen, order = answer["version"], Order.from_json(answer["order"])
            if order.do == "serve" and not self.serves:
                self.serves = time.monotonic()
            if order.do == "end":
                return
            self.phase = PHASES[order.do]
            self.attempt = order.attempt if order.do != "wait" else self.attempt


async def simulate(launchers: list[Launcher]) -> None:
    """All of them until rank 0 ends; says when the first began and the last held the order to serve."""
    tasks = [asyncio.create_task(launcher.live()) for launcher in launchers]
    while not all(launcher.serves for launcher in launchers):
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.02)
    print(min(one.began for one in launchers), max(one.serves for one in launchers), flush=True)
    await asyncio.gather(*tasks, return_exceptions=True)  # it just goes away, which is no failure here


def clients(given: str) -> None:
    """One process of simulated launchers."""
    told = json.loads(given)
    rest = tuple(told["address"]), told["token"], told["fingerprint"]
    asyncio.run(simulate([Launcher(rank, *rest) for rank in range(*told["ranks"])]))


def cpu(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory(pid: int) -> float:
    """Its greatest resident memory so far, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def measure(size: int, folder: Path) -> tuple[float, float, float]:
    """(seconds to meet, rank 0's processor seconds a second, its MB)."""
    with LoopbackGang(
        folder,
        trainers=size,
        timings=asdict(Timings()),
        PADDLE_LAUNCHER_RENDEZVOUS_SECONDS=str(int(DEADLINE)),
    ) as gang:
        (gang.folder / "bin" / "paddle").write_text(f"#!{sys.executable} -S\n{STAND_IN}")
        pid = gang.start(0).processes[0].pid
        output = Output(gang.output)
        gang.until(output.run_json.exists, 30)
        settings = TrainSettings.from_environ(gang.config(1)["environ"])
        told = {
            "address": (gang.addresses[0], settings.peer_port),
            "token": credential(settings, holder_at(output.lock)["token"]),
            "fingerprint": gang.json("run.json")["fingerprint"],
        }
        edges = [1 + (size - 1) * n // PROCESSES for n in range(PROCESSES + 1)]
        command = [sys.executable, "-m", "benchmarks.rendezvous"]
        crowd = [
            subprocess.Popen(
                [*command, json.dumps({**told, "ranks": ranks})],
                cwd=REPO,
                env={**os.environ, "GANG_MARK": gang.mark},  # the gang's end is theirs
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
        gang.until(lambda: "Pass=" in gang.said(0), 60)
        time.sleep(3)
        before = cpu(pid), time.monotonic()
        time.sleep(STEADY)
        used = (cpu(pid) - before[0]) / (time.monotonic() - before[1])
        found = met, used, memory(pid)
    for process in crowd:
        process.communicate(timeout=30)
    return found


def bare(size: int) -> float:
    """Seconds for so many connections, opened and answered once, with one thread a connection as here."""
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


def requests(folder: Path, pods: int = 20) -> float:
    """Requests a pod at an API server, over a life in which rank 0's pod starts late and is replaced."""
    server = Server(folder)
    server.pods = [pod("first", None, phase="Pending", made="1")]
    server.changes = [
        {"type": "MODIFIED", "object": pod("first", "10.0.0.2", made="1")},
        {"type": "MODIFIED", "object": pod("first", "10.0.0.2", deleting=True, made="1")},
        {"type": "ADDED", "object": pod("second", "10.0.0.3", made="2")},
    ]
    server.hangs.set()
    settings = TrainSettings.from_environ(environ(PADDLE_LAUNCHER_RENDEZVOUS="api"))
    finders = [Rank0(settings, server.api()) for _ in range(pods)]
    deadline = time.monotonic() + 30

    def found(finder: Rank0) -> bool:
        try:
            return finder.address() == "10.0.0.3"
        except OSError:
            return False

    while not all(map(found, finders)):
        if time.monotonic() > deadline:
            sys.exit("rendezvous: api did not find rank 0's second pod")
        time.sleep(0.05)
    count = len(server.queries) / pods
    for finder in finders:
        finder.close()
    server.close()
    return count


def main() -> int:
    """Prints the lines; returns how many limits were missed."""
    kept = []
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="rendezvous-") as name:
            met, used, mb = measure(size, Path(name))
        kept.append(say(f"rendezvous_{size}", met, bare(size), limit=LIMIT_SECONDS if size == 1000 else None))
        say(f"rendezvous_cpu_{size}", used, 1.0)
        print(f"# rank 0 had at most {mb:.0f} MB; load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rendezvous-") as name:
        kept.append(say("rendezvous_api_requests", requests(Path(name)), 3.0, "", limit=LIMIT_REQUESTS))
    return kept.count(False)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        clients(sys.argv[1])
    else:
        sys.exit(main())
