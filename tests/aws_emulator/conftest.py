"""Fixtures: one moto server for all tests, and an empty account for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.aws_emulator import pulumi_engine
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.resource_model import Model


@pytest.fixture(scope="session")
def moto() -> str:
    """Return the address of the moto server that all folders of tests share."""
    return pulumi_engine.shared_moto_server()


@pytest.fixture
def account(moto: str, tmp_path: Path) -> Account:
    """Return an empty account whose clusters have a token."""
    pulumi_engine.reset_moto(moto)
    (tmp_path / "token").write_text("let-me-in\n", encoding="utf-8")
    cluster = {"server": "https://127.0.0.1:6443", "ca": "Q0E=", "tokenFile": str(tmp_path / "token")}
    return Account.create(tmp_path / "account", moto=moto, cluster=cluster)


@pytest.fixture
def model(account: Account) -> Model:
    """Return a configured provider with one default tag."""
    return Model(account, pulumi_engine.REGION, {"Project": "emulated"})
