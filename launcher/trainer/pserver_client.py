"""Run a pserver, or connect a trainer to the pservers, with PaddlePaddle 2.6.2's library fleet.

A trainer joins, trains, looks up rows, saves and loads tables, and leaves. Paddle's training modes are incomplete when
a program is run one batch (step) at a time; `PserverClient` adds what is missing:

- async: operators of the program push the gradients to the servers, but nothing pulls the dense parameters
  (all except embedding tables) from them again.
- sync: the program's operator send_barrier dereferences a communicator that does not exist in this mode. It is
  removed, and each step waits for all trainers and for the servers' barrier table.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.base import core
from paddle.distributed import fleet

from launcher.errors import DeadlineError, SettingsError, setting_error
from launcher.io import checkpoints
from launcher.paths import OutputPaths
from launcher.trainer.checkpoint.table_files import (
    choose_shard_count,
    every_server_has_shards,
    usable_ports_nums,
)
from launcher.trainer.graph.network_builder import prepare_paddle
from launcher.trainer.graph.training_graph import (
    BASE,
    COUNTING,
    DELTA,
    WHOLE,
    TrainingGraph,
    push_each_gradient,
)
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.records.row_parsing import Arrays

CONNECT_SECONDS = 600  # until all pservers listen and all trainers have joined, after the rendezvous
BARRIER_SECONDS = 3600  # longest time of one trainer between two barriers, such as for a large checkpoint
Step = Callable[[Arrays, Any, Any], float]
"""Trains one batch with an executor and a scope, and returns the loss."""
OnBatch = Callable[[Arrays, float], None]
"""Called with each batch and its loss, in the order in which batches end, never by two threads at once."""


class TrainerThreads:
    """Trains batches of one trainer in a pool of threads (`trainerCount`), which run until its process exits.

    Each thread trains one batch at a time. What T threads mean for the order of updates:

    - async: a thread pushes its gradients when its batch ends. So a batch is computed without the gradients of up
      to T - 1 other batches of its trainer, as it is without those of other trainers. The dense parameters are
      pulled once for every T batches, while the next batches are computed.
    - sync: a step is T batches of each trainer at once. The servers apply the mean of all trainers' T gradients
      to the dense parameters, and all gradients of table rows, before any thread starts its next batch.
    """

    def __init__(self, threads: int, scope: Any, step: Step, apply: Callable[[], None]) -> None:
        """Start the threads, which share the parameters in Paddle's scope `scope`.

        Args:
            step: `step(batch, executor, scope)` trains one batch and returns its mean loss.
            apply: fetches the updates of other trainers; takes no arguments; never called by two threads at once.
        """
        self._step, self._apply = step, apply
        self._executors = [self._new_executor(scope) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads + 1, "trainer")  # one more calls `apply`

    @staticmethod
    def _new_executor(scope: Any) -> tuple[Any, Any]:
        """Return an executor and a scope for one thread; parameters are shared through the parent scope."""
        own = scope.new_scope()
        for name in ("feed", "fetch"):
            own.var(name)
        return paddle.static.Executor(paddle.CPUPlace()), own

    def train(self, batches: Iterator[Arrays], count: int, on_batch: OnBatch) -> None:
        """Train the next `count` batches in all threads, which do not wait for each other.

        After a failure no further batch is started, and the first exception is raised.
        """
        work = _BatchQueue(batches, count, on_batch)
        for thread in [self._pool.submit(self._train_thread, executor, work) for executor in self._executors]:
            thread.result()
        work.applied.result()

    def train_in_steps(self, batches: Iterator[Arrays], count: int, on_batch: OnBatch) -> None:
        """In mode sync, train the next `count` batches, one per thread at a time.

        The servers apply the gradients of all threads' batches before the next batches start.
        """
        work = _BatchQueue(batches, count, on_batch)
        while taken := [batch for _ in self._executors if (batch := work.take()) is not None]:
            pairs = zip(taken, self._executors, strict=False)
            steps = [self._pool.submit(self._step, batch, *executor) for batch, executor in pairs]
            losses = [step.result() for step in steps]
            self._apply()
            for batch, loss in zip(taken, losses, strict=True):
                work.report(batch, loss)

    def _train_thread(self, executor: tuple[Any, Any], work: _BatchQueue) -> None:
        """Train batches of `work` in one thread; pull other trainers' updates while the next batches run."""
        try:
            while (batch := work.take()) is not None:
                loss = self._step(batch, *executor)
                if work.report(batch, loss) % len(self._executors) == 0:
                    with work.apply_lock:
                        work.applied.result()
                        work.applied = self._pool.submit(self._apply)
        except BaseException:
            work.stop()
            raise


