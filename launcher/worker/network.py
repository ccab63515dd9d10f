"""Builds a program's network from one source: for the servers, for geo, and for the model.

`remote`: embedding tables live on the parameter servers only, which make a row when its id is first trained.
`copied`: each trainer has the whole table and exchanges differences (geo).
`served`: no tables at all, looked-up vectors are inputs: the exported model, and training in one process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import paddle

from launcher.errors import SettingsError
from launcher.served import kernels
from launcher.worker import shapes
from launcher.worker.interface import Ids
from launcher.worker.program import Program
from launcher.worker.rules import Rule

Kind = Literal["remote", "copied", "served"]


def begin(seed: int) -> None:
    """Before a process builds its network: Paddle takes the fast kernels, static graphs and this seed."""
    kernels.take_fast()
    paddle.enable_static()
    paddle.seed(seed)


@dataclass(frozen=True)
class Table:
    """One embedding table, float32. What a program says of it: `Job.embedding`."""

    name: str
    width: int
    rows: int | None
    """Of a plain array (geo); None: not said."""
    spread: float
    rule: Rule | None
    """Its own optimizer; None: the program's."""
    admit: int
    evict: int | None


@dataclass
class Network:
    """Programs and the variables that matter in them."""

    main: Any
    startup: Any
    prediction: Any
    loss: Any
    tables: list[Table] = field(default_factory=list)
    ids: Mapping[str, int] = field(default_factory=dict)
    """Ids that a row looks up in each table, padding included."""
    lookups: list[tuple[str, Any, Any]] = field(default_factory=list)
    """`served`: table, ids and vectors (an input) of each use of a table."""
    bounds: list[tuple[Table, Any]] = field(default_factory=list)
    """`copied`: table, and the least and greatest id of a batch, of each use of a table."""

    def dense(self) -> list[str]:
        """Names of the trained parameters that are no embedding table."""
        tables = {table.name for table in self.tables}
        return [p.name for p in self.main.all_parameters() if p.name not in tables]


def build(program: Program, kind: Kind) -> Network:
    """Calls the program's network(). Parameters get the same names in every kind. Raises `SettingsError`."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    tables: dict[str, Table] = {}
    lookups: list[tuple[str, Any, Any]] = []
    asked: Counter[str] = Counter()
    bounds: list[tuple[Table, Any]] = []

    def embed(ids: Any, width: int, name: str, *more: Any) -> Any:
        rows, spread, weights, pool, optimizer, admit, evict = more
        rule = None if optimizer is None else Rule.of(optimizer)
        table = Table(name, width, rows, spread, rule, admit, evict)
        if name not in tables and name in main.global_block().vars:
            what = "an input" if name in program.inputs else "a parameter or variable"
            raise ValueError(
                f"embedding {name!r} has the name of {what} of the network. Give the table a name of its own"
            )
        _check(table, tables.setdefault(name, table), kind)
        asked[name] += ids.shape[1]
        if kind == "served":
            vectors = paddle.static.data(f"vectors@{len(lookups)}", [None, ids.shape[1], width], "float32")
            vectors.stop_gradient = False  # launcher/worker/single.py trains what is put in here
            lookups.append((name, ids, vectors))
            return _pooled(vectors, ids, weights, pool)
        attr = paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Uniform(-spread, spread))
        flat = paddle.reshape(ids, [-1, 1])  # the servers' lookup wants a last dimension of 1
        if kind == "remote":
            found = paddle.static.nn.sparse_embedding(flat, [1, width], padding_idx=0, param_attr=attr)
        else:
            # Paddle looks an id that is beyond the table up in whatever memory is there.
            bounds.append((table, paddle.stack([paddle.min(flat), paddle.max(flat)])))
            flat = paddle.clip(flat, 0, rows - 1)
            # Paddle's Adam walks through all rows beside those of the batch's gradient, and behind the last
            # of these it reads whatever memory is there: a row's gradient was NaN, and so was the next loss.
            # With the table's last row in each gradient, of zeros, there is nothing behind it.
            flat = paddle.concat([flat, paddle.full([1, 1], rows - 1, "int64")])
            found = paddle.static.nn.embedding(
                flat, [rows, width], is_sparse=True, padding_idx=0, param_attr=attr
            )[:-1]
        return _pooled(paddle.reshape(found, [-1, ids.shape[1], width]), ids, weights, pool)

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
                prediction, loss = shapes.check_outputs(program, returned)
    finally:
        program.job.embed = None
    shapes.check_broadcasts(program, main)
    network = Network(main, startup, prediction, loss, list(tables.values()), asked, lookups, bounds)
    if not network.dense():
        raise SettingsError(
            f"network() of the program {program.path} has no parameter besides its embeddings, but Paddle's "
            "servers need at least one: add a bias, as launcher/programs/quick_start/trainer_config.py does."
        )
    return network


def _check(table: Table, first: Table, kind: Kind) -> None:
    """Raises `ValueError` for a table that cannot be."""
    if table != first:
        raise ValueError(f"embedding {table.name!r} is told in two ways: {first} and {table}. Tell it in one")
    for key, value in (
        ("width", table.width),
        ("rows", table.rows),
        ("admit", table.admit),
        ("evict", table.evict),
    ):
        if value is not None and value < 1:
            raise ValueError(f"embedding {table.name!r} has {key}={value}, but it must be at least 1")
    if kind != "copied":
        return
    if table.rows is None:
        raise ValueError(
            f"embedding {table.name!r} has no rows, but with training.mode geo each trainer keeps the whole "
            "table: give rows=…, a number above all ids, or take training.mode async or sync"
        )
    for key, given in (
        ("optimizer", table.rule is not None),
        ("admit", table.admit > 1),
        ("evict", table.evict is not None),
    ):
        if given:
            raise ValueError(
                f"embedding {table.name!r} has {key}, but training.mode is geo: each trainer keeps the table "
                f"itself and has no such thing. Leave {key} out, or take training.mode async or sync"
            )


def _pooled(vectors: Any, ids: Any, weights: Any, pool: str | None) -> Any:
    """[batch, length, width] times [batch, length], and to [batch, width] if it is to be pooled."""
    if pool not in (None, "sum", "mean"):
        raise ValueError(f"embedding() has pool={pool!r}, but it must be 'sum', 'mean' or None")
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
