"""Builds a program's network three times from one source: for the servers, for geo, and alone.

`remote`: embedding tables live on the parameter servers only, rows are made when first touched.
`copied`: each trainer has the whole table and exchanges differences (geo).
`alone`: plain parameters, no server: the exported model and the one-process baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import paddle

from launcher.errors import SettingsError
from launcher.worker.interface import Ids
from launcher.worker.program import Program

Kind = Literal["remote", "copied", "alone"]


@dataclass(frozen=True)
class Table:
    """One embedding table: rows x width, float32."""

    name: str
    rows: int
    width: int


@dataclass
class Network:
    """Programs and the variables that matter in them."""

    main: Any
    startup: Any
    prediction: Any
    loss: Any
    tables: list[Table] = field(default_factory=list)

    def dense(self) -> list[str]:
        """Names of the trained parameters that are no embedding table."""
        tables = {table.name for table in self.tables}
        return [p.name for p in self.main.all_parameters() if p.name not in tables]


def build(program: Program, kind: Kind) -> Network:
    """Calls the program's network(). Parameters get the same names in every kind. Raises `SettingsError`."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    tables: list[Table] = []

    def embed(ids: Any, rows: int, width: int, name: str, spread: float) -> Any:
        if name in {table.name for table in tables}:
            raise ValueError(f"two embeddings are called {name!r}")
        tables.append(Table(name, rows, width))
        attr = paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Uniform(-spread, spread))
        flat = paddle.reshape(ids, [-1, 1])  # the servers' lookup wants a last dimension of 1
        if kind == "remote":
            found = paddle.static.nn.sparse_embedding(flat, [rows, width], param_attr=attr)
        else:
            sparse = kind == "copied"
            found = paddle.static.nn.embedding(flat, [rows, width], is_sparse=sparse, param_attr=attr)
        return paddle.reshape(found, [-1, ids.shape[1], width])

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
                prediction, loss = program.module.network(variables, program.job)
    finally:
        program.job.embed = None
    network = Network(main, startup, prediction, loss, tables)
    if not network.dense():
        raise SettingsError(
            f"network() of the program {program.path} has no parameter besides its embeddings, but Paddle's "
            "servers need at least one: add a bias, as launcher/programs/quick_start/trainer_config.py does."
        )
    return network
