"""Build the training graph of pservers and trainers with PaddlePaddle's fleet, without any communication.

`FleetProcess` adds the communication. `launcher/trainer/single_process/single_process_trainer.py` builds the same
graph on a user's machine, to check a program.

brpc, Paddle's network library, drops a message that is too long. The receiver only logs it, and Paddle
continues as if nothing had happened. The limit of 64 MiB is compiled in: some 66,000 ids of width 16 per
batch and server. No function of Paddle sets the limit, so it is set in the memory of trainers and servers, to
brpc's maximum. `push_each_gradient` sets another flag in the same way.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import paddle
from paddle.distributed import fleet

from launcher.errors import setting_error
from launcher.settings import TrainSettings
from launcher.trainer.graph.network_builder import BuiltNetwork, build_network
from launcher.trainer.graph.table_optimizers import OptimizerRule
from launcher.trainer.program_loader import TrainingProgram

MODES = (WHOLE, COUNTING) = (0, 3)
"""Paddle's modes of a full save: write all rows; the same, and count one more save for untrained rows."""
DELTAS = (DELTA, BASE) = (1, 2)
"""Paddle's modes of a save with training.incrementalCheckpoints: rows that were pushed since the last save in
one of these modes; all rows."""
COMPRESSION = ("gzip -1", "gzip -dc")
"""Shell commands through which servers write and read a table's files. A row of width 16 with Adam's state
takes 613 bytes as text; 263 at level 1, for 8 CPU seconds per million rows; 225 at Paddle's own level 6, for
40 s."""
DEFAULT_BYTES = 64 << 20
MAX_BYTES = (1 << 31) - 1
MERGED = 12  # async sends the gradients of so many batches in one message (pserver_push_sparse_merge_limit)
_PADDLE_FLAGS = "_ZN6paddle11distributed12paddle_flags"
_MERGE_LIMITS = (
    f"{_PADDLE_FLAGS}36FLAGS_pserver_push_dense_merge_limitE",
    f"{_PADDLE_FLAGS}37FLAGS_pserver_push_sparse_merge_limitE",
)
_MAX_BODY_SIZE = "_ZN4brpc5fLU6419FLAGS_max_body_sizeE"


def _set(symbol: str, kind: type[ctypes.c_int32 | ctypes.c_uint64], value: int) -> bool:
    """Set the variable of Paddle's C++ library with this symbol, in the memory of this process.

    Return False if this build of Paddle does not export it.
    """
    library = Path(paddle.base.__file__).parent / "libpaddle.so"
    try:
        kind.in_dll(ctypes.CDLL(str(library), os.RTLD_NOLOAD | os.RTLD_NOW), symbol).value = value
    except (OSError, ValueError):
        return False
    return True


def push_each_gradient() -> None:
    """Let this trainer push each gradient at once, if that is possible. Call it before fleet.init_worker().

    By default Paddle merges the gradients of up to 12 batches, and pushes fewer only while `client_flush` runs.
    If the pushing thread is late then, as on a busy machine, the gradient stays here and counts for the next step.
    """
    for symbol in _MERGE_LIMITS:
        _set(symbol, ctypes.c_int32, 0)


def raise_limit(limit: int = MAX_BYTES) -> int:
    """Let this process send and receive messages of up to `limit` bytes; return the limit in bytes.

    If this build of Paddle does not export the variable with the limit, the 64 MiB stay and are returned.
    """
    return limit if _set(_MAX_BODY_SIZE, ctypes.c_uint64, limit) else DEFAULT_BYTES


def check_message_sizes(network: BuiltNetwork, batch_size: int, mode: str, limit: int) -> None:
    """Raise `SettingsError` if a message between a trainer and a server could be longer than `limit` bytes."""
    for table in network.tables:
        row = network.ids[table.name] * (8 + 4 * (table.width + 3)) * (MERGED if mode == "async" else 1)
        if batch_size * row > limit:
            raise setting_error(
                "training.batchSize (PADDLE_LAUNCHER_BATCH_SIZE)",
                batch_size,
                f"at most {limit // row}",
                f"with {network.ids[table.name]} ids per row in the table {table.name} of width "
                f"{table.width}, a message to a server could be longer than {limit} bytes",
                "Set a smaller training.batchSize, or use fewer ids per row in the program",
            )


