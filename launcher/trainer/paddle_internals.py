"""Use private parts of PaddlePaddle 2.6.2: patch its Python code, and set flags of its C++ library.

Paddle deleted its parameter server after version 3.1, so none of this code can move to Paddle. Each part below was
written from the source code of 2.6.2 and tested with 2.6.2, so `check_version` rejects all other versions:

- `raise_message_limit`, `push_each_gradient` set variables in the memory of Paddle's C++ library.
- `optimizer_rule` reads Paddle's optimizers. `describe_tables` writes the descriptions of tables that servers get,
  because Paddle's API does not let a program set them.
- `GlooRoleMaker` lets trainers find each other through the launcher instead of Paddle's own store.
- `ServerConnection` uses the private client with which Paddle's library fleet sends requests to the servers.
- `keep_gradients`, `remove_operators` change a static program. `look_up_program` builds a new one.

Three other modules use private parts of Paddle, too:

- `server_memory.py` reads and writes the tables in a pserver's memory, and checks their layout before.
- `launcher/serving/paddle_served/paddle_inference.py` sets up Paddle's inference, and works without the launcher.
- The rules of `network.py` read attributes of Paddle's operators and parameters.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.base import core
from paddle.distributed import fleet

from launcher.errors import SettingsError
from launcher.trainer.server_memory import LayoutError, PendingPushes, library
from launcher.trainer.server_tables import DenseShape, EmbeddingTable, OptimizerRule

if TYPE_CHECKING:
    from launcher.trainer.process_settings import ProcessSettings

VERSION = "2.6.2"
SLOW_STEPS = "each step takes 100 ms more, because a check of the memory of Paddle's client failed"
CONNECT_SECONDS = 600  # longest wait for all pservers to listen, and for all trainers to join
BARRIER_SECONDS = 3600  # longest wait for a slow trainer, for example if it writes a large checkpoint
IGNORED_DEFAULTS = {
    "adam": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "adagrad": {"epsilon": 1e-6},
    "sgd": {},
}
"""Arguments of each kind of optimizer that the servers ignore, with the values that the servers use instead.

