"""Start a pserver or a trainer with PaddlePaddle 2.6.2's library fleet: its addresses, its network, its barriers.

Paddle's training modes are incomplete when a program is run one batch (step) at a time; `pserver_client` adds
what is missing:

- async: operators of the program push the gradients to the servers, but nothing pulls the dense parameters
  (all except embedding tables) from them again.
- sync: the program's operator send_barrier dereferences a communicator that does not exist in this mode. It is
  removed, and each step waits for all trainers and for the servers' barrier table.
"""

from __future__ import annotations

import os
import socket
import time

import paddle
from paddle.base import core
from paddle.distributed import fleet

from launcher.errors import DeadlineError, setting_error
from launcher.paths import OutputPaths
from launcher.trainer.checkpoint import contents_file
from launcher.trainer.checkpoint.table_files import (
    choose_shard_count,
    every_server_has_shards,
    usable_ports_nums,
)
from launcher.trainer.graph.network_builder import prepare_paddle
from launcher.trainer.graph.training_graph import TrainingGraph
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.program_loader import TrainingProgram

CONNECT_SECONDS = 600  # until all pservers listen and all trainers have joined, after the rendezvous
BARRIER_SECONDS = 3600  # longest time of one trainer between two barriers, such as for a large checkpoint


class GlooRoleMaker(fleet.PaddleCloudRoleMaker):  # type: ignore[misc]
    """Gives Paddle this process' role and addresses from environment variables.

    gloo, the library with which trainers exchange values, finds their addresses through the key-value store of
    rank 0's launcher (supervisor/peers/trainer_store.py).
    """

    def __init__(self, settings: ProcessSettings) -> None:
        self._settings = settings
        super().__init__(is_collective=False)

    def _gloo_init(self) -> None:
        if not self._is_worker():
            return  # pservers do not join the trainers' barriers
        address = socket.gethostbyname(self._settings.hosts[0])  # gloo's client resolves no names
        gloo = core.Gloo()
        gloo.set_rank(self._role_id())
        gloo.set_size(self._worker_num())
        gloo.set_prefix(self._settings.store.removeprefix("/"))  # gloo sends /<prefix>_<scope>/<rank>
        gloo.set_iface(self._settings.nic)
        gloo.set_timeout_seconds(CONNECT_SECONDS, BARRIER_SECONDS)
        gloo.set_http_store(address, self._settings.peer_port, "gloo")
        gloo.init()
        self._gloo._worker_comm = gloo
        self._gloo._is_initialized = True


def await_ports(addresses: list[tuple[str, int]], what: str) -> None:
    """Wait until all addresses (host, port) accept connections.

    Raises:
        DeadlineError: some addresses do not accept after CONNECT_SECONDS; the message lists them.
    """
    deadline = time.monotonic() + CONNECT_SECONDS
    waiting = addresses
    while waiting := [a for a in waiting if not _accepts(*a)]:
        if time.monotonic() > deadline:
            missing = ", ".join(f"{host}:{port}" for host, port in waiting)
            raise DeadlineError(
                f"waited {CONNECT_SECONDS} s for {what}, but nothing listens on {missing}. Fix: see "
                "server.log of those ranks: python -m launcher logs --role pserver"
            )
        time.sleep(0.05)


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


class FleetProcess(TrainingGraph):
    """Builds the program's network for the role of this process, pserver or trainer, and serves as a pserver."""

    def __init__(self, settings: ProcessSettings, program: TrainingProgram) -> None:
        self.settings = settings
        prepare_paddle(int(program.common_options["seed"]))
        self.role = GlooRoleMaker(settings)
        super().__init__(
            program,
            self.role,
            mode=settings.mode,
            batch_size=settings.batch_size,
            incremental_checkpoints=settings.incremental_checkpoints,
            shards=self._shards(),
        )

    def _shards(self) -> int:
        """Return the number of shards of each table: as in the checkpoint to resume from, else a new number.

        Each pserver holds some shards of every table, and a checkpoint has one file per table and shard.

        Raises:
            SettingsError: there are so many pservers that one would get no shard.
        """
        servers = len(self.servers)
        at = self.settings.resume
        if at is None:
            return choose_shard_count(servers)
        folder = OutputPaths(self.settings.output_dir).checkpoint(at)
        found = contents_file.read_contents(folder).shards
        if not every_server_has_shards(found, servers):
            ports = servers // self.settings.trainers
            fit = usable_ports_nums(found, self.settings.trainers)
            nearest = " or ".join(map(str, sorted(fit, key=lambda n: abs(n - ports))[:2]))
            raise setting_error(
                "portsNum",
                ports,
                nearest,
                f"the checkpoint {folder.name} has {found} shards of each table, and with {servers} pservers "
                "(portsNum x trainers) one would have none",
                f"Set portsNum to {nearest}",
            )
        return found

    @property
    def servers(self) -> list[tuple[str, int]]:
        """Return (host, port) of every pserver of the job, in the same order in all processes."""
        pairs = (e.rsplit(":", 1) for e in os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(","))
        return [(host, int(port)) for host, port in pairs]

    @property
    def own_servers(self) -> range:
        """Return the indexes in `servers` of the pservers that run in this rank's pod."""
        each = len(self.servers) // self.settings.trainers
        return range(self.settings.rank * each, (self.settings.rank + 1) * each)

    def serve(self) -> None:
        """Run this process as a pserver; return when trainer 0 stops the servers."""
        with paddle.static.program_guard(self.network.main, self.network.startup):
            fleet.init_server()
            number = self.own_servers[self.settings.server]
            host, port = self.servers[number]
            shown = f"pserver {number + 1} of {len(self.servers)} serves on {host}:{port}"
            print(shown, flush=True)  # noqa: T201 - this is the process' log
            fleet.run_server()
