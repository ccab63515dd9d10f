"""One moto server for all tests that ask for it; an empty account for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aws_emulator import workbench
from tests.aws_emulator.account import Account
from tests.aws_emulator.model import Model


@pytest.fixture(scope="session")
def moto() -> str:
    """Address of a moto server, the same for all folders whose tests ask for one."""
    return workbench.shared_moto_server()


@pytest.fixture
def account(moto: str, tmp_path: Path) -> Account:
    """An empty account whose clusters have a token."""
    workbench.reset(moto)
    (tmp_path / "token").write_text("let-me-in\n", encoding="utf-8")
    cluster = {"server": "https://127.0.0.1:6443", "ca": "Q0E=", "tokenFile": str(tmp_path / "token")}
    return Account.create(tmp_path / "account", moto=moto, cluster=cluster)


@pytest.fixture
def model(account: Account) -> Model:
    """A configured provider with one default tag."""
    return Model(account, workbench.REGION, {"Project": "emulated"})