The servers ignore Adam's arguments only for dense parameters. They have Adagrad only for tables, and ignore its
argument there."""
RULE_NAMES = {"adam": "SparseAdamSGDRule", "sgd": "SparseNaiveSGDRule", "adagrad": "StdAdaGradSGDRule"}
DEFAULT_BYTES = 64 << 20
MAX_BYTES = (1 << 31) - 1
CHUNK = 65536  # rows of one look-up, so that its message stays below 64 MiB
_PADDLE_FLAGS = "_ZN6paddle11distributed12paddle_flags"
PUSH_MILLISECONDS = 1
_PUSH_FLAGS = {
    f"{_PADDLE_FLAGS}36FLAGS_pserver_push_dense_merge_limitE": 0,
    f"{_PADDLE_FLAGS}37FLAGS_pserver_push_sparse_merge_limitE": 0,
    f"{_PADDLE_FLAGS}42FLAGS_pserver_async_push_dense_interval_msE": PUSH_MILLISECONDS,
    f"{_PADDLE_FLAGS}43FLAGS_pserver_async_push_sparse_interval_msE": PUSH_MILLISECONDS,
}
_MAX_BODY_SIZE = "_ZN4brpc5fLU6419FLAGS_max_body_sizeE"


def check_version() -> None:
    """Raise `SettingsError` unless PaddlePaddle has the version that this module was written for."""
    if paddle.__version__ != VERSION:
        raise SettingsError(
            f"PaddlePaddle {paddle.__version__} is installed, but runtime fleet needs {VERSION}: it uses parts of its "
            f"parameter server that other versions do not have. Fix: pip install paddlepaddle=={VERSION}"
        )


def _set(symbol: str, kind: type[ctypes.c_int32 | ctypes.c_uint64], value: int) -> bool:
    """Set the C++ variable `symbol` of Paddle's library to `value`, in the memory of this process.

    `kind` is the C type of the variable. Return False if this build of Paddle does not export the variable.
    """
    try:
        kind.in_dll(library(), symbol).value = value
    except (OSError, ValueError):
        return False
    return True


def push_each_gradient() -> None:
    """Let Paddle send each gradient of this trainer at once. Call this before `fleet.init_worker()`.

    By default a thread of Paddle collects and merges the gradients of up to 12 batches before it sends them. While
    `ServerConnection.flush` waits, the thread sends the gradients that it has. On a busy machine the thread may run too
    late: a gradient then stays in the trainer, and the servers apply it only in the next step.

    This function sets both merge limits of Paddle's library to 0. It also lets Paddle's two pushing threads look for
    gradients every PUSH_MILLISECONDS instead of every 10 ms. If this build of Paddle does not export these variables,
    the function changes nothing and raises no error.
    """
    for symbol, value in _PUSH_FLAGS.items():
        _set(symbol, ctypes.c_int32, value)


def raise_message_limit(limit: int = MAX_BYTES) -> int:
    """Let this process send and receive messages of up to `limit` bytes. Return the limit that then holds, in bytes.

    brpc, Paddle's network library, drops a message that is too long. The receiver only logs this, and Paddle continues
    as if nothing had happened. The compiled limit is 64 MiB, about 66,000 ids of width 16 per batch and server. No
    function of Paddle changes the limit, so this function sets brpc's variable. If this build of Paddle does not export
    the variable, the limit stays 64 MiB, and the function returns this number.
    """
    return limit if _set(_MAX_BODY_SIZE, ctypes.c_uint64, limit) else DEFAULT_BYTES


def optimizer_rule(optimizer: Any, table: str = "") -> OptimizerRule:
    """Return the rule with which the servers do the same as Paddle's `optimizer` in a trainer.

    Args:
        optimizer: an optimizer of paddle.optimizer.
        table: name of the table that `optimizer` trains; "" if it trains the dense parameters.

    Raises:
        ValueError: the servers do not have this optimizer, or ignore one of its arguments. Or Adagrad's
            initial_accumulator_value is not above 0.
        TypeError: the learning rate is not a number.
    """
    what = f"embedding {table!r}" if table else "the network"
    kind, kinds = type(optimizer).__name__, ("Adam", "SGD", *(["Adagrad"] if table else []))
    if type(optimizer) not in [getattr(paddle.optimizer, name) for name in kinds]:
        raise ValueError(
            f"{what} cannot be trained with {kind}: Paddle's servers have only {', '.join(kinds)} for "
            f"{'tables' if table else 'dense parameters'}. Fix: use one of paddle.optimizer"
        )
    kind = kind.lower()
    ignored = {
        "grad_clip": (optimizer._grad_clip is not None, "remove it"),
        "weight_decay": (coefficient(optimizer.regularization), "add the penalty to the loss instead"),
        "parameters": (
            optimizer._parameter_list is not None,
            "remove it; trainable=False in a ParamAttr keeps a parameter as it is",
        ),
        "use_multi_tensor": (optimizer._use_multi_tensor, "remove it"),
    }
    if not table or kind == "adagrad":
        fix = "remove it" if table else "remove it; a table may have it: job.embedding(…, optimizer=…)"
        for key, default in IGNORED_DEFAULTS[kind].items():
            ignored[key] = (getattr(optimizer, f"_{key}") != default, fix)
    for key, (given, fix) in ignored.items():
        if given:
            raise ValueError(
                f"the {type(optimizer).__name__} of {what} has {key}, which Paddle's servers ignore. Fix: {fix}"
            )
    rate = optimizer._learning_rate
    if not isinstance(rate, int | float):
        raise TypeError(
            f"the learning rate is a {type(rate).__name__}, but Paddle's servers use one number for the "
            "whole run. Fix: use a number"
        )
    if kind == "adam":
        return OptimizerRule(kind, rate, optimizer._beta1, optimizer._beta2, optimizer._epsilon)
    if kind == "sgd":
        return OptimizerRule(kind, rate)
    initial = optimizer.initial_accumulator_value
    if initial <= 0:
        raise ValueError(
            f"Adagrad has initial_accumulator_value={initial}, but must have one above 0, since the "
            "first step is divided by its root. Fix: set it to 0.1"
        )
    return OptimizerRule(kind, rate, initial=initial)


def coefficient(regularizer: Any) -> float:
    """Return the factor of a regularizer of Paddle; 0 for None."""
    return 0.0 if regularizer is None else float(getattr(regularizer, "_coeff", 1.0))


def _describe_rule(rule: OptimizerRule, description: Any, spread: float) -> None:
    """Write `rule` into `description`, Paddle's description of an optimizer in a table.

    A table has two such descriptions: one for the first value of its rows, and one for all other values. The initial
    values of new rows are uniformly distributed from -spread to +spread.
    """
    description.Clear()
    description.name = RULE_NAMES[rule.kind]
    # weight_bounds stays empty, so nothing is clipped.
    values: Any = getattr(description, "naive" if rule.kind == "sgd" else rule.kind)
    values.learning_rate = rule.rate
    values.initial_range = spread
    if rule.kind == "adam":
        values.beta1_decay_rate, values.beta2_decay_rate = rule.beta1, rule.beta2
        values.ada_epsilon = rule.epsilon
    if rule.kind == "adagrad":
        values.initial_g2sum = rule.initial
        values.learning_rate = rule.rate / rule.initial**0.5  # the servers' rule multiplies by this root


def describe_tables(tables: Sequence[EmbeddingTable], rules: Mapping[str, OptimizerRule]) -> None:
    """Write each table's optimizer, admission and eviction into Paddle's table descriptions.

    Call this before the program's optimizer adds its operators. It replaces the whole description of a table's
    optimizer, because Paddle 2.6.2 gives every table Adam (an `elif` is missing in the_one_ps.py), clips weights at 10,
    and takes the betas only from the program's optimizer.

    Args:
        tables: the tables of the program.
        rules: name of each table → its optimizer.
    """
    from paddle.distributed.ps import the_one_ps

    described = the_one_ps.SparseTable._set

    def set_table(of: Any, description: Any) -> None:
        described(of, description)
        table = next((t for t in tables if t.name == description.common.table_name), None)
        if table is None:
            return
        accessor = description.accessor
        for part in (accessor.embed_sgd_param, accessor.embedx_sgd_param):
            _describe_rule(rules[table.name], part, table.spread)
        counting = accessor.ctr_accessor_param
        counting.zero_init = False  # w[0] starts with a random value, too
        counting.nonclk_coeff = 1.0  # an occurrence counts 1; Paddle's default is 0.1
        accessor.embedx_threshold = table.admit if table.admit > 1 else 0
        if table.evict is not None:
            counting.delete_after_unseen_days = table.evict - 1  # Paddle deletes rows after one more day

    the_one_ps.SparseTable._set = set_table


def table_numbers() -> dict[str, int]:
    """Return {name of an embedding table: its number in Paddle}, in a pserver after `fleet.init_server()`."""
    return dict(fleet.fleet._runtime_handle.ps_desc_builder.sparse_table_maps)


def dense_shape(server: int, servers: int) -> DenseShape:
    """Return a description of this pserver's part of the dense parameters. Call this after `fleet.init_server()`.

    Args:
        server: number of this pserver in the job, from 0.
        servers: number of all pservers of the job.
    """
    from paddle.distributed.ps.the_one_ps import DenseTable

    tables = fleet.fleet._runtime_handle.ps_desc_builder.tables
    common = next(table.common for table in tables if isinstance(table, DenseTable))
    initial = [
        float(text.partition("&")[2]) if text.startswith("fill_constant&") else None
        for text in common.initializers
    ]
    arrays = dict(zip(common.params, zip(common.dims, initial, strict=True), strict=True))
    total = int(common.table_num)
    first = server * (total // servers + 1)
    return DenseShape(arrays, range(first, first + arrays["Param"][0]), total)


class GlooRoleMaker(fleet.PaddleCloudRoleMaker):  # type: ignore[misc]
    """Tells Paddle the role and the addresses of this process, and connects the trainers with the library gloo.

    Paddle's base class reads role and addresses from environment variables. The trainers exchange values with gloo. For
    this, they find each other's addresses through the key-value store of rank 0's launcher
    (supervisor/peers/peer_server.py).
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


