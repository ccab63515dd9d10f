"""Reject networks that Paddle 2.6.2's parameter servers would train differently than one process does.

The servers ignore attributes of single parameters without a word, and crash on other things in the first batch. So
every process that builds a network checks it with the rules of this module: `try`, the checks of `run`, and the pods.
The rules for optimizers are in `table_optimizers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import paddle

from launcher.errors import SettingsError
from launcher.trainer.graph.table_optimizers import coefficient
from launcher.trainer.program_loader import TrainingProgram, innermost_line

NO_FORWARD = 1 | 2 | 16  # bits of an operator's role: gradient, optimizer, learning rate


class _Rule(NamedTuple):
    """Rejects an operator or a parameter; texts follow `network() of the program …` and the name."""

    rejects: Callable[..., Any]
    """Takes the operator or the parameter."""
    what: str
    fix: str


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


def check_network(program: TrainingProgram, network: Any) -> None:
    """Raise `SettingsError` for the first operator or parameter that the servers cannot train; see the rules above.

    `network` is a `network_builder.BuiltNetwork`. Also set its `untrained` and `statistics`.
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
    for parameter in (trained := _trained(network)):
        for rule in PARAMETERS:
            if parameter.name not in tables and rule.rejects(parameter):
                reject(rule, f"parameter {parameter.name!r}")
    network.untrained = sorted({*network.dense()}.difference(parameter.name for parameter in trained))
    needed = network.names_needed([network.prediction, network.loss])
    for op in block.ops:
        for name in needed.intersection(op.output_arg_names):
            if not block.var(name).persistable:
                continue
            if op.type != "batch_norm" or name not in network.untrained:
                reject(STATE, f"variable {name!r}", op)
            network.statistics.append(name)


def _trained(network: Any) -> list[Any]:
    """Return the parameters to which the loss gives a gradient."""
    copy = network.main.clone()
    with paddle.static.program_guard(copy, paddle.static.Program()):
        return [pair[0] for pair in paddle.static.append_backward(copy.global_block().var(network.loss.name))]