class GraphSettings(NamedTuple):
    """Holds the settings that change the graph; `TrainSettings` has them too."""

    mode: str
    batch_size: int
    incremental_checkpoints: int


class TrainingGraph:
    """Builds a program's network with the operators and tables that `training.mode` needs."""

    def __init__(
        self, program: TrainingProgram, role: Any, settings: GraphSettings | TrainSettings, shards: int
    ) -> None:
        """Build the network, after `network_builder.prepare_paddle`.

        Args:
            shards: files of each table in a checkpoint, over all servers.

        Raises:
            SettingsError: the program cannot be trained by Paddle's servers.
        """
        self.mode, self.incremental_checkpoints = settings.mode, settings.incremental_checkpoints
        self.shards = shards
        limit = raise_limit()
        self.network: BuiltNetwork = build_network(program, "remote")
        check_message_sizes(self.network, settings.batch_size, settings.mode, limit)
        self._check_deltas()
        fleet.init(role)
        with program.calling("optimizer()"):
            optimizer = program.module.optimizer(program.job)
            self.rule = OptimizerRule.of(optimizer)  # of dense parameters, and of tables without their own
        self.rules = {table.name: table.rule or self.rule for table in self.network.tables}
        self._describe_tables()
        guard = paddle.static.program_guard(self.network.main, self.network.startup)
        quiet = contextlib.redirect_stdout(io.StringIO())  # Paddle prints twenty lines on its tables
        with guard, quiet, program.calling("training of network()"):
            fleet.distributed_optimizer(optimizer, self._strategy()).minimize(
                self.network.loss, self.network.startup
            )
            # Paddle does not change the program, it puts another in its place.
            self.network.main = paddle.static.default_main_program()
            self.network.startup = paddle.static.default_startup_program()

    def _strategy(self) -> Any:
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = self.mode != "sync"
        # Paddle's own wait at the start polls every 3 s; await_ports() waits instead.
        strategy.a_sync_configs = {"launch_barrier": False}
        for table in self.network.tables:
            config = strategy.sparse_table_configs.add()
            config.table_name = table.name
            config.table_class = "MemorySparseTable"
            config.shard_num = self.shards
        return strategy

    def _check_deltas(self) -> None:
        """Raise `SettingsError` if a table deletes rows (`evict`): incremental checkpoints record no deletions."""
        evicting = [table.name for table in self.network.tables if table.evict is not None]
        if evicting and self.incremental_checkpoints:
            raise setting_error(
                "training.incrementalCheckpoints (PADDLE_LAUNCHER_INCREMENTAL_CHECKPOINTS)",
                self.incremental_checkpoints,
                "0 with a table that has evict",
                f"the table {', '.join(evicting)} of the program has evict; restoring an incremental "
                "checkpoint would bring deleted rows back",
                "Remove training.incrementalCheckpoints, or the argument evict=… in network() of the program",
            )

    def _describe_tables(self) -> None:
        """Write each table's optimizer, admission, eviction and file compression into Paddle's table descriptions."""
        from paddle.distributed.ps import the_one_ps

        described = the_one_ps.SparseTable._set

        def set_table(of: Any, description: Any) -> None:
            described(of, description)
            table = next((t for t in self.network.tables if t.name == description.common.table_name), None)
            if table is None:
                return
            accessor = description.accessor
            for part in (accessor.embed_sgd_param, accessor.embedx_sgd_param):
                self.rules[table.name].describe(part, table.spread)
            counting = accessor.ctr_accessor_param
            counting.zero_init = False  # w[0] starts with a random value, too
            counting.nonclk_coeff = 1.0  # an occurrence counts 1; Paddle's default is 0.1
            accessor.embedx_threshold = table.admit if table.admit > 1 else 0
            if table.evict is not None:
                counting.delete_after_unseen_days = table.evict - 1  # Paddle deletes after more than this
            if self.incremental_checkpoints:
                counting.base_threshold = 0.0
                counting.delta_threshold = 0.5  # a push counts at least 1; with 0 every row would be written
                counting.delta_keep_days = float(1 << 30)
            description.compress_in_save = False
            for mode in (*MODES, *DELTAS) if self.incremental_checkpoints else MODES:
                way = accessor.table_accessor_save_param.add()
                way.param = mode
                way.converter, way.deconverter = COMPRESSION

        the_one_ps.SparseTable._set = set_table
