"""PaddlePaddle 2.6.2's parameter server, and what its modes lack in a loop of single steps.

async  gradients are pushed by operators of the program; nobody pulls dense parameters again: done here.
sync   the program's send_barrier operator dereferences a communicator that is only made for geo: it is taken
       out, and each step waits for all trainers and for the servers' own barrier table instead.
geo    each trainer has all parameters and exchanges differences every `geo_steps` steps.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import paddle
from paddle.base import core
from paddle.distributed import fleet

from launcher.errors import DeadlineError, SettingsError, setting
from launcher.layout import Output
from launcher.worker import outputs
from launcher.worker.graph import Graph
from launcher.worker.network import begin
from launcher.worker.parts import shards, suits
from launcher.worker.program import Program
from launcher.worker.settings import WorkerSettings

MEET_SECONDS = 600  # all trainers have met, and all servers listen; the launchers' rendezvous is over by then
SPEAK_SECONDS = 3600  # the longest that one trainer may take between two barriers (a large save)


class Role(fleet.PaddleCloudRoleMaker):  # type: ignore[misc]
    """Paddle's own contract of environment variables, but gloo over the launcher's meeting place."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        super().__init__(is_collective=False)

    def _gloo_init(self) -> None:
        if not self._is_worker():
            return  # pservers take no part in the trainers' barriers
        place = (self._settings.store_host, self._settings.store_port)
        await_ports([place], "the trainers' meeting place on rank 0")
        address = socket.gethostbyname(self._settings.store_host)  # gloo's own client takes no names
        gloo = core.Gloo()
        gloo.set_rank(self._role_id())
        gloo.set_size(self._worker_num())
        gloo.set_prefix(f"attempt-{self._settings.attempt}")
        gloo.set_iface(self._settings.nic)
        gloo.set_timeout_seconds(MEET_SECONDS, SPEAK_SECONDS)
        gloo.set_http_store(address, self._settings.store_port, "worker")
        gloo.init()
        self._gloo._worker_comm = gloo
        self._gloo._is_initialized = True


def await_ports(addresses: list[tuple[str, int]], what: str) -> None:
    """Returns when all accept connections. Raises `DeadlineError` that names those that do not."""
    deadline = time.monotonic() + MEET_SECONDS
    waiting = addresses
    while waiting := [a for a in waiting if not _accepts(*a)]:
        if time.monotonic() > deadline:
            missing = ", ".join(f"{host}:{port}" for host, port in waiting)
            raise DeadlineError(f"waited {MEET_SECONDS} s for {what}, but nothing listens on {missing}")
        time.sleep(0.05)


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


class Session(Graph):
    """One process' part in the parameter server."""

    def __init__(self, settings: WorkerSettings, program: Program) -> None:
        self.settings = settings
        begin(int(program.worker_options["seed"]))
        self.role = Role(settings)
        super().__init__(
            program,
            self.role,
            mode=settings.mode,
            batch_size=settings.batch_size,
            delta_saves=settings.delta_saves,
            shards=self._shards(),
        )

    def _shards(self) -> int:
        """Those of the save to resume: its files have the rows by shard. Raises `SettingsError`."""
        servers = len(self.servers)
        at = self.settings.resume
        if at is None:
            return shards(servers)
        folder = Output(self.settings.output_dir).save(at)
        found = int(outputs.contents(folder)["shards"])
        if not suits(found, servers) and self.settings.mode != "geo":
            fit = [n for n in range(max(1, servers - 20), min(found, servers + 20) + 1) if suits(found, n)]
            raise SettingsError(
                setting(
                    "the number of pservers (portsNum x trainers)",
                    servers,
                    "such as " + " or ".join(map(str, sorted(fit, key=lambda n: abs(n - servers))[:2])),
                    f"{folder.name} has each table in {found} parts, dealt out {-(-found // servers)} a "
                    "pserver, and one would have none",
                    "Set another portsNum, or a new runId with training.initFrom",
                )
            )
        return found

    @property
    def servers(self) -> list[tuple[str, int]]:
        """Host and port of every pserver of the job."""
        pairs = (e.rsplit(":", 1) for e in os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(","))
        return [(host, int(port)) for host, port in pairs]

    @property
    def own_servers(self) -> range:
        """The numbers, among all of the job, of the pservers of this rank's pod."""
        each = len(self.servers) // self.settings.trainers
        return range(self.settings.rank * each, (self.settings.rank + 1) * each)

    def serve(self) -> None:
        """A pserver's life: returns when trainer 0 stops the servers."""
        if self.mode == "geo":
            self._open_barrier()
        with paddle.static.program_guard(self.network.main, self.network.startup):
            fleet.init_server()
            number = self.own_servers[self.settings.server]
            host, port = self.servers[number]
            print(f"pserver {number + 1} of {len(self.servers)} serves on {host}:{port}", flush=True)  # noqa: T201 (the process' log)
            fleet.run_server()

    @staticmethod
    def _open_barrier() -> None:
        """Lets everybody through the server's barrier at once: the trainers wait for each other in `join`.

        Geo's start passes it once for the dense parameters and once for each table. Two passes in a row can
        hang: a trainer that is already at the second one closes it before another woke up at the first. A
        start on a busy machine was seen to stay there for ever.
        """
        from paddle.distributed.ps import the_one_ps

        described = the_one_ps.BarrierTable._set

        def alone(table: Any, description: Any) -> None:
            described(table, description)
            description.common.trainer_num = 1

        the_one_ps.BarrierTable._set = alone
