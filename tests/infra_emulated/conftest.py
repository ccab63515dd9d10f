"""The program itself, copied beside a stack's own files, in front of an emulated account."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infra import policies
from tests.aws_emulator.account import Account
from tests.aws_emulator.conftest import account, moto
from tests.aws_emulator.workbench import Engine
from tests.infra_emulated import program

__all__ = ["account", "dev_stack", "moto"]  # the emulator's fixtures, for the tests of this folder


@pytest.fixture
def dev_stack(account: Account, tmp_path: Path) -> Callable[..., Engine]:
    """Make a stack with the settings of `dev` (and `key=value` changes) in a copy of the program.

    The caller may do what the deployer's policy says, and nothing else.
    """
    project = program.copy(tmp_path / "project")
    account.grant(policies.deployer())

    def make(name: str = "dev", *changes: str) -> Engine:
        program.add_stack(project, name)
        engine = Engine(project, name, tmp_path / "home", account.folder).init()
        if changes:
            engine.config(*[f"paddle-training:{change}" for change in changes])
        return engine

    return make
