"""What one trainer does with the parameter servers: meet, step, save, load, look rows up, leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.distributed import fleet

from launcher.errors import DataError
from launcher.worker.crew import Crew, Told
from launcher.worker.graph import BASE, COUNTING, DELTA, WHOLE
from launcher.worker.program import Program
from launcher.worker.samples import Arrays
from launcher.worker.session import Session, await_ports
from launcher.worker.settings import WorkerSettings

LOOK_SECONDS = 0.2  # between two looks whether geo's exchange is over: four times what it waits for more
LOOKS = 15
QUIET = 1e-3  # of the sum of all values: what still moves then is the exchange's own rounding
CHUNK = 65536  # rows of a table, or of a test set, that are asked for at once: both are below 64 MiB
PUSHING = ("distributed_push_sparse", "send", "send_barrier")


class Trainer(Session):
    """A trainer's side."""

    def __init__(self, settings: WorkerSettings, program: Program) -> None:
        super().__init__(settings, program)
        self.scope = paddle.static.global_scope()
        # A step's operators one after the other, as `train_from_dataset` runs them: by default four threads
        # of each executor hand them to each other, for 5 to 7 % more CPU. `trainerCount` makes more threads.
        paddle.set_flags({"FLAGS_new_executor_serial_run": True})
        self.exe = paddle.static.Executor(paddle.CPUPlace())
        self.exe.run(self.network.startup)
        self.feeds = list(program.inputs)
        self.features = program.features
        self.label = program.label
        self.bounds = [variable.name for _, variable in self.network.bounds]
        self.test = self._test_program()
        self._unscale()
        apply = {"async": self.pull_dense, "sync": self._meet, "geo": lambda: None}[self.mode]
        self.crew = Crew(settings.trainer_count, self.scope, self._step, apply)
        self.runtime: Any = None

    def join(self) -> None:
        """Meets servers and other trainers; trainer 0's parameters become everybody's."""
        await_ports(self.servers, "all pservers of the job")
        if self.mode == "geo":
            self._take_turns()
        fleet.init_worker()
        self.runtime = fleet.fleet._runtime_handle
        from paddle.distributed.ps.utils.public import get_the_one_recv_context

        self._dense_tables = get_the_one_recv_context(self.runtime.context, split_dense_table=False)
        if self.mode == "sync":
            self._prepare_sync()

    def _take_turns(self) -> None:
        """geo: trainer 0's parameters are at the servers before the others take them from there."""
        from paddle.distributed.communicator import Communicator

        init_params = Communicator.init_params

        def in_turn(communicator: Any, context: Any) -> None:
            if self.settings.rank != 0:
                self.barrier()
            init_params(communicator, context)
            if self.settings.rank == 0:
                self.barrier()

        Communicator.init_params = in_turn

    def _prepare_sync(self) -> None:
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
        # Never started: the servers' barrier is reached through it, that is all.
        self._communicator = Communicator(
            DistributedMode.SYNC, arguments, runtime.context["trainer"].get_communicator_flags()
        )
        self._communicator.init_with_ctx(
            runtime._send_ctx, self._dense_tables, text, runtime.string_hosts, self.scope
        )
        block = self.network.main.global_block()
        for index in reversed([i for i, op in enumerate(block.ops) if op.type == "send_barrier"]):
            block._remove_op(index)

    def _test_program(self) -> Any:
        clone = self.network.main.clone(for_test=True)
        block = clone.global_block()
        for index in reversed([i for i, op in enumerate(block.ops) if op.type in PUSHING]):
            block._remove_op(index)
        return clone

    def _unscale(self) -> None:
        """Gradients go to the tables as they are. Paddle multiplies them by the number of ids in the batch.

        It does so where all ids of a push have one shape, and nothing turns that off. So each push gets
        paddings of two more shapes, which it leaves out.
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
        """The name of a constant of the network."""
        block = self.network.main.global_block()
        name = f"zeros.{rows}.{width}.{dtype}"
        if not block.has_var(name):
            block.create_var(name=name, shape=[rows, width], dtype=dtype)
            kind = paddle.base.framework.convert_np_dtype_to_dtype_(dtype)
            attributes = {"shape": [rows, width], "dtype": kind, "value": 0.0}
            block._insert_op(0, type="fill_constant", outputs={"Out": [name]}, attrs=attributes)
        return name

    def train(self, batches: Iterator[Arrays], count: int, told: Told) -> None:
        """Trains on the next `count` batches; `told` hears of each batch and its mean loss."""
        train = self.crew.train_in_step if self.mode == "sync" else self.crew.train
        train(batches, count, told)

    def _meet(self) -> None:
        """sync: returns when the servers have applied what all trainers have sent."""
        self.runtime._worker.client_flush()  # sleeps 100 ms: else a gradient may count for the next step
        self.barrier()  # two server barriers in a row can hang: a fast trainer would enter the next one
        self.runtime._worker.barrier(0)
        self.pull_dense()

    def _step(self, batch: Arrays, exe: Any, scope: Any) -> float:
        wanted = [self.network.loss, *self.bounds]
        loss, *bounds = exe.run(self.network.main, feed=batch, fetch_list=wanted, scope=scope)
        self._check_ids(bounds)
        return float(np.asarray(loss).reshape(-1)[0])

    def _check_ids(self, bounds: list[Any]) -> None:
        """geo: raises `DataError` for ids that are not in their table."""
        for (table, _), (least, greatest) in zip(self.network.bounds, bounds, strict=True):
            if least < 0 or greatest >= table.rows:
                wrong = least % 2**64 if least < 0 else greatest
                raise DataError(
                    f"a batch has the id {wrong}, but the table {table.name} has rows={table.rows} in the "
                    "program's network(), and with training.mode geo all ids are from 0 to below that. Raise "
                    "rows, or see what parse() gives."
                )

    def pull_dense(self) -> None:
        """Takes the servers' dense parameters."""
        self.runtime._pull_all_dense(self.runtime.scopes, self.runtime._send_ctx, self._dense_tables)

    def settle(self, last: bool, meet: Callable[[], None] | None = None) -> None:
        """Returns when what all trainers have pushed has arrived at the servers. `meet`: the barrier for it.

        `last`: no step follows. In geo the exchange ends here, so that the parameters which are tested and
        saved are those of the model.
        """
        if self.mode == "geo":
            if last:
                self.runtime._communicator.stop()
            (meet or self.barrier)()
            if not last:
                self._await_exchange()
            return
        self.runtime._worker.client_flush()
        (meet or self.barrier)()
        self.pull_dense()

    def _await_exchange(self) -> None:
        """geo: returns when no rank's parameters change any more, so that each has the steps of all.

        Paddle's thread sends what it has once it found nothing new for 50 ms, and was seen to be done after
        0.3 s. It goes by no signal, so this looks, and goes on after LOOKS in any case.
        """
        before = np.full(self.settings.trainers, np.inf)
        for _ in range(LOOKS):  # a number, and no deadline: the ranks must look equally often
            time.sleep(LOOK_SECONDS)
            values = [*self.parameters().values(), *self.tables().values()]
            now = self.gather([float(sum(np.abs(v).sum(dtype=np.float64) for v in values))])[:, 0]
            if np.allclose(now, before, rtol=QUIET):
                return
            before = now

    def optimizer_state(self) -> dict[str, NDArray[Any]]:
        """geo: this trainer's own optimizer state (elsewhere the servers keep it), by name."""
        parameters = {p.name for p in self.network.main.all_parameters()}
        state = {}
        for variable in self.network.main.list_vars():
            found = self.scope.find_var(variable.name) if variable.persistable else None
            if variable.name in parameters or found is None or not found.get_tensor()._is_initialized():
                continue
            state[variable.name] = np.array(found.get_tensor())
        return state

    def barrier(self) -> None:
        """Waits for all trainers."""
        fleet.barrier_worker()

    def gather(self, values: list[float]) -> NDArray[np.float64]:
        """Every rank's values, shape [trainers, len(values)], on every rank."""
        mine = np.zeros((self.settings.trainers, len(values)))
        mine[self.settings.rank] = values
        return self.total(mine)

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of all ranks' arrays, of one shape, on every rank."""
        return np.asarray(self.role._all_reduce(values, "sum")).reshape(values.shape)

    def predict(self, arrays: Arrays) -> NDArray[np.float32]:
        """The network's prediction for these rows with the servers' present tables; changes nothing."""
        feed = {name: arrays[name] for name in self.feeds}
        wanted = [self.network.prediction.name, *self.bounds]
        found, *bounds = self.exe.run(self.test, feed=feed, fetch_list=wanted)
        self._check_ids(bounds)
        return np.asarray(found)

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """All dense parameters, by name."""
        return {name: np.array(self.scope.find_var(name).get_tensor()) for name in self.network.dense()}

    def tables(self) -> dict[str, NDArray[np.float32]]:
        """All embedding tables whole, by name, shape [rows, width]."""
        return {t.name: self.rows(t.name, np.arange(t.rows, dtype=np.int64)) for t in self.network.tables}

    def rows(self, name: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows of a table as the servers (geo: this trainer) have them now, shape [ids, width].

        Looked up with a copy of the network's own operator; 0 where there is no row yet.
        """
        if self.mode == "geo":
            return np.array(self.scope.find_var(name).get_tensor())[ids]
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
        attributes = {
            k: operator.attr(k) for k in operator.attr_names if k not in ("op_callstack", "op_device")
        }
        attributes["is_test"] = True
        block.append_op(
            type=operator.type,
            inputs={"Ids": [asked], "W": [name]},
            outputs={"Outputs": [found]},
            attrs=attributes,
        )
        given = np.zeros((len(ids), width), np.float32)
        for first in range(0, len(ids), CHUNK):
            feed = {"ids": ids[first : first + CHUNK].reshape(-1, 1)}
            [values] = self.exe.run(lookup, feed=feed, fetch_list=["found"])
            given[first : first + CHUNK] = np.asarray(values).reshape(-1, width)
        return given

    def _table(self, name: str) -> int:
        """The number that the servers know a table by; the dense parameters are one table, of any name."""
        contexts = self.runtime._send_ctx.values()
        if name:
            return int(next(c.table_id() for c in contexts if f"{name}@GRAD" in c.origin_varnames()))
        return int(next(c.table_id() for c in contexts if not c.is_sparse()))

    def table_folder(self, name: str) -> str:
        """Where the servers keep a table, below the folder of a save."""
        return f"{self._table(name):03d}"

    @property
    def dense_folder(self) -> str:
        """The same of the dense parameters."""
        return self.table_folder("")

    def save_tables(self, folder: Path, *, delta: bool = False) -> None:
        """Every server writes its part below `folder`, which must be on the shared storage.

        Before, rows that were unseen for too many saves are forgotten; each save counts for the next ones.
        `delta`: of embedding tables, only the rows that were pushed since the last save. What is written
        counts as saved from then on, so all pushes must have arrived.
        """
        if self.settings.delta_saves:  # no table evicts then
            self.runtime._worker.save_all_model(str(folder), DELTA if delta else BASE)
            return
        evicting = [table.name for table in self.network.tables if table.evict is not None]
        for name in evicting:
            self.runtime._worker.shrink_sparse_table(self._table(name), 0)
        self.runtime._worker.save_all_model(str(folder), COUNTING if evicting else WHOLE)

    def load_tables(self, folder: Path) -> None:
        """Every server reads its part back, Adam's state with it. Paddle only logs when that fails."""
        self.runtime._worker.load_model(str(folder), 0)

    def load_dense(self, folder: Path) -> None:
        """`load_tables` of the dense parameters."""
        self.load_table("", folder)

    def load_table(self, name: str, folder: Path) -> None:
        """`load_tables` of one table."""
        self.runtime._worker.load_one_table(self._table(name), str(folder), 0)

    def set_parameters(self, values: dict[str, NDArray[Any]]) -> None:
        """Sets variables of this trainer by name."""
        for name, value in values.items():
            self.scope.find_var(name).get_tensor().set(value, paddle.CPUPlace())

    def leave(self) -> None:
        """Ends this trainer's part; trainer 0 also ends the servers."""
        self.barrier()
        if self.mode == "geo":
            self.runtime._worker.stop_worker()  # the communicator has been stopped by settle()
        else:
            fleet.stop_worker()
        if self.settings.rank == 0:
            self.runtime._worker.stop_server()