class _BatchQueue:
    """Hands out the next `count` batches to the threads of one trainer, each batch once."""

    def __init__(self, batches: Iterator[Arrays], count: int, on_batch: OnBatch) -> None:
        self._batches, self._left, self._on_batch, self._ended = batches, count, on_batch, 0
        self._lock = threading.Lock()
        self.apply_lock = threading.Lock()
        self.applied: Future[None] = Future()
        """The newest call of `apply`; the next one starts after it."""
        self.applied.set_result(None)

    def take(self) -> Arrays | None:
        """Return the next batch; None after `count` batches or after `stop`."""
        with self._lock:
            if self._left <= 0:
                return None
            self._left -= 1
            return next(self._batches)

    def report(self, batch: Arrays, loss: float) -> int:
        """Call `on_batch` for a trained batch, and return how many batches were reported so far."""
        with self._lock:
            self._on_batch(batch, loss)
            self._ended += 1
            return self._ended

    def stop(self) -> None:
        """Hand out no further batch."""
        self._left = 0


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
        super().__init__(program, self.role, settings, self._shards())

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
        folder = OutputPaths(self.settings.layout.output).checkpoint(at)
        found = checkpoints.read_contents(folder).shards
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


CHUNK = 65536  # rows of one look-up; the message is below 64 MiB
PUSHING = ("distributed_push_sparse", "send", "send_barrier")


