"""Build a program's network with its function network(), and check what the program's functions return.

A network is of one of two kinds:

- `remote`, for training with servers: only the parameter servers have the embedding tables. They add a row when its id
  is first trained.
- `served`, for the exported model and for training in one process: the network has no tables. The looked-up vectors are
  inputs of the network.

The parameter servers of Paddle 2.6.2 silently ignore attributes of single parameters, and some operators crash in the
first batch. So every process that builds a network (`try`, the checks of `run`, and the pods) rejects a network that
servers would not train like one process does. The rules are OPERATORS, PARAMETERS and the other `_Rule` constants. The
rules for optimizers are in `optimizer_rule`.

`build_training_graph` adds the operators and tables with which trainers and servers train a network.
"""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.distributed import fleet

from launcher.errors import SettingsError, setting_error
from launcher.program import Ids
from launcher.serving.paddle_served import paddle_inference
from launcher.trainer import paddle_internals
from launcher.trainer.paddle_internals import coefficient, optimizer_rule
from launcher.trainer.program_loader import TrainingProgram, innermost_line
from launcher.trainer.record_files import Arrays
from launcher.trainer.server_tables import EmbeddingTable, OptimizerRule, RowShape

ROWS = 61
"""Largest number of rows with which `check_batch` is called; fewer if the data has fewer rows. It is a prime number, so
that hardly any width equals or divides it, and a wrong shape is noticed."""
COMBINING = ("elementwise_", "bce_loss", "log_loss", "huber_loss", "sigmoid_cross_entropy", "kldiv_loss")
"""Beginnings of the names of Paddle's operators that combine a label with a prediction of the same shape."""
SHAPES = "See network(data, job) in launcher/programs/README.md."


def check_outputs(program: TrainingProgram, returned: Any) -> tuple[Any, Any]:
    """Check the result of the program's network(), and return its prediction and its loss.

    Args:
        program: the training program.
        returned: the result of network().

    Returns:
        The prediction and the loss, as Paddle's variables. If network() returned several losses, their sum.

    Raises:
        SettingsError: the result is not a pair of Paddle's variables, a loss has more than one number, or the
            prediction has no batch dimension.
    """
    if not (isinstance(returned, (tuple, list)) and len(returned) == 2):
        raise _wrong(
            program,
            f"returned {returned!r}, but must return (prediction, loss)",
            "end it with `return prediction, loss`",
        )
    prediction, loss = returned
    losses = loss if isinstance(loss, Mapping) else {"loss": loss}
    for name, value in {"prediction": prediction, **losses}.items():
        if not isinstance(value, paddle.static.Variable):
            raise _wrong(
                program,
                f"returned {value!r} as {name}, but must return a Paddle variable",
                f"return the output of a Paddle layer as {name}",
            )
    for name, value in losses.items():
        if math.prod(value.shape) != 1:
            raise _wrong(
                program,
                f"returned {name!r} of shape {_format_shape(value.shape)}, but it must be one number",
                "take its mean over the batch: paddle.mean(…)",
            )
    if -1 not in prediction.shape:
        raise _wrong(
            program,
            f"returned a prediction of shape {_format_shape(prediction.shape)}, but it must have a row for "
            "each row of the batch: [batch, …]",
            "return the prediction before any mean or sum over the batch",
        )
    return prediction, paddle.add_n(list(losses.values())) if isinstance(loss, Mapping) else loss


def check_broadcasts(program: TrainingProgram, main: Any) -> None:
    """Raise `SettingsError` if network() combines the label with a value of another shape.

    In this case Paddle repeats the label or the value (broadcasting), without an error. The loss then compares values
    of different rows.

    Args:
        program: the training program.
        main: Paddle's program of the network.
    """
    block = main.global_block()
    label = frozenset({program.label})
    sources = {name: frozenset({name}) for name in program.inputs}
    for op in block.ops:
        found = [sources.get(name, frozenset({""})) for name in op.input_arg_names]
        if op.type.startswith(COMBINING) and len(found) == 2 and label in found:
            shapes = [tuple(block.var(name).shape) for name in op.input_arg_names]
            other = found[1 - found.index(label)]
            if program.label not in other and shapes[0] != shapes[1] and all(-1 in s for s in shapes):
                line = innermost_line(program.path, "\n".join(op.attr("op_callstack")))
                own, theirs = shapes if found[0] == label else reversed(shapes)
                raise _wrong(
                    program,
                    f"combines the label {program.label} of shape {_format_shape(own)} with a value of shape "
                    f"{_format_shape(theirs)} at {line}; Paddle repeats one of them silently",
                    "give both one shape: the width of Real(…) in inputs(), the size of the last layer, or "
                    "paddle.reshape. If it is intended, repeat with paddle.expand_as(…)",
                )
        for name in op.output_arg_names:
            sources[name] = frozenset().union(*found)


