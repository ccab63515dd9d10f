"""The network of pservers and trainers, built as PaddlePaddle's parameter server trains it; no communication.

`Session` builds upon it on a cluster. `launcher/worker/check.py` builds the same on a user's machine.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import paddle
from paddle.distributed import fleet

from launcher.errors import SettingsError, setting
from launcher.worker import limits
from launcher.worker.network import Network, build
from launcher.worker.program import Program
from launcher.worker.rules import Rule

MODES = (WHOLE, COUNTING) = (0, 3)
"""Of a save: all rows; and after it each row has been unseen for one save more."""
DELTAS = (DELTA, BASE) = (1, 2)
"""Of a save with `training.deltaSaves`: rows that were pushed since the last of these two; all rows."""
COMPRESSION = ("gzip -1", "gzip -dc")
"""What a table's files go through. A row of width 16 with Adam's state takes 613 bytes as text, 263 at level
1 for 8 CPU s a million rows, 225 at Paddle's own level 6 for 40 s."""


class Graph:
    """A program's network with the operators and tables that `training.mode` needs."""

    def __init__(
        self, program: Program, role: Any, *, mode: str, batch_size: int, delta_saves: int, shards: int
    ) -> None:
        """Build the network, after `launcher.worker.network.begin`.

        Args:
            program: the user's program.
            role: one of Paddle's role makers.
            mode: async, sync or geo.
            batch_size: rows of a batch.
            delta_saves: the most deltas after a full checkpoint; 0: all checkpoints are full.
            shards: files of each table in a checkpoint, over all servers.

        Raises:
            SettingsError: the program cannot be trained by Paddle's servers.
        """
        self.mode, self.shards, self._delta_saves = mode, shards, delta_saves
        limit = limits.lift()
        self.network: Network = build(program, "copied" if mode == "geo" else "remote")
        limits.check(self.network, batch_size, mode, limit)
        self._check_deltas()
        fleet.init(role)
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
        if mode != "geo":
            self._describe_tables()
        guard = paddle.static.program_guard(self.network.main, self.network.startup)
        quiet = contextlib.redirect_stdout(io.StringIO())  # Paddle prints twenty lines on its tables
        with guard, quiet, program.calling("training of network()"):
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
        if evicting and self._delta_saves:
            raise SettingsError(
                setting(
                    "training.deltaSaves (PADDLE_LAUNCHER_DELTA_SAVES)",
                    self._delta_saves,
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
            if self._delta_saves:
                counting.base_threshold = 0.0
                counting.delta_threshold = 0.5  # a push counts at least 1; 0 would write every row
                counting.delta_keep_days = float(1 << 30)
            description.compress_in_save = False
            for mode in (*MODES, *DELTAS) if self._delta_saves else MODES:
                way = accessor.table_accessor_save_param.add()
                way.param = mode
                way.converter, way.deconverter = COMPRESSION

        the_one_ps.SparseTable._set = whole
