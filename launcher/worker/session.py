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
from launcher.worker import limits, outputs
from launcher.worker.network import Network, begin, build
from launcher.worker.parts import shards, suits
from launcher.worker.program import Program
from launcher.worker.rules import Rule
from launcher.worker.settings import WorkerSettings

MEET_SECONDS = 600  # all trainers have met, and all servers listen; the launchers' rendezvous is over by then
MODES = (WHOLE, COUNTING) = (0, 3)
"""Of a save: all rows; and after it each row has been unseen for one save more."""
DELTAS = (DELTA, BASE) = (1, 2)
"""Of a save with `training.deltaSaves`: rows that were pushed since the last of these two; all rows."""
COMPRESSION = ("gzip -1", "gzip -dc")
"""What a table's files go through. A row of width 16 with Adam's state takes 613 bytes as text, 263 at level
1 for 8 CPU s a million rows, 225 at Paddle's own level 6 for 40 s."""
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


class Session:
    """One process' part in the parameter server."""

    def __init__(self, settings: WorkerSettings, program: Program) -> None:
        self.settings = settings
        self.mode = settings.mode
        begin(int(program.worker_options["seed"]))
        limit = limits.lift()
        self.role = Role(settings)
        self.shards = self._shards()
        """Of each table."""
        self.network: Network = build(program, "copied" if self.mode == "geo" else "remote")
        limits.check(self.network, settings.batch_size, self.mode, limit)
        self._check_deltas()
        fleet.init(self.role)
        with program.calling("optimizer()"):
            optimizer = program.module.optimizer(program.job)
        if type(optimizer) not in (paddle.optimizer.Adam, paddle.optimizer.SGD):
            raise SettingsError(
                f"optimizer() of the program {program.path} gave {type(optimizer).__name__}, but must give "
                "paddle.optimizer.Adam or SGD: Paddle 2.6.2's servers know no other for dense parameters. "
                "Take one of them; a table can have its own (embedding's optimizer=…)."
            )
        with program.calling("optimizer()"):
            self.rule = Rule.of(optimizer)  # of dense parameters, and of tables that have none of their own
        self.rules = {table.name: table.rule or self.rule for table in self.network.tables}
        if self.mode != "geo":
            self._describe_tables()
        with paddle.static.program_guard(self.network.main, self.network.startup):
            fleet.distributed_optimizer(optimizer, self._strategy(program)).minimize(
                self.network.loss, self.network.startup
            )
            # Paddle does not change the program, it puts another in its place.
            self.network.main = paddle.static.default_main_program()
            self.network.startup = paddle.static.default_startup_program()

    def _strategy(self, program: Program) -> Any:
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = self.mode != "sync"
        configs: dict[str, Any] = {
            "launch_barrier": False
        }  # Paddle polls every 3 s; await_ports() has waited by then
        if self.mode == "geo":
            configs["k_steps"] = int(program.worker_options["geo_steps"])
        strategy.a_sync_configs = configs
        if self.mode != "geo":
            for table in self.network.tables:
                config = strategy.sparse_table_configs.add()
                config.table_name = table.name
                config.table_class = "MemorySparseTable"
                config.shard_num = self.shards
        return strategy

    def _check_deltas(self) -> None:
        """Raises `SettingsError` for a table that forgets rows: a delta cannot say so."""
        evicting = [table.name for table in self.network.tables if table.evict is not None]
        if evicting and self.settings.delta_saves:
            raise SettingsError(
                setting(
                    "training.deltaSaves (PADDLE_LAUNCHER_DELTA_SAVES)",
                    self.settings.delta_saves,
                    "0 with a table that has evict",
                    f"the table {', '.join(evicting)} of the program forgets rows, and a save of "
                    "what changed would bring them back",
                    "Leave training.deltaSaves out, or evict",
                )
            )

    def _describe_tables(self) -> None:
        """Each table has the optimizer that the program says, its own admission and eviction; COMPRESSION."""
        from paddle.distributed.ps import the_one_ps

        described = the_one_ps.SparseTable._set

        def whole(of: Any, description: Any) -> None:
            described(of, description)
            table = next((t for t in self.network.tables if t.name == description.common.table_name), None)
            if table is None:
                return
            accessor = description.accessor
            for part in (accessor.embed_sgd_param, accessor.embedx_sgd_param):
                self.rules[table.name].describe(part, table.spread)
            counting = accessor.ctr_accessor_param
            counting.zero_init = False  # w[0] begins by chance too
            counting.nonclk_coeff = 1.0  # an appearance is one; Paddle's default is a tenth
            accessor.embedx_threshold = table.admit if table.admit > 1 else 0
            if table.evict is not None:
                counting.delete_after_unseen_days = table.evict - 1  # more than so many
            if self.settings.delta_saves:
                counting.base_threshold = 0.0
                counting.delta_threshold = 0.5  # a push counts at least 1; 0 would write every row
                counting.delta_keep_days = float(1 << 30)
            description.compress_in_save = False
            for mode in (*MODES, *DELTAS) if self.settings.delta_saves else MODES:
                way = accessor.table_accessor_save_param.add()
                way.param = mode
                way.converter, way.deconverter = COMPRESSION

        the_one_ps.SparseTable._set = whole

    def _shards(self) -> int:
        """Those of the save to resume: its files have the rows by shard. Raises `SettingsError`."""
        servers = len(self.servers)
        at = self.settings.resume
        if at is None:
            return shards(servers)
        folder = Output(self.settings.output_dir).save(at)
        found = int(outputs.contents(folder)["shards"])
        if not suits(found, servers) and self.mode != "geo":
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