def check_batch(
    program: TrainingProgram, predict: Callable[[Arrays], NDArray[Any]], batch: Arrays
) -> list[str]:
    """Predict one batch of rows, and check the result of the program's metrics() for this batch.

    Args:
        program: the training program.
        predict: returns the prediction of a batch.
        batch: the inputs of the rows, with the label.

    Returns:
        The names of the scores; empty if metrics() raises ValueError or ArithmeticError and all rows have the same
        label, as for an AUC.

    Raises:
        SettingsError: the prediction has another number of rows than the batch, metrics() fails for another reason, or
            it returns something other than {name: number}.
    """
    labels = batch[program.label]
    prediction = predict(batch)
    if prediction.shape[:1] != labels.shape[:1]:
        raise _wrong(
            program,
            f"returned a prediction of shape {list(prediction.shape)} for a batch of {len(labels)} rows, "
            "but it must have a row for each: [batch, …]",
            "return the prediction before any mean or sum over the batch",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for example a warning about a class without rows
            found = program.module.metrics(prediction, labels)
    except Exception as error:
        if isinstance(error, ValueError | ArithmeticError) and (labels == labels[0]).all():
            return []  # rows of one class have no AUC, for example
        shapes = f"prediction {list(prediction.shape)} and label {list(labels.shape)}"
        raise program.failed(f"metrics() on {shapes}", error) from error
    values = found if isinstance(found, Mapping) else {}
    wrong = [name for name, value in values.items() if np.size(value) != 1]
    if wrong or not values:
        shown = f"more or less than one number as {', '.join(wrong)}" if wrong else repr(found)
        raise SettingsError(
            f"metrics() of the program {program.path} returned {shown}, but must return {{name: number}} "
            "with one or more names. Fix: return for example {'error': float(…)}"
        )
    return [str(name) for name in values]


def check_metric(program: TrainingProgram, keep_best: str, scores: Collection[str]) -> None:
    """Raise `SettingsError` if training.keepBest is not the name of a score that the program's metrics() returns.

    Args:
        program: the training program.
        keep_best: training.keepBest; empty if it is not set.
        scores: names of the scores; empty if they are not known yet. In this case the function does nothing.
    """
    if keep_best and scores and keep_best not in scores:
        raise setting_error(
            "training.keepBest",
            keep_best,
            f"one of {', '.join(scores)}",
            f"metrics() of the program {program.path} returns no other score",
            "Set one of them, or leave training.keepBest and training.patience out",
        )


def _wrong(program: TrainingProgram, what: str, fix: str) -> SettingsError:
    return SettingsError(f"network() of the program {program.path} {what}. Fix: {fix}. {SHAPES}")


def _format_shape(shape: Any) -> str:
    return f"[{', '.join('batch' if size == -1 else str(size) for size in shape)}]"


NO_FORWARD = 1 | 2 | 16  # bits of an operator's role: it belongs to gradients, optimizer or learning rate


class _Rule(NamedTuple):
    """Describes operators or parameters that a network must not have, and the message about them."""

    rejects: Callable[..., Any]
    """Takes an operator or a parameter, and returns a true value if the network must not have it."""
    what: str
    """The reason. In the message, it follows the name of the operator or parameter."""
    fix: str
    """The fix, without `Fix:`."""


OPERATORS = (
    _Rule(
        lambda op: op.has_attr("sub_block"),
        "is a loop or a branch in the graph, which the servers cannot build",
        "use paddle.where, or a Python loop in network()",
    ),
    _Rule(
        lambda op: any(op.has_attr(key) and op.attr(key) is True for key in ("is_sparse", "is_distributed")),
        "uses sparse gradients (sparse=True or is_sparse=True), which servers have for job.embedding only",
        "use job.embedding, or remove sparse=True",
    ),
    _Rule(
        lambda op: int(op.attr("op_role")) & NO_FORWARD,
        "calculates gradients or updates parameters itself (paddle.static.gradients, minimize, "
        "ExponentialMovingAverage, …), which fails in trainers with servers",
        "remove it: the launcher adds gradients and optimizer() to the network",
    ),
    _Rule(
        lambda op: op.type == "data_norm",
        "uses data_norm, whose statistics are not in checkpoints",
        "use paddle.static.nn.batch_norm, or normalize the numbers in parse()",
    ),
)
PARAMETERS = (
    _Rule(
        lambda parameter: parameter.optimize_attr["learning_rate"] != 1.0,
        "has its own learning_rate (ParamAttr), but the servers have one for all parameters",
        "remove learning_rate from its ParamAttr; trainable=False keeps a parameter as it is",
    ),
    _Rule(
        lambda parameter: coefficient(parameter.regularizer),
        "has a regularizer (ParamAttr), but the servers apply none",
        "remove it, and add the penalty to the loss that network() returns",
    ),
    _Rule(
        lambda parameter: parameter.dtype != paddle.float32,
        "is not float32, but the servers have only such parameters",
        'create it with dtype="float32"; paddle.cast converts values',
    ),
)
STATE = _Rule(
    bool,
    "is changed by the network in each batch, but servers, checkpoints and exported models do not have the change",
    "calculate it from the batch, or in parse()",
)
CLIP = _Rule(bool, "is clipped by set_gradient_clip, which fails with the servers' tables", "remove it")
PYTHON = _Rule(bool, "runs a Python function, which exported models do not have", "use it in the loss only")


def check_network(program: TrainingProgram, network: BuiltNetwork) -> None:
    """Raise `SettingsError` for the first operator or parameter that breaks one of the rules of this module (`_Rule`).

    Also set `network.untrained` and `network.statistics`.
    """
    block, tables = network.main.global_block(), {table.name for table in network.tables}

    def reject(rule: _Rule, subject: str, op: Any = None) -> None:
        line = "" if op is None else innermost_line(program.path, "\n".join(op.attr("op_callstack")))
        where = f"{subject}{line and f' at {line}'}"
        raise SettingsError(
            f"network() of the program {program.path}: {where} {rule.what}. Fix: {rule.fix}. "
            "See launcher/programs/README.md#limits-of-the-servers"
        )

    parameters = {parameter.name for parameter in network.main.all_parameters()}
    for op in block.ops:
        names = [name for name in op.input_arg_names if name in parameters]
        for rule in OPERATORS:
            if not tables.intersection(names) and rule.rejects(op):
                reject(rule, " ".join([f"operator {op.type}", *names]), op)
    clipped = {p.name for p in network.main.all_parameters() if getattr(p, "gradient_clip_attr", None)}
    if clipped_tables := sorted(clipped & tables):
        reject(CLIP, f"embedding {clipped_tables[0]!r}")
    for parameter in (trained := _trained(network)):
        for rule in PARAMETERS:
            if parameter.name not in tables and rule.rejects(parameter):
                reject(rule, f"parameter {parameter.name!r}")
    network.untrained = sorted({*network.dense()}.difference(parameter.name for parameter in trained))
    exported = network.names_needed([network.prediction])
    needed = network.names_needed([network.prediction, network.loss])
    for op in block.ops:
        if op.type == "py_func" and exported.intersection(op.output_arg_names):
            reject(PYTHON, "operator py_func", op)
        for name in sorted(needed.intersection(op.output_arg_names)):  # in the same order on all ranks
            if not block.var(name).persistable:
                continue
            if op.type != "batch_norm" or name not in network.untrained:
                reject(STATE, f"variable {name!r}", op)
            network.statistics.append(name)


def _trained(network: BuiltNetwork) -> list[Any]:
    """Return the parameters for which the loss has a gradient."""
    copy = network.main.clone()
    with paddle.static.program_guard(copy, paddle.static.Program()):
        return [pair[0] for pair in paddle.static.append_backward(copy.global_block().var(network.loss.name))]


Kind = Literal["remote", "served"]


def prepare_paddle(seed: int) -> None:
    """Set up Paddle before a process builds its network: fast kernels, static graphs, random seed.

    Raises:
        SettingsError: PaddlePaddle has another version than 2.6.2.
    """
    paddle_inference.prefer_avx2()
    paddle_internals.check_version()
    paddle.enable_static()
    paddle.seed(seed)


@dataclass
class BuiltNetwork:
    """Holds a network as Paddle's static programs, its prediction and loss, and its look-ups in embedding tables."""

    main: Any
    startup: Any
    prediction: Any
    loss: Any
    tables: list[EmbeddingTable] = field(default_factory=list)
    ids: Mapping[str, int] = field(default_factory=dict)
    """Name of each table → the number of ids that a row looks up in it, with padding."""
    lookups: list[tuple[str, Any, Any]] = field(default_factory=list)
    """For each look-up: name of the table, variable of the ids, and variable of the vectors, which is an input of the
    network. Empty for the kind `remote`."""

    untrained: list[str] = field(default_factory=list)
    """Names of the parameters for which the loss has no gradient. The servers do not have them, so each trainer keeps
    its own values."""
    statistics: list[str] = field(default_factory=list)
    """Names of those parameters in `untrained` that each batch changes: moving means and variances of batch_norm."""
    rules: Mapping[str, OptimizerRule] = field(default_factory=dict)
    """Name of each table → its optimizer. `build_training_graph` sets this field."""

    @property
    def shapes(self) -> dict[str, RowShape]:
        """Return the shape of the rows in each table, by the table's name."""
        return {table.name: RowShape(table.width, self.rules[table.name].kind) for table in self.tables}

    def dense(self) -> list[str]:
        """Return the names of the parameters that are not embedding tables."""
        tables = {table.name for table in self.tables}
        return [p.name for p in self.main.all_parameters() if p.name not in tables]

    def names_needed(self, outputs: Iterable[Any]) -> set[str]:
        """Return the names of the variables `outputs`, and of all variables from which the network calculates them."""
        needed = {output.name for output in outputs}
        for operator in reversed(self.main.global_block().ops):
            if needed.intersection(operator.output_arg_names):
                needed.update(operator.input_arg_names)
        return needed


def build_network(program: TrainingProgram, kind: Kind) -> BuiltNetwork:
    """Build a network of one kind by calling the program's network(). Parameters have the same names in both kinds.

    Raises:
        SettingsError: network() failed, or the network cannot be trained.
    """
    main, startup = paddle.static.Program(), paddle.static.Program()
    tables: dict[str, EmbeddingTable] = {}
    lookups: list[tuple[str, Any, Any]] = []
    asked: Counter[str] = Counter()

    def embed(ids: Any, width: int, name: str, *more: Any) -> Any:
        spread, weights, pool, optimizer, admit, evict = more
        rule = None if optimizer is None else optimizer_rule(optimizer, name)
        table = EmbeddingTable(name, width, spread, rule, admit, evict)
        if name not in tables and name in main.global_block().vars:
            what = "an input" if name in program.inputs else "a parameter or variable"
            raise ValueError(
                f"embedding {name!r} has the same name as {what} of the network. Fix: give the table another name"
            )
        _check(table, tables.setdefault(name, table))
        asked[name] += ids.shape[1]
        if kind == "served":
            vectors = paddle.static.data(f"vectors@{len(lookups)}", [None, ids.shape[1], width], "float32")
            vectors.stop_gradient = False  # launcher/trainer/single_process trains these vectors
            lookups.append((name, ids, vectors))
            return _pool(vectors, ids, weights, pool)
        attr = paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Uniform(-spread, spread))
        flat = paddle.reshape(ids, [-1, 1])  # the servers' look-up needs a last dimension of 1
        found = paddle.static.nn.sparse_embedding(flat, [1, width], padding_idx=0, param_attr=attr)
        return _pool(paddle.reshape(found, [-1, ids.shape[1], width]), ids, weights, pool)

    program.job.embed = embed
    try:
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            variables = {}
            for name, shape in program.inputs.items():
                if isinstance(shape, Ids):
                    variables[name] = paddle.static.data(name, [None, shape.length], "int64")
                else:
                    variables[name] = paddle.static.data(name, [None, shape.width], "float32")
            with program.calling("network()"):
                returned = program.module.network(variables, program.job)
                prediction, loss = check_outputs(program, returned)
    finally:
        program.job.embed = None
    check_broadcasts(program, main)
    network = BuiltNetwork(main, startup, prediction, loss, list(tables.values()), asked, lookups)
    if not network.dense():
        raise SettingsError(
            f"network() of the program {program.path} has no parameter except its embeddings, but Paddle's servers "
            "need at least one. Fix: add a bias, as launcher/programs/quick_start/trainer_config.py does"
        )
    with program.calling("network()"):
        check_network(program, network)
    if len(network.dense()) == len(network.untrained):
        raise SettingsError(
            f"the loss depends on no parameter of network() of the program {program.path} except embeddings. Fix: "
            "calculate the loss from the prediction, and train at least one more parameter, such as a bias"
        )
    return network


