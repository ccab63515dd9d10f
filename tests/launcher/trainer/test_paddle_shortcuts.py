"""Tests that the functions which replace two of Paddle's return the same as Paddle's own."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

import pytest

from .conftest import load, write_program
from .test_embedding_tables import PROGRAM

pytestmark = pytest.mark.paddle
SUM = "        loss = loss + paddle.mean(paddle.sum(vectors[:, :, :4] * slopes, axis=[1, 2]))"


def test_the_replaced_functions_of_paddle_give_the_same_operators_and_the_same_line(tmp_path: Path) -> None:
    import paddle
    from paddle.distributed.ps.utils import public
    from paddle.incubate.distributed.fleet.parameter_server.ir import public as same_functions

    from launcher.trainer.graph import paddle_shortcuts
    from launcher.trainer.graph.network_builder import build_network

    paddle.enable_static()
    paddle_shortcuts.install_shortcuts()
    path = write_program(tmp_path / "own", PROGRAM)
    program = load(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network = build_network(program, "remote")
    [first, *_] = [str(warning.message) for warning in caught if "(X, Y, axis=-1)" in str(warning.message)]
    line = 1 + path.read_text().splitlines().index(SUM)
    assert first.startswith(f"{path}:{line}\n")

    with paddle.static.program_guard(network.main, network.startup):
        program.module.optimizer(program.job).minimize(network.loss)
    operators = network.main.global_block().ops
    expected = [operator for operator in operators if same_functions._is_opt_role_op(operator)]
    assert 0 < len(expected) < len(operators)
    assert public.get_optimize_ops(network.main) == expected


def test_find_caller_returns_the_file_and_line_that_inspect_does() -> None:
    from launcher.trainer.graph.paddle_shortcuts import find_caller

    def operator() -> tuple[list[object], list[object]]:
        return [entry[1:3] for entry in inspect.stack()[:2]], [entry[1:] for entry in find_caller()]

    by_inspect, found = operator()
    assert found == by_inspect