class PserverClient(FleetProcess):
    """Connects one trainer to the parameter servers, and trains, predicts, saves and loads through them."""

    def __init__(self, settings: ProcessSettings, program: TrainingProgram) -> None:
        super().__init__(settings, program)
        self.scope = paddle.static.global_scope()
        # Run a step's operators one after another, as `train_from_dataset` does. By default four threads of
        # each executor share them, for 5 to 7 % more CPU. `trainerCount` is the way to more threads.
        paddle.set_flags({"FLAGS_new_executor_serial_run": True})
        self.exe = paddle.static.Executor(paddle.CPUPlace())
        self.exe.run(self.network.startup)
        self.feeds = list(program.inputs)
        self.test = self.network.main.clone(for_test=True)
        _remove_operators(self.test, PUSHING)
        self._unscale()
        apply = self._apply_step if self.mode == "sync" else self.pull_dense
        self.threads = TrainerThreads(settings.trainer_count, self.scope, self._step, apply)
        self.runtime: Any = None

    def join(self) -> None:
        """Connect to the servers, and wait until all trainers have; then all have trainer 0's parameters."""
        await_ports(self.servers, "all pservers of the job")
        if self.mode == "sync":
            push_each_gradient()
        fleet.init_worker()
        self.runtime = fleet.fleet._runtime_handle
        from paddle.distributed.ps.utils.public import get_the_one_recv_context

        self._dense_tables = get_the_one_recv_context(self.runtime.context, split_dense_table=False)
        if self.mode == "sync":
            self._prepare_sync()
        self._compare_untrained()

    def _compare_untrained(self) -> None:
        """Raise `SettingsError` if a parameter that is never trained starts with other values on another rank."""
        if not self.network.untrained:
            return
        values = self.parameters()
        sums = self.gather([float(zlib.crc32(values[name].tobytes())) for name in self.network.untrained])
        for name, by_rank in zip(self.network.untrained, sums.T, strict=True):
            if len(set(by_rank)) > 1:
                raise SettingsError(
                    f"the parameter {name!r}, which is not trained, starts with other values on each rank. Fix: give "
                    "it an initializer of Paddle, or numbers from a generator with a fixed seed"
                )

    def _prepare_sync(self) -> None:
        """In mode sync, prepare the use of the servers' barrier, and remove the operators send_barrier, which crash."""
        from paddle.distributed.communicator import Communicator
        from paddle.distributed.ps.the_one_ps import PsDescBuilder
        from paddle.distributed.ps.utils.public import DistributedMode

        runtime = self.runtime
        builder = PsDescBuilder(runtime.context)
        text = builder.build_worker_desc()
        arguments = {
            "need_global_step": "0",
            "trainer_id": self.settings.rank,
            "trainers": self.settings.trainers,
            "barrier_table_id": builder.barrier_table_id,
            "pserver_endpoints": self.role._get_pserver_endpoints(),
        }
        # Never started: it is only needed to reach the servers' barrier.
        self._communicator = Communicator(
            DistributedMode.SYNC, arguments, runtime.context["trainer"].get_communicator_flags()
        )
        self._communicator.init_with_ctx(
            runtime._send_ctx, self._dense_tables, text, runtime.string_hosts, self.scope
        )
        _remove_operators(self.network.main, ("send_barrier",))

    def _unscale(self) -> None:
        """Keep Paddle from multiplying the tables' gradients by the number of ids in the batch.

        Paddle does so if all inputs of a push have equally many ids, and no option disables it. So each push gets
        two more inputs, of one and of two padding ids, which it skips.
        """
        block = self.network.main.global_block()
        for push in [op for op in block.ops if op.type == "distributed_push_sparse"]:
            ids, gradients = push.input("Ids"), push.output("Outputs")
            width = block.var(gradients[0]).shape[-1]
            for rows in (1, 2):
                ids.append(self._zeros(rows, 1, "int64"))
                gradients.append(self._zeros(rows, width, "float32"))
            push.desc.set_input("Ids", ids)
            push.desc.set_output("Outputs", gradients)
            push._set_attr("slots", [*push.attr("slots"), 0, 0])

    def _zeros(self, rows: int, width: int, dtype: str) -> str:
        """Add a constant of zeros to the network, and return its name."""
        block = self.network.main.global_block()
        name = f"zeros.{rows}.{width}.{dtype}"
        if not block.has_var(name):
            block.create_var(name=name, shape=[rows, width], dtype=dtype)
            kind = paddle.base.framework.convert_np_dtype_to_dtype_(dtype)
            attributes = {"shape": [rows, width], "dtype": kind, "value": 0.0}
            block._insert_op(0, type="fill_constant", outputs={"Out": [name]}, attrs=attributes)
        return name

    def train(self, batches: Iterator[Arrays], count: int, on_batch: OnBatch) -> None:
        """Train the next `count` batches, and call `on_batch` with each batch and its mean loss."""
        train = self.threads.train_in_steps if self.mode == "sync" else self.threads.train
        train(batches, count, on_batch)

    def _apply_step(self) -> None:
        """End a step of mode sync: wait until the servers have applied the gradients of all trainers.

        Then pull the dense parameters.
        """
        self.runtime._worker.client_flush()  # sleeps 100 ms; otherwise a gradient may count for the next step
        self.barrier()  # two server barriers in a row can hang when a fast trainer enters the next one
        self.runtime._worker.barrier(0)
        self.pull_dense()

    def _step(self, batch: Arrays, exe: Any, scope: Any) -> float:
        """Train one batch, and return its mean loss."""
        [loss] = exe.run(self.network.main, feed=batch, fetch_list=[self.network.loss], scope=scope)
        return float(np.asarray(loss).reshape(-1)[0])

    def pull_dense(self) -> None:
        """Replace this trainer's dense parameters by those of the servers."""
        self.runtime._pull_all_dense(self.runtime.scopes, self.runtime._send_ctx, self._dense_tables)

    def settle(self, barrier: Callable[[], None] | None = None) -> None:
        """Wait until the updates of all trainers have arrived at the servers, and pull the dense parameters.

        Moving statistics of batch_norm become the mean of all trainers'.

        All trainers call this. `barrier` is called instead of `self.barrier` to wait for them; it takes no arguments.
        """
        self.runtime._worker.client_flush()
        (barrier or self.barrier)()
        self.pull_dense()
        for name in self.network.statistics:
            value = np.array(self.scope.find_var(name).get_tensor())
            mean = self.total(value.astype(np.float64)) / self.settings.trainers
            self.set_parameters({name: mean.astype(value.dtype)})

    def barrier(self) -> None:
        """Wait until all trainers have called this."""
        fleet.barrier_worker()

    def gather(self, values: list[float]) -> NDArray[np.float64]:
        """Return every rank's values, shape [trainers, len(values)], on every rank.

        Waits until all trainers have called this.
        """
        mine = np.zeros((self.settings.trainers, len(values)))
        mine[self.settings.rank] = values
        return self.total(mine)

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Wait until all trainers have called this; return the sum of their arrays, which have the same shape."""
        return np.asarray(self.role._all_reduce(values, "sum")).reshape(values.shape)

    def predict(self, arrays: Arrays) -> NDArray[np.float32]:
        """Return the network's prediction of some rows, shape [rows, …].

        The dense parameters are this trainer's; the tables are the servers'.
        """
        feed = {name: arrays[name] for name in self.feeds}
        [found] = self.exe.run(self.test, feed=feed, fetch_list=[self.network.prediction.name])
        return np.asarray(found)

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Return this trainer's copy of all dense parameters, by name."""
        return {name: np.array(self.scope.find_var(name).get_tensor()) for name in self.network.dense()}

    def rows(self, name: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors that the servers have of some ids, shape [ids, width]; zeros for unknown ids."""
        source = self.test.global_block()
        operator = next(o for o in source.ops if "lookup_table" in o.type and o.input("W") == [name])
        width = next(table.width for table in self.network.tables if table.name == name)
        lookup = paddle.static.Program()
        block = lookup.global_block()
        asked = block.create_var(name="ids", shape=[-1, 1], dtype="int64", need_check_feed=True, is_data=True)
        weight = source.var(name)
        block.create_var(
            name=name, type=weight.type, shape=weight.shape, dtype=weight.dtype, persistable=True
        )
        found = block.create_var(name="found", dtype="float32", shape=[-1, width])
        names = [name for name in operator.attr_names if name not in ("op_callstack", "op_device")]
        attributes = {key: operator.attr(key) for key in names} | {"is_test": True}
        inputs, outputs = {"Ids": [asked], "W": [name]}, {"Outputs": [found]}
        block.append_op(type=operator.type, inputs=inputs, outputs=outputs, attrs=attributes)
        given = np.zeros((len(ids), width), np.float32)
        for first in range(0, len(ids), CHUNK):
            feed = {"ids": ids[first : first + CHUNK].reshape(-1, 1)}
            [values] = self.exe.run(lookup, feed=feed, fetch_list=["found"])
            given[first : first + CHUNK] = np.asarray(values).reshape(-1, width)
        return given

    def _table(self, name: str) -> int:
        """Return the number by which the servers know table `name`; "" stands for the dense parameters."""
        contexts = self.runtime._send_ctx.values()
        if name:
            return int(next(c.table_id() for c in contexts if f"{name}@GRAD" in c.origin_varnames()))
        return int(next(c.table_id() for c in contexts if not c.is_sparse()))

    def table_folder(self, name: str) -> str:
        """Return the name of a table's folder inside the folder that `save_tables` writes, such as `001`.

        The name "" stands for the dense parameters.
        """
        return f"{self._table(name):03d}"

    def save_tables(self, folder: Path, *, delta: bool = False) -> None:
        """Let every server write its part of all tables to files; call `settle` first.

        Before they write, the servers delete rows that were not trained on during the last `evict`
        checkpoints (an argument of `Job.embedding`). With `delta` they write only those rows of embedding tables
        that were trained on since the last call.
        """
        if self.settings.incremental_checkpoints:  # no table evicts then
            self.runtime._worker.save_all_model(str(folder), DELTA if delta else BASE)
            return
        evicting = [table.name for table in self.network.tables if table.evict is not None]
        for name in evicting:
            self.runtime._worker.shrink_sparse_table(self._table(name), 0)
        self.runtime._worker.save_all_model(str(folder), COUNTING if evicting else WHOLE)

    def load_table(self, name: str, folder: Path) -> None:
        """Let every server load its part of table `name`, with the optimizer state, from a folder of tables.

        The name "" stands for the dense parameters. Nothing is raised when this fails: Paddle only logs it. The
        caller compares values afterwards.
        """
        self.runtime._worker.load_one_table(self._table(name), str(folder), 0)

    def set_parameters(self, values: dict[str, NDArray[Any]]) -> None:
        """Set parameters in this trainer's memory; `values` has the array of each by name."""
        for name, value in values.items():
            self.scope.find_var(name).get_tensor().set(value, paddle.CPUPlace())

    def leave(self) -> None:
        """Wait until all trainers have called this, and disconnect from the servers; trainer 0 then stops them."""
        self.barrier()
        fleet.stop_worker()
        if self.settings.rank == 0:
            self.runtime._worker.stop_server()


def _remove_operators(program: Any, types: tuple[str, ...]) -> None:
    """Remove all operators of these types from a static program."""
    block = program.global_block()
    for index in reversed([i for i, op in enumerate(block.ops) if op.type in types]):
        block._remove_op(index)