def _check(table: EmbeddingTable, first: EmbeddingTable) -> None:
    """Raise `ValueError` if the arguments of a call of `Job.embedding` are invalid.

    `table` has the arguments of this call, `first` has those of the first call with the same name. They must be equal.
    """
    if table != first:
        raise ValueError(
            f"embedding {table.name!r} has different arguments in two calls: {first} and {table}. Fix: use "
            "the same arguments, or two names"
        )
    if table.name in {"", ".", ".."}:
        raise ValueError(
            f"embedding has the name {table.name!r}, which cannot be a folder in checkpoints. Fix: use another name"
        )
    for key in ("width", "admit", "evict"):
        if (value := getattr(table, key)) is not None and value < 1:
            raise ValueError(
                f"embedding {table.name!r} has {key}={value}, but must have at least 1. Fix: set {key} to 1 or more"
            )


def _pool(vectors: Any, ids: Any, weights: Any, pool: str | None) -> Any:
    """Multiply the looked-up vectors by weights, and pool the vectors of each row.

    Args:
        vectors: the vectors, shape [batch, length, width].
        ids: the ids, shape [batch, length]; 0 is padding.
        weights: the weights, shape [batch, length]; None: all weights are 1.
        pool: "sum", "mean" (with weights the weighted mean, always without padding), or None for no pooling.

    Returns:
        The pooled vectors, shape [batch, width]; without pooling shape [batch, length, width].
    """
    if pool not in (None, "sum", "mean"):
        raise ValueError(
            f"embedding() has pool={pool!r}, but must have 'sum', 'mean' or None. Fix: set pool to one of them"
        )
    if weights is not None:
        vectors = paddle.multiply(vectors, paddle.unsqueeze(weights, -1))
    if pool is None:
        return vectors
    total = paddle.sum(vectors, axis=1)
    if pool == "sum":
        return total
    each = paddle.cast(ids != 0, "float32")
    if weights is not None:
        each = paddle.multiply(each, weights)
        count = paddle.sum(each, axis=1, keepdim=True)
        return paddle.divide(total, paddle.where(count == 0, paddle.ones_like(count), count))
    return paddle.divide(total, paddle.clip(paddle.sum(each, axis=1, keepdim=True), min=1.0))


