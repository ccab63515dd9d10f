"""Fixtures: a copy of the program, a stack file, and an emulated account."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infra import iam_policies
from testkit import program_copy
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.pulumi_engine import Engine
from tests.aws_emulator.conftest import account, moto

__all__ = ["account", "dev_stack", "moto"]  # fixtures of the emulator that tests of this folder use


@pytest.fixture
def dev_stack(account: Account, tmp_path: Path) -> Callable[..., Engine]:
    """Return a function that creates a stack with the settings of `dev` and `key=value` changes.

    The emulated account allows only what the deployer's policy allows.
    """
    project = program_copy.copy_program(tmp_path / "project")
    account.grant(iam_policies.deployer())

    def make(name: str = "dev", *changes: str) -> Engine:
        program_copy.add_dev_stack(project, name)
        engine = Engine(project, name, tmp_path / "home", account.folder).init()
        if changes:
            engine.config(*[f"paddle-training:{change}" for change in changes])
        return engine

    return make
