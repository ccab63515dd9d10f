"""A project folder with a stack, and an account in this process (moto): no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from aws.stack import Stack, clients, read

ROOT = Path(__file__).resolve().parents[2]
REGION = "us-west-2"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up credentials, and never a person's own."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def account() -> Iterator[None]:
    """An emulated account, empty but for its default VPC."""
    with mock_aws():
        yield


@pytest.fixture
def dev() -> Callable[..., Stack]:
    """Stack dev of this repository with `key=value` changes."""

    def make(*changes: str) -> Stack:
        return read("dev", ["cluster.admins=[role/Admin]", *changes])

    return make


@pytest.fixture(scope="session")
def client():
    """Clients of the region, made once for all tests, since each takes a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        known = clients(REGION)
        for service in ("ec2", "ecr", "s3", "kms", "sts", "route53", "resourcegroupstaggingapi"):
            known(service)
    return known