class SingleRoleMaker(fleet.UserDefinedRoleMaker):  # type: ignore[misc]
    """Tells Paddle that this process is the only trainer, with one pserver that is never contacted."""

    def __init__(self) -> None:
        endpoints: dict[str, Any] = {"server_endpoints": ["127.0.0.1:1"], "worker_endpoints": ["127.0.0.1:2"]}
        super().__init__(current_id=0, role=fleet.Role.WORKER, worker_num=1, **endpoints)

    def _gloo_init(self) -> None:
        """Do not start gloo: there is no other trainer to connect to."""


class Trainers:
    """Lets the trainers of a job wait for each other and exchange numbers. All trainers call each method together."""

    def __init__(self, role: GlooRoleMaker, rank: int, count: int) -> None:
        self._role, self.rank, self.count = role, rank, count

    def barrier(self) -> None:
        """Wait until all trainers have called this method."""
        fleet.barrier_worker()

    def gather(self, values: list[float]) -> NDArray[np.float64]:
        """Send this trainer's values to all trainers. Return the values of all ranks, shape [trainers, len(values)]."""
        mine = np.zeros((self.count, len(values)))
        mine[self.rank] = values
        return self.total(mine)

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the elementwise sum of the arrays of all trainers. The arrays must have the same shape."""
        return np.asarray(self._role._all_reduce(values, "sum")).reshape(values.shape)


class ServerConnection:
    """A trainer's connection to the parameter servers."""

    def __init__(
        self, role: GlooRoleMaker, trainers: Trainers, scope: Any, lookups: Any, sync: Any = None
    ) -> None:
        """Connect to the servers, and wait until all trainers have done so.

        Afterwards the servers and all trainers have trainer 0's dense parameters.

        Args:
            role: Paddle's role maker of this process.
            trainers: all trainers of the job.
            scope: Paddle's scope with the dense parameters.
            lookups: Paddle's program for predictions. `rows` copies its operators that look up vectors in tables.
            sync: Paddle's program of a training step in mode sync; None in mode async. The operators send_barrier are
                removed from this program, because they use a communicator that does not exist in mode sync.
        """
        if sync is not None:
            push_each_gradient()
        fleet.init_worker()
        from paddle.distributed.ps.utils.public import get_the_one_recv_context

        self._lookups, self._runtime = lookups, fleet.fleet._runtime_handle
        self._worker = self._runtime._worker
        self._dense = get_the_one_recv_context(self._runtime.context, split_dense_table=False)
        self._programs: dict[str, Any] = {}
        self._exe = paddle.static.Executor(paddle.CPUPlace())
        self._pushes: PendingPushes | None = None
        if sync is not None:
            try:
                self._pushes = PendingPushes(sum(c.is_sparse() for c in self._runtime._send_ctx.values()))
            except LayoutError as error:
                print(f"{SLOW_STEPS}: {error}", flush=True)  # noqa: T201 - this is the process' log
            self._prepare_sync(role, trainers, scope)
            remove_operators(sync, ("send_barrier",))

    def _prepare_sync(self, role: GlooRoleMaker, trainers: Trainers, scope: Any) -> None:
        """Create a communicator of Paddle, so that `barrier` can reach the servers' barrier table.

        The communicator is never started.
        """
        from paddle.distributed.communicator import Communicator
        from paddle.distributed.ps.the_one_ps import PsDescBuilder
        from paddle.distributed.ps.utils.public import DistributedMode

        runtime = self._runtime
        builder = PsDescBuilder(runtime.context)
        text = builder.build_worker_desc()
        arguments = {
            "need_global_step": "0",
            "trainer_id": trainers.rank,
            "trainers": trainers.count,
            "barrier_table_id": builder.barrier_table_id,
            "pserver_endpoints": role._get_pserver_endpoints(),
        }
        # The communicator is only needed to reach the servers' barrier.
        self._communicator = Communicator(
            DistributedMode.SYNC, arguments, runtime.context["trainer"].get_communicator_flags()
        )
        self._communicator.init_with_ctx(runtime._send_ctx, self._dense, text, runtime.string_hosts, scope)

    def flush(self) -> None:
        """Wait until the servers have received all gradients that this trainer pushed.

        In mode async this takes at least 100 ms, because Paddle merges the gradients and then sleeps.
        """
        if self._pushes is None:
            self._worker.client_flush()
        else:
            self._pushes.wait()

    def barrier(self) -> None:
        """Wait until all trainers have called this method, and the servers have applied the gradients of the step.

        Call `Trainers.barrier` before each call. Without it, two calls in a row can hang if a fast trainer makes its
        second call before a slow trainer has left the first call.
        """
        self._worker.barrier(0)

    def pull_dense(self) -> None:
        """Replace this trainer's dense parameters by the current values on the servers."""
        self._runtime._pull_all_dense(self._runtime.scopes, self._runtime._send_ctx, self._dense)

    def rows(self, name: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the servers' vectors of some ids of the table `name`, shape [ids, width]; zeros for unknown ids."""
        if name not in self._programs:
            self._programs[name] = look_up_program(self._lookups, name)
        program, width = self._programs[name]
        given = np.zeros((len(ids), width), np.float32)
        for first in range(0, len(ids), CHUNK):
            feed = {"ids": ids[first : first + CHUNK].reshape(-1, 1)}
            [values] = self._exe.run(program, feed=feed, fetch_list=["found"])
            given[first : first + CHUNK] = np.asarray(values).reshape(-1, width)
        return given

    def leave(self, stop: bool) -> None:
        """Disconnect from the servers. With `stop`, also let all servers exit."""
        fleet.stop_worker()
        if stop:
            self._worker.stop_server()


def keep_gradients(main: Any) -> None:
    """Keep Paddle from multiplying the tables' gradients by the number of ids in the batch.

    Paddle multiplies the gradients if all inputs of a push operator have the same number of ids, and no option disables
    this. So this function gives each push operator of the program `main` two more inputs with different numbers of ids:
    one has one padding id, the other has two. A push ignores padding ids.
    """
    block = main.global_block()

    def zeros(rows: int, width: int, dtype: str) -> str:
        """Add a constant of zeros to the network, and return its name."""
        name = f"zeros.{rows}.{width}.{dtype}"
        if not block.has_var(name):
            block.create_var(name=name, shape=[rows, width], dtype=dtype)
            kind = paddle.base.framework.convert_np_dtype_to_dtype_(dtype)
            attributes = {"shape": [rows, width], "dtype": kind, "value": 0.0}
            block._insert_op(0, type="fill_constant", outputs={"Out": [name]}, attrs=attributes)
        return name

    for push in [op for op in block.ops if op.type == "distributed_push_sparse"]:
        ids, gradients = push.input("Ids"), push.output("Outputs")
        width = block.var(gradients[0]).shape[-1]
        for rows in (1, 2):
            ids.append(zeros(rows, 1, "int64"))
            gradients.append(zeros(rows, width, "float32"))
        push.desc.set_input("Ids", ids)
        push.desc.set_output("Outputs", gradients)
        push._set_attr("slots", [*push.attr("slots"), 0, 0])


def remove_operators(program: Any, types: tuple[str, ...]) -> None:
    """Remove all operators of these types from a static program."""
    block = program.global_block()
    for index in reversed([i for i, op in enumerate(block.ops) if op.type in types]):
        block._remove_op(index)


def look_up_program(network: Any, name: str) -> tuple[Any, int]:
    """Return (a program that looks up vectors in the table `name`, the length of these vectors).

    The new program uses the same look-up operator as the program `network`. Its input is the variable `ids`, shape
    [ids, 1]. Its result is the variable `found`, shape [ids, width].
    """
    source = network.global_block()
    operator = next(o for o in source.ops if "lookup_table" in o.type and o.input("W") == [name])
    weight = source.var(name)
    width = int(weight.shape[-1])
    program = paddle.static.Program()
    block = program.global_block()
    asked = block.create_var(name="ids", shape=[-1, 1], dtype="int64", need_check_feed=True, is_data=True)
    block.create_var(name=name, type=weight.type, shape=weight.shape, dtype=weight.dtype, persistable=True)
    found = block.create_var(name="found", dtype="float32", shape=[-1, width])
    names = [name for name in operator.attr_names if name not in ("op_callstack", "op_device")]
    attributes = {key: operator.attr(key) for key in names} | {"is_test": True}
    inputs, outputs = {"Ids": [asked], "W": [name]}, {"Outputs": [found]}
    block.append_op(type=operator.type, inputs=inputs, outputs=outputs, attrs=attributes)
    return program, width