MERGED = 12  # in mode async a message has the gradients of up to 12 batches (pserver_push_sparse_merge_limit)


def check_message_sizes(network: BuiltNetwork, batch_size: int, mode: str, limit: int) -> None:
    """Raise `SettingsError` if a message between a trainer and a server could be longer than `limit` bytes.

    `batch_size` is training.batchSize, `mode` is training.mode.
    """
    for table in network.tables:
        row = network.ids[table.name] * (8 + 4 * (table.width + 3)) * (MERGED if mode == "async" else 1)
        if batch_size * row > limit:
            raise setting_error(
                "training.batchSize",
                batch_size,
                f"at most {limit // row}",
                f"with {network.ids[table.name]} ids per row in the table {table.name} of width "
                f"{table.width}, a message to a server could be longer than {limit} bytes",
                "Set a smaller training.batchSize, or use fewer ids per row in the program",
            )


def build_training_graph(
    program: TrainingProgram, role: Any, mode: str, batch_size: int, shards: int
) -> BuiltNetwork:
    """Build the network with the operators and tables for training with pservers.

    Call `prepare_paddle` before. In a trainer, this function connects to all other trainers and waits for them, because
    `fleet.init` does so. In a pserver, and with the role of a single process, it contacts no other process.

    Args:
        program: the training program.
        role: Paddle's role maker of this process.
        mode: training.mode.
        batch_size: training.batchSize.
        shards: number of shards of each table.

    Raises:
        SettingsError: the program cannot be trained by Paddle's servers.
    """
    limit = paddle_internals.raise_message_limit()
    network = build_network(program, "remote")
    check_message_sizes(network, batch_size, mode, limit)
    fleet.init(role)
    with program.calling("optimizer()"):
        optimizer = program.module.optimizer(program.job)
        rule = optimizer_rule(optimizer)
    network.rules = {table.name: table.rule or rule for table in network.tables}
    paddle_internals.describe_tables(network.tables, network.rules)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = mode != "sync"
    # At the start Paddle would look every 3 s whether the servers listen. Instead await_ports() waits for them.
    strategy.a_sync_configs = {"launch_barrier": False}
    for table in network.tables:
        config = strategy.sparse_table_configs.add()
        config.table_name, config.table_class, config.shard_num = table.name, "MemorySparseTable", shards
    guard = paddle.static.program_guard(network.main, network.startup)
    quiet = contextlib.redirect_stdout(io.StringIO())  # Paddle prints twenty lines on its tables
    with guard, quiet, program.calling("training of network()"):
        fleet.distributed_optimizer(optimizer, strategy).minimize(network.loss, network.startup)
        # Paddle does not change this program, but makes another one the default program.
        network.main = paddle.static.default_main_program()
        network.startup = paddle.static.default_startup_program()
    return network
