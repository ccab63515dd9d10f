"""Fixtures: a copy of the program, a stack file, and an emulated account."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infra import iam_policies, naming
from infra.settings import DnsSettings, IamSettings
from testkit import program_copy
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.pulumi_engine import Engine
from tests.aws_emulator.conftest import account, moto

__all__ = ["account", "dev_stack", "moto"]  # fixtures of the emulator that tests of this folder use


@pytest.fixture
def dev_stack(account: Account, tmp_path: Path) -> Callable[..., Engine]:
    """Return a function that creates a stack with the settings of `dev` and `key=value` changes.

    The emulated account allows only what the deployer's policies of these stacks allow.
    """
    project = program_copy.copy_program(tmp_path / "project")
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
        program_copy.add_dev_stack(project, name)
        engine = Engine(project, name, tmp_path / "home", account.folder).init()
        if changes:
            engine.config(*[f"paddle-training:{change}" for change in changes])
        return engine

    return make
